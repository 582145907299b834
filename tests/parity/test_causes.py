"""Ports by people who did not write the catalogue: each once got a false cause and must get the true one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from minibert import parity
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.formulas.precision import ROUNDINGS
from minibert.parity.diagnosis.mistake import Mistake, part_mistake
from minibert.parity.diagnosis.simulation import simulate
from minibert.parity.diagnosis.suggested import layer_mistake
from minibert.parity.symbols import names_of_layer, symbol_of
from minibert.parity.truth import VECTOR
from tests.parity.conftest import small
from tests.support.marks import by_default, sampled
from tests.support.mistakes import Subject

LAYERS = 4


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return small(tmp_path_factory.mktemp("causes"), num_hidden_layers=LAYERS)


def at(id: str, path: str, layers: tuple[int, ...] = tuple(range(LAYERS))) -> Mistake:
    """Return a mistake of the catalogue in one op of some layers."""
    return MISTAKES[id].only([f"encoder.layer.{i}{path}" for i in layers])


AFTER_ATTENTION = at("N3.annotated", ".attention")


@pytest.mark.parametrize("dump", by_default(["all names", "hidden states"], "all names"))
@pytest.mark.parametrize(
    ("mistakes", "words"),
    [
        ([AFTER_ATTENTION], ", after attention, in all 4 layers"),
        ([at("D2.bfloat16-weights", ".output.dense", (1, 2))], ", in output.dense, in layers 1, 2"),
        ([at("G1.tanh", ".intermediate", (0, 1))], ", in layers 0, 1"),
        ([at("N1.1e-5", "", (3,))], ", in layer 3 only"),
        # of a port in JavaScript
        ([MISTAKES["E3.visible"], AFTER_ATTENTION, at("D2.bfloat16-weights", ".output.dense", (3,))], ""),
        # what another cause explains is not in doubt
        ([at("G1.tanh", ".intermediate", (0, 1, 2)), at("G3.relu", ".intermediate", (3,))], ", in layers 0, 1, 2"),
    ],
)
def test_mistakes_in_some_ops_of_some_layers(subject: Subject, mistakes: list[Mistake], words: str, dump: str) -> None:
    findings = subject.diagnose(subject.port(*mistakes, dump=dump))
    assert [finding.mistake for finding in findings] == [mistake.id for mistake in mistakes]
    for finding, mistake in zip(findings, mistakes, strict=True):
        sites = {(symbol_of(name), int(name.split(".")[2])) for name in mistake.names or ()}
        assert not sites or {*finding.sites} == sites or (dump == "hidden states" and {*finding.sites} > sites)
        assert finding.layers == tuple(sorted({layer for _, layer in sites}))
        assert "does not say" not in finding.text
        assert finding.explained > 0.95
    assert words in findings[0].text


@pytest.mark.parametrize("dump", ["all names", "hidden states"])
def test_layers_with_the_weights_of_others(subject: Subject, dump: str) -> None:
    exchanged = part_mistake(
        MISTAKES["W3.first"].symbols, layer=lambda inner, here, layers: layers[{1: 2, 2: 1}.get(here.layer, here.layer)]
    )
    findings = subject.diagnose(subject.port(exchanged, dump=dump))
    assert [(finding.mistake, finding.layers) for finding in findings] == [("W3.layer-2", (1,)), ("W3.layer-1", (2,))]


@pytest.mark.parametrize(
    "mistake",
    [
        at("W2.attention.self.query", ".attention.self.query", (1,)),
        layer_mistake(3).only(["encoder.layer.1.attention.self.key"]),
    ],
)
def test_what_right_names_refute_is_not_an_alternative(subject: Subject, mistake: Mistake) -> None:
    (finding,) = subject.diagnose(subject.port(mistake))
    assert (finding.candidates, finding.layers) == ((mistake.id,), (1,))
    assert finding.sites[0][0] in ("query", "key")


@pytest.mark.parametrize(
    "more", [("G1.tanh",), *(pytest.param(ids, marks=pytest.mark.slow) for ids in ((), ("A3.both",)))]
)
def test_states_that_are_counted_from_the_first_layer(subject: Subject, more: tuple[str, ...]) -> None:
    names = [f"hidden_states.{i}" for i in range(LAYERS + 1)]
    states = list(subject.port(*more, dump="hidden_states.*").values())
    report = parity.check(subject.model, dict(zip(names, states[1:], strict=False)), subject.inputs, budget="bfloat16")
    assert (report.verdict, report.exit_code) == ("wrong", 1)
    assert [finding.mistake for finding in report.diagnosis] == ["H1.early", *more]
    late = dict(zip(names[1:], states, strict=False))
    for dump in (late, {**late, names[0]: states[0]}):
        findings = parity.check(subject.model, dump, subject.inputs).diagnosis
        assert [finding.mistake for finding in findings] == ["H1.late", *more]
        assert findings[0].names == tuple(f"encoder.layer.{i}" for i in range(LAYERS))


def test_wrong_heads_of_each_layer_are_said(subject: Subject) -> None:
    def scaled(inner: Any, here: Any, masked: np.ndarray) -> np.ndarray:
        probs = inner(here, masked)
        probs[:, here.layer % 2] *= 1.01
        return probs

    wrong = part_mistake("probs", softmax=scaled)
    findings = subject.diagnose(subject.port(wrong))
    assert [finding.names for finding in findings] == [
        tuple(f"encoder.layer.{i}.attention.self.probs" for i in (first, first + 2)) for first in (0, 1)
    ]
    assert "and 1 more name of this kind" in findings[0].text
    assert "head 1 only; heads 0, 2 are right" in findings[1].text


@pytest.mark.parametrize(("name", "row"), [("last_hidden_state", 4), (VECTOR, 0)])
def test_the_rows_that_are_right_are_named(subject: Subject, name: str, row: int) -> None:
    ids = subject.inputs["input_ids"].copy()
    ids[row, 3] = 1
    port = subject.port(dump=name, input_ids=ids)
    rows = parity.probe(subject.model).shows
    (finding,) = subject.diagnose(port, rows)
    assert finding.mistake == ""
    right = ", ".join(str(i) for i in range(5) if i != row)
    assert f"row {row} ({rows[row]}) only; rows {right} are right" in finding.text
    assert "input_ids" in finding.remedy


def test_each_kind_of_unknown_op_has_its_own_facts(subject: Subject) -> None:
    def tail(inner: Any, here: Any, masked: np.ndarray) -> np.ndarray:
        probs = inner(here, masked)
        probs[..., 4:] *= 3
        return probs

    wrong = [
        part_mistake("value", weights=lambda inner, here, w, b: (w, b[::-1])).only(names_of_layer(2)),
        part_mistake("probs", softmax=tail),
        part_mistake("intermediate", activation=lambda inner, here, x, name: np.clip(x, 0, 0.1)),
    ]
    findings = subject.diagnose(subject.port(*wrong))
    by_name = {finding.names[0].partition("layer.")[2]: finding for finding in findings}
    assert set(by_name) == {"2.attention.self.value", "0.attention.self.probs", "0.intermediate"}
    assert "so the bias is wrong" in by_name["2.attention.self.value"].text
    assert "do not sum to 1" in by_name["0.attention.self.probs"].text
    assert len(by_name["0.attention.self.probs"].names) == len(by_name["0.intermediate"].names) == LAYERS


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A model whose rows are blocks of ggml."""
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "num_hidden_layers": 2}
    return small(tmp_path_factory.mktemp("wide"), **sizes)


@pytest.mark.parametrize(
    ("rounding", "kept"),
    sampled(
        itertools.product(ROUNDINGS, [(), ("types", "positions")]),
        100,
        [("bfloat16", ()), ("q4_0", ("types", "positions"))],
    ),
)
def test_rounded_weights_are_a_cause_and_no_precision(wide: Subject, rounding: str, kept: tuple[str, ...]) -> None:
    """Converters leave small tables in float32. Weights in bfloat16 are no forward in bfloat16."""
    mistake = MISTAKES[f"D2.{rounding}-weights"]
    symbols = tuple(symbol for symbol in mistake.symbols if symbol not in kept)
    values = simulate(wide.model, wide.inputs, mistake.but(symbols=symbols))
    for names in (["encoder.layer.1"], ["embeddings", "encoder.layer.0", "encoder.layer.1"]):
        report = parity.check(wide.model, {name: values[name] for name in names}, wide.inputs)
        assert report.verdict == "wrong", names
        assert any(mistake.text in finding.text for finding in report.diagnosis), (names, report.diagnosis)


@pytest.mark.parametrize("names", ["*", "without scores"])
def test_scores_that_a_dump_has_after_the_mask_do_not_hide_a_cause(subject: Subject, names: str) -> None:
    values = dict(simulate(subject.model, subject.inputs, "A6.minus-ten"))
    hidden = ~subject.inputs["attention_mask"].astype(bool)[:, None, None, :]
    scores = {name: array - 10 * hidden for name, array in values.items() if name.endswith(".scores")}
    values = {name: array for name, array in (values | scores).items() if names == "*" or name not in scores}
    (finding, *_) = parity.check(subject.model, values, subject.inputs).diagnosis
    assert "-10" in finding.text
