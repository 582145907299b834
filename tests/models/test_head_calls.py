"""Calls of the models with heads: outputs, positions, bits, memory, and inputs that are refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert.models import bert as bert_model
from minibert.models import float64
from minibert.models.steps import TOKENS_PER_STEP
from tests.support.head_models import CLASSES, POOLED, SIZES, WITH_WORDS, inputs_of, logits_of

FolderOf = Callable[[str], Path]
MASKED = "BertForMaskedLM"


@pytest.fixture
def model_of(folder_of: FolderOf) -> Callable[..., Any]:
    return lambda name, **options: getattr(minibert, name).from_pretrained(folder_of(name), **options)


ModelOf = Callable[..., Any]


# --- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_hidden_states_and_attentions_are_given_only_if_asked_for(model_of: ModelOf, name: str) -> None:
    plain = model_of(name)(**inputs_of(name))
    assert all(key.endswith("logits") for key in plain.keys())  # noqa: SIM118
    always = model_of(name, output_hidden_states=True, output_attentions=True)(**inputs_of(name))
    assert (len(always.hidden_states), len(always.attentions)) == (3, 2)
    states = model_of(name)(**inputs_of(name), output_hidden_states=[-1]).hidden_states
    assert [state is None for state in states] == [True, True, False]
    np.testing.assert_array_equal(states[-1], always.hidden_states[-1])


@pytest.mark.parametrize("name", CLASSES)
def test_a_copy_computes_the_same(model_of: ModelOf, name: str) -> None:
    model = model_of(name)
    expected = logits_of(model(**inputs_of(name)))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for field, array in logits_of(other(**inputs_of(name))).items():
            assert array.tobytes() == expected[field].tobytes()


# --- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_WORDS)
@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_positions_give_the_same_numbers_as_the_whole(model_of: ModelOf, name: str, backend: str) -> None:
    model, inputs = model_of(name, backend=backend), inputs_of(name)
    whole = model(**inputs)[0]
    generator = np.random.default_rng(0)
    every = np.argwhere(np.ones_like(inputs["input_ids"]))
    for positions in (every, every[::-1], every[generator.integers(len(every), size=90)], every[7:8]):
        found = model(**inputs, positions=positions)[0]
        assert found.shape == (len(positions), SIZES["vocab_size"])
        expected = whole[positions[:, 0], positions[:, 1]]
        if backend == "kernels":
            assert found.tobytes() == expected.tobytes()
        else:  # a BLAS may add in another order
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    as_lists = model(**inputs, positions=[(0, 1), (2, 3)])[0]
    np.testing.assert_allclose(as_lists, whole[[0, 2], [1, 3]], rtol=0, atol=1e-5)
    for none in ([], np.zeros((0, 2), dtype=np.int64)):
        assert model(**inputs, positions=none)[0].shape == (0, SIZES["vocab_size"])


def test_positions_in_many_steps(model_of: ModelOf) -> None:
    model = model_of(MASKED)
    inputs = inputs_of(MASKED, rows=200, length=40)
    assert inputs["attention_mask"].sum() > 2 * TOKENS_PER_STEP
    whole = model(**inputs).logits
    positions = np.argwhere(np.random.default_rng(0).random(inputs["input_ids"].shape) < 0.1)
    assert model(**inputs, positions=positions).logits.tobytes() == whole[tuple(positions.T)].tobytes()


def test_the_decoder_runs_for_the_positions_only(model_of: ModelOf) -> None:
    model, rows = model_of(MASKED), []

    def linear(x: Any, weight: Any, **options: Any) -> Any:
        if weight.paths == ("cls.predictions.decoder",):
            rows.append(len(x))
        return model.ops.linear(x, weight, **options)

    counted = minibert.BertForMaskedLM(model.weights, model.ops._replace(linear=linear))
    inputs = inputs_of(MASKED)
    shown = np.argwhere(inputs["attention_mask"])
    counted(**inputs, positions=[*shown[:3], (3, 0)])
    assert rows == [3], "row 3 is masked"
    counted(**inputs)
    assert rows == [3, len(shown)]


def test_the_logits_of_a_step_are_computed_in_slices(model_of: ModelOf, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_of(MASKED), inputs_of(MASKED)
    whole = model(**inputs).logits
    for rows in (1, 2, 7):
        monkeypatch.setattr("minibert.models.base.SLICE_BYTES", 4 * SIZES["vocab_size"] * rows)
        assert model(**inputs).logits.tobytes() == whole.tobytes()


BAD_POSITIONS: list[tuple[Any, str, list[Any]]] = [
    (ValueError, "shape", [3, [0, 1], [[0, 1, 2]], np.zeros(0, dtype=np.int64)]),
    (ValueError, r"index 0 is 11", [[[0, 11]]]),
    (ValueError, r"index 1 is 5", [[[0, 1], [5, 0]]]),
    ((ValueError, TypeError), "", [[[0, -1]], [[0, 2**64 - 1]], [[0, 1], [2]]]),
    (TypeError, "bool", [[[True, False]]]),
    (TypeError, "", [[[0.0, 1.0]], np.zeros((0, 2)), [["0", "1"]], "all", {"a": 1}, np.ma.masked_array([[0, 1]])]),
]


@pytest.mark.parametrize(("error", "word", "values"), BAD_POSITIONS, ids=str)
def test_bad_positions(model_of: ModelOf, error: Any, word: str, values: list[Any]) -> None:
    for name in WITH_WORDS:
        for positions in values:
            with pytest.raises(error, match=f"positions.*{word}"):
                model_of(name)(**inputs_of(name), positions=positions)


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_scores_are_the_same_alone_and_in_any_batch_with_any_threads(model_of: ModelOf, name: str) -> None:
    rows, width = 60, 23
    inputs = inputs_of(name, rows=rows, length=width)
    together = logits_of(model_of(name, num_threads=2)(**inputs))
    alone = model_of(name, num_threads=1)
    order = np.random.default_rng(0).permutation(rows)
    for again, taken in (
        (logits_of(alone(**inputs)), np.arange(rows)),
        (logits_of(model_of(name, num_threads=3)(**{key: value[order] for key, value in inputs.items()})), order),
    ):
        assert all(again[field].tobytes() == array[taken].tobytes() for field, array in together.items())
    for row in range(rows):  # without the padding of the batch
        length = int(np.flatnonzero(inputs["attention_mask"][row].reshape(-1, width).any(axis=0)).max(initial=0)) + 1
        own = {key: value[row : row + 1, ..., :length] for key, value in inputs.items()}
        for field, array in logits_of(alone(**own)).items():
            whole = together[field][row : row + 1]
            whole = whole[:, :length] if whole.shape[1] == width else whole
            assert array.tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", [*POOLED, MASKED])
def test_the_last_layer_is_computed_for_the_tokens_that_are_read(model_of: ModelOf, name: str) -> None:
    whole, rows = model_of(name), list[int]()

    def linear(x: Any, weight: Any, **options: Any) -> Any:
        if weight.paths == ("encoder.layer.1.output.dense",):
            rows.append(len(x))
        return whole.ops.linear(x, weight, **options)

    model, inputs = whole.with_ops(whole.ops._replace(linear=linear)), inputs_of(name, rows=200, length=40)
    whole = whole.with_ops(whole.ops._replace(all_tokens=True))
    mask = inputs["attention_mask"].reshape(-1, 40)
    read, options = (mask[:, 0] == 1)[:, None] & (np.arange(40) == 0), dict[str, Any]()
    if name in WITH_WORDS:
        options["positions"] = np.argwhere(np.random.default_rng(0).random(mask.shape) < 0.05)
        read = read & (name in POOLED)
        read[tuple(options["positions"].T)] = True
    found, expected = model(**inputs, **options), whole(**inputs, **options)
    assert mask.sum() > 2 * TOKENS_PER_STEP
    assert sum(rows) == np.count_nonzero(read & (mask == 1)) < mask.sum() / 9
    for field, array in logits_of(expected).items():
        assert found[field].tobytes() == array.tobytes()
    for more in ({"output_hidden_states": -1}, {"output_attentions": True}):
        rows.clear()
        output = model(**inputs, **options, **more)
        assert sum(rows) == mask.sum()
        for field, array in whole(**inputs, **options, **more).items():
            assert all(
                one is two or one.tobytes() == two.tobytes() for one, two in zip(output[field], array, strict=True)
            )
    nothing = {**inputs, "attention_mask": np.zeros_like(inputs["attention_mask"])}
    assert not any(array.any() for array in logits_of(model(**nothing, **options)).values())
    trace = model.trace(**{key: value[:3] for key, value in inputs.items()})
    assert trace["hidden_states.2"].shape[-1] == SIZES["hidden_size"]


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_WORDS)
def test_logits_that_do_not_fit_into_memory(model_of: ModelOf, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model, ids = model_of(name), np.zeros((20_000, 40), dtype=np.int64)  # 0.3 GB of logits
    monkeypatch.setattr("minibert._utils.system.available_memory", lambda: 300_000_000)
    ran = []
    monkeypatch.setattr(bert_model.encoder, "forward", lambda *arguments, **options: ran.append(1))
    for options in ({}, {"output_hidden_states": True}, {"attention_mask": ids}):
        with pytest.raises(MemoryError, match=r"logits.*positions="):
            model(ids, **options)
    assert not ran


# --- inputs that are refused -----------------------------------------------------------------------------------------

LABELS = {
    "BertForPreTraining": ("labels", "next_sentence_label"),
    "BertForQuestionAnswering": ("start_positions", "end_positions"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_labels_are_refused(model_of: ModelOf, name: str) -> None:
    model, inputs = model_of(name), inputs_of(name)
    for label in LABELS.get(name, ("labels",)):
        for value in (0, [1], np.zeros(1), torch.zeros(1)):
            with pytest.raises(ValueError, match=f"{label}="):
                model(**inputs, **{label: value})
        model(**inputs, **{label: None})


@pytest.mark.parametrize("name", ["BertModel", *CLASSES])
def test_keywords_of_transformers_that_change_nothing(model_of: ModelOf, name: str) -> None:
    model = model_of(MASKED).bert if name == "BertModel" else model_of(name)
    inputs = inputs_of(MASKED if name == "BertModel" else name)
    nothing = ("head_mask", "past_key_values", "labels", "encoder_hidden_states", "encoder_attention_mask")
    given = model(**inputs, use_cache=False, **dict.fromkeys(nothing))
    for one, other in zip(given.to_tuple(), model(**inputs).to_tuple(), strict=True):
        np.testing.assert_array_equal(one, other)
    for keyword in ("head_mask", "past_key_values"):
        with pytest.raises(ValueError, match=f"{keyword}="):
            model(**inputs, **{keyword: np.ones((2, 4))})
    with pytest.raises(TypeError, match=r"has no keyword head_masks=\. Did you mean head_mask=\?"):
        model(**inputs, head_masks=None)


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "BertForMultipleChoice"])
def test_bad_inputs(model_of: ModelOf, name: str) -> None:
    """test_batch has the others; a head has the same checks."""
    with pytest.raises(TypeError, match="num_layers"):
        model_of(name)(input_ids=np.ones((2, 4), dtype=np.int64), num_layers=1)


CHOICES = np.ones((2, 3, 4), dtype=np.int64)
BAD_CHOICES: list[tuple[type[Exception], str, list[Any]]] = [
    (ValueError, "input_ids", [None, CHOICES[0], [1, 2], CHOICES[None], CHOICES * 97, [[[1, 2], [3]]]]),
    (ValueError, "choices", [CHOICES[:, :0]]),
    (TypeError, "input_ids", [CHOICES * 1.0, "text"]),
    (ValueError, "inputs_embeds", [np.zeros((2, 3, 24)), np.zeros((2, 3, 4, 23))]),
    (ValueError, "attention_mask", [CHOICES[:, :2], CHOICES[..., :3], CHOICES[:1, :1], CHOICES[0]]),
    (ValueError, "token_type_ids", [CHOICES.reshape(3, 2, 4)]),
    (ValueError, "position_ids", [np.arange(4)[None], CHOICES[:, :1]]),
]


@pytest.mark.parametrize(("error", "name", "values"), BAD_CHOICES, ids=str)
def test_bad_choices(model_of: ModelOf, error: type[Exception], name: str, values: list[Any]) -> None:
    model = model_of("BertForMultipleChoice")
    for value in values:
        others = {} if name in ("inputs_embeds", "choices") else {"input_ids": CHOICES}
        with pytest.raises(error, match=name):
            model(**{**others, "input_ids" if name == "choices" else name: value})


@pytest.mark.parametrize("name", CLASSES)
def test_results_have_the_dtype_of_the_ops(model_of: ModelOf, name: str) -> None:
    model, inputs = model_of(name).with_ops(float64.OPS), inputs_of(name)
    for given in (inputs, {key: value[:0] for key, value in inputs.items()}):
        output = model(**given, output_hidden_states=[0, -1])
        values = [*output.to_tuple()[:-1], output.hidden_states[0], output.hidden_states[-1]]
        assert {value.dtype for value in values} == {np.dtype(np.float64)}
        assert model.bert(**{k: v.reshape(-1, v.shape[-1]) for k, v in given.items()})[0].dtype == np.float64
