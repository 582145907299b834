"""Check a caller's padded arrays (ids, masks, shapes), and convert them to a `PackedBatch`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray, as_array
from minibert.bert.config import BertConfig
from minibert.bert.families.family import INPUTS as INPUTS
from minibert.bert.packed import PackedBatch, cumulate, positions_of, valid_range

_Method = TypeVar("_Method", bound=Callable[..., Any])


def ordered_inputs(method: _Method) -> _Method:
    """Return a method that takes its inputs by position in the order of transformers; `_inputs` names them."""

    @functools.wraps(method)
    def ordered(self: Any, *inputs: Any, **keywords: Any) -> Any:
        if len(inputs) > len(names := self._inputs):
            taken = f"{type(self).__name__} takes by position {', '.join(names)} only."
            raise TypeError(f"{taken} Give others by name, such as position_ids=, inputs_embeds= or labels=.")
        return method(self, **dict(zip(names, inputs, strict=False)), **keywords)

    return ordered  # type: ignore[return-value]


def named_inputs(*values: Any) -> dict[str, Any]:
    """Return the inputs of a call by name."""
    return dict(zip(INPUTS, values, strict=True))


def pack(
    config: BertConfig,
    input_ids: npt.ArrayLike | None = None,
    attention_mask: npt.ArrayLike | None = None,
    token_type_ids: npt.ArrayLike | None = None,
    position_ids: npt.ArrayLike | None = None,
    inputs_embeds: npt.ArrayLike | None = None,
) -> PackedBatch:
    """Check padded inputs completely, then pack the tokens that are not masked.

    The arguments after the config are those of `ModelBase.__call__`.

    Raises
    ------
    TypeError
        An array has the wrong kind (float ids, text).
    ValueError
        A shape or a value is wrong; the message names the row, the column and the value.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"Give input_ids or inputs_embeds, not {'neither' if input_ids is None else 'both'}.")
    embeds = None
    if inputs_embeds is not None:
        embeds = as_vectors("inputs_embeds", inputs_embeds, config.embedding_size or config.hidden_size, ndim=3)
        shape = embeds.shape[:2]
    else:
        ids = check_ids("input_ids", input_ids, config.vocab_size, "vocab_size")
        shape = ids.shape
    mask = _check_mask(attention_mask, shape)
    token_type_ids = token_type_ids if config.has_token_types else None  # as in transformers
    types = _optional_ids("token_type_ids", token_type_ids, shape, config.type_vocab_size, "type_vocab_size")
    most = config.num_positions
    if position_ids is not None:
        positions = _optional_ids("position_ids", position_ids, shape, most, "max_position_embeddings")
    else:
        # Nobody knows which of the given vectors are padding, so all are counted, as in transformers.
        positions = positions_of(config, ids if embeds is None else np.full(shape, -1, np.int32))
        if np.maximum.reduce(positions, axis=None, initial=0) >= most:
            raise ValueError(
                f"The batch is {shape[1]} tokens wide, the model takes {config.max_length} tokens "
                "(max_position_embeddings). Truncate the texts: tokenizer(..., truncation=True)."
            )
    if embeds is not None:  # one bad number would change every token of its sequence
        embeds = usable_rows("inputs_embeds", embeds[mask], lambda index: _place(np.argwhere(mask)[index]))
    return PackedBatch.from_private_arrays(
        token_ids=ids[mask] if embeds is None else np.arange(len(embeds), dtype=np.int32),
        token_types=types[mask],
        positions=positions[mask],
        cu_seqlens=cumulate(np.add.reduce(mask, axis=1)),
        mask=mask,
        inputs_embeds=embeds,
    )


def check_ids(name: str, values: object, limit: int, limit_name: str, *, ndim: int | None = 2) -> IntArray:
    """Check that all `values` are integers in [0, limit), and return them as an int32 array.

    Parameters
    ----------
    name, limit_name : str
        The names of the argument and of the config field, for the message.
    values : array-like of integers
    limit : int
        The largest valid id is `limit` - 1.
    ndim : int or None
        The required number of dimensions; None accepts any.

    Raises
    ------
    TypeError
        The values are not integers.
    ValueError
        The shape is wrong, or a value is out of range; the message says where.
    """
    ids = np.array(as_numbers(name, values))  # a copy, so that nobody can change it between the check and its use
    if ids.dtype.kind not in "iu" and (ids.size or isinstance(values, np.ndarray)):
        raise TypeError(f"{name} holds {ids.dtype} values; ids are integers (int64 as the tokenizer gives them).")
    exact, ids = ids, ids.astype(np.int64, copy=False)  # NumPy makes an empty list float64
    if ndim is not None and ids.ndim != ndim:
        raise ValueError(f"{name} has shape {ids.shape}; expected {ndim} dimensions, (B, S). Give one text as [ids].")
    # Read as uint64, a negative number is larger than any limit.
    if ids.size and np.maximum.reduce(ids.view(np.uint64), axis=None) >= limit:
        index = tuple(np.argwhere((ids < 0) | (ids >= limit))[0])
        raise ValueError(f"{name} at {_place(index)} is {int(exact[index])}; {valid_range(limit, limit_name)}")
    return ids.astype(np.int32)


def _optional_ids(name: str, values: object, shape: tuple[int, ...], limit: int, limit_name: str) -> IntArray:
    if values is None:
        return np.zeros(shape, dtype=np.int32)
    ids = check_ids(name, values, limit, limit_name)
    if ids.shape != shape and ids.shape != (1, shape[1]):
        raise ValueError(f"{name} has shape {ids.shape}; expected {shape}, the shape of the input.")
    return np.broadcast_to(ids, shape)


def _check_mask(values: object, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    if values is None:
        mask = np.empty(shape, dtype=np.bool_)
        mask[...] = True  # faster than np.ones
        return mask
    mask = np.array(as_numbers("attention_mask", values))  # a copy, as in `check_ids`
    if mask.shape != shape:
        raise ValueError(f"attention_mask has shape {mask.shape}; expected {shape}, the shape of the input.")
    bad = (mask != 0) & (mask != 1)
    if bad.any():
        index = tuple(np.argwhere(bad)[0])
        raise ValueError(f"attention_mask at {_place(index)} is {mask[index]}; expected 0 (masked) or 1 (not masked).")
    return mask.astype(np.bool_)


def as_vectors(name: str, values: object, hidden_size: int, ndim: int | None = None) -> FloatArray:
    """Convert an argument to an array of float vectors; raise if it does not have such a shape."""
    array = as_numbers(name, values)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} holds {array.dtype} values; expected float vectors (float32).")
    if array.ndim < 1 or array.ndim != (ndim or array.ndim) or array.shape[-1] != hidden_size:
        axes = "B sequences, S tokens" if ndim else "..."
        raise ValueError(f"{name} has shape {array.shape}; expected ({axes}, {hidden_size}).")
    return array


def usable_rows(name: str, rows: FloatArray, place: Callable[[int], str]) -> FloatArray:
    """Return rows as float32; raise if a number is not finite, or too large for float32 to hold a sum of squares.

    `place` says where in the argument a row is.
    """
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinity, which is refused
        rows = np.ascontiguousarray(rows, dtype=np.float32)
    usable = np.logical_and.reduce(np.abs(rows) <= 1e17, axis=1)
    if not usable.all():
        raise ValueError(f"{name} at {place(int(np.argmin(usable)))} holds NaN, infinity or a value beyond 1e17.")
    return rows


def as_numbers(name: str, values: object) -> npt.NDArray[Any]:
    """Convert an argument to an array of numbers; raise `TypeError` or `ValueError` with its name if it is not one."""
    if isinstance(values, str | bytes) or (isinstance(values, list | tuple) and values and isinstance(values[0], str)):
        raise TypeError(f"{name} is text; tokenize it first: model(**tokenizer(text)).")
    if isinstance(values, Mapping):
        raise TypeError(f"{name} is a {type(values).__name__}; unpack it: model(**inputs).")
    return as_array(name, values, "Pad rows of different lengths: tokenizer(..., padding=True).")


def _place(index: Sequence[int]) -> str:
    if len(index) == 2:
        return f"row {index[0]}, column {index[1]}"
    return f"index {', '.join(map(str, index))}" if index else "index ()"
