"""Diagnosis: heads, long rows, texts that were cut, rows with padding on the left, and facts about unknown causes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.mistakes import DUMPS, ODD_FIRST, Subject
from minibert import load, parity
from minibert.parity.diagnosis.catalogue import MISTAKES, simulate
from minibert.parity.diagnosis.forward import names_of_layer, part_mistake
from minibert.parity.truth import VECTOR
from tests.support.head_models import make_model


@pytest.fixture(scope="session")
def long(subject: Subject) -> Subject:
    """The rows of `subject`, and one of 80 tokens."""
    inputs = {name: np.pad(array, ((0, 1), (0, 66))) for name, array in subject.inputs.items()}
    inputs["input_ids"][-1] = np.random.default_rng(1).integers(5, subject.model.config.vocab_size, 80)
    inputs["attention_mask"][-1] = 1
    return Subject.of_inputs("long", subject.model, inputs)


# --- long rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dump", DUMPS)
def test_a_cut_text_is_named(long: Subject, dump: str) -> None:
    port = simulate(long.model, long.inputs, [ODD_FIRST, MISTAKES["P4.cut-64"]], record=DUMPS[dump])
    found = long.diagnose(port)
    assert found[0].mistake == "P4.cut-64"
    assert "64 tokens" in found[0].text


def test_a_vector_of_a_row_with_padding_on_the_left_counts(subject: Subject) -> None:
    assert not subject.padded.mask[3, 0]
    port = simulate(subject.model, subject.inputs, (), record=VECTOR)
    assert subject.ratio(VECTOR, port[VECTOR]) < 4
    port[VECTOR][3] += 1e-3
    assert subject.ratio(VECTOR, port[VECTOR]) > 1000
    assert subject.diagnose(port)


# --- what is said -----------------------------------------------------------------------------------------------------


def test_the_gelu_of_torch_is_not_a_finding(subject: Subject) -> None:
    """Its erf is some units in the last place away from -1, which x / 2 (1 + erf) makes large beside the result."""
    import torch

    port = simulate(subject.model, subject.inputs, "A3.merge")
    for i in range(3):
        name = f"encoder.layer.{i}.intermediate"
        port[name] = torch.nn.functional.gelu(torch.from_numpy(port[f"{name}.dense"])).numpy()
    assert {finding.mistake for finding in subject.diagnose(port)} == {"A3.merge"}


@pytest.mark.parametrize("change", [0.0, 1e30, np.nan, np.inf])
def test_numbers_that_are_far_from_all_others(subject: Subject, change: float) -> None:
    """No error, no warning, no cause that is not one; NaN is counted, and takes no simulation."""
    dump = simulate(subject.model, subject.inputs, (), record="hidden_states.*")
    with np.errstate(all="ignore"):
        dump = {name: array * np.float32(change) for name, array in dump.items()}
    report = parity.check(subject.model, dump, subject.inputs)
    assert report.verdict == "wrong"
    assert {finding.mistake for finding in report.diagnosis} == {""}
    assert np.isfinite(change) or len(report.diagnosis) == 1
    assert ("values that are not finite" in report.diagnosis[0].text) == (not np.isfinite(change))
    assert "bfloat16" not in report.diagnosis[0].text
    assert str(report)


def test_names_to_dump_are_those_that_are_missing(subject: Subject) -> None:
    wrong = part_mistake("value", weights=lambda inner, here, w, b: (w * 1.5, b)).only(names_of_layer(1))
    port = simulate(subject.model, subject.inputs, wrong, record=["hidden_states.*", "*.self"])
    (found,) = subject.diagnose(port)
    assert "encoder.layer.1.attention.self.key, " in found.remedy
    assert "encoder.layer.1.attention.self, " not in found.remedy


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    folder = tmp_path_factory.mktemp("heads")

    def made(name: str) -> Any:
        if not (folder / name).exists():
            make_model(folder / name, name)
        return load(folder / name, backend="numpy")

    return made


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForTokenClassification"])
def test_a_wrong_head_is_named(heads: Callable[[str], Any], name: str) -> None:
    model = heads(name)
    inputs = parity.probe(model).inputs
    dump = dict(model.trace(**inputs, record=["last_hidden_state", "classifier"]))
    dump["classifier"] = np.exp(dump["classifier"])
    for port in (dump, {"logits": dump["classifier"]}):
        report = parity.check(model, port, inputs)
        assert (report.verdict, report.first) == ("wrong", "classifier")
        (found,) = report.diagnosis
        assert (found.mistake, found.names) == ("", ("classifier",))


def test_a_right_head_after_a_wrong_encoder_is_not_named(heads: Callable[[str], Any]) -> None:
    model = heads("BertForTokenClassification")
    inputs = parity.probe(model).inputs
    dump = simulate(model, inputs, "G1.tanh", record="hidden_states.*")
    head = model.weights.head.classifier
    last = max(dump, key=lambda name: (name.count("."), name))
    dump["classifier"] = dump[last] @ head.weight.T + head.bias
    found = parity.check(model, dump, inputs).diagnosis
    assert [finding.mistake for finding in found] == ["G1.tanh"]
