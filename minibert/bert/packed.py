"""The packed batch: sequences that lie end to end. Packed results are turned into padded arrays here.

Kernels check nothing, so an id outside its table would make them read memory outside the table. Therefore `PackedBatch`
keeps private copies of its arrays, which nobody can change after a check. `PackedBatch.check` compares them with the
model before every forward (`run_steps` of models/steps.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.config import BertConfig
from minibert.bert.ops import Queries


@dataclasses.dataclass(frozen=True, eq=False)
class PackedBatch:
    """B sequences that lie end to end, without padding: T tokens in all.

    The batch keeps read-only copies of its arrays, so it does not change when the caller changes the originals.

    Parameters
    ----------
    token_ids : int array of shape (T,); kept as int32
        Row of each token in the word embeddings, or in `inputs_embeds` (then 0, 1, ..., T - 1).
    token_types : int array of shape (T,); kept as int32
    positions : int array of shape (T,); kept as int32
    cu_seqlens : int array of shape (B + 1,); kept as int32
        Cumulative sequence lengths: sequence b is ``[cu_seqlens[b]:cu_seqlens[b + 1]]``. It may be empty.
    mask : bool array of shape (B, S)
        The caller's padded arrays have a token where the mask is True. Row b is True once for each token of sequence b.
    inputs_embeds : ndarray of shape (T, H), float32, optional
        Word vectors to use instead of the word embeddings. This array is not copied.

    Raises
    ------
    TypeError, ValueError
        An array has another dtype or shape, the arrays do not belong together, or an id does not fit into int32.
    """

    token_ids: IntArray
    token_types: IntArray
    positions: IntArray
    cu_seqlens: IntArray
    mask: npt.NDArray[np.bool_]
    inputs_embeds: FloatArray | None = None

    def __post_init__(self) -> None:
        for name in ("token_ids", "token_types", "positions", "cu_seqlens"):
            object.__setattr__(self, name, _private_int32(name, getattr(self, name)))
        mask = np.array(self.mask)
        mask.flags.writeable = False
        object.__setattr__(self, "mask", mask)
        if self.inputs_embeds is not None:
            embeds = np.ascontiguousarray(self.inputs_embeds).view()
            if embeds.dtype != np.float32 or embeds.ndim != 2:
                described = f"{embeds.dtype} of shape {embeds.shape}"
                raise ValueError(f"inputs_embeds is {described}; expected float32 of shape (T, H).")
            embeds.flags.writeable = False
            object.__setattr__(self, "inputs_embeds", embeds)
        self._check_layout()

    def _check_layout(self) -> None:
        """Refuse arrays that do not describe the same B sequences of T tokens."""
        self._check_tokens()
        T = len(self.token_ids)
        if self.mask.dtype != np.bool_ or self.mask.ndim != 2:
            raise ValueError(f"mask is {self.mask.dtype} of shape {self.mask.shape}; expected bools of shape (B, S).")
        ends = np.add.accumulate(np.add.reduce(self.mask, axis=1))  # (B,)
        if not len(self.cu_seqlens) or self.cu_seqlens[0] or not np.array_equal(self.cu_seqlens[1:], ends):
            raise ValueError(
                "cu_seqlens and mask do not belong together: expected cu_seqlens[0] = 0, and "
                "cu_seqlens[b + 1] - cu_seqlens[b] values that are True in row b of mask."
            )
        if self.inputs_embeds is not None and not (
            len(self.inputs_embeds) == T and np.array_equal(self.token_ids, np.arange(T))
        ):
            raise ValueError(
                f"{len(self.inputs_embeds)} inputs_embeds and {T} tokens; expected token_ids 0 to {T - 1}."
            )

    def _check_tokens(self) -> None:
        """Refuse arrays that do not have the same T tokens."""
        T = len(self.token_ids)
        if len(self.token_types) != T or len(self.positions) != T:
            raise ValueError(
                f"{T} token_ids, {len(self.token_types)} token_types, {len(self.positions)} positions; expected {T}."
            )
        if not len(self.cu_seqlens) or self.cu_seqlens[-1] != T:
            last = self.cu_seqlens[-1:]
            raise ValueError(f"cu_seqlens ends with {last}; expected the number of tokens, {T}.")

    def __reduce__(self) -> tuple[type[PackedBatch], tuple[Any, ...]]:
        """Copy and unpickle with the constructor, so that the arrays of the new batch are private too."""
        return PackedBatch, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def private(self) -> PackedBatch:
        """Return this batch; if its arrays are writeable, and so could have changed after the check, a checked copy."""
        arrays = (self.token_ids, self.token_types, self.positions, self.cu_seqlens, self.mask)
        everything = [array for array in vars(self).values() if array is not None]  # with `columns`, if they are used
        if type(self) is PackedBatch and not any(array.flags.writeable for array in everything):
            return self
        return PackedBatch(*arrays, inputs_embeds=self.inputs_embeds)

    def check(self, config: BertConfig) -> None:
        """Refuse ids, token types, positions and word vectors that do not fit a model with this config.

        Raises
        ------
        ValueError
            The message names the sequence, the token, the value and the config field.
        """
        if self.inputs_embeds is None:
            self._check_range("token_ids", config.vocab_size, "vocab_size")
        elif self.inputs_embeds.shape[1] != config.embedding_size:
            name = "hidden_size" if config.embedding_size == config.hidden_size else "embedding_size"
            raise ValueError(
                f"inputs_embeds has {self.inputs_embeds.shape[1]} features; expected {config.embedding_size} ({name})."
            )
        self._check_range("token_types", max(1, config.type_vocab_size), "type_vocab_size")
        self._check_range("positions", config.num_positions, "max_position_embeddings")
        if config.family.has_relative_bias and self.mask.shape[1] > config.max_position_embeddings:
            raise ValueError(
                f"mask has {self.mask.shape[1]} columns; the relative bias of the model has distances below "
                f"{config.max_position_embeddings} (max_position_embeddings)."
            )

    def _check_range(self, name: str, limit: int, limit_name: str) -> None:
        ids = getattr(self, name)
        # Read as uint32, a negative number is larger than any limit, so one pass over the ids is enough.
        if len(ids) and int(np.maximum.reduce(ids.view(np.uint32))) >= limit:
            t = int(np.argmax(ids.view(np.uint32) >= limit))
            b = int(np.searchsorted(self.cu_seqlens, t, side="right")) - 1
            where = f"{name} of sequence {b} at {t - int(self.cu_seqlens[b])}"
            raise ValueError(f"{where} is {int(ids[t])}; {valid_range(limit, limit_name)}")

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens of all sequences together."""
        return int(self.cu_seqlens[-1])

    @property
    def num_sequences(self) -> int:
        """B, the number of sequences, with the empty ones."""
        return len(self.cu_seqlens) - 1

    @functools.cached_property
    def columns(self) -> IntArray:
        """The column of each token in the caller's padded arrays, (T,)."""
        columns = np.nonzero(self.mask)[1].astype(np.int32)
        columns.flags.writeable = False
        return columns

    @property
    def layout(self) -> tuple[Any, ...]:
        """All that a forward reads of the batch but its words, in a form that can be compared."""
        arrays = self.cu_seqlens, self.positions, self.token_types, self.columns
        return tuple(array.tobytes() for array in arrays)

    @property
    def first_tokens(self) -> IntArray:
        """Index of each sequence's [CLS] among the T tokens; sequences whose [CLS] is masked are omitted."""
        return self.cu_seqlens[:-1][self.shows_first]

    @property
    def shows_first(self) -> npt.NDArray[np.bool_]:
        """True for each sequence whose first token position is not masked; bool array of shape (B,)."""
        return np.logical_or.reduce(self.mask[:, :1], axis=1)

    def scale(self, config: BertConfig) -> FloatArray | None:
        """Return the factor of the embedding of each token in ESM, (T,) float64; None in every other family.

        It is 0 for <mask>. The other tokens of a sequence have 0.88 / (1 - the share of <mask> in it), because 12 % of
        the tokens were <mask> in training. transformers counts those that are not attended to, too.
        """
        if not config.token_dropout or self.inputs_embeds is not None:
            return None
        hidden, lengths = self.token_ids == config.mask_token_id, np.diff(self.cu_seqlens)
        sequences = np.repeat(np.arange(self.num_sequences), lengths)
        kept = lengths - np.bincount(sequences[hidden], minlength=self.num_sequences)
        factors = (1 - 0.15 * 0.8) * lengths / np.maximum(kept, 1)
        return np.where(hidden, 0.0, factors[sequences])

    def queries(self, tokens: IntArray) -> Queries | None:
        """Return some of the T tokens, by increasing numbers; numbers outside are left out. None if they are all."""
        starts = np.searchsorted(tokens, self.cu_seqlens)
        if starts[-1] - starts[0] == self.num_tokens:
            return None
        return Queries(tokens[starts[0] : starts[-1]], starts - starts[0])

    def has_result(self, reads_any: bool) -> npt.NDArray[np.bool_]:
        """Return which sequences have a result: those that show their first token, or with `reads_any` any token."""
        return np.diff(self.cu_seqlens) > 0 if reads_any else self.shows_first

    @classmethod
    def from_sequences(
        cls, config: BertConfig, token_ids: Sequence[IntArray], token_types: Sequence[IntArray]
    ) -> PackedBatch:
        """Pack sequences of ids end to end, without padding.

        Parameters
        ----------
        config : BertConfig
            Says where positions begin, and whether there are token types.
        token_ids, token_types : sequences of B int arrays of shape (S_b,)

        Raises
        ------
        TypeError, ValueError
            As for `PackedBatch` itself; or a sequence does not have as many types as ids.
        """
        lengths = tuple(map(len, token_ids))
        for b, (length, types) in enumerate(zip(lengths, token_types, strict=True)):
            if length != len(types):
                raise ValueError(f"Sequence {b} has {length} token_ids and {len(types)} token_types; expected equal.")
        cu_seqlens, mask, columns = _of_one(*lengths) if len(lengths) == 1 else _unpadded(lengths)
        of_types = _private_int32("token_types", _concatenate(token_types))
        counts = config.padding_id is not None
        batch = cls.from_private_arrays(
            token_ids=_private_int32("token_ids", _concatenate(token_ids)),
            token_types=of_types if config.has_token_types else np.zeros_like(of_types),
            positions=_concatenate([positions_of(config, ids) for ids in token_ids]) if counts else columns,
            cu_seqlens=cu_seqlens,
            mask=mask,
            columns=columns,
        )
        batch._check_tokens()  # another thread may have changed the lists meanwhile
        return batch

    @classmethod
    def from_mask(cls, mask: npt.NDArray[np.bool_]) -> PackedBatch:
        """Pack tokens whose places alone are known; their ids, token types and positions are 0."""
        nothing = np.zeros(np.count_nonzero(mask), np.int32)
        return cls(nothing, nothing, nothing, cumulate(mask.sum(axis=1)), mask)

    @classmethod
    def from_private_arrays(cls, **arrays: npt.NDArray[Any] | None) -> PackedBatch:
        """Make a batch without copies and checks: the arrays must be right, and no other code may change them.

        They have the types of the parameters, describe the same sequences, and become read-only here.
        """
        batch: PackedBatch = object.__new__(cls)
        for name, array in arrays.items():
            if array is not None:
                array.flags.writeable = False
            object.__setattr__(batch, name, array)
        return batch

    def steps(self, max_tokens: int) -> Iterator[tuple[slice, PackedBatch]]:
        """Split the batch, between sequences, into steps of at most `max_tokens` tokens.

        A sequence that is longer than `max_tokens` is a step of its own.

        Yields
        ------
        (slice, PackedBatch)
            The indices of the step's tokens among the T tokens, and the step.
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
            step = PackedBatch.from_private_arrays(
                # Ids that are rows of inputs_embeds begin with 0 in each step, as its inputs_embeds do.
                token_ids=self.token_ids[tokens] if embeds is None else self.token_ids[: len(embeds)],
                token_types=self.token_types[tokens],
                positions=self.positions[tokens],
                cu_seqlens=self.cu_seqlens[first : last + 1] - self.cu_seqlens[first],
                mask=self.mask[first:last],
                inputs_embeds=embeds,
            )
            yield tokens, step
            first = last

    def pad(self, packed: FloatArray) -> FloatArray:
        """Turn packed rows into a padded array, (T, ...) -> (B, S, ...); masked token positions hold zeros."""
        shape = self.mask.shape + packed.shape[1:]
        if self.num_tokens == self.mask.size:
            return packed.reshape(shape)
        padded = np.zeros(shape, dtype=packed.dtype)
        padded[self.mask] = packed
        return padded

    def pad_pairs(self, packed: Sequence[FloatArray], num_heads: int) -> FloatArray:
        """Turn one (A, S_b, S_b) array per sequence into (B, A, S, S); pairs with a masked token hold zeros."""
        num_sequences, length = self.mask.shape
        padded = np.zeros((num_sequences, num_heads, length, length), dtype=packed[0].dtype if packed else np.float32)
        for b, pairs in enumerate(packed):
            visible = np.flatnonzero(self.mask[b])
            places: Any = visible[:, None], visible
            if len(visible) and visible[-1] - visible[0] == len(visible) - 1:  # slices take less time than indices
                places = (slice(visible[0], visible[-1] + 1),) * 2
            padded[b][:, *places] = pairs
        return padded


def positions_of(config: BertConfig, token_ids: IntArray) -> IntArray:
    """Return the position of each token in rows of ids, (..., S) int32: 0, 1, ... in BERT.

    In a family that counts tokens, they are padding_id + 1, + 2, ...; tokens that are padding have padding_id.
    """
    if config.padding_id is None:
        positions = np.empty(token_ids.shape, dtype=np.int32)
        positions[...] = np.arange(token_ids.shape[-1], dtype=np.int32)  # faster than np.broadcast_to
        return positions
    real = (token_ids != config.padding_id).astype(np.int32)
    return np.cumsum(real, axis=-1, dtype=np.int32) * real + np.int32(config.padding_id)


def valid_range(limit: int, limit_name: str) -> str:
    """Return the part of an error message that tells the valid ids."""
    hint = " Use the tokenizer that belongs to the model." if limit_name == "vocab_size" else ""
    return f"valid are 0 to {limit - 1} ({limit_name}={limit}).{hint}"


def _private_int32(name: str, values: IntArray) -> IntArray:
    """Copy the ids of a packed batch into a new read-only int32 array."""
    copy = np.array(values)
    if copy.dtype != np.int32:
        if copy.dtype.kind not in "iu":
            raise TypeError(f"{name} holds {copy.dtype} values; expected integers.")
        narrow = copy.astype(np.int32)
        if not (narrow == copy).all():
            raise ValueError(f"{name} holds {int(copy[narrow != copy][0])}, which does not fit into int32.")
        copy = narrow
    if copy.ndim != 1:
        raise ValueError(f"{name} has shape {copy.shape}; expected one dimension.")
    copy.flags.writeable = False
    return copy


def _concatenate(arrays: Sequence[IntArray]) -> IntArray:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if len(arrays) else np.zeros(0, dtype=np.int32)


def _unpadded(lengths: Sequence[int]) -> tuple[IntArray, npt.NDArray[np.bool_], IntArray]:
    """Return `cu_seqlens`, `mask` and `columns` of sequences without padding; read-only."""
    counts = np.array(lengths, dtype=np.int64)
    mask = np.arange(counts.max(initial=0)) < counts[:, None]
    columns = np.nonzero(mask)[1].astype(np.int32)
    for array in (result := (cumulate(counts), mask, columns)):
        array.flags.writeable = False
    return result


@functools.lru_cache(maxsize=64)
def _of_one(length: int) -> tuple[IntArray, npt.NDArray[np.bool_], IntArray]:
    """Return `_unpadded` of one sequence, such as a query; nobody can make these arrays writeable."""
    arrays: Any = tuple(np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) for x in _unpadded((length,)))
    return arrays


def cumulate(lengths: IntArray) -> IntArray:
    """Turn B lengths into B + 1 cumulative sequence lengths, int32; the first one is 0."""
    sums = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.add.accumulate(lengths, out=sums[1:])
    if sums[-1] >= 2**31:
        raise ValueError(f"{sums[-1]:,} tokens; a batch has fewer than {2**31:,}.")
    return sums.astype(np.int32)
