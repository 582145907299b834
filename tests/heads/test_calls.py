"""Calls of the models with heads: outputs, positions, bits, memory, and inputs that are refused."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert.models import bert as bert_model
from minibert.models.bert import TOKENS_PER_STEP
from tests.support.head_models import CLASSES, SIZES, WITH_WORDS, head_checkpoint, inputs_of, logits_of

FolderOf = Callable[[str], Path]
MASKED = "BertForMaskedLM"


@pytest.fixture
def model_of(folder_of: FolderOf) -> Callable[..., Any]:
    return lambda name, **options: getattr(minibert, name).from_pretrained(folder_of(name), **options)


ModelOf = Callable[..., Any]


# --- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_an_output_has_the_habits_of_all_outputs(model_of: ModelOf, name: str) -> None:
    output = model_of(name)(**inputs_of(name), output_hidden_states=True, output_attentions=[0])
    assert output.keys()[-2:] == ("hidden_states", "attentions")
    values = [getattr(output, key) for key in output.keys()]  # noqa: SIM118
    assert [id(value) for value in output] == [id(value) for value in output.to_tuple()] == [id(v) for v in values]
    assert len(output) == len(values)
    for i, key in enumerate(output.keys()):
        assert output[key] is output[i] is output[i - len(values)] is values[i]
        assert key in output
    assert output[:1] == (values[0],)
    assert output.attentions[1] is None
    with pytest.raises(KeyError, match="'last_hidden_state' is not in this output, which has"):
        output["last_hidden_state"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        output.hidden_states = None
    assert repr(output).startswith(f"{type(output).__name__}({output.keys()[0]}=<array (")
    assert type(output).__name__ in output._repr_html_()
    assert dict(output).keys() == set(output.keys())


@pytest.mark.parametrize("name", CLASSES)
def test_hidden_states_and_attentions_are_given_only_if_asked_for(model_of: ModelOf, name: str) -> None:
    model = model_of(name)
    plain = model(**inputs_of(name))
    assert plain.hidden_states is None
    assert plain.attentions is None
    assert all(key.endswith("logits") for key in plain.keys())  # noqa: SIM118
    states = model(**inputs_of(name), output_hidden_states=[-1]).hidden_states
    assert [state is None for state in states] == [True, True, False]
    always = model_of(name, output_hidden_states=True, output_attentions=True)(**inputs_of(name))
    assert len(always.hidden_states) == 3
    assert len(always.attentions) == 2
    np.testing.assert_array_equal(states[-1], always.hidden_states[-1])


@pytest.mark.parametrize("name", CLASSES)
def test_results_belong_to_the_caller(model_of: ModelOf, name: str) -> None:
    model, inputs = model_of(name, output_hidden_states=True), inputs_of(name)
    first = model(**inputs)
    copies = {field: array.copy() for field, array in logits_of(first).items()}
    arrays = [*(first[field] for field in copies), *first.hidden_states]
    for i, array in enumerate(arrays):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert not any(np.shares_memory(array, other) for other in arrays[:i])
        array[:] = np.nan
    for field, array in logits_of(model(**inputs)).items():
        np.testing.assert_array_equal(array, copies[field])


@pytest.mark.parametrize("name", CLASSES)
def test_methods_of_torch(model_of: ModelOf, name: str) -> None:
    model = model_of(name)
    assert model.eval() is model.to("cpu") is model.train(False) is model
    with pytest.raises(ValueError, match="only runs trained models"):
        model.train()
    with pytest.raises(ValueError, match="runs on the CPU"):
        model.to("cuda")
    assert repr(model).startswith(f"{name}(2 layers, hidden_size=24, 3 heads, ")
    assert model.get_input_embeddings()([[1]]).shape == (1, 1, 24)


@pytest.mark.parametrize("name", CLASSES)
def test_a_copy_computes_the_same(model_of: ModelOf, name: str) -> None:
    model = model_of(name)
    expected = logits_of(model(**inputs_of(name)))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for field, array in logits_of(other(**inputs_of(name))).items():
            assert array.tobytes() == expected[field].tobytes()


# --- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_WORDS)
@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_positions_give_the_same_numbers_as_the_whole(model_of: ModelOf, name: str, backend: str) -> None:
    model, inputs = model_of(name, backend=backend), inputs_of(name)
    whole = model(**inputs)[0]
    generator = np.random.default_rng(0)
    every = np.argwhere(np.ones_like(inputs["input_ids"]))
    for positions in (every, every[::-1], every[generator.integers(len(every), size=90)], every[7:8]):
        found = model(**inputs, positions=positions)[0]
        assert found.shape == (len(positions), SIZES["vocab_size"])
        expected = whole[positions[:, 0], positions[:, 1]]
        if backend == "numba":
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
        monkeypatch.setattr("minibert.models.heads.SLICE_BYTES", 4 * SIZES["vocab_size"] * rows)
        assert model(**inputs).logits.tobytes() == whole.tobytes()


BAD_POSITIONS: list[tuple[Any, type[Exception], str]] = [
    (3, ValueError, r"positions has shape \(\); expected \(n, 2\)"),
    ([0, 1], ValueError, r"positions has shape \(2,\); expected \(n, 2\)"),
    ([[0, 1, 2]], ValueError, r"positions has shape \(1, 3\)"),
    (np.zeros(0, dtype=np.int64), ValueError, r"positions has shape \(0,\)"),
    ([[0, 11]], ValueError, r"positions\[0\] is \[0, 11\]; the batch has 5 rows and 11 columns, counted from 0"),
    ([[0, 1], [5, 0]], ValueError, r"positions\[1\] is \[5, 0\]"),
    ([[0, -1]], ValueError, r"positions\[0\] is \[0, -1\]"),
    ([[0, 2**64 - 1]], (ValueError, TypeError), "positions"),
    ([[True, False]], TypeError, "positions holds bool values; expected integers"),
    ([[0.0, 1.0]], TypeError, "positions holds float64 values"),
    (np.zeros((0, 2)), TypeError, "positions holds float64 values"),
    ([["0", "1"]], TypeError, "positions holds <U1 values"),
    ("all", TypeError, "positions is text"),
    ([[0, 1], [2]], ValueError, "positions is not a rectangular array"),
    ({"a": 1}, TypeError, "positions is a dict"),
    (np.ma.masked_array([[0, 1]]), TypeError, "positions is a masked array"),
]


@pytest.mark.parametrize(("positions", "error", "message"), BAD_POSITIONS, ids=str)
def test_bad_positions(model_of: ModelOf, positions: Any, error: Any, message: str) -> None:
    for name in WITH_WORDS:
        with pytest.raises(error, match=message):
            model_of(name)(**inputs_of(name), positions=positions)


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_scores_are_the_same_alone_and_in_any_batch_with_any_threads(model_of: ModelOf, name: str) -> None:
    inputs = inputs_of(name, rows=120, length=23)
    # The padding of a batch must not matter: each row is computed alone, without it.
    together = logits_of(model_of(name, num_threads=2)(**inputs))
    for threads in (1, 3):
        again = logits_of(model_of(name, num_threads=threads)(**inputs))
        assert all(again[field].tobytes() == array.tobytes() for field, array in together.items())
    alone = model_of(name, num_threads=1)
    order = np.random.default_rng(0).permutation(120)
    shuffled = logits_of(alone(**{key: value[order] for key, value in inputs.items()}))
    for field, array in together.items():
        assert array[order].tobytes() == shuffled[field].tobytes()
    for row in range(120):
        length = int(np.flatnonzero(inputs["attention_mask"][row].reshape(-1, 23).any(axis=0)).max(initial=0)) + 1
        own = {key: value[row : row + 1, ..., :length] for key, value in inputs.items()}
        for field, array in logits_of(alone(**own)).items():
            whole = together[field][row : row + 1]
            whole = whole[:, :length] if whole.shape[1] == 23 else whole
            assert array.tobytes() == whole.tobytes()


def test_a_model_shared_by_threads(model_of: ModelOf) -> None:
    model = model_of("BertForPreTraining")
    batches = [inputs_of("BertForPreTraining", rows=7 + i, seed=i) for i in range(24)]
    expected = [logits_of(model(**inputs)) for inputs in batches]
    with ThreadPoolExecutor(8) as threads:
        for found, wanted in zip(
            threads.map(lambda inputs: logits_of(model(**inputs)), batches), expected, strict=True
        ):
            assert all(found[field].tobytes() == array.tobytes() for field, array in wanted.items())


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_WORDS)
def test_logits_that_do_not_fit_into_memory(model_of: ModelOf, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = model_of(name)
    inputs = {"input_ids": np.zeros((20_000, 40), dtype=np.int64)}  # 0.3 GB of logits
    monkeypatch.setattr("minibert._utils.system.available_memory", lambda: 300_000_000)
    ran = []
    monkeypatch.setattr(bert_model.encoder, "forward", lambda *arguments, **options: ran.append(1))
    for call in (lambda: model(**inputs), lambda: model(**inputs, output_hidden_states=True)):
        with pytest.raises(
            MemoryError, match=r"^The logits, . hidden states and 0 attentions of 800,000 tokens take 0"
        ):
            call()
    assert not ran
    mask = np.zeros((20_000, 40), dtype=np.int64)
    with pytest.raises(MemoryError, match="or positions= for a masked LM"):
        model(**inputs, attention_mask=mask)


def test_absurd_batches_of_a_large_vocabulary(tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path / "model", MASKED, vocab_size=200_000, hidden_size=3, num_attention_heads=1)
    model = minibert.BertForMaskedLM.from_pretrained(folder, backend="numpy")
    with pytest.raises(MemoryError, match="GiB; this process may use"):
        model(np.zeros((1_000_000, 40), dtype=np.int8))  # 29 TiB of logits


# --- inputs that are refused -----------------------------------------------------------------------------------------

IDS = np.ones((2, 4), dtype=np.int64)
LABELS = {
    "BertForPreTraining": ("labels", "next_sentence_label"),
    "BertForQuestionAnswering": ("start_positions", "end_positions"),
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("value", [0, [1], np.zeros(1), torch.zeros(1)])
def test_labels_are_refused(model_of: ModelOf, name: str, value: Any) -> None:
    for label in LABELS.get(name, ("labels",)):
        with pytest.raises(ValueError, match=f"{label}=.*does not train"):
            model_of(name)(**inputs_of(name), **{label: value})
        model_of(name)(**inputs_of(name), **{label: None})


@pytest.mark.parametrize("name", ["BertModel", *CLASSES])
def test_keywords_of_transformers_that_change_nothing(model_of: ModelOf, name: str) -> None:
    model = model_of("BertForMaskedLM").bert if name == "BertModel" else model_of(name)
    inputs = inputs_of("BertForMaskedLM" if name == "BertModel" else name)
    nothing = ("head_mask", "past_key_values", "labels", "encoder_hidden_states", "encoder_attention_mask")
    plain = model(**inputs)
    given = model(**inputs, use_cache=False, **dict.fromkeys(nothing))
    for one, other in zip(given.to_tuple(), plain.to_tuple(), strict=True):
        np.testing.assert_array_equal(one, other)
    for keyword, remedy in (("head_mask", "minibert.head_mask"), ("past_key_values", "Leave it out")):
        with pytest.raises(ValueError, match=f"{name}\\({keyword}=.*expected None or False.*{remedy}"):
            model(**inputs, **{keyword: np.ones((2, 4))})
    for wrong, right in (
        ("head_masks", "head_mask"),
        ("attention_masks", "attention_mask"),
        ("input_id", "input_ids"),
        ("output_hidden_state", "output_hidden_states"),
    ):
        with pytest.raises(TypeError, match=rf"has no keyword {wrong}=\. Did you mean {right}=\?"):
            model(**inputs, **{wrong: None})


BAD_INPUTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "Give exactly one of input_ids and inputs_embeds, not neither"),
    ({"input_ids": IDS, "inputs_embeds": np.zeros((2, 4, 24))}, ValueError, "not both"),
    ({"input_ids": [[97]]}, ValueError, "valid are 0 to 96"),
    ({"input_ids": [[-1]]}, ValueError, "valid are 0 to 96"),
    ({"input_ids": [[0.5]]}, TypeError, "input_ids holds float64"),
    ({"input_ids": "text"}, TypeError, "input_ids is text; tokenize it first"),
    ({"input_ids": [1, 2]}, ValueError, "expected 2 dimensions"),
    ({"input_ids": np.ones((1, 41), dtype=int)}, ValueError, "The batch is 41 tokens wide"),
    ({"input_ids": IDS, "attention_mask": IDS * 0.5}, ValueError, "is 0.5; expected 0"),
    ({"input_ids": IDS, "attention_mask": IDS * 2}, ValueError, "expected 0"),
    ({"input_ids": IDS, "attention_mask": IDS[:1]}, ValueError, "attention_mask has shape"),
    ({"input_ids": IDS, "token_type_ids": IDS * 3}, ValueError, "valid are 0 to 2"),
    ({"input_ids": IDS, "position_ids": IDS * 40}, ValueError, "valid are 0 to 39"),
    ({"inputs_embeds": np.zeros((2, 4, 23))}, ValueError, "expected .B sequences"),
    ({"inputs_embeds": np.full((2, 4, 24), np.nan)}, ValueError, "holds NaN"),
    ({"input_ids": IDS, "output_hidden_states": 3}, ValueError, "this model has 3 hidden states"),
    ({"input_ids": IDS, "output_attentions": "all"}, TypeError, "expected True, False"),
    ({"input_ids": IDS, "num_layers": 1}, TypeError, "num_layers"),
]


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "BertForMultipleChoice"])
def test_bad_inputs(model_of: ModelOf, name: str) -> None:
    model = model_of(name)
    for inputs, error, message in BAD_INPUTS:
        with pytest.raises(error, match=message):
            model(**inputs)


CHOICES = np.ones((2, 3, 4), dtype=np.int64)
BAD_CHOICES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "not neither"),
    ({"input_ids": CHOICES, "inputs_embeds": np.zeros((2, 3, 4, 24))}, ValueError, "not both"),
    ({"input_ids": IDS}, ValueError, r"input_ids has shape \(2, 4\); expected \(B, choices, S\)"),
    ({"input_ids": [1, 2]}, ValueError, r"input_ids has shape \(2,\)"),
    ({"input_ids": CHOICES[None]}, ValueError, r"input_ids has shape \(1, 2, 3, 4\)"),
    ({"input_ids": CHOICES[:, :0]}, ValueError, "The input has no choices"),
    ({"inputs_embeds": np.zeros((2, 3, 24))}, ValueError, r"inputs_embeds has shape .* expected \(B, choices, S, H\)"),
    ({"inputs_embeds": np.zeros((2, 3, 4, 23))}, ValueError, "hidden_size"),
    ({"input_ids": CHOICES, "attention_mask": CHOICES[:, :2]}, ValueError, r"attention_mask has shape \(2, 2, 4\)"),
    ({"input_ids": CHOICES, "attention_mask": CHOICES[..., :3]}, ValueError, "attention_mask has shape"),
    ({"input_ids": CHOICES, "attention_mask": CHOICES[:1, :1]}, ValueError, "attention_mask has shape"),
    ({"input_ids": CHOICES, "attention_mask": IDS}, ValueError, r"attention_mask has shape \(2, 4\)"),
    ({"input_ids": CHOICES, "token_type_ids": CHOICES.reshape(3, 2, 4)}, ValueError, "token_type_ids has shape"),
    ({"input_ids": CHOICES, "position_ids": np.arange(4)[None]}, ValueError, "position_ids has shape"),
    ({"input_ids": CHOICES, "position_ids": CHOICES[:, :1]}, ValueError, "position_ids has shape"),
    ({"input_ids": CHOICES * 1.0}, TypeError, "input_ids holds float64"),
    ({"input_ids": CHOICES * 97}, ValueError, "valid are 0 to 96"),
    ({"input_ids": "text"}, TypeError, "input_ids is text"),
    ({"input_ids": [[[1, 2], [3]]]}, ValueError, "not a rectangular array"),
]


@pytest.mark.parametrize(("inputs", "error", "message"), BAD_CHOICES, ids=str)
def test_bad_choices(model_of: ModelOf, inputs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model_of("BertForMultipleChoice")(**inputs)
