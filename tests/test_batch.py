"""Packing and unpacking, and every check of the inputs: valid inputs in all their forms, bad ones by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from minibert import BertModel
from minibert.bert.config import BertConfig
from minibert.bert.packed import PackedBatch
from minibert.models.inputs import check_ids, pack
from tests.support.checkpoints import random_checkpoint
from tests.support.report import REPORT

V, H, L, A, P, TYPES = 40, 24, 2, 3, 16, 2
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=L,
    num_attention_heads=A,
    intermediate_size=40,
    max_position_embeddings=P,
    type_vocab_size=TYPES,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BertModel:
    fields = {name: value for name, value in CONFIG.to_dict().items() if name != "model_type"}
    return BertModel.from_pretrained(random_checkpoint(tmp_path_factory.mktemp("checkpoint"), **fields))


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


class Unreadable:
    """An object with `__array__`, which raises."""

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise KeyError("the file behind this array is gone")


def itself() -> list[Any]:
    """Return a list that contains itself."""
    endless: list[Any] = []
    endless.append(endless)
    return endless


RANGE = r"valid are 0 to 39 \(vocab_size=40\)"
PLACE = "row 1, column 3"

# (name, arguments of model(...), exception, regex: the position, the value, the valid values or what to do).
# A case without input_ids and inputs_embeds gets good input_ids.
BAD_INPUTS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    # input_ids: values
    ("id = V", {"input_ids": with_value(IDS, (1, 3), V)}, ValueError, f"input_ids at {PLACE} is 40; {RANGE}"),
    ("id far beyond V", {"input_ids": with_value(IDS, (1, 3), 10**9)}, ValueError, f"{PLACE} is 1000000000; {RANGE}"),
    ("id = -1", {"input_ids": with_value(IDS, (1, 3), -1)}, ValueError, f"{PLACE} is -1; {RANGE}"),
    ("id = 2**32", {"input_ids": with_value(IDS, (1, 3), 2**32)}, ValueError, f"{PLACE} is 4294967296; {RANGE}"),
    ("id = 2**32 + 1", {"input_ids": with_value(IDS, (1, 3), 2**32 + 1)}, ValueError, f"{PLACE} is 4294967297; "),
    ("id = -2**63", {"input_ids": with_value(IDS, (1, 3), -(2**63))}, ValueError, f"{PLACE} is -9223372036854775808; "),
    (
        "id = 2**64 - 1",
        {"input_ids": with_value(IDS, (1, 3), 2**64 - 1, np.uint64)},
        ValueError,
        f"{PLACE} is 18446744073709551615; {RANGE}",
    ),
    ("int8 id = -128", {"input_ids": with_value(IDS, (1, 3), -128, np.int8)}, ValueError, f"{PLACE} is -128; {RANGE}"),
    (
        "a bad id at a masked position",
        {"input_ids": with_value(IDS, (1, 4), 99), "attention_mask": MASK},
        ValueError,
        "99",
    ),
    ("the first of several", {"input_ids": np.full((2, 5), 77)}, ValueError, f"row 0, column 0 is 77; {RANGE}"),
    # input_ids: kinds
    ("float32 ids", {"input_ids": IDS.astype(np.float32)}, TypeError, "input_ids holds float32 .* ids are integers"),
    ("float64 ids", {"input_ids": IDS.astype(float)}, TypeError, "input_ids holds float64 .* ids are integers"),
    ("float16 ids, empty", {"input_ids": np.zeros((0, 5), np.float16)}, TypeError, "input_ids holds float16"),
    ("floats in lists", {"input_ids": [[1.0, 2.0]]}, TypeError, "input_ids holds float64 .* ids are integers"),
    ("NaN in lists", {"input_ids": [[float("nan"), 2]]}, TypeError, "input_ids holds float64"),
    ("bool ids", {"input_ids": IDS > 3}, TypeError, "input_ids holds bool .* ids are integers"),
    ("complex ids", {"input_ids": IDS.astype(complex)}, TypeError, "input_ids holds complex128 .* expected an array"),
    ("dates", {"input_ids": IDS.astype("M8[s]")}, TypeError, "input_ids holds datetime64"),
    (
        "records",
        {"input_ids": np.zeros((2, 5), dtype=[("id", "i4")])},
        TypeError,
        "input_ids holds .*expected an array",
    ),
    (
        "objects",
        {"input_ids": IDS.astype(object)},
        TypeError,
        r"input_ids holds object .*\(ndarray\); expected an array",
    ),
    ("an integer beyond 64 bits", {"input_ids": [[10**30]]}, TypeError, r"input_ids holds object values \(list\)"),
    ("None inside", {"input_ids": [[1, None]]}, TypeError, r"input_ids holds object values \(list\)"),
    ("a text", {"input_ids": "a text"}, TypeError, r"input_ids is text; tokenize it first"),
    ("texts", {"input_ids": [["a", "text"]]}, TypeError, r"input_ids holds <U4 values \(list\); expected an array"),
    ("bytes", {"input_ids": b"12"}, TypeError, r"input_ids is text; tokenize it first"),
    ("a masked array", {"input_ids": np.ma.array([[1, 2]], mask=[[0, 1]])}, TypeError, r"input_ids is a masked array"),
    ("a set", {"input_ids": {1, 2}}, TypeError, r"input_ids holds object values \(set\)"),
    ("a generator", {"input_ids": (i for i in [[1, 2]])}, TypeError, r"input_ids holds object values \(generator\)"),
    (
        "the tokenizer's whole mapping",
        {"input_ids": {"input_ids": [[1]]}},
        TypeError,
        r"input_ids is a dict; unpack it: model\(\*\*inputs\)",
    ),
    # input_ids: shapes
    ("a number", {"input_ids": 3}, ValueError, r"input_ids has shape \(\); expected 2 dimensions"),
    ("one sequence", {"input_ids": [1, 2, 3]}, ValueError, r"input_ids has shape \(3,\); .*one sequence write \[ids\]"),
    ("three dimensions", {"input_ids": IDS[None]}, ValueError, r"input_ids has shape \(1, 2, 5\); expected 2 dim"),
    ("an empty list", {"input_ids": []}, ValueError, r"input_ids has shape \(0,\); expected 2 dimensions"),
    ("ragged lists", {"input_ids": [[1, 2, 3], [4]]}, ValueError, r"input_ids is not a rect.*padding=True"),
    ("ragged depth", {"input_ids": [[1, 2], [3, [4]]]}, ValueError, r"input_ids is not a rect.*padding=True"),
    ("ragged arrays", {"input_ids": [np.arange(3), np.arange(4)]}, ValueError, "input_ids is not a rect.*padding=True"),
    ("a list that contains itself", {"input_ids": itself()}, ValueError, "input_ids is not a rectangular array"),
    (
        "a broken array",
        {"input_ids": Unreadable()},
        ValueError,
        "input_ids is not .*the file behind this array is gone",
    ),
    (
        "a tensor without data",
        {"input_ids": torch.zeros(2, 5, dtype=torch.long, device="meta")},
        ValueError,
        "input_ids",
    ),
    (
        "17 tokens, 16 positions",
        {"input_ids": np.ones((1, 17), int)},
        ValueError,
        "17 tokens wide.* has 16.*truncation=True",
    ),
    (
        "17 tokens, one of them masked",
        {"input_ids": np.ones((1, 17), int), "attention_mask": [[0] + 16 * [1]]},
        ValueError,
        "17 tokens wide, the model has 16 positions",
    ),
    # which input
    ("no input", {"input_ids": None}, ValueError, "exactly one of input_ids and inputs_embeds, not neither"),
    (
        "only a mask",
        {"input_ids": None, "attention_mask": MASK},
        ValueError,
        "exactly one of input_ids and inputs_embeds, not neither",
    ),
    ("both inputs", {"input_ids": IDS, "inputs_embeds": EMBEDS}, ValueError, "input_ids and inputs_embeds, not both"),
    # attention_mask
    (
        "mask holds 2",
        {"attention_mask": with_value(MASK, (1, 3), 2)},
        ValueError,
        f"mask at {PLACE} is 2; expected 0 .*1 ",
    ),
    (
        "mask holds -1",
        {"attention_mask": with_value(MASK, (1, 3), -1)},
        ValueError,
        f"mask at {PLACE} is -1; expected 0",
    ),
    ("mask holds 256", {"attention_mask": with_value(MASK, (1, 3), 256)}, ValueError, f"mask at {PLACE} is 256; exp"),
    (
        "mask 2**64 - 1",
        {"attention_mask": with_value(MASK, (1, 3), 2**64 - 1, np.uint64)},
        ValueError,
        f"{PLACE} is 184",
    ),
    (
        "mask of 0.5",
        {"attention_mask": MASK * 0.5},
        ValueError,
        r"attention_mask at row 0, column 0 is 0.5; expected 0 \(masked\) or 1",
    ),
    (
        "mask with NaN",
        {"attention_mask": with_value(MASK, (1, 3), np.nan, float)},
        ValueError,
        f"mask at {PLACE} is nan",
    ),
    ("additive mask", {"attention_mask": np.where(MASK, 0.0, -np.inf)}, ValueError, "is -inf; expected 0"),
    ("mask of texts", {"attention_mask": [["1", "0"]]}, TypeError, "attention_mask holds <U1"),
    (
        "mask too short",
        {"attention_mask": MASK[:, :4]},
        ValueError,
        r"attention_mask has shape \(2, 4\); expected \(2, 5\)",
    ),
    ("mask too long", {"attention_mask": np.ones((2, 6), int)}, ValueError, r"shape \(2, 6\); expected \(2, 5\)"),
    (
        "mask for one row",
        {"attention_mask": MASK[:1]},
        ValueError,
        r"attention_mask has shape \(1, 5\); expected \(2, 5\)",
    ),
    ("mask for one sequence", {"attention_mask": MASK[0]}, ValueError, r"shape \(5,\); expected \(2, 5\)"),
    (
        "mask of four dimensions",
        {"attention_mask": MASK[:, None, None]},
        ValueError,
        r"\(2, 1, 1, 5\); expected \(2, 5\)",
    ),
    ("mask of a decoder", {"attention_mask": np.ones((2, 5, 5), int)}, ValueError, r"\(2, 5, 5\); expected \(2, 5\)"),
    ("transposed", {"attention_mask": MASK.T}, ValueError, r"attention_mask has shape \(5, 2\); expected \(2, 5\)"),
    ("an empty mask", {"attention_mask": []}, ValueError, r"attention_mask has shape \(0,\); expected \(2, 5\)"),
    ("a ragged mask", {"attention_mask": [[1, 1], [1]]}, ValueError, "attention_mask is not a rectangular array"),
    # token_type_ids
    (
        "token type 2 of 2",
        {"token_type_ids": with_value(TOKEN_TYPES, (1, 3), 2)},
        ValueError,
        rf"{PLACE} is 2; .*\(type_v",
    ),
    (
        "token type -1",
        {"token_type_ids": with_value(TOKEN_TYPES, (1, 3), -1)},
        ValueError,
        f"token_type_ids at {PLACE} is -1",
    ),
    ("float token types", {"token_type_ids": TOKEN_TYPES * 1.0}, TypeError, "token_type_ids holds float64"),
    ("bool token types", {"token_type_ids": TOKEN_TYPES > 0}, TypeError, "token_type_ids holds bool"),
    ("token types too short", {"token_type_ids": TOKEN_TYPES[:, :3]}, ValueError, r"\(2, 3\); expected \(2, 5\)"),
    ("token types of 3 rows", {"token_type_ids": np.zeros((3, 5), int)}, ValueError, r"\(3, 5\); expected \(2, 5\)"),
    ("token types, 1-D", {"token_type_ids": TOKEN_TYPES[0]}, ValueError, r"token_type_ids has shape \(5,\)"),
    ("token types as text", {"token_type_ids": "00000"}, TypeError, "token_type_ids is text"),
    # position_ids
    (
        "position 16 of 16",
        {"position_ids": with_value(POSITIONS, (1, 3), 16)},
        ValueError,
        rf"{PLACE} is 16; .*\(max_pos",
    ),
    ("position -1", {"position_ids": with_value(POSITIONS, (1, 3), -1)}, ValueError, f"position_ids at {PLACE} is -1"),
    ("float positions", {"position_ids": POSITIONS / 1}, TypeError, "position_ids holds float64"),
    ("positions of 3 rows", {"position_ids": np.zeros((3, 5), int)}, ValueError, r"position_ids has shape \(3, 5\)"),
    ("positions too long", {"position_ids": np.zeros((1, 6), int)}, ValueError, r"position_ids has shape \(1, 6\)"),
    ("positions, 1-D", {"position_ids": np.arange(5)}, ValueError, r"position_ids has shape \(5,\)"),
    ("position 16 in the only row", {"position_ids": [[0, 1, 2, 3, 16]]}, ValueError, "row 0, column 4 is 16"),
    # inputs_embeds
    (
        "embeds too wide",
        {"inputs_embeds": np.zeros((2, 5, H + 1))},
        ValueError,
        r"\(2, 5, 25\); expected .* 24\).*hidden_size",
    ),
    ("embeds too narrow", {"inputs_embeds": EMBEDS[:, :, 1:]}, ValueError, r"inputs_embeds has shape \(2, 5, 23\)"),
    (
        "embeds of one sequence",
        {"inputs_embeds": EMBEDS[0]},
        ValueError,
        r"\(5, 24\); expected \(B sequences, S tokens, 24\)",
    ),
    ("embeds, 4-D", {"inputs_embeds": EMBEDS[None]}, ValueError, r"inputs_embeds has shape \(1, 2, 5, 24\)"),
    (
        "integer embeds",
        {"inputs_embeds": EMBEDS.astype(int)},
        TypeError,
        "inputs_embeds holds int64 .*expected float vectors",
    ),
    ("bool embeds", {"inputs_embeds": EMBEDS > 0}, TypeError, "inputs_embeds holds bool"),
    ("complex embeds", {"inputs_embeds": EMBEDS * 1j}, TypeError, "inputs_embeds holds complex64"),
    ("object embeds", {"inputs_embeds": EMBEDS.astype(object)}, TypeError, "inputs_embeds holds object"),
    ("text embeds", {"inputs_embeds": "word"}, TypeError, "inputs_embeds is text"),
    ("ids as embeds", {"inputs_embeds": IDS}, TypeError, "inputs_embeds holds int64"),
    ("NaN in embeds", {"inputs_embeds": with_value(EMBEDS, (1, 3, 7), np.nan)}, ValueError, f"{PLACE} holds NaN, inf"),
    (
        "infinity in embeds",
        {"inputs_embeds": with_value(EMBEDS, (1, 3, 7), np.inf)},
        ValueError,
        f"embeds at {PLACE} holds",
    ),
    (
        "-infinity in embeds",
        {"inputs_embeds": with_value(EMBEDS, (1, 3, 7), -np.inf)},
        ValueError,
        f"embeds at {PLACE} holds",
    ),
    (
        "float64 embeds beyond float32",
        {"inputs_embeds": with_value(EMBEDS, (1, 3, 7), 1e39, float)},
        ValueError,
        f"embeds at {PLACE} holds .* beyond 1e17",
    ),
    (
        "NaN at the second visible position of a row with a hole",
        {"inputs_embeds": with_value(EMBEDS, (1, 2, 0), np.nan), "attention_mask": MASK},
        ValueError,
        "inputs_embeds at row 1, column 2 holds NaN",
    ),
    (
        "17 embeds, 16 positions",
        {"inputs_embeds": np.zeros((1, 17, H))},
        ValueError,
        "17 tokens wide, the model has 16",
    ),
    (
        "a sparse tensor",
        {"inputs_embeds": torch.zeros(1, 2, H).to_sparse()},
        ValueError,
        r"inputs_embeds: a tensor of shape .* cannot be read by NumPy .*to_dense\(\)",
    ),
    (
        "complex embeds in a tensor",
        {"inputs_embeds": torch.zeros(1, 2, H, dtype=torch.complex64)},
        TypeError,
        "inputs_embeds",
    ),
    # hidden states and attentions to keep
    (
        "hidden state 3 of 0..2",
        {"output_hidden_states": 3},
        ValueError,
        "output_hidden_states=3; .* 0 to 2, or -3 to -1",
    ),
    ("hidden state -4", {"output_hidden_states": [0, -4]}, ValueError, "output_hidden_states=-4; .*-3 to -1"),
    ("hidden state 10**30", {"output_hidden_states": 10**30}, ValueError, "output_hidden_states=10000"),
    (
        "hidden states by name",
        {"output_hidden_states": "all"},
        TypeError,
        "output_hidden_states='all'; expected True, False, an int",
    ),
    ("hidden state 1.0", {"output_hidden_states": 1.0}, TypeError, r"output_hidden_states=1\.0; expected True, False"),
    ("hidden states [0.5]", {"output_hidden_states": [0.5]}, TypeError, r"output_hidden_states=\[0\.5\]; expected"),
    ("hidden states [True]", {"output_hidden_states": [True]}, TypeError, r"output_hidden_states=\[True\]; expected"),
    ("hidden states [None]", {"output_hidden_states": [None]}, TypeError, r"output_hidden_states=\[None\]; expected"),
    ("hidden states [[0]]", {"output_hidden_states": [[0]]}, TypeError, r"output_hidden_states=\[\[0\]\]; expected"),
    ("a slice of them", {"output_hidden_states": slice(2)}, TypeError, "output_hidden_states=slice.*expected True"),
    (
        "attentions of layer 2 of 0..1",
        {"output_attentions": 2},
        ValueError,
        "output_attentions=2; .* 0 to 1, or -2",
    ),
    ("attentions by name", {"output_attentions": "eager"}, TypeError, "output_attentions='eager'; expected True"),
    # stopping early
    ("3 layers of 2", {"num_layers": 3}, ValueError, "num_layers=3; expected an int, 0 to 2"),
    ("-1 layers", {"num_layers": -1}, ValueError, "num_layers=-1; expected an int, 0 to 2"),
    ("True layers", {"num_layers": True}, TypeError, "num_layers=True; expected an int, 0 to 2"),
    ("1.0 layers", {"num_layers": 1.0}, TypeError, r"num_layers=1\.0; expected an int, 0 to 2"),
    ("'1' layer", {"num_layers": "1"}, TypeError, "num_layers='1'; expected an int, 0 to 2"),
    (
        "a state after the stop",
        {"num_layers": 1, "output_hidden_states": 2},
        ValueError,
        "names 2, which is not computed",
    ),
    (
        "the last after the stop",
        {"num_layers": 1, "output_hidden_states": [-1]},
        ValueError,
        "names 2, .*num_layers=",
    ),
    (
        "attentions after the stop",
        {"num_layers": 1, "output_attentions": 1},
        ValueError,
        "output_attentions names 1, .*num_l",
    ),
    # arguments that only transformers has
    ("cache_position", {"cache_position": [0]}, ValueError, r"cache_position=\[0\].*Leave it out"),
    ("head_mask", {"head_mask": np.ones((2, 3))}, ValueError, "edit=minibert.head_mask"),
]


@pytest.mark.parametrize(("call", "error", "match"), [b[1:] for b in BAD_INPUTS], ids=[b[0] for b in BAD_INPUTS])
def test_a_bad_input_is_an_error_that_names_it(
    model: BertModel, call: dict[str, Any], error: type[Exception], match: str
) -> None:
    arguments = call if call.keys() & {"input_ids", "inputs_embeds"} else {"input_ids": IDS, **call}
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    before = copy.deepcopy(arrays)
    with pytest.raises(error, match=match) as caught:
        model(**arguments)
    assert type(caught.value) is error, "a subclass, or an error of another library"
    assert len(str(caught.value)) < 600
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


def test_count_of_bad_inputs_is_reported() -> None:
    assert len(BAD_INPUTS) >= 60
    assert len({name for name, *_ in BAD_INPUTS}) == len(BAD_INPUTS)
    REPORT.append(f"model(...): {len(BAD_INPUTS)} bad inputs, each with a TypeError or ValueError that names it")


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


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", ">i4"])
def test_every_form_of_mask_gives_the_same(model: BertModel, dtype: str) -> None:
    expected = model(IDS, MASK).last_hidden_state
    np.testing.assert_array_equal(model(IDS, MASK.astype(dtype)).last_hidden_state, expected)
    np.testing.assert_array_equal(model(IDS, MASK.astype(dtype).tolist()).last_hidden_state, expected)


@pytest.mark.parametrize(
    "form", ["float32", "float64", ">f4", "longdouble", "lists", "strided", "read-only", "a tensor"]
)
def test_every_form_of_embeds_gives_the_same(model: BertModel, form: str) -> None:
    expected = model(inputs_embeds=EMBEDS, attention_mask=MASK).last_hidden_state
    given = FORMS[form](EMBEDS) if form in FORMS else EMBEDS.astype(form)
    before = copy.deepcopy(given)
    output = model(inputs_embeds=given, attention_mask=MASK).last_hidden_state
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(np.asarray(given), np.asarray(before))


def test_embeds_in_float16_are_widened(model: BertModel) -> None:
    half = EMBEDS.astype(np.float16)
    np.testing.assert_array_equal(
        model(inputs_embeds=half).last_hidden_state, model(inputs_embeds=half.astype(np.float32)).last_hidden_state
    )


def test_values_of_masked_embeds_do_not_matter(model: BertModel) -> None:
    dirty = EMBEDS.astype(np.float64)
    dirty[MASK == 0] = np.nan
    dirty[1, 4, 3] = 1e300
    np.testing.assert_array_equal(
        model(inputs_embeds=dirty, attention_mask=MASK).last_hidden_state,
        model(inputs_embeds=EMBEDS, attention_mask=MASK).last_hidden_state,
    )


@pytest.mark.parametrize(
    ("ids", "shape"),
    [
        (np.zeros((0, 5), np.int64), (0, 5)),
        (np.zeros((3, 0), np.int64), (3, 0)),
        (np.zeros((0, 0), np.int32), (0, 0)),
        ([[]], (1, 0)),
        ([[], []], (2, 0)),
        (np.zeros((2, 3), int), (2, 3)),
    ],
)
def test_empty_batches_give_empty_arrays(model: BertModel, ids: Any, shape: tuple[int, int]) -> None:
    B, S = shape
    hidden = np.zeros(shape, int)  # the last case masks everything
    output = model(ids, attention_mask=hidden, output_attentions=True)
    assert [state.shape for state in output.hidden_states] == (L + 1) * [(B, S, H)]
    assert [probs.shape for probs in output.attentions] == L * [(B, A, S, S)]
    assert output.pooler_output.shape == (B, H)
    for array in (*output.hidden_states, *output.attentions, output.pooler_output):
        assert array.dtype == np.float32
        assert not array.any()


def test_a_row_that_is_all_masked_is_all_zeros_and_changes_no_other(model: BertModel) -> None:
    ids = np.concatenate([IDS, IDS, IDS])
    mask = np.ones_like(ids)
    mask[[0, 3, 5]] = 0
    output = model(ids, mask, output_attentions=True)
    shown = [1, 2, 4]
    alone = model(ids[shown], output_attentions=True)
    for array, expected in zip(
        (*output.hidden_states, *output.attentions, output.pooler_output),
        (*alone.hidden_states, *alone.attentions, alone.pooler_output),
        strict=True,
    ):
        assert not array[[0, 3, 5]].any()
        np.testing.assert_allclose(array[shown], expected, rtol=0, atol=1e-6)


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


@pytest.mark.parametrize("seed", range(20))
def test_a_packed_batch_has_the_visible_tokens_row_by_row(seed: int) -> None:
    random = np.random.default_rng(seed)
    B, S = 1 + seed % 4, 1 + seed % 7
    ids, types = random.integers(V, size=(B, S)), random.integers(TYPES, size=(B, S))
    positions, mask = random.integers(P, size=(B, S)), random.random((B, S)) < 0.6
    batch = pack(CONFIG, ids, mask, types, positions)
    np.testing.assert_array_equal(batch.token_ids, ids[mask])
    np.testing.assert_array_equal(batch.token_types, types[mask])
    np.testing.assert_array_equal(batch.positions, positions[mask])
    np.testing.assert_array_equal(batch.cu_seqlens, [0, *mask.sum(axis=1).cumsum()])
    for array in (batch.token_ids, batch.token_types, batch.positions, batch.cu_seqlens):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
    assert batch.num_tokens == mask.sum()
    assert batch.num_sequences == B
    assert batch.max_seqlen == mask.sum(axis=1).max()
    assert batch.shows_first.tolist() == mask[:, 0].tolist()
    first = np.cumsum(mask).reshape(B, S)[:, 0] - 1
    assert batch.first_tokens.tolist() == first[mask[:, 0]].tolist()


def test_positions_are_columns_whatever_the_mask_and_one_row_serves_all() -> None:
    batch = pack(CONFIG, IDS, MASK)
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 2, 3]
    batch = pack(CONFIG, IDS, MASK, position_ids=[[5, 6, 7, 8, 9]])
    assert batch.positions.tolist() == [5, 6, 7, 8, 9, 5, 7, 8]
    assert batch.token_types.tolist() == 8 * [0]


@pytest.mark.parametrize("seed", range(20))
def test_selecting_by_the_mask_undoes_pad(seed: int) -> None:
    batch = random_batch(seed)
    packed = np.random.default_rng(seed).normal(size=(batch.num_tokens, 3)).astype(np.float32)
    padded = batch.pad(packed)
    assert padded.shape == (*batch.mask.shape, 3)
    np.testing.assert_array_equal(padded[batch.mask], packed)
    assert not padded[~batch.mask].any()


@pytest.mark.parametrize("seed", range(20))
def test_pad_pairs_writes_squares_and_leaves_zeros(seed: int) -> None:
    batch = random_batch(seed)
    random = np.random.default_rng(seed)
    squares = [1 + random.random((A, n, n), dtype=np.float32) for n in np.diff(batch.cu_seqlens)]
    padded = batch.pad_pairs(squares, A)
    B, S = batch.mask.shape
    assert padded.shape == (B, A, S, S)
    for b in range(B):
        places = np.flatnonzero(batch.mask[b])
        np.testing.assert_array_equal(padded[b][np.ix_(range(A), places, places)], squares[b])
        assert np.count_nonzero(padded[b]) == squares[b].size


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 16, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_steps_cover_every_token_once_in_order(seed: int, max_tokens: int, embeds: bool) -> None:
    batch = random_batch(seed, embeds=embeds)
    at = sequences = 0
    for tokens, step in batch.steps(max_tokens):
        assert tokens.start == at, "a gap or an overlap"
        at = tokens.stop
        assert step.num_tokens == tokens.stop - tokens.start
        assert step.num_tokens <= max_tokens or step.num_sequences == 1
        np.testing.assert_array_equal(step.token_types, batch.token_types[tokens])
        np.testing.assert_array_equal(step.positions, batch.positions[tokens])
        np.testing.assert_array_equal(step.mask, batch.mask[sequences : sequences + step.num_sequences])
        lengths = np.diff(batch.cu_seqlens)[sequences : sequences + step.num_sequences]
        np.testing.assert_array_equal(np.diff(step.cu_seqlens), lengths)
        assert step.cu_seqlens[0] == 0
        if embeds:
            assert step.inputs_embeds is not None
            assert batch.inputs_embeds is not None
            np.testing.assert_array_equal(step.inputs_embeds[step.token_ids], batch.inputs_embeds[tokens])
        else:
            np.testing.assert_array_equal(step.token_ids, batch.token_ids[tokens])
        sequences += step.num_sequences
    assert (at, sequences) == (batch.num_tokens, batch.num_sequences)


def test_steps_are_as_long_as_they_may_be() -> None:
    lengths = [3, 4, 5, 20, 1, 0, 2, 9]
    ids = [np.ones(n, np.int32) for n in lengths]
    batch = PackedBatch.from_sequences(ids, ids)
    assert [np.diff(step.cu_seqlens).tolist() for _, step in batch.steps(8)] == [[3, 4], [5], [20], [1, 0, 2], [9]]
    assert [np.diff(step.cu_seqlens).tolist() for _, step in batch.steps(10**6)] == [lengths]


@pytest.mark.parametrize("lengths", [[], [0], [3], [2, 5, 1], [0, 4, 0, 1], [16, 1]])
def test_from_sequences_equals_the_padded_way(lengths: list[int]) -> None:
    random = np.random.default_rng(0)
    ids = [random.integers(V, size=n).astype(np.int32) for n in lengths]
    types = [random.integers(TYPES, size=n).astype(np.int32) for n in lengths]
    batch = PackedBatch.from_sequences(ids, types)

    S = max(lengths, default=0)
    mask = np.arange(S) < np.array(lengths, int).reshape(-1, 1)
    padded_ids, padded_types = np.zeros((2, *mask.shape), int)
    for row, n in enumerate(lengths):
        padded_ids[row, :n], padded_types[row, :n] = ids[row], types[row]
    expected = pack(CONFIG, padded_ids, mask, padded_types)
    for name in ("token_ids", "token_types", "positions", "cu_seqlens", "mask"):
        ours, other = getattr(batch, name), getattr(expected, name)
        np.testing.assert_array_equal(ours, other)
        assert (ours.shape, ours.dtype) == (other.shape, other.dtype)


# --- check_ids --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "place"),
    [(7, r"index \(\)"), ([1, 7], "index 1"), ([[0], [7]], "row 1, column 0"), ([[[0, 7]]], "index 0, 0, 1")],
)
def test_check_ids_names_the_index_in_any_number_of_dimensions(values: Any, place: str) -> None:
    with pytest.raises(ValueError, match=rf"ids at {place} is 7; valid are 0 to 6 \(limit=7\)"):
        check_ids("ids", values, 7, "limit", ndim=None)
    checked = check_ids("ids", values, 8, "limit", ndim=None)
    np.testing.assert_array_equal(checked, values)
    assert checked.dtype == np.int32
