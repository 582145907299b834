"""Packing and unpacking, and every check of the inputs: valid inputs in all their forms, bad ones by name."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from minibert import BertModel
from minibert.bert.config import BertConfig
from minibert.bert.packed import PackedBatch
from minibert.models import float64
from minibert.models.inputs import pack
from tests.support.checkpoints import random_checkpoint, sizes
from tests.support.refusals import Raises, itself

V, H, L, A, P, TYPES = 40, 24, 2, 3, 16, 2
SIZES = sizes(V=V, H=H, L=L, A=A, F=40, P=P, types=TYPES)
CONFIG = BertConfig(**SIZES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BertModel:
    return BertModel.from_pretrained(random_checkpoint(tmp_path_factory.mktemp("checkpoint"), **SIZES))


IDS = np.random.default_rng(0).integers(V, size=(2, 5))
MASK = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]])
TOKEN_TYPES = np.array([[0, 0, 0, 1, 1], [0, 1, 0, 1, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 4], [15, 14, 0, 0, 1]])
EMBEDS = np.random.default_rng(1).normal(size=(2, 5, H)).astype(np.float32)


def with_value(array: np.ndarray, place: tuple[int, ...], value: Any, dtype: Any = None) -> np.ndarray:
    changed = array.astype(dtype) if dtype is not None else array.copy()
    changed[place] = value
    return changed


# --- bad inputs -------------------------------------------------------------------------------------------------------


def at(array: np.ndarray, value: Any, dtype: Any = None) -> np.ndarray:
    """Return a copy with this value in row 1, column 3."""
    return with_value(array, (1, 3, 7)[: array.ndim], value, dtype)


WIDE = np.ones((1, 17), int)
PLACE = "row 1, column 3"
# (argument, error, what else its message names, bad values).
TABLE: list[tuple[str, type[Exception], str, list[Any]]] = [
    ("input_ids", ValueError, f"at {PLACE} is -?[0-9]+; valid are 0 to 39", [
        *(at(IDS, value) for value in (V, 10**9, -1, 2**32, 2**32 + 1, -(2**63))),
        at(IDS, 2**64 - 1, np.uint64), at(IDS, -128, np.int8)]),
    ("input_ids", ValueError, "row 0, column 0 is 77", [np.full((2, 5), 77)]),
    ("input_ids", ValueError, f"is {2**64 - 1};", [at(IDS, 2**64 - 1, np.uint64)]),
    ("input_ids", TypeError, "", [
        IDS.astype(np.float32), IDS.astype(float), np.zeros((0, 5), np.float16), [[1.0, 2.0]], [[float("nan"), 2]],
        IDS > 3, IDS.astype(complex), IDS.astype("M8[s]"), np.zeros((2, 5), dtype=[("id", "i4")]), IDS.astype(object),
        [[10**30]], [[1, None]], "a text", [["a", "text"]], b"12", np.ma.array([[1, 2]], mask=[[0, 1]]), {1, 2},
        (i for i in [[1, 2]]), {"input_ids": [[1]]}]),
    ("input_ids", ValueError, "", [
        3, [1, 2, 3], IDS[None], [], [[1, 2, 3], [4]], [[1, 2], [3, [4]]], [np.arange(3), np.arange(4)], itself(),
        torch.zeros(2, 5, dtype=torch.long, device="meta"), Raises(), None]),
    ("attention_mask", ValueError, f"at {PLACE} is .*; expected 0", [
        *(at(MASK, value) for value in (2, -1, 256)), at(MASK, 2**64 - 1, np.uint64), at(MASK, np.nan, float)]),
    ("attention_mask", ValueError, "", [
        MASK * 0.5, np.where(MASK, 0.0, -np.inf), MASK[:, :4], np.ones((2, 6), int), MASK[:1], MASK[0],
        MASK[:, None, None], np.ones((2, 5, 5), int), MASK.T, [], [[1, 1], [1]]]),
    ("attention_mask", TypeError, "", [[["1", "0"]]]),
    ("token_type_ids", ValueError, f"at {PLACE} is .*type_vocab_size", [at(TOKEN_TYPES, 2), at(TOKEN_TYPES, -1)]),
    ("token_type_ids", TypeError, "", [TOKEN_TYPES * 1.0, TOKEN_TYPES > 0, "00000"]),
    ("token_type_ids", ValueError, "", [TOKEN_TYPES[:, :3], np.zeros((3, 5), int), TOKEN_TYPES[0]]),
    ("position_ids", ValueError, f"at {PLACE} is .*max_position", [at(POSITIONS, 16), at(POSITIONS, -1)]),
    ("position_ids", TypeError, "", [POSITIONS / 1]),
    ("position_ids", ValueError, "", [
        [[0, 1, 2, 3, 16]], np.zeros((3, 5), int), np.zeros((1, 6), int), np.arange(5)]),
    ("inputs_embeds", ValueError, "", [np.zeros((2, 5, H + 1)), EMBEDS[:, :, 1:], EMBEDS[0], EMBEDS[None]]),
    ("inputs_embeds", TypeError, "", [
        EMBEDS.astype(int), EMBEDS > 0, EMBEDS * 1j, EMBEDS.astype(object), "word", IDS,
        torch.zeros(1, 2, H, dtype=torch.complex64)]),
    ("inputs_embeds", ValueError, f"at {PLACE} holds", [
        *(at(EMBEDS, value) for value in (np.nan, np.inf, -np.inf)), at(EMBEDS, 1e39, float)]),
    ("output_hidden_states", ValueError, "0 to 2, or -3 to -1", [3, [0, -4], 10**30]),
    ("output_hidden_states", TypeError, "", ["all", 1.0, [0.5], [True], [None], [[0]], slice(2)]),
    ("output_attentions", ValueError, "0 to 1, or -2", [2]),
    ("output_attentions", TypeError, "", ["eager"]),
    ("num_layers", ValueError, "0 to 2", [3, -1]),
    ("num_layers", TypeError, "", [True, 1.0, "1"]),
    ("cache_position", ValueError, "", [[0]]),
    ("head_mask", ValueError, "edit=", [np.ones((2, 3))]),
]  # fmt: skip
BAD_INPUTS: list[tuple[str, type[Exception], str, dict[str, Any]]] = [
    *((name, error, more, {name: value}) for name, error, more, values in TABLE for value in values),
    ("input_ids", ValueError, "99", {"input_ids": with_value(IDS, (1, 4), 99), "attention_mask": MASK}),
    ("max_position_embeddings", ValueError, "17 tokens wide", {"input_ids": WIDE}),
    ("max_position_embeddings", ValueError, "17 tokens wide", {"inputs_embeds": np.zeros((1, 17, H))}),
    ("max_position_embeddings", ValueError, "17 tokens wide", {"input_ids": WIDE, "attention_mask": [[0] + 16 * [1]]}),
    ("input_ids", ValueError, "not neither", {"input_ids": None, "attention_mask": MASK}),
    ("input_ids", ValueError, "not both", {"input_ids": IDS, "inputs_embeds": EMBEDS}),
    ("inputs_embeds", ValueError, "row 1, column 2", {
        "inputs_embeds": with_value(EMBEDS, (1, 2, 0), np.nan), "attention_mask": MASK}),
    *(
        (name, ValueError, "num_layers", {"num_layers": 1, name: value})
        for name, value in (("output_hidden_states", 2), ("output_hidden_states", [-1]), ("output_attentions", 1))
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "error", "more", "call"), BAD_INPUTS)
def test_bad_inputs(model: BertModel, name: str, error: type[Exception], more: str, call: dict[str, Any]) -> None:
    arguments = call if call.keys() & {"input_ids", "inputs_embeds"} else {"input_ids": IDS, **call}
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    before = copy.deepcopy(arrays)
    with pytest.raises(error, match=name) as caught:
        model(**arguments)
    assert re.search(more, str(caught.value))
    assert type(caught.value) is error, "a subclass, or an error of another library"
    assert len(str(caught.value)) < 600
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


# --- good inputs ------------------------------------------------------------------------------------------------------

INPUTS = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TOKEN_TYPES, "position_ids": POSITIONS}


def strided(array: np.ndarray) -> np.ndarray:
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), 99, dtype=array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "lists": lambda array: array.tolist(),
    "tuples": lambda array: tuple(map(tuple, array.tolist())),
    "a list of arrays": list,
    "strided": strided,
    "columns first": np.asfortranarray,
    "reversed twice": lambda array: np.ascontiguousarray(array[::-1])[::-1],
    "read-only": read_only,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "a tensor": lambda array: torch.from_numpy(array.copy()),
    "a transposed tensor": lambda array: torch.from_numpy(np.ascontiguousarray(array.T)).T,
    "broadcast and cut": lambda array: np.broadcast_to(array[None], (3, *array.shape))[1],
    **{
        name: (lambda array, name=name: array.astype(name))  # type: ignore[misc]
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_integers_gives_the_same(model: BertModel, form: str) -> None:
    expected = model(**INPUTS)
    given = {name: FORMS[form](array) for name, array in INPUTS.items()}
    before = copy.deepcopy(given)
    output = model(**given)
    np.testing.assert_array_equal(output.last_hidden_state, expected.last_hidden_state)
    np.testing.assert_array_equal(output.pooler_output, expected.pooler_output)
    for name, value in given.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(before[name]))


@pytest.mark.parametrize(
    "form", ["bool", "float32", "float64", ">f4", "longdouble", "float16", "lists", "strided", "a tensor"]
)
def test_every_form_of_mask_and_embeds_gives_the_same(model: BertModel, form: str) -> None:
    embeds = EMBEDS.astype(np.float16).astype(np.float32)
    expected = model(inputs_embeds=embeds, attention_mask=MASK).last_hidden_state
    if form == "bool":
        for mask in (MASK.astype(bool), MASK.astype(bool).tolist()):
            np.testing.assert_array_equal(model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state, expected)
        return
    given = FORMS[form](embeds) if form in FORMS else embeds.astype(form)
    before = copy.deepcopy(given)
    output = model(inputs_embeds=given, attention_mask=MASK).last_hidden_state
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(np.asarray(given), np.asarray(before))


def test_values_of_masked_embeds_do_not_matter(model: BertModel) -> None:
    dirty = EMBEDS.astype(np.float64)
    dirty[MASK == 0] = np.nan
    dirty[1, 4, 3] = 1e300
    np.testing.assert_array_equal(
        model(inputs_embeds=dirty, attention_mask=MASK).last_hidden_state,
        model(inputs_embeds=EMBEDS, attention_mask=MASK).last_hidden_state,
    )


EMPTY = [*(np.zeros(shape, int) for shape in ((0, 5), (3, 0), (0, 0), (2, 3))), [[]], [[], []]]


@pytest.mark.parametrize("ids", EMPTY)
def test_empty_batches_give_empty_arrays(model: BertModel, ids: Any) -> None:
    """In one of them everything is masked."""
    B, S = np.shape(ids)
    output = model(ids, attention_mask=np.zeros((B, S), int), output_attentions=True)
    assert [state.shape for state in output.hidden_states] == (L + 1) * [(B, S, H)]
    assert [probs.shape for probs in output.attentions] == L * [(B, A, S, S)]
    assert output.pooler_output.shape == (B, H)
    for array in arrays_of(output):
        assert array.dtype == np.float32
        assert not array.any()


def arrays_of(output: Any) -> list[np.ndarray]:
    return [*output.hidden_states, *output.attentions, output.pooler_output]


def test_a_row_that_is_all_masked_is_all_zeros_and_changes_no_other(model: BertModel) -> None:
    ids = np.concatenate([IDS, IDS, IDS])
    mask = np.ones_like(ids)
    mask[[0, 3, 5]] = 0
    output = model(ids, mask, output_attentions=True)
    shown = [1, 2, 4]
    alone = model(ids[shown], output_attentions=True)
    for array, expected in zip(arrays_of(output), arrays_of(alone), strict=True):
        assert not array[[0, 3, 5]].any()
        np.testing.assert_allclose(array[shown], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tokens", [7, 1000])
def test_pooler_output_of_steps_in_which_some_first_tokens_are_masked(
    tokens: int, model: BertModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.models.steps.TOKENS_PER_STEP", tokens)
    ids = np.concatenate([IDS, IDS, IDS])
    mask = np.ones_like(ids)
    mask[[0, 3, 4], 0] = 0
    for each in (model, model.with_ops(float64.OPS)):
        pooled, alone = each(ids, mask).pooler_output, each(ids).pooler_output
        shown = mask[:, 0] == 1
        assert pooled.dtype == alone.dtype
        assert not pooled[~shown].any()
        np.testing.assert_allclose(pooled[shown], alone[shown], rtol=0, atol=1e-6)


@pytest.mark.parametrize("visible", [[0, 1, 2], [2, 3, 4], [0, 2, 4], [1, 3], [4], [0]])
def test_masked_positions_are_zeros_and_the_others_see_only_each_other(model: BertModel, visible: list[int]) -> None:
    """A sequence whose mask has holes equals the short sequence with the same position ids."""
    mask = np.zeros((1, 5), int)
    mask[0, visible] = 1
    output = model(IDS[:1], mask, TOKEN_TYPES[:1])
    alone = model(IDS[:1, visible], token_type_ids=TOKEN_TYPES[:1, visible], position_ids=[visible])
    for state, expected in zip(output.hidden_states, alone.hidden_states, strict=True):
        assert not state[mask == 0].any()
        np.testing.assert_array_equal(state[0, visible], expected[0])
    if 0 in visible:
        np.testing.assert_array_equal(output.pooler_output, alone.pooler_output)
    else:
        assert not output.pooler_output.any()


# --- PackedBatch ------------------------------------------------------------------------------------------------------


def random_batch(seed: int, *, embeds: bool = False) -> PackedBatch:
    """Make a batch with holes, empty rows and rows of every length."""
    random = np.random.default_rng(seed)
    B, S = random.integers(0, 9), random.integers(0, P + 1)
    mask = random.random((B, S)) < random.random((B, 1))
    types = random.integers(TYPES, size=(B, S))
    if embeds:
        return pack(CONFIG, None, mask, types, None, random.normal(size=(B, S, H)))
    return pack(CONFIG, random.integers(V, size=(B, S)), mask, types, random.integers(P, size=(B, S)))


def test_positions_are_columns_whatever_the_mask_and_one_row_serves_all() -> None:
    batch = pack(CONFIG, IDS, MASK)
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 2, 3]
    batch = pack(CONFIG, IDS, MASK, position_ids=[[5, 6, 7, 8, 9]])
    assert batch.positions.tolist() == [5, 6, 7, 8, 9, 5, 7, 8]
    assert batch.token_types.tolist() == 8 * [0]


def test_pad_and_pad_pairs_write_into_zeros() -> None:
    for seed in range(20):
        batch, random = random_batch(seed), np.random.default_rng(seed)
        packed = random.normal(size=(batch.num_tokens, 3)).astype(np.float32)
        padded = batch.pad(packed)
        assert padded.shape == (*batch.mask.shape, 3)
        np.testing.assert_array_equal(padded[batch.mask], packed)
        assert not padded[~batch.mask].any()
        squares = [1 + random.random((A, n, n), dtype=np.float32) for n in np.diff(batch.cu_seqlens)]
        pairs = batch.pad_pairs(squares, A)
        B, S = batch.mask.shape
        assert pairs.shape == (B, A, S, S)
        for b in range(B):
            places = np.flatnonzero(batch.mask[b])
            np.testing.assert_array_equal(pairs[b][np.ix_(range(A), places, places)], squares[b])
            assert np.count_nonzero(pairs[b]) == squares[b].size


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 16, 1000])
def test_steps_cover_every_token_once_in_order(max_tokens: int, embeds: bool) -> None:
    for seed in range(6):
        batch = random_batch(seed, embeds=embeds)
        at = sequences = 0
        for tokens, step in batch.steps(max_tokens):
            assert tokens.start == at, "a gap or an overlap"
            assert step.num_tokens == tokens.stop - tokens.start
            assert step.num_tokens <= max_tokens or step.num_sequences == 1
            rows = slice(sequences, sequences + step.num_sequences)
            np.testing.assert_array_equal(step.token_types, batch.token_types[tokens])
            np.testing.assert_array_equal(step.positions, batch.positions[tokens])
            np.testing.assert_array_equal(step.mask, batch.mask[rows])
            np.testing.assert_array_equal(np.diff(step.cu_seqlens), np.diff(batch.cu_seqlens)[rows])
            assert step.cu_seqlens[0] == 0
            if embeds:
                assert step.inputs_embeds is not None
                assert batch.inputs_embeds is not None
                np.testing.assert_array_equal(step.inputs_embeds[step.token_ids], batch.inputs_embeds[tokens])
            else:
                np.testing.assert_array_equal(step.token_ids, batch.token_ids[tokens])
            at, sequences = tokens.stop, rows.stop
        assert (at, sequences) == (batch.num_tokens, batch.num_sequences)


def test_steps_are_as_long_as_they_may_be() -> None:
    lengths = [3, 4, 5, 20, 1, 0, 2, 9]
    ids = [np.ones(n, np.int32) for n in lengths]
    batch = PackedBatch.from_sequences(CONFIG, ids, ids)
    assert [np.diff(step.cu_seqlens).tolist() for _, step in batch.steps(8)] == [[3, 4], [5], [20], [1, 0, 2], [9]]
    assert [np.diff(step.cu_seqlens).tolist() for _, step in batch.steps(10**6)] == [lengths]


@pytest.mark.parametrize("lengths", [[], [0], [3], [2, 5, 1], [0, 4, 0, 1], [16, 1]])
def test_from_sequences_equals_the_padded_way(lengths: list[int]) -> None:
    random = np.random.default_rng(0)
    ids, types = ([random.integers(limit, size=n).astype(np.int32) for n in lengths] for limit in (V, TYPES))
    batch = PackedBatch.from_sequences(CONFIG, ids, types)
    mask = np.arange(max(lengths, default=0)) < np.array(lengths, int).reshape(-1, 1)
    padded_ids, padded_types = np.zeros((2, *mask.shape), int)
    for row, n in enumerate(lengths):
        padded_ids[row, :n], padded_types[row, :n] = ids[row], types[row]
    expected = pack(CONFIG, padded_ids, mask, padded_types)
    for name in ("token_ids", "token_types", "positions", "cu_seqlens", "mask"):
        ours, other = getattr(batch, name), getattr(expected, name)
        np.testing.assert_array_equal(ours, other)
        assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
