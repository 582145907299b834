"""Encodings: the tokens of one text each, whole, truncated or cut into windows.

raw_encoder.py makes them with the `tokenizers` library. The library's own truncation and padding change its tokenizer,
and threads cannot share a tokenizer that changes (huggingface/transformers#47085). So this module truncates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import token_table
from minibert._utils.validation import Int64Array, brief

Columns: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Element = TypeVar("Element")

RawEncoding: TypeAlias = Any
"""A `tokenizers.Encoding`, whose attributes are made anew at each access, or an object with the same attributes."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoding:
    """The S tokens of one text (or pair of texts), truncated but never padded.

    An attribute is read from the library's encoding at each access, because turning all attributes into Python objects
    takes longer than tokenizing.

    Parameters
    ----------
    n_truncated : int
        Tokens of the text that were truncated; this encoding does not hold them.
    """

    _raw: RawEncoding
    _kept: Int64Array | None = None
    n_truncated: int = 0

    def __len__(self) -> int:
        return len(self._raw) if self._kept is None else len(self._kept)

    def __repr__(self) -> str:
        cut = f", {self.n_truncated} more were cut" if self.n_truncated else ""
        return f"Encoding({len(self)} tokens{cut})"

    def _repr_html_(self) -> str:
        return token_table(repr(self), self.tokens, self.ids, self.offsets, self.word_ids)

    def take(self, positions: Int64Array) -> Encoding:
        """Return the encoding of the tokens at these positions, 0 to S - 1."""
        kept = np.arange(len(self._raw)) if self._kept is None else self._kept
        return Encoding(self._raw, kept[positions], self.n_truncated)

    @property
    def ids(self) -> Int64Array:
        """Id of each token, its row in the vocabulary; int64 array of shape (S,)."""
        return self._kept_array(self._raw.ids)

    @property
    def token_types(self) -> Int64Array:
        """Token type of each token, 0 in the first text, 1 in the second; int64 array of shape (S,)."""
        return self._kept_array(self._raw.type_ids)

    @property
    def special_tokens_mask(self) -> Int64Array:
        """1 for a token that the tokenizer added ([CLS], [SEP]), 0 for one of a text; int64 array of shape (S,)."""
        return self._kept_array(self._raw.special_tokens_mask)

    @property
    def offsets(self) -> Int64Array:
        """The index of each token's first character, and of the one after its last; int64 array of shape (S, 2).

        They count from the start of the token's text, or of its word if the text was given as words.
        """
        return self._kept_array(self._raw.offsets).reshape(-1, 2)

    @property
    def tokens(self) -> list[str]:
        """The S tokens, as in the vocabulary."""
        return self._kept_list(self._raw.tokens)

    @property
    def word_ids(self) -> list[int | None]:
        """Index of the word that each token is part of, from 0 in each text; None for [CLS] and [SEP]."""
        return self._kept_list(self._raw.word_ids)

    @property
    def sequence_ids(self) -> list[int | None]:
        """Index of the text that each token comes from, 0 or 1; None for [CLS] and [SEP]."""
        return self._kept_list(self._raw.sequence_ids)

    def _kept_array(self, values: list[Any] | Columns) -> Int64Array:
        array = np.array(values, dtype=np.int64)
        return array if self._kept is None else array[self._kept]

    def _kept_list(self, values: list[Element]) -> list[Element]:
        return values if self._kept is None else [values[position] for position in self._kept]


# The columns of a JoinedEncoding.
ID, TYPE, SPECIAL, OFFSETS, WORD, SEQUENCE = 0, 1, 2, slice(3, 5), 5, 6


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class JoinedEncoding:
    """The encoding, as one array, of a text that was tokenized in pieces.

    Parameters
    ----------
    columns : int ndarray of shape (S, 7)
        For each token: id, token type, whether it is a special token, its first character and the one after its last,
        the index of its word and of its text (-1: none).
    id_to_token : callable
    n_missing : int
        Tokens of the text that the encoding does not hold.
    """

    columns: Columns
    id_to_token: Callable[[int], Any]
    n_missing: int = 0

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, positions: Int64Array) -> JoinedEncoding:
        """Return the encoding of some of the tokens; the other tokens are not kept in memory."""
        return JoinedEncoding(self.columns[positions], self.id_to_token, self.n_missing)

    ids = property(lambda self: self.columns[:, ID])
    type_ids = property(lambda self: self.columns[:, TYPE])
    special_tokens_mask = property(lambda self: self.columns[:, SPECIAL])
    offsets = property(lambda self: self.columns[:, OFFSETS])
    tokens = property(lambda self: [self.id_to_token(token_id) for token_id in self.ids.tolist()])
    word_ids = property(lambda self: [None if word < 0 else word for word in self.columns[:, WORD].tolist()])
    sequence_ids = property(lambda self: [None if text < 0 else text for text in self.columns[:, SEQUENCE].tolist()])


def columns_of(raw: RawEncoding, num_characters: int) -> Columns:
    """Return the columns of one piece of a text with `num_characters`."""
    columns = np.empty((len(raw), 7), dtype=np.int32 if num_characters < 2**31 else np.int64)
    columns[:, ID] = raw.ids
    columns[:, TYPE] = raw.type_ids
    columns[:, SPECIAL] = raw.special_tokens_mask
    columns[:, OFFSETS] = np.array(raw.offsets, dtype=np.int64).reshape(-1, 2)
    columns[:, WORD] = [-1 if word is None else word for word in raw.word_ids]
    columns[:, SEQUENCE] = [-1 if sequence is None else sequence for sequence in raw.sequence_ids]
    return columns


class RawOptions(NamedTuple):
    """The options of a tokenization.

    Parameters
    ----------
    add_special_tokens, is_split_into_words : bool
        As in `BertTokenizer.__call__`.
    side : {"right", "left"}
        The end of a long text whose tokens are not needed.
    exact : bool
        Count the tokens that are not needed, and the words before those that are kept. If False, a long text is read
        only as far as needed.
    stride : int
        Tokens that a part that was cut off repeats from the part before it.
    overflowing : bool
        Return the parts that were cut off, too.
    most_characters : int
        Limit of the characters that are tokenized whole.
    """

    add_special_tokens: bool = True
    is_split_into_words: bool = False
    side: str = "right"
    exact: bool = True
    stride: int = 0
    overflowing: bool = False
    most_characters: int = 2**22


class NoRoomError(Exception):
    """A text cannot be cut as requested; the caller completes the message with the name of the text."""


def cut(raw: RawEncoding, max_length: int, strategy: str, options: RawOptions) -> list[Encoding]:
    """Cut an encoding to `max_length` tokens; if `options.overflowing`, also return the parts that were cut off."""
    if len(raw) <= max_length:
        return [Encoding(raw, n_truncated=raw.n_missing if isinstance(raw, JoinedEncoding) else 0)]
    sequences = np.array([-1 if sequence is None else sequence for sequence in raw.sequence_ids])
    special, first, second = (np.flatnonzero(sequences == sequence) for sequence in (-1, 0, 1))
    first_kept, second_kept = _lengths_to_keep(len(first), len(second), max_length - len(special), strategy)
    how = options.side, options.stride, options.overflowing
    first_parts, second_parts = _windows(first, first_kept, *how), _windows(second, second_kept, *how)
    # The order is that of tokenizers: the first parts, pairs with later parts of the first text, pairs with its first.
    pairs = [(first_parts[0], second_parts[0])]
    pairs += [(part, other) for part in first_parts[1:] for other in second_parts]
    pairs += [(first_parts[0], other) for other in second_parts[1:]]
    return [_taken(raw, np.sort(np.concatenate([special, *pair]))) for pair in pairs]


def cut_windows(raw: RawEncoding, max_length: int, stride: int, prompt_length: int) -> list[Encoding]:
    """Cut the encoding of one text into windows of `max_length` tokens, each with the special tokens and the prompt.

    The arguments are as for `BertTokenizer.windows`; the prompt is given by the number of its characters.

    Raises
    ------
    NoRoomError
        A window does not have room for more than `stride` tokens of the text.
    """
    if len(raw) <= max_length:
        return [Encoding(raw)]
    special = np.array([sequence is None for sequence in raw.sequence_ids])
    prompt = np.array(raw.offsets).reshape(-1, 2)[:, 1] <= prompt_length
    always = np.flatnonzero(special | prompt)
    available = max_length - len(always)
    if available < 1:
        raise NoRoomError(f"its special tokens and its prompt take {len(always)} tokens, so none is left for the text")
    parts = _windows(np.flatnonzero(~(special | prompt)), available, "right", stride, overflowing=True)
    return [_taken(raw, np.sort(np.concatenate([always, part]))) for part in parts]


def _taken(raw: RawEncoding, positions: Int64Array) -> Encoding:
    """Return the encoding of some tokens, without work on all tokens of a long text for each of its windows."""
    n_truncated = len(raw) - len(positions)
    if isinstance(raw, JoinedEncoding):
        return Encoding(raw.take(positions), None, n_truncated)
    return Encoding(raw, positions, n_truncated)


def _lengths_to_keep(first: int, second: int, available: int, strategy: str) -> tuple[int, int]:
    """Return how many tokens of each text to keep so that both fit into `available` tokens.

    Source: huggingface/tokenizers, utils/truncation.rs, truncate_encodings.
    """
    if available == 0:
        return 0, 0
    if strategy == "longest_first":
        shorter = min(first, second, available // 2)  # the shorter text is kept whole if it takes at most half
        return (available - shorter, shorter) if first > second else (shorter, available - shorter)
    other = second if strategy == "only_first" else first
    if other >= available:
        raise NoRoomError(f"truncation={strategy!r} may cut one text only, and the other has {other} tokens")
    return (available - other, other) if strategy == "only_first" else (other, available - other)


def _windows(positions: Int64Array, length: int, side: str, stride: int, overflowing: bool) -> list[Int64Array]:
    """Return the `length` positions to keep; if `overflowing`, also the windows that follow, to the end of the text."""
    total = len(positions)
    if length >= total:
        return [positions]
    if not overflowing:
        return [positions[:length] if side == "right" else positions[total - length :]]
    if stride >= length:
        raise NoRoomError(f"stride={brief(stride)} must be less than the {length} tokens that are left for the text")
    if side == "left":
        # The windows are the same, counted from the other end.
        return [window[::-1] for window in _windows(positions[::-1], length, "right", stride, overflowing)]
    step = length - stride
    # The first window that reaches the end is the last one: ceil((total - length) / step) steps from the start.
    num_windows = 1 - (length - total) // step
    return [positions[start : start + length] for start in range(0, num_windows * step, step)]
