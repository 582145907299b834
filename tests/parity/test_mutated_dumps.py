"""Right dumps with one thing changed: none more than 8 units away is called right, none within 1 is called wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from minibert import BertForSequenceClassification, BertModel, SentenceTransformer, exact, parity
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.parity.truth import Subject, Unit, Values, measure_units, visible
from tests.support.checkpoints import random_checkpoint
from tests.support.head_models import make_model
from tests.support.report import REPORT

Dump = dict[str, np.ndarray]


class Model(NamedTuple):
    """A model, its inputs, the true values and the units; `spellings` has the names that mean each value."""

    subject: Subject
    inputs: dict[str, Any]
    mask: np.ndarray
    truth: Dump
    units: dict[str, Unit]
    spellings: dict[str, list[str]]

    @classmethod
    def of(cls, model: Any, inputs: dict[str, Any]) -> Model:
        subject = Subject.of(model)
        names = list(subject.names.specs)
        truth = dict(exact.forward(subject.model, **inputs).items())
        batch = subject.pack(inputs)
        units = measure_units(subject, inputs, batch, Values(subject, inputs, batch, names), names)
        spellings = {name: [name, f"bert.{name}", *subject.names.aliases(name)] for name in names}
        return cls(subject, inputs, batch.mask, truth, units, spellings)

    def distance(self, name: str, array: np.ndarray) -> float:
        """Return the larger of RMS and largest error, in units; infinity if it is not a number."""
        with np.errstate(all="ignore"):
            error = np.abs(visible(array.astype(np.float64), self.mask) - visible(self.truth[name], self.mask))
            found = max(np.sqrt(np.mean(error**2)) / self.units[name].rms, error.max() / self.units[name].largest)
        return float(found) if np.isfinite(found) else np.inf


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """Make three models; no size of their inputs equals another one, so that a shape has one meaning."""
    home = tmp_path_factory.mktemp("mutated")
    random = random_checkpoint(home / "random", hidden_size=32, num_attention_heads=4, initializer_range=0.02)
    made = []
    for model, rows, length in (
        (BertModel.from_pretrained(random, backend="numpy"), 3, 9),
        (SentenceTransformer(DEFAULT_MODEL, backend="numpy"), 2, 7),
        (
            BertForSequenceClassification.from_pretrained(
                make_model(home / "head", "BertForSequenceClassification"), backend="numpy"
            ),
            5,
            11,
        ),
    ):
        ids = np.random.default_rng(rows).integers(5, 60, (rows, length))
        mask = (np.arange(length) < length - np.arange(rows)[:, None]).astype(np.int64)
        made.append(Model.of(model, {"input_ids": ids, "attention_mask": mask}))
    return made


# --- mutations: each changes a dump in place --------------------------------------------------------------------------


def _value(model: Model, dump: Dump, rng: np.random.Generator, name: str) -> None:
    places = np.argwhere(np.isfinite(dump[name]))
    at = tuple(places[rng.integers(len(places))])
    size = model.units[name].largest * 10 ** rng.uniform(-1, 6)
    dump[name][at] = rng.choice(
        [dump[name][at] + size, dump[name][at] - size, np.nan, np.inf], p=[0.45, 0.45, 0.05, 0.05]
    )


def _row(model: Model, dump: Dump, rng: np.random.Generator, name: str) -> None:
    rows = rng.permutation(len(dump[name]))[:2]
    dump[name][rows[0]] = rng.choice([0, 1]) * dump[name][rows[1]]


def _noise(model: Model, dump: Dump, rng: np.random.Generator, name: str) -> None:
    size = model.units[name].rms * 10 ** rng.uniform(-2, 4)
    dump[name] += (rng.standard_normal(dump[name].shape) * size).astype(np.float32)


def _factor(model: Model, dump: Dump, rng: np.random.Generator, name: str) -> None:
    dump[name] *= np.float32(1 + 10 ** rng.uniform(-8, 0))


def _layer(model: Model, dump: Dump, rng: np.random.Generator, name: str) -> None:
    same = [one for one in dump if one != name and dump[one].shape == dump[name].shape]
    if same:
        dump[name] = dump[rng.choice(same)].copy()


def _swap(model: Model, dump: Dump, rng: np.random.Generator, name: str) -> None:
    same = [one for one in dump if dump[one].shape == dump[name].shape]
    other = rng.choice(same)
    dump[name], dump[other] = dump[other], dump[name]


def _rotate(model: Model, dump: Dump, rng: np.random.Generator, name: str) -> None:
    states = [one for one in dump if one == "embeddings" or one.count(".") == 2]
    values = [dump[one] for one in states]
    shift = int(rng.integers(1, max(2, len(states))))
    dump.update({one: values[(i + shift) % len(states)] for i, one in enumerate(states)})


def _axes(model: Model, dump: Dump, rng: np.random.Generator, name: str) -> None:
    pairs = [one for one in dump if dump[one].ndim == 4]
    if pairs:
        chosen = rng.choice(pairs)
        dump[chosen] = np.ascontiguousarray(dump[chosen].swapaxes(2, 3))


MUTATIONS = (_value, _row, _noise, _factor, _layer, _swap, _rotate, _axes)


def mutated(model: Model, rng: np.random.Generator) -> tuple[str, Dump, float]:
    """Return what was changed, a dump with random spellings in random order, and its largest distance."""
    chosen = [name for name in model.truth if rng.random() < rng.choice([0.1, 0.5])] or ["embeddings"]
    dump = {name: model.truth[name].astype(np.float32) for name in chosen}
    kind, name = str(rng.choice(["", "_duplicate", *(m.__name__ for m in MUTATIONS)])), str(rng.choice(chosen))
    twin = {}
    if kind == "_duplicate":
        twin = {name: dump[name].copy()}
        MUTATIONS[rng.integers(4)](model, twin, rng, name)
    elif kind:
        next(one for one in MUTATIONS if one.__name__ == kind)(model, dump, rng, name)
    arrays: list[tuple[str, np.ndarray]] = []
    taken: set[str] = set()
    for one, array in [*dump.items(), *twin.items()]:
        free = [spelling for spelling in model.spellings[one] if spelling not in taken]
        arrays.append((str(rng.choice(free)), array))
        taken.add(arrays[-1][0])
    distances = [model.distance(one, array) for one, array in [*dump.items(), *twin.items()]]
    order = rng.permutation(len(arrays))
    return kind, {arrays[i][0]: arrays[i][1] for i in order}, max(distances)


def campaign(models: list[Model], count: int, seed: int) -> str:
    """Check so many dumps; return the figures."""
    verdicts: dict[str, int] = {}
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        model = models[number % len(models)]
        kind, dump, distance = mutated(model, rng)
        report = parity.check(model.subject, dump, model.inputs, diagnosis=False)
        case = f"number {number}, {kind or 'nothing changed'}, {distance:.3g} units, {list(dump)}\n{report}"
        assert len(report.names) == len(dump), case
        assert distance <= 8 or report.verdict == "wrong", case
        assert distance > 1 or report.verdict in ("float32", "bits"), case
        side = "more than 8 units" if distance > 8 else "within 1 unit" if distance <= 1 else "between"
        verdicts[f"{side}: {report.verdict}"] = verdicts.get(f"{side}: {report.verdict}", 0) + 1
    return ", ".join(f"{name} {number}" for name, number in sorted(verdicts.items()))


def test_a_sample_of_mutated_dumps(models: list[Model]) -> None:
    campaign([models[0], models[2]], 100, 0)
    campaign([models[1]], 10, 0)  # a MiniLM, which takes ten times as long


@pytest.mark.slow
def test_five_thousand_mutated_dumps(models: list[Model]) -> None:
    REPORT.append(f"5,000 mutated dumps: {campaign(models, 5000, 1)}")
