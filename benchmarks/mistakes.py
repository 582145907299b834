"""The results of minibert.parity for ports with known mistakes: found or not, and under which name.

    python -m benchmarks.mistakes [--write] [--models odd,large,MiniLM] [--dumps "all names"] [--keep FILE]

A port is simulated with each mistake of the catalogue. It computes in float32, with sums in another order than the
forward that sets the unit. Four dumps are made of each port: all names, the hidden states, the last hidden state, and
one vector per text (mean, length 1). A mistake that cannot change a dump by more than a quarter of the budget, such as
one in the pooler, is not counted there. Last, two and three mistakes at once are drawn at random.

The second table is for the same dumps: how many mistakes pass usual criteria. Each array of a dump must pass.

The slowest diagnosis is in seconds of CPU. All models take an hour. With --keep each result goes into a file at once,
one JSON line each, and a later run with the same file does only what is missing. Each model may have a process of its
own, if each has a file of its own; the lines of the files together are the file of the whole run.
"""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoints import ODD, random_checkpoint
from benchmarks.readme import publish, table_parser
from minibert import BertModel
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.parity.diagnosis.catalogue import MISTAKES, forward_values, simulate
from minibert.parity.diagnosis.causes import diagnose
from minibert.parity.diagnosis.forward import DENSE, Mistake, Recipe, part_mistake
from minibert.parity.finding import Finding
from minibert.parity.truth import VECTOR, InapplicableError, Padded, mask_of, visible

BUDGET = 4.0
DUMPS: dict[str, list[str]] = {
    "all names": ["*"],
    "hidden states": ["hidden_states.*"],
    "last state": ["last_hidden_state"],
    "vector": [VECTOR],
}
_RECIPE = Recipe("mean", "unit")

BACKWARDS = part_mistake(
    DENSE,
    product=lambda inner, here, x, w: inner(here, np.ascontiguousarray(x[:, ::-1]), np.ascontiguousarray(w[:, ::-1])),
)
ODD_FIRST = part_mistake(
    DENSE,
    product=lambda inner, here, x, w: inner(
        *(here, np.concatenate([x[:, 1::2], x[:, ::2]], axis=1), np.concatenate([w[:, 1::2], w[:, ::2]], axis=1))
    ),
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, its inputs, the true values, and the units."""

    name: str
    model: BertModel
    inputs: dict[str, Any]
    padded: Padded
    truth: dict[str, np.ndarray]
    unit: dict[str, float]

    @classmethod
    def of(cls, name: str, model: BertModel, width: int, types: int) -> Subject:
        """Make a probe, and measure."""
        return cls.of_inputs(name, model, probe(model, width, types))

    @classmethod
    def of_inputs(cls, name: str, model: BertModel, inputs: dict[str, Any]) -> Subject:
        """Measure the unit: the larger RMS error of two orders of summation."""
        padded = Padded.of(model.config, inputs)
        truth = forward_values(model, padded, (), dtype=np.float64, recipe=_RECIPE)
        plain = [forward_values(model, padded, order, recipe=_RECIPE) for order in ([], [BACKWARDS])]
        unit = {
            key: max(2.0**-26 * rms(key, true, padded), *(rms(key, one[key] - true, padded) for one in plain))
            for key, true in truth.items()
        }
        return cls(name, model, inputs, padded, truth, unit)

    def ratio(self, name: str, array: np.ndarray) -> float:
        """Return an error in units."""
        return rms(name, array - self.truth[name], self.padded) / self.unit[name]

    def diagnose(self, port: Mapping[str, np.ndarray], rows: Sequence[str] = ()) -> list[Finding]:
        """Return what `minibert.parity` says about a port."""
        wrong = [name for name, array in port.items() if not self.ratio(name, array) <= BUDGET]
        return diagnose(self.model, self.padded, port, wrong, budget=BUDGET, vectors=self.truth[VECTOR], rows=rows)


def rms(name: str, array: np.ndarray, inputs: Padded) -> float:
    with np.errstate(all="ignore"):
        shown = np.square(visible(np.asarray(array, np.float64), mask_of(name, inputs.mask)))
        return float(np.sqrt(np.mean(shown)))


def probe(model: BertModel, width: int, types: int) -> dict[str, Any]:
    """Return five rows: a pair, padding on the right, a hole, padding on the left, another pair."""
    generator = np.random.default_rng(0)
    mask = np.ones((5, width), np.int64)
    mask[1, width // 2 :], mask[2, 4], mask[3, : width // 3], mask[4, -2:] = 0, 0, 0, 0
    segments = (np.arange(width) > width // 2) & np.array([True, False, False, False, True])[:, None]
    ids = generator.integers(5, model.config.vocab_size, size=mask.shape)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (segments & (types > 1)).astype(np.int64)}


def subjects(chosen: Sequence[str], folder: Path) -> Iterator[Subject]:
    """Make the models."""
    if "odd" in chosen:
        random_checkpoint(folder / "odd", **ODD)
        yield Subject.of("odd 3 x 84, gelu_new", BertModel.from_pretrained(folder / "odd", backend="numpy"), 17, 3)
    if "large" in chosen:
        sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 4}
        random_checkpoint(folder / "large", vocab_size=997, initializer_range=0.06, **sizes)
        yield Subject.of("random 4 x 768", BertModel.from_pretrained(folder / "large", backend="numpy"), 11, 2)
    if "MiniLM" in chosen:
        yield Subject.of("MiniLM", BertModel.from_pretrained(DEFAULT_MODEL, backend="numpy"), 14, 2)


@dataclasses.dataclass(frozen=True)
class Result:
    """What was said about one dump of one port."""

    subject: str
    dump: str
    ids: tuple[str, ...]
    detected: bool
    verdict: str
    passed: tuple[str, ...]
    seconds: float
    findings: list[Finding]


def judge(findings: Sequence[Finding], ids: Sequence[str]) -> str:
    """Say how good a diagnosis is: "alone", "first", "in the class", "cannot tell" or "wrong"."""
    named = [finding.candidates for finding in findings]
    if any(candidates and not set(candidates) & set(ids) for candidates in named):
        return "wrong"
    if not any(named):
        return "cannot tell"
    if len(ids) == 1 and len(named) == 1 and named[0] == tuple(ids):
        return "alone"
    if {candidates[0] for candidates in named if candidates} == set(ids):
        return "first"
    return "in the class" if set().union(*named) >= set(ids) else "in part"


def passes(subject: Subject, port: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Return the usual criteria that all arrays of a dump pass."""
    found = []
    mask = subject.padded.mask
    with np.errstate(all="ignore"):
        pairs = [
            tuple(visible(np.asarray(x, np.float64), mask_of(name, mask)) for x in (port[name], subject.truth[name]))
            for name in port
        ]
        cosines = [float(a @ b / np.sqrt((a @ a) * (b @ b))) for a, b in pairs if b.any()]
        for bar in (0.99, 0.999):
            if all(cosine >= bar for cosine in cosines):
                found.append(f"cosine >= {bar}")
        for limit in (1e-3, 1e-4):
            if all(np.allclose(a, b, rtol=1e-5, atol=limit) for a, b in pairs):
                found.append(f"allclose({limit:g})")
    return tuple(found)


CRITERIA = ("cosine >= 0.99", "cosine >= 0.999", "allclose(0.001)", "allclose(0.0001)")


def try_mistakes(subject: Subject, dump: str, mistakes: Sequence[Mistake]) -> Result | None:
    """Simulate a port and diagnose it; None if the mistakes change nothing in this dump."""
    record = DUMPS[dump]
    try:
        port = simulate(subject.model, subject.inputs, [ODD_FIRST, *mistakes], record=record)
        exact = forward_values(subject.model, subject.padded, mistakes, dtype=np.float64, recipe=_RECIPE)
    except (ValueError, InapplicableError):
        return None
    if max(subject.ratio(name, exact[name]) for name in port) <= BUDGET / 4:
        return None
    if len(mistakes) > 1 and any(try_nothing(subject, mistake, port) for mistake in mistakes):
        return None
    detected = any(not subject.ratio(name, port[name]) <= BUDGET for name in port)
    if not detected and all(mistake.is_harmless(subject.model.config) for mistake in mistakes):
        return None
    start = time.process_time()
    findings = subject.diagnose(port)
    seconds = time.process_time() - start
    ids = tuple(mistake.id for mistake in mistakes)
    verdict = judge(findings, ids) if detected else "not detected"
    if verdict == "in the class" and len(mistakes) == len(findings) == 1:
        # Another mistake may give the same numbers: an eps of 1e-5 outside the root, with a config that says 1e-5.
        try:
            same = forward_values(
                subject.model, subject.padded, [MISTAKES[findings[0].mistake]], dtype=np.float64, recipe=_RECIPE
            )
            rest = {name: rms(name, same[name] - exact[name], subject.padded) for name in port}
            if max(rest[name] / subject.unit[name] for name in port) <= BUDGET / 4:
                verdict = "first"
        except (KeyError, InapplicableError):
            pass
    return Result(subject.name, dump, ids, detected, verdict, passes(subject, port), seconds, findings)


class Kept:
    """The results that a file has, by model, dump and mistakes; None for mistakes that change nothing in a dump."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.results: dict[tuple[str, str, tuple[str, ...]], Result | None] = {}
        if path is None or not path.is_file():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            key, fields = json.loads(line)
            result = fields and Result(**{**fields, "ids": tuple(fields["ids"]), "passed": tuple(fields["passed"])})
            self.results[key[0], key[1], tuple(key[2])] = result

    def try_mistakes(self, subject: Subject, dump: str, mistakes: Sequence[Mistake]) -> Result | None:
        """Return the kept result; without one, compute it and keep it (without the findings, which no table has)."""
        key = (subject.name, dump, tuple(mistake.id for mistake in mistakes))
        if key not in self.results:
            result = self.results[key] = try_mistakes(subject, dump, mistakes)
            if self.path is not None:
                fields = result and dataclasses.asdict(dataclasses.replace(result, findings=[]))
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, fields]) + "\n")
        return self.results[key]


def try_nothing(subject: Subject, mistake: Mistake, names: Iterable[str]) -> bool:
    """Return whether a mistake alone changes nothing in a dump."""
    exact = forward_values(subject.model, subject.padded, [mistake], dtype=np.float64)
    return max(subject.ratio(name, exact[name]) for name in names) <= BUDGET / 4


def combinations(model: BertModel, count: int, number: int) -> Iterator[list[Mistake]]:
    """Draw several mistakes at once: of different kinds, none of them harmless, none of low precision."""
    generator = random.Random(count)
    usable = [
        mistake
        for mistake in MISTAKES.values()
        if mistake.parts and mistake.is_for(model) and not (mistake.rounds or mistake.harmless)
        if mistake.kind not in ("D1", "D2", "P1")
    ]
    for _ in range(number):
        kinds: dict[str, Mistake] = {}
        while len(kinds) < count:
            mistake = generator.choice(usable)
            if not any(set(mistake.symbols) & set(other.symbols) for other in kinds.values()):
                kinds.setdefault(mistake.kind, mistake)
        yield list(kinds.values())


def table(results: Sequence[Result]) -> list[str]:
    """Return the table of causes."""
    lines = [
        "| model | dump | ports | detected | cause alone or first | in the class | cannot tell | wrong | slowest |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups = Counter((result.subject, result.dump, len(result.ids)) for result in results)
    for (subject, dump, size), count in groups.items():
        own = [r for r in results if (r.subject, r.dump, len(r.ids)) == (subject, dump, size)]
        verdicts = Counter(result.verdict for result in own)
        first = verdicts["alone"] + verdicts["first"]
        several = "" if size == 1 else f", {size} mistakes at once"
        partly = verdicts["in the class"] + verdicts["in part"]
        counts = f"{count} | {sum(r.detected for r in own)} | {first} ({first / count:.0%}) | {partly}"
        rest = f"{verdicts['cannot tell']} | {verdicts['wrong']} | {max(r.seconds for r in own):.1f} s"
        lines.append(f"| {subject} | {dump}{several} | {counts} | {rest} |")
    return lines


def criteria_table(results: Sequence[Result]) -> list[str]:
    """Return the table of what usual criteria let through."""
    heads = " | ".join(f"`{criterion}`" for criterion in CRITERIA)
    lines = [f"| model | dump | ports | minibert.parity | {heads} |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    single = [result for result in results if len(result.ids) == 1]
    for (subject, dump), count in Counter((result.subject, result.dump) for result in single).items():
        own = [result for result in single if (result.subject, result.dump) == (subject, dump)]
        passed = " | ".join(str(sum(criterion in result.passed for result in own)) for criterion in CRITERIA)
        lines.append(f"| {subject} | {dump} | {count} | {sum(not r.detected for r in own)} | {passed} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all mistakes, print what was not named alone, and the tables."""
    parser = table_parser("mistakes")
    parser.add_argument("--models", default="odd,large,MiniLM", help="some of odd, large, MiniLM")
    parser.add_argument("--dumps", default=",".join(DUMPS), help="some of the four dumps")
    parser.add_argument("--several", type=int, default=20, help="how many sets of two, and of three mistakes")
    parser.add_argument("--keep", type=Path, help="a file of results; what it has is not computed again")
    options = parser.parse_args(arguments)
    kept = Kept(options.keep)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        for subject in subjects(options.models.split(","), Path(folder)):
            for dump in options.dumps.split(","):
                sets: list[list[Mistake]] = [[mistake] for mistake in MISTAKES.values()]
                if dump in ("all names", "hidden states"):
                    sets += [one for count in (2, 3) for one in combinations(subject.model, count, options.several)]
                for mistakes in sets:
                    result = kept.try_mistakes(subject, dump, mistakes)
                    if result is None:
                        continue
                    results.append(result)
                    if result.verdict != "alone" and not (result.verdict == "first" and len(mistakes) > 1):
                        said = "; ".join(" or ".join(finding.candidates) or "?" for finding in result.findings)
                        print(f"{subject.name}, {dump}, {' + '.join(result.ids)}: {result.verdict}: {said}", flush=True)
    lines = [*table(results), "", *criteria_table(results)]
    print("", *lines, sep="\n")
    publish("mistakes", lines, "one process; NumPy's BLAS", write=options.write)
    return 1 if any(result.verdict == "wrong" for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
