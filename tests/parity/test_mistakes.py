"""The catalogue: ids and texts, `simulate`, harmless mistakes, ids that are refused."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from minibert import parity
from minibert.parity.diagnosis.catalogue import MISTAKES, read_page
from minibert.parity.diagnosis.formulas.precision import ROUNDED, ROUNDINGS
from minibert.parity.diagnosis.simulation import find_mistakes, forward_values, simulate
from minibert.parity.truth import VECTOR
from tests.parity.conftest import NOT_HERE
from tests.support.marks import sampled
from tests.support.mistakes import Subject

# Most kinds of inside of BERT in one small model; the axes have different lengths.
BUDGET = 4.0


# --- the catalogue ----------------------------------------------------------------------------------------------------


def test_each_id_stands_on_the_page_and_in_the_catalogue() -> None:
    words = read_page((files("minibert.parity.diagnosis") / "mistakes.md").read_text(encoding="utf-8"))
    read = words.keys() - MISTAKES.keys()  # from the values of a port
    assert words.keys() - read == MISTAKES.keys()
    code = "".join(path.read_text(encoding="utf-8") for path in Path(parity.__path__[0]).rglob("*.py"))
    assert {*re.findall(r'with_words\(\s*"(.+?)"', code)} == read
    for name in ROUNDINGS:
        assert words[f"D2.{name}-weights"][0] == f"weights: the matrices are {ROUNDED[name]}"


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_causes_the_first_of_the_catalogue_is_named(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """Where all types are 0, types in the place of ids are the same numbers as ids that are all 0."""
    monkeypatch.setattr("minibert.parity.diagnosis.search.MISTAKES", dict(list(MISTAKES.items())[::order]))
    types = np.zeros_like(subject.inputs["token_type_ids"])
    alike = Subject.of_inputs("one text", subject.model, {**subject.inputs, "token_type_ids": types})
    (finding,) = alike.diagnose(alike.port("T1.types", dump="hidden states"))
    assert finding.candidates == ("T1.zeros", "T1.types")[::order]


def test_every_mistake_has_a_text_a_remedy_and_a_place() -> None:
    for id, mistake in MISTAKES.items():
        assert mistake.text, id
        assert mistake.remedy, id
        assert mistake.symbols, id
        kinds = sum(map(bool, (mistake.parts, mistake.inputs, mistake.dump, mistake.vector)))
        assert kinds == 1 + id.startswith("E5.swapped-"), id  # the mask of an empty row is a part


def test_the_forward_without_mistakes_is_right(subject: Subject) -> None:
    """It is the forward of the model, in padded form; hidden places hold numbers too."""
    port = simulate(subject.model, subject.inputs, ())
    trace = subject.model.trace(**subject.inputs)
    assert list(port) == list(trace)
    assert max(subject.ratio(name, port[name]) for name in port) <= 2
    assert max(subject.ratio(name, trace[name]) for name in trace) <= BUDGET
    assert all(array.dtype == np.float32 and array.shape == trace[name].shape for name, array in port.items())
    assert port["encoder.layer.2"][~subject.padded.mask].any()


@pytest.mark.parametrize("id", sampled(MISTAKES, 3))
def test_a_mistake_is_outside_the_budget_or_provably_harmless(subject: Subject, id: str) -> None:
    """In the last state, or where the mistake is: the pooler, the vector, a name."""
    mistake = MISTAKES[id]
    if id.startswith(NOT_HERE) or not mistake.is_for(subject.model):
        return
    port = simulate(subject.model, subject.inputs, id, record=["*", VECTOR])
    wrong = [name for name in port if not subject.ratio(name, port[name]) <= BUDGET]
    if mistake.is_harmless(subject.model.config):
        # Shown in float64: no hidden state changes by a tenth of the error of a float32 forward.
        exact = forward_values(subject.model, subject.padded, [mistake], dtype=np.float64)
        states = [name for name in exact if name == "embeddings" or name.count(".") == 2]
        limit = BUDGET if mistake.kind == "G3" else 0.1  # the erf of 1.5e-7 is beside rounding, not below it
        assert max(subject.ratio(name, exact[name]) for name in states) <= limit
        return
    unchanged = {"G1.erf", "N1.1e-12", "P2.mean", "P2.sum", "P3.unit"}  # what this model has, or the same vector
    assert bool(wrong) == (id not in unchanged)


def test_a_mistake_in_one_layer_changes_nothing_before_it(subject: Subject) -> None:
    whole, one = (simulate(subject.model, subject.inputs, id) for id in ("G1.tanh", "G1.tanh@1"))
    right = simulate(subject.model, subject.inputs, ())
    for name in right:
        if name.startswith(("embeddings", "encoder.layer.0")):
            np.testing.assert_array_equal(one[name], right[name])
    assert not np.array_equal(one["encoder.layer.1"], right["encoder.layer.1"])
    assert not np.array_equal(one["encoder.layer.2"], whole["encoder.layer.2"])


def test_record_chooses_the_names(subject: Subject) -> None:
    assert list(simulate(subject.model, subject.inputs, "A5", record="hidden_states.*")) == [
        *("embeddings", "encoder.layer.0", "encoder.layer.1", "encoder.layer.2")
    ]
    vector = simulate(subject.model, subject.inputs, "P2.cls", record=VECTOR)[VECTOR]
    assert vector.shape == (5, 24)
    np.testing.assert_allclose((vector**2).sum(axis=1), 1, rtol=1e-6)
    assert VECTOR in simulate(subject.model, subject.inputs, "P2.cls")
    assert VECTOR not in simulate(subject.model, subject.inputs, "G1.tanh")


@pytest.mark.parametrize("id", ["G1.tan", "", "G1.tanh@3", "G1.tanh@", "E1.first@0", "P2.cls@0"])
def test_what_is_not_a_mistake_is_refused(subject: Subject, id: str) -> None:
    with pytest.raises(ValueError, match="G1.tanh" if id == "G1.tan" else "mistake"):
        simulate(subject.model, subject.inputs, id)
    for other in (None, [], [3]):
        with pytest.raises(TypeError, match="mistake="):
            simulate(subject.model, subject.inputs, other)


def test_what_a_model_cannot_do_is_said(subject: Subject) -> None:
    longest = {"input_ids": np.zeros((1, 512), np.int64)}
    for id, inputs in (
        ("D2.q8_0-weights", subject.inputs),
        ("D2.q4_0-weights", subject.inputs),
        ("E6.zero", subject.inputs),
        ("E3.plus-1", longest),
    ):
        with pytest.raises(ValueError, match=f"{id} is not possible here"):
            simulate(subject.model, inputs, id)


def test_word_vectors_instead_of_ids(subject: Subject) -> None:
    embeds = subject.model.embeddings.word_embeddings(subject.inputs["input_ids"])
    inputs = {name: value for name, value in subject.inputs.items() if name != "input_ids"} | {"inputs_embeds": embeds}
    wanted, made = (simulate(subject.model, given, "A7.causal") for given in (subject.inputs, inputs))
    mask = subject.padded.mask
    np.testing.assert_array_equal(wanted["encoder.layer.2"][mask], made["encoder.layer.2"][mask])
    with pytest.raises(ValueError, match="without ids"):
        simulate(subject.model, inputs, "T1.shifted")


def test_an_id_finds_its_mistake() -> None:
    assert [mistake.id for mistake in find_mistakes("A5")] == ["A5.none"]  # a kind alone is its first variant
    assert [mistake.id for mistake in find_mistakes(["G1.tanh", MISTAKES["N1.1e-5"]])] == ["G1.tanh", "N1.1e-5"]
    assert [mistake.id for mistake in find_mistakes("A5.none+G1@2")] == ["A5.none", "G1.tanh"]
    assert find_mistakes("G1@2")[0].names == {"encoder.layer.2.intermediate"}
