"""The results of minibert.parity for ports with known mistakes: found or not, and under which name.

    python -m benchmarks.mistakes [--write] [--models odd,modernbert] [--dumps "all names"] [--keep FILE]

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
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.readme import publish, table_parser
from minibert import BertModel
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.mistake import Mistake
from tests.support.mistakes import CRITERIA, DUMPS, Judged, Subject, subjects, try_mistakes


class Kept:
    """The results that a file has, by model, dump and mistakes; None for mistakes that change nothing in a dump."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.results: dict[tuple[str, str, tuple[str, ...]], Judged | None] = {}
        if path is None or not path.is_file():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            key, fields = json.loads(line)
            result = fields and Judged(**{**fields, "ids": tuple(fields["ids"]), "passed": tuple(fields["passed"])})
            self.results[key[0], key[1], tuple(key[2])] = result

    def try_mistakes(self, subject: Subject, dump: str, mistakes: Sequence[Mistake]) -> Judged | None:
        """Return the kept result; without one, compute it and keep it (without the findings, which no table has)."""
        key = (subject.name, dump, tuple(mistake.id for mistake in mistakes))
        if key not in self.results:
            result = self.results[key] = try_mistakes(subject, dump, mistakes)
            if self.path is not None:
                fields = result and dataclasses.asdict(dataclasses.replace(result, findings=[]))
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, fields]) + "\n")
        return self.results[key]


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


def table(results: Sequence[Judged]) -> list[str]:
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


def criteria_table(results: Sequence[Judged]) -> list[str]:
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
    parser.add_argument("--models", default="odd,large,MiniLM,nomic_bert,modernbert", help="some of the five")
    parser.add_argument("--dumps", default=",".join(DUMPS), help="some of the four dumps")
    parser.add_argument("--several", type=int, default=20, help="how many sets of two, and of three mistakes")
    parser.add_argument("--keep", type=Path, help="a file of results; what it has is not computed again")
    options = parser.parse_args(arguments)
    kept = Kept(options.keep)
    results: list[Judged] = []
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
