"""Replay: every wrong op is found, and no right one, whatever the port dumped and however it adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.mistakes import ODD_FIRST, Subject
from minibert import BertModel
from minibert.parity.diagnosis.catalogue import simulate
from minibert.parity.diagnosis.forward import symbol_of
from minibert.parity.diagnosis.replay import Measured, Replay
from minibert.parity.truth import Padded

BUDGET = 4.0


def replay(model: Any, inputs: dict[str, Any], port: dict[str, np.ndarray]) -> list[Measured]:
    return list(Replay(model, Padded.of(model.config, inputs), port).measure().values())


def wrong_names(subject: Subject, port: dict[str, np.ndarray]) -> list[str]:
    return [place.name for place in replay(subject.model, subject.inputs, port) if not place.ratio <= BUDGET]


RECORDS = ("*", "hidden_states.*", "last_hidden_state", "*.dense", ("attentions.*", "encoder.layer.1"))


@pytest.mark.parametrize("record", RECORDS)
def test_nothing_is_wrong_in_a_right_port(subject: Subject, record: Any) -> None:
    for order in ((), ODD_FIRST):
        assert wrong_names(subject, simulate(subject.model, subject.inputs, order, record=record)) == []


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_nothing_is_wrong_in_our_own_ops(subject: Subject, subject_folder: Path, backend: str) -> None:
    """Hidden places hold zeros in a trace, and the replay does not read them as values."""
    trace = BertModel.from_pretrained(subject_folder, backend=backend).trace(**subject.inputs)
    assert wrong_names(subject, dict(trace)) == []
    assert wrong_names(subject, {name: trace[name] for name in trace._names.select("hidden_states.*")}) == []


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_nothing_is_wrong_in_transformers(subject: Subject, subject_folder: Path, attention: str) -> None:
    import torch
    from transformers import BertModel as Theirs

    model = Theirs.from_pretrained(subject_folder, attn_implementation=attention).eval()
    with torch.no_grad():
        output = model(**{k: torch.from_numpy(v) for k, v in subject.inputs.items()}, output_hidden_states=True)
    names = ["embeddings", *(f"encoder.layer.{i}" for i in range(3))]
    port = {name: state.numpy() for name, state in zip(names, output.hidden_states, strict=True)}
    port["pooler"] = output.pooler_output.numpy()
    assert wrong_names(subject, port) == []


# id -> the symbols of the ops that are wrong; with all names just these are found, in every layer
EXACT = {
    "G1.tanh": {"intermediate"},
    "A1.none": {"scores"},
    "A5.none": {"probs"},
    "E1.first": {"types"},
    "E5.swapped": {"types", "probs"},
    "C1.before-norm": {"attention_sum", "output_sum"},
    "G3.pooler": {"pooler"},
}


@pytest.mark.parametrize("id", EXACT)
def test_every_wrong_op_is_found_and_no_other(subject: Subject, id: str) -> None:
    port = simulate(subject.model, subject.inputs, [ODD_FIRST, id])
    wanted = [name for name in port if symbol_of(name) in EXACT[id]]
    assert wrong_names(subject, port) == wanted


def test_hidden_states_alone_are_replayed_layer_by_layer(subject: Subject) -> None:
    def states(id: str) -> list[str]:
        return wrong_names(subject, simulate(subject.model, subject.inputs, [ODD_FIRST, id], record="hidden_states.*"))

    assert states("G1.tanh@1") == ["encoder.layer.1"]
    assert states("E1.first") == ["embeddings"]
    assert states("G1.tanh") == ["encoder.layer.0", "encoder.layer.1", "encoder.layer.2"]
    assert states("A5.none@0+N3.unbiased@2") == ["encoder.layer.0", "encoder.layer.2"]


def test_nan_is_wrong_where_it_is_and_what_follows_is_still_compared(subject: Subject) -> None:
    port = simulate(subject.model, subject.inputs, "G1.tanh@2")
    port["encoder.layer.0.attention.self.key"][0, 3, 5] = np.nan
    assert wrong_names(subject, port) == ["encoder.layer.0.attention.self.key", "encoder.layer.2.intermediate"]
