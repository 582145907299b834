"""Padded arrays <-> packed batch, and every check of ids, masks and shapes.

Kernels check nothing: an id outside its table makes them read memory that is not theirs. Therefore `PackedBatch` keeps
private copies of its arrays, which nobody can change after a check, and `PackedBatch.check` compares them with the
model before every forward (`BertModel.forward_packed`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.config import BertConfig

__all__ = ["PackedBatch", "as_array", "check_ids", "pack", "usable_rows"]

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]


@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """B sequences laid end to end, without padding: T tokens in all.

    The batch keeps read-only copies of its arrays; later changes of the caller's arrays do not reach it.

    Parameters
    ----------
    token_ids : int array of shape (T,); kept as int32
        Row of each token in the word embeddings, or in `inputs_embeds` (then 0, 1, ..., T - 1).
    token_types : int array of shape (T,); kept as int32
    positions : int array of shape (T,); kept as int32
    cu_seqlens : int array of shape (B + 1,); kept as int32
        Cumulative sequence lengths: sequence b is ``[cu_seqlens[b]:cu_seqlens[b + 1]]``. It may be empty.
    mask : bool array of shape (B, S)
        The places of the tokens in the padded arrays that the caller sees: row b holds as many as sequence b.
    inputs_embeds : ndarray of shape (T, H), float32, optional
        Word vectors to use instead of the word embeddings. Their numbers are not copied.

    Raises
    ------
    TypeError, ValueError
        An array is not of this kind or shape, the arrays do not belong together, or an id does not fit into int32.
    """

    token_ids: IntArray
    token_types: IntArray
    positions: IntArray
    cu_seqlens: IntArray
    mask: npt.NDArray[np.bool_]
    inputs_embeds: FloatArray | None = None

    def __post_init__(self) -> None:
        for name in ("token_ids", "token_types", "positions", "cu_seqlens"):
            object.__setattr__(self, name, _own_int32(name, getattr(self, name)))
        mask = np.array(self.mask)
        mask.flags.writeable = False
        object.__setattr__(self, "mask", mask)
        if self.inputs_embeds is not None:
            embeds = _as_float32_rows(self.inputs_embeds).view()
            embeds.flags.writeable = False  # the type that the word embeddings have: Numba compiles for one type less
            object.__setattr__(self, "inputs_embeds", embeds)
        self._check_layout()

    def _check_layout(self) -> None:
        """Refuse arrays that do not describe the same B sequences of T tokens."""
        T = len(self.token_ids)
        if len(self.token_types) != T or len(self.positions) != T:
            raise ValueError(
                f"There are {T} token_ids, {len(self.token_types)} token_types and {len(self.positions)} positions; "
                "expected one of each per token."
            )
        if self.mask.dtype != np.bool_ or self.mask.ndim != 2:
            raise ValueError(
                f"mask is {self.mask.dtype} of shape {self.mask.shape}; expected a bool array of shape (B, S)."
            )
        ends = np.add.accumulate(np.add.reduce(self.mask, axis=1))  # (B,)
        if not len(self.cu_seqlens) or self.cu_seqlens[0] or not np.array_equal(self.cu_seqlens[1:], ends):
            raise ValueError(
                "cu_seqlens and mask do not belong together: expected cu_seqlens[0] = 0, and that row b of mask has "
                "cu_seqlens[b + 1] - cu_seqlens[b] places that are True."
            )
        if self.cu_seqlens[-1] != T:
            raise ValueError(f"cu_seqlens ends with {self.cu_seqlens[-1]}; expected the number of tokens, {T}.")
        if self.inputs_embeds is not None and not (
            len(self.inputs_embeds) == T and np.array_equal(self.token_ids, np.arange(T))
        ):
            raise ValueError(
                f"There are {len(self.inputs_embeds)} inputs_embeds; expected one row per token ({T}), and "
                "token_ids 0, 1, ..., T - 1."
            )

    def check(self, config: BertConfig) -> None:
        """Refuse ids, token types, positions and word vectors that a model of this config does not have.

        Raises
        ------
        ValueError
            The message names the sequence, the token, the value and the config field.
        """
        if self.inputs_embeds is None:
            self._check_range("token_ids", config.vocab_size, "vocab_size")
        elif self.inputs_embeds.shape[1] != config.hidden_size:
            raise ValueError(
                f"inputs_embeds has {self.inputs_embeds.shape[1]} features; the model has {config.hidden_size} "
                "(hidden_size)."
            )
        self._check_range("token_types", config.type_vocab_size, "type_vocab_size")
        self._check_range("positions", config.max_position_embeddings, "max_position_embeddings")

    def _check_range(self, name: str, limit: int, limit_name: str) -> None:
        ids = getattr(self, name)
        # Seen as unsigned, a negative number is larger than any limit: one pass over the ids instead of two.
        if len(ids) and int(np.maximum.reduce(ids.view(np.uint32))) >= limit:
            t = int(np.argmax(ids.view(np.uint32) >= limit))
            b = int(np.searchsorted(self.cu_seqlens, t, side="right")) - 1
            raise ValueError(
                f"{name} of sequence {b} at {t - int(self.cu_seqlens[b])} is {int(ids[t])}; {_valid(limit, limit_name)}"
            )

    @property
    def num_tokens(self) -> int:
        """T, the tokens of all sequences together."""
        return int(self.cu_seqlens[-1])

    @property
    def num_sequences(self) -> int:
        """B, empty sequences included."""
        return len(self.cu_seqlens) - 1

    @property
    def max_seqlen(self) -> int:
        """The length of the longest sequence, 0 if there is none."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    @property
    def first_tokens(self) -> IntArray:
        """Row among the T tokens of each sequence's first place, [CLS]; sequences that hide it are left out."""
        return self.cu_seqlens[:-1][self.shows_first]

    @property
    def shows_first(self) -> npt.NDArray[np.bool_]:
        """Whether each of the B sequences has a token at its first place; shape (B,)."""
        return np.logical_or.reduce(self.mask[:, :1], axis=1)

    @classmethod
    def from_sequences(cls, token_ids: Sequence[IntArray], token_types: Sequence[IntArray]) -> PackedBatch:
        """Lay sequences of ids end to end; nothing is padded. Positions are 0, 1, ... in each sequence.

        Parameters
        ----------
        token_ids, token_types : sequences of B int arrays of shape (S_b,)
        """
        lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)
        return cls(
            token_ids=_concatenate(token_ids),
            token_types=_concatenate(token_types),
            positions=_concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
            cu_seqlens=_cumulate(lengths),
            mask=np.arange(lengths.max(initial=0)) < lengths[:, None],
        )

    def steps(self, max_tokens: int) -> Iterator[tuple[slice, PackedBatch]]:
        """Cut the batch between sequences into steps of at most `max_tokens` tokens, or one longer sequence.

        Yields
        ------
        (slice, PackedBatch)
            The step's place among the T tokens, and the step.
        """
        if self.num_sequences and self.num_tokens <= max_tokens:
            yield slice(0, self.num_tokens), self
            return
        first = 0
        while first < self.num_sequences:
            limit = int(self.cu_seqlens[first]) + max_tokens
            last = max(first + 1, int(np.searchsorted(self.cu_seqlens, limit, side="right")) - 1)
            tokens = slice(int(self.cu_seqlens[first]), int(self.cu_seqlens[last]))
            embeds = None if self.inputs_embeds is None else self.inputs_embeds[tokens]
            yield (
                tokens,
                PackedBatch(
                    # The rows of inputs_embeds count from the step's own first token.
                    token_ids=self.token_ids[tokens] if embeds is None else self.token_ids[: len(embeds)],
                    token_types=self.token_types[tokens],
                    positions=self.positions[tokens],
                    cu_seqlens=self.cu_seqlens[first : last + 1] - self.cu_seqlens[first],
                    mask=self.mask[first:last],
                    inputs_embeds=embeds,
                ),
            )
            first = last

    def pad(self, packed: FloatArray) -> FloatArray:
        """Lay packed rows out as padded: (T, ...) -> (B, S, ...); places without a token hold zeros."""
        shape = self.mask.shape + packed.shape[1:]
        if self.num_tokens == self.mask.size:
            return packed.reshape(shape)
        padded = np.zeros(shape, dtype=packed.dtype)
        padded[self.mask] = packed
        return padded

    def pad_pairs(self, packed: Sequence[FloatArray], num_heads: int) -> FloatArray:
        """Lay one (A, S_b, S_b) array per sequence out as (B, A, S, S); pairs with a hidden place hold zeros."""
        num_sequences, length = self.mask.shape
        padded = np.zeros((num_sequences, num_heads, length, length), dtype=np.float32)
        for b, pairs in enumerate(packed):
            places = np.flatnonzero(self.mask[b])
            padded[b][:, places[:, None], places] = pairs
        return padded


def pack(
    config: BertConfig,
    input_ids: npt.ArrayLike | None = None,
    attention_mask: npt.ArrayLike | None = None,
    token_type_ids: npt.ArrayLike | None = None,
    position_ids: npt.ArrayLike | None = None,
    inputs_embeds: npt.ArrayLike | None = None,
) -> PackedBatch:
    """Check padded inputs completely, then drop their hidden places.

    Parameters
    ----------
    config : BertConfig
        Gives the sizes the inputs are held against.
    input_ids : int array of shape (B, S), in [0, vocab_size)
    attention_mask : bool or 0/1 int array of shape (B, S), optional
        Zeros hide a place; holes are allowed anywhere. Default: nothing is hidden.
    token_type_ids : int array of shape (B, S), in [0, type_vocab_size), optional
        Default: zeros.
    position_ids : int array of shape (B, S) or (1, S), in [0, max_position_embeddings), optional
        Default: 0, 1, ..., S - 1 in every row, whatever the mask, as in transformers.
    inputs_embeds : float array of shape (B, S, H), optional
        Exactly one of `input_ids` and `inputs_embeds` is given.

    Raises
    ------
    TypeError
        An array is of the wrong kind (float ids, float mask, text).
    ValueError
        A shape or a value is wrong; the message names the row, the column and the value.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(
            f"Give exactly one of input_ids and inputs_embeds, not {'neither' if input_ids is None else 'both'}."
        )
    embeds = None
    if inputs_embeds is not None:
        embeds = _check_embeds(inputs_embeds, config.hidden_size)
        shape = embeds.shape[:2]
    else:
        ids = check_ids("input_ids", input_ids, config.vocab_size, "vocab_size")
        shape = ids.shape
    if position_ids is None and shape[1] > config.max_position_embeddings:
        raise ValueError(
            f"The batch is {shape[1]} tokens wide, the model has {config.max_position_embeddings} positions "
            "(max_position_embeddings). Cut the texts: tokenizer(..., truncation=True)."
        )
    mask = _check_mask(attention_mask, shape)
    types = _optional_ids("token_type_ids", token_type_ids, shape, config.type_vocab_size, "type_vocab_size")
    if position_ids is None:
        position_ids = np.arange(shape[1])[None]
    positions = _optional_ids(
        "position_ids", position_ids, shape, config.max_position_embeddings, "max_position_embeddings"
    )
    if embeds is not None:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinity, refused on the next line
            embeds = np.ascontiguousarray(embeds[mask], dtype=np.float32)
        _check_usable("inputs_embeds", embeds, mask)
    return PackedBatch(
        token_ids=ids[mask] if embeds is None else np.arange(len(embeds), dtype=np.int32),
        token_types=types[mask],
        positions=positions[mask],
        cu_seqlens=_cumulate(mask.sum(axis=1)),
        mask=mask,
        inputs_embeds=embeds,
    )


def check_ids(name: str, values: object, limit: int, limit_name: str, *, ndim: int | None = 2) -> IntArray:
    """Return `values` as an int32 array after checking that every one is an integer in [0, limit).

    Parameters
    ----------
    name, limit_name : str
        The argument and the config field, for the message.
    values : array-like of integers
    limit : int
        One above the largest valid id.
    ndim : int or None
        The number of dimensions required; None accepts any.

    Raises
    ------
    TypeError
        The values are not integers.
    ValueError
        The shape is wrong, or a value is out of range; the message names its place.
    """
    ids = np.array(as_array(name, values))  # a copy: nobody can change it between the check and its use
    if ids.dtype.kind not in "iu":
        if ids.size or isinstance(values, np.ndarray):
            raise TypeError(f"{name} holds {ids.dtype} values; ids are integers (int64 as the tokenizer gives them).")
        ids = ids.astype(np.int64)  # an empty list has no type of its own
    if ndim is not None and ids.ndim != ndim:
        raise ValueError(
            f"{name} has shape {ids.shape}; expected {ndim} dimensions (B sequences, S tokens). "
            "For one sequence write [ids]."
        )
    bad = (ids < 0) | (ids >= limit)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{name} at {_place(place)} is {int(ids[place])}; {_valid(limit, limit_name)}")
    return ids.astype(np.int32)


def _valid(limit: int, limit_name: str) -> str:
    hint = " Do the tokenizer and the model belong together?" if limit_name == "vocab_size" else ""
    return f"valid are 0 to {limit - 1} ({limit_name}={limit}).{hint}"


def _own_int32(name: str, values: IntArray) -> IntArray:
    """Copy the ids of a packed batch into a read-only int32 array of the batch's own."""
    own = np.array(values)
    if own.dtype != np.int32:
        if own.dtype.kind not in "iu":
            raise TypeError(f"{name} holds {own.dtype} values; expected integers.")
        narrow = own.astype(np.int32)
        if not np.array_equal(narrow, own):
            raise ValueError(f"{name} holds {int(own[narrow != own][0])}, which does not fit into int32.")
        own = narrow
    if own.ndim != 1:
        raise ValueError(f"{name} has shape {own.shape}; expected one dimension.")
    own.flags.writeable = False
    return own


def _as_float32_rows(values: FloatArray) -> FloatArray:
    embeds = np.ascontiguousarray(values)
    if embeds.dtype != np.float32 or embeds.ndim != 2:
        raise ValueError(f"inputs_embeds is {embeds.dtype} of shape {embeds.shape}; expected float32 of shape (T, H).")
    return embeds


def _optional_ids(name: str, values: object, shape: tuple[int, ...], limit: int, limit_name: str) -> IntArray:
    if values is None:
        return np.zeros(shape, dtype=np.int32)
    ids = check_ids(name, values, limit, limit_name)
    if ids.shape != shape and ids.shape != (1, shape[1]):
        raise ValueError(f"{name} has shape {ids.shape}; expected {shape}, as the input has.")
    return np.broadcast_to(ids, shape)


def _check_mask(values: object, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    if values is None:
        return np.ones(shape, dtype=np.bool_)
    mask = np.array(as_array("attention_mask", values))  # a copy, as in `check_ids`
    if mask.dtype.kind not in "biu" and (mask.size or isinstance(values, np.ndarray)):
        raise TypeError(
            f"attention_mask holds {mask.dtype} values; expected bool, or integers 0 (hidden) and 1 (visible)."
        )
    if mask.shape != shape:
        raise ValueError(f"attention_mask has shape {mask.shape}; expected {shape}, as the input has.")
    bad = (mask != 0) & (mask != 1)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"attention_mask at {_place(place)} is {mask[place]}; expected 0 (hidden) or 1 (visible).")
    return mask.astype(np.bool_)


def _check_embeds(values: object, hidden_size: int) -> FloatArray:
    embeds = as_array("inputs_embeds", values)
    if embeds.dtype.kind != "f":
        raise TypeError(f"inputs_embeds holds {embeds.dtype} values; expected float vectors (float32).")
    if embeds.ndim != 3 or embeds.shape[2] != hidden_size:
        raise ValueError(
            f"inputs_embeds has shape {embeds.shape}; expected (B sequences, S tokens, {hidden_size}), "
            f"the last being the model's hidden_size."
        )
    return embeds


def usable_rows(rows: FloatArray) -> npt.NDArray[np.bool_]:
    """Which rows hold numbers only that a LayerNorm can square and add in float32: finite, at most 1e17 in size."""
    return np.logical_and.reduce(np.abs(rows) <= 1e17, axis=1)


def _check_usable(name: str, packed: FloatArray, mask: npt.NDArray[np.bool_]) -> None:
    """Refuse unusable numbers in visible places: one of them reaches every token of its sequence."""
    usable = usable_rows(packed)
    if not usable.all():
        row, column = (int(i) for i in np.argwhere(mask)[np.argmin(usable)])
        raise ValueError(f"{name} at row {row}, column {column} holds NaN, infinity or a value beyond 1e17.")


def as_array(name: str, values: object) -> npt.NDArray[Any]:
    """Return what a caller passed as an array of numbers; `TypeError` or `ValueError` naming it if it is none."""
    if isinstance(values, str | bytes) or (isinstance(values, list | tuple) and values and isinstance(values[0], str)):
        raise TypeError(f"{name} is text; tokenize it first: model(**tokenizer(text)).")
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; give its data, and its mask as attention_mask.")
    if isinstance(values, Mapping):
        raise TypeError(f"{name} is a {type(values).__name__}; unpack it: model(**inputs).")
    try:
        array = np.asarray(values)
    except Exception as error:  # ragged lists; what other libraries' __array__ raises, for a tensor off the CPU
        raise ValueError(
            f"{name} is not a rectangular array of numbers ({error}). "
            "Rows of different length need padding: tokenizer(..., padding=True)."
        ) from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {array.dtype} values ({type(values).__name__}); expected an array of numbers.")
    return array


def _place(place: tuple[int, ...]) -> str:
    if len(place) == 2:
        return f"row {place[0]}, column {place[1]}"
    return f"index {', '.join(map(str, place))}" if place else "its only place"


def _concatenate(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays) if len(arrays) else np.zeros(0, dtype=np.int32)


def _cumulate(lengths: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
