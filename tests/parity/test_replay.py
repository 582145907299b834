"""Replay: every wrong op is found, and no right one, whatever the port dumped and however it adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel
from minibert.parity.diagnosis.replay import Replay, Span
from minibert.parity.diagnosis.simulation import simulate
from minibert.parity.symbols import symbol_of
from tests.parity.conftest import states_of_theirs
from tests.support.mistakes import BUDGET, ODD_FIRST, Subject


def wrong_names(subject: Subject, port: dict[str, np.ndarray]) -> list[str]:
    measured = Replay(subject.model, subject.padded, port).measure()
    return [name for name, one in measured.items() if not one.ratio <= BUDGET]


@pytest.mark.parametrize("record", ["*", "hidden_states.*", "last_hidden_state", "*.dense", ("attentions.*", "*.0")])
def test_nothing_is_wrong_in_a_right_port(subject: Subject, record: Any) -> None:
    for order in ((), ODD_FIRST):
        assert wrong_names(subject, simulate(subject.model, subject.inputs, order, record=record)) == []


@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_nothing_is_wrong_in_our_own_ops(subject: Subject, subject_folder: Path, backend: str) -> None:
    """Hidden places hold zeros in a trace, and the replay does not read them as values."""
    trace = BertModel.from_pretrained(subject_folder, backend=backend).trace(**subject.inputs)
    assert wrong_names(subject, dict(trace)) == []
    assert wrong_names(subject, {name: trace[name] for name in trace._names.select("hidden_states.*")}) == []


def test_nothing_is_wrong_in_transformers(subject: Subject, subject_folder: Path) -> None:
    from transformers import BertModel as Theirs

    states = states_of_theirs(Theirs.from_pretrained(subject_folder).eval(), subject.inputs)
    assert (
        wrong_names(subject, {f"encoder.layer.{i - 1}" if i else "embeddings": x for i, x in enumerate(states)}) == []
    )


def test_nothing_is_computed_after_the_last_name_of_a_port(subject: Subject) -> None:
    port = simulate(subject.model, subject.inputs, (), record=["embeddings*", "encoder.layer.0.attention"])
    assert Replay(subject.model, subject.padded, port).spans == [
        Span([-1], [name for name in port if name.startswith("embeddings")], "embeddings"),
        Span([0], ["encoder.layer.0.attention"], "encoder.layer.0"),
    ]


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


def test_nan_is_wrong_where_it_is_and_what_follows_is_still_compared(subject: Subject) -> None:
    port = simulate(subject.model, subject.inputs, "G1.tanh@2")
    port["encoder.layer.0.attention.self.key"][0, 3, 5] = np.nan
    assert wrong_names(subject, port) == ["encoder.layer.0.attention.self.key", "encoder.layer.2.intermediate"]
