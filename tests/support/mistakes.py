"""Ports of BERT with known mistakes, which tests and benchmarks let minibert.parity judge."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert import AutoModel, BertModel
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.causes import diagnose
from minibert.parity.diagnosis.mistake import Mistake, Recipe, part_mistake
from minibert.parity.diagnosis.simulation import forward_values, simulate
from minibert.parity.finding import Finding
from minibert.parity.symbols import DENSE
from minibert.parity.truth import VECTOR, InapplicableError, Padded, Unit, mask_of, rms, unmasked
from tests.support.random_checkpoints import ODD, random_checkpoint, random_successor

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
        subject = cls(name, model, inputs, padded, truth, {})
        for key in truth:
            subject.unit[key] = Unit.of(subject.seen(key, truth), [subject.seen(key, one) for one in plain]).rms
        return subject

    def seen(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the visible places of an array."""
        return unmasked(np.asarray(arrays[name], np.float64), mask_of(name, self.padded.mask))

    def port(
        self, *mistakes: str | Mistake, dump: str | Sequence[str] = "*", **inputs: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the dump of a port with mistakes, whose sums are in another order; `inputs` are in place of others."""
        record = DUMPS.get(dump, [dump]) if isinstance(dump, str) else dump
        return simulate(self.model, {**self.inputs, **inputs}, [ODD_FIRST, *mistakes], record=record)

    def ratio(self, name: str, array: np.ndarray) -> float:
        """Return an error in units."""
        with np.errstate(all="ignore"):
            return rms(self.seen(name, {name: array}) - self.seen(name, self.truth)) / self.unit[name]

    def diagnose(self, port: Mapping[str, np.ndarray], rows: Sequence[str] = ()) -> list[Finding]:
        """Return what `minibert.parity` says about a port."""
        wrong = [name for name, array in port.items() if not self.ratio(name, array) <= BUDGET]
        return diagnose(self.model, self.padded, port, wrong, budget=BUDGET, recipe=_RECIPE, rows=rows)


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
    for family in filter(chosen.__contains__, ("nomic_bert", "modernbert")):
        ids = {f"{name}_token_id": i for i, name in enumerate(("pad", "bos", "eos", "cls", "sep"))}
        fields = {**ODD, **ids, "hidden_act": "silu", "num_hidden_layers": 4, "initializer_range": 0.2}
        rope = {"rope_type": "linear", "rope_theta": 300.0, "factor": 1.5}
        fields |= {"local_attention": 8} if family == "modernbert" else {"rope_parameters": rope}
        random_successor(folder / family, family, **fields)
        model = AutoModel.from_pretrained(folder / family, backend="numpy")
        yield Subject.of(f"{family} 4 x 84", model, 17, model.config.type_vocab_size)


@dataclasses.dataclass(frozen=True)
class Judged:
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
    passed = []
    with np.errstate(all="ignore"):
        pairs = [(subject.seen(name, port), subject.seen(name, subject.truth)) for name in port]
        cosines = [float(a @ b / np.sqrt((a @ a) * (b @ b))) for a, b in pairs if b.any()]
        for bar in (0.99, 0.999):
            if all(cosine >= bar for cosine in cosines):
                passed.append(f"cosine >= {bar}")
        for limit in (1e-3, 1e-4):
            if all(np.allclose(a, b, rtol=1e-5, atol=limit) for a, b in pairs):
                passed.append(f"allclose({limit:g})")
    return tuple(passed)


CRITERIA = ("cosine >= 0.99", "cosine >= 0.999", "allclose(0.001)", "allclose(0.0001)")


def try_mistakes(subject: Subject, dump: str, mistakes: Sequence[Mistake]) -> Judged | None:
    """Simulate a port and diagnose it; None if the mistakes change nothing in this dump."""
    try:
        port = subject.port(*mistakes, dump=dump)
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
            rest = {name: rms(subject.seen(name, same) - subject.seen(name, exact)) for name in port}
            if max(rest[name] / subject.unit[name] for name in port) <= BUDGET / 4:
                verdict = "first"
        except (KeyError, InapplicableError):
            pass
    return Judged(subject.name, dump, ids, detected, verdict, passes(subject, port), seconds, findings)


def try_nothing(subject: Subject, mistake: Mistake, names: Iterable[str]) -> bool:
    """Return whether a mistake alone changes nothing in a dump."""
    exact = forward_values(subject.model, subject.padded, [mistake], dtype=np.float64)
    return max(subject.ratio(name, exact[name]) for name in names) <= BUDGET / 4
