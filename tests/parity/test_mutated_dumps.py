"""Right dumps with one thing changed: none more than 8 units away is called right, none within 1 is called wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from minibert import BertForSequenceClassification, BertModel, exact, parity
from minibert.parity.truth import Subject, Unit, Values, unmasked
from tests.support.checkpoints import random_checkpoint
from tests.support.head_models import make_model

Dump = dict[str, np.ndarray]


class Model(NamedTuple):
    """A model, its inputs, the true values and the units."""

    subject: Subject
    inputs: dict[str, Any]
    truth: Dump
    units: dict[str, Unit]

    @classmethod
    def of(cls, model: Any, rows: int, length: int) -> Model:
        """Make inputs with padding. No size of them equals one of the model, so that a shape has one meaning."""
        subject = Subject.of(model)
        ids = np.random.default_rng(rows).integers(5, 60, (rows, length))
        inputs = {"input_ids": ids, "attention_mask": np.arange(length) < length - np.arange(rows)[:, None]}
        names = list(subject.names.specs)
        units = Values(subject, inputs, names).units(names)
        return cls(subject, inputs, dict(exact.forward(subject.model, **inputs).items()), units)

    def distance(self, name: str, array: np.ndarray) -> float:
        """Return the larger of RMS and largest error, in units; infinity if it is not a number."""
        mask = self.inputs["attention_mask"]
        with np.errstate(all="ignore"):
            error = np.abs(unmasked(array.astype(np.float64), mask) - unmasked(self.truth[name], mask))
            result = max(np.sqrt(np.mean(error**2)) / self.units[name].rms, error.max() / self.units[name].largest)
        return float(result) if np.isfinite(result) else np.inf


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    home = tmp_path_factory.mktemp("mutated")
    random = random_checkpoint(home / "random", hidden_size=32, num_attention_heads=4, initializer_range=0.02)
    head = make_model(home / "head", "BertForSequenceClassification")
    return [
        Model.of(BertModel.from_pretrained(random, backend="numpy"), 3, 9),
        Model.of(BertForSequenceClassification.from_pretrained(head, backend="numpy"), 5, 11),
    ]


def change(kind: str, model: Model, dump: Dump, name: str, rng: np.random.Generator) -> None:
    """Change a value of a dump in place, or exchange two."""
    array, unit = dump[name], model.units[name]
    if kind == "number":
        size = unit.largest * 10 ** rng.uniform(-1, 6)
        array.flat[rng.integers(array.size)] += rng.choice([size, -size, np.nan, np.inf], p=[0.45, 0.45, 0.05, 0.05])
    elif kind == "row":
        array[0] = rng.choice([0, 1]) * array[-1]
    elif kind == "noise":
        array += (rng.standard_normal(array.shape) * unit.rms * 10 ** rng.uniform(-2, 4)).astype(np.float32)
    elif kind == "factor":
        array *= np.float32(1 + 10 ** rng.uniform(-8, 0))
    elif kind == "axes" and array.ndim == 4:
        dump[name] = np.ascontiguousarray(array.swapaxes(2, 3))
    elif kind == "names":
        other = rng.choice([one for one in dump if dump[one].shape == array.shape])
        dump[name], dump[other] = dump[other], array


def check_dumps(models: list[Model], count: int, seed: int) -> None:
    """Check so many dumps, with random spellings of the names in random order; one value may be there twice."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        model = models[number % len(models)]
        chosen = [name for name in model.truth if rng.random() < rng.choice([0.1, 0.5])] or ["embeddings"]
        dump = {name: model.truth[name].astype(np.float32) for name in chosen}
        kind, name = str(rng.choice(["", "number", "row", "noise", "factor", "axes", "names"])), str(rng.choice(chosen))
        right = [(name, dump[name].copy())] if rng.random() < 0.2 else []
        change(kind, model, dump, name, rng)
        arrays = [*dump.items(), *right]
        given: Dump = {}
        for i in rng.permutation(len(arrays)):
            value, array = arrays[i]
            spellings = {value, f"bert.{value}", *model.subject.names.aliases(value)} - given.keys()
            given[str(rng.choice(sorted(spellings)))] = array
        distance = max(model.distance(*one) for one in arrays)
        report = parity.check(model.subject, given, model.inputs, diagnosis=False)
        case = f"number {number}, {kind or 'nothing changed'}, {distance:.3g} units, {list(given)}\n{report}"
        assert len(report.names) == len(given), case
        assert distance <= 8 or report.verdict == "wrong", case
        assert distance > 1 or report.verdict in ("float32", "bits"), case


def test_a_sample_of_mutated_dumps(models: list[Model]) -> None:
    check_dumps(models, 100, 0)


@pytest.mark.slow
def test_five_thousand_mutated_dumps(models: list[Model]) -> None:
    check_dumps(models, 5000, 1)
