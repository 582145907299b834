"""Heads: each slip of a head is named, from all values, from the hidden states and logits, and from logits alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from minibert import load, parity
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.simulation import simulate
from minibert.parity.symbols import names_of, symbol_of
from tests.support.families import make as make_family
from tests.support.head_models import make_model
from tests.support.marks import by_default

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("BertForSequenceClassification", "BertForNextSentencePrediction")},
    **{name: (name, {}) for name in ("BertForTokenClassification", "BertForQuestionAnswering", "BertForMaskedLM")},
    "distilbert": ("ForSequenceClassification", {}),
    "electra": ("ForSequenceClassification", {}),
    "modernbert, cls": ("ForSequenceClassification", {"classifier_pooling": "cls"}),
    "modernbert, mean": ("ForSequenceClassification", {"classifier_pooling": "mean"}),
    "modernbert": ("ForTokenClassification", {}),
    "eurobert, late": ("ForSequenceClassification", {}),
    "eurobert, mean": ("ForSequenceClassification", {"classifier_pooling": "mean"}),
}
OF_HEADS = {"pooler_dense", "pooler", "transform_dense", "transform_act", "transform", "predictions", "logits"}


BY_DEFAULT = ("BertForSequenceClassification", "BertForMaskedLM", "modernbert, mean", "eurobert, late")


@pytest.fixture(
    scope="module",
    params=[name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in HEADS],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, (kind, fields) = tmp_path_factory.mktemp("head"), HEADS[request.param]
    if kind.startswith("Bert"):
        return load(make_model(folder / "model", kind), backend="numpy")
    make_family(folder, request.param.split(",")[0], kind, **fields)
    return load(folder, backend="numpy")


def short(model: Any) -> dict[str, np.ndarray]:
    """Return the probe without its long row."""
    return {name: array[:4, :24] for name, array in parity.probe(model).inputs.items()}


def logits_of(model: Any) -> list[str]:
    return [name for name in names_of(model).specs if symbol_of(name) in ("logits", "predictions")]


@pytest.mark.parametrize("one_in", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_each_slip_of_a_head_is_named(model: Any, one_in: int) -> None:
    inputs, logits = short(model), logits_of(model)
    slips = [id for id, mistake in MISTAKES.items() if {*mistake.symbols} <= OF_HEADS and mistake.is_for(model)]
    assert len(slips) >= 4
    for id, record in itertools.product(slips[::one_in], (["*"], logits)):
        report = parity.check(model, simulate(model, inputs, id, record=record), inputs)
        assert report.verdict == "wrong", (id, record)
        (finding,) = report.diagnosis
        assert id in finding.candidates, (id, record)


@pytest.mark.parametrize("id", by_default(["G1.tanh", "A5.none", "A1.none", "C1.layer-input"], "G1.tanh", "A5.none"))
def test_logits_alone_tell_a_mistake_in_the_layers(model: Any, id: str) -> None:
    inputs = short(model)
    if MISTAKES[id].is_for(model):
        report = parity.check(model, simulate(model, inputs, id, record=logits_of(model)), inputs)
        assert id in report.diagnosis[0].candidates
