"""Encodings of texts: the tokens of one text, truncated to a length or cut into windows.

This module truncates the whole encoding that the `tokenizers` library made. The library's own truncation and
padding change its tokenizer, and threads cannot share a tokenizer that changes (huggingface/transformers#47085).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import token_table
from minibert._utils.validation import Int64Array, brief

__all__ = [
    "OFFSETS",
    "WORD",
    "Columns",
    "Encoding",
    "JoinedEncoding",
    "NoRoomError",
    "RawEncoding",
    "cut",
    "cut_windows",
    "joined_columns",
]

Columns: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Element = TypeVar("Element")


# Attributes of the library's encodings that minibert's do not have -> what to use.
_ELSEWHERE = {
    "attention_mask": "it does not hold padding, so all its tokens count; the mask is batch['attention_mask'][i]",
    "type_ids": "it is token_types",
    "words": "it is word_ids",
    "overflowing": "call the tokenizer with return_overflowing_tokens=True",
    "n_sequences": "it is batch.n_sequences",
}


class RawEncoding(Protocol):
    """The attributes that minibert reads from the library's encoding; each is made anew, as a list of S values.

    The attributes of a `JoinedEncoding` that hold numbers are arrays.
    """

    @property
    def ids(self) -> list[int] | Columns:
        """Id of each token: its row in the vocabulary."""

    @property
    def type_ids(self) -> list[int] | Columns:
        """Token type of each token: 0 in the first text, 1 in the second."""

    @property
    def special_tokens_mask(self) -> list[int] | Columns:
        """1 for a token that the tokenizer added, 0 for a token of a text."""

    @property
    def offsets(self) -> list[tuple[int, int]] | Columns:
        """First character of each token, and the one after its last."""

    @property
    def tokens(self) -> list[str]:
        """The tokens, as in the vocabulary."""

    @property
    def word_ids(self) -> list[int | None]:
        """Index of the word that each token is part of."""

    @property
    def sequence_ids(self) -> list[int | None]:
        """Index of the text that each token comes from."""

    def __len__(self) -> int: ...


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
        """First character of each token, and the one after its last; int64 array of shape (S, 2).

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

    def __getattr__(self, name: str) -> Any:
        remedy = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"Encoding has no attribute {name!r}{remedy}.")

    def _kept_array(self, values: list[Any] | Columns) -> Int64Array:
        array = np.array(values, dtype=np.int64)
        return array if self._kept is None else array[self._kept]

    def _kept_list(self, values: list[Element]) -> list[Element]:
        return values if self._kept is None else [values[position] for position in self._kept]


# The columns of a JoinedEncoding.
ID, TYPE, SPECIAL, OFFSETS, WORD, SEQUENCE, NAME = 0, 1, 2, slice(3, 5), 5, 6, 7


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class JoinedEncoding:
    """The encoding of a text that was tokenized in pieces (see long_texts.py), in one array.

    Parameters
    ----------
    columns : int ndarray of shape (S, 8)
        For each token: id, token type, whether it is a special token, its first character and the one after its last,
        the index of its word and of its text (-1: none), its index in `names`.
    names : tuple of str
        The different tokens.
    n_missing : int
        Tokens of the text that the encoding does not hold.
    """

    columns: Columns
    names: tuple[str, ...]
    n_missing: int = 0

    @classmethod
    def join(
        cls,
        around: Sequence[Columns],
        pieces: list[Columns],
        most: int | None,
        side: str,
        n_own: int,
        names: tuple[str, ...],
    ) -> JoinedEncoding:
        """Concatenate the pieces of a text, and put the special tokens around them.

        At most `most` of the `n_own` tokens of the text are kept.
        """
        before, after = around
        if most is not None:
            own = np.concatenate(pieces)
            pieces = [own[:most] if side == "right" else own[max(0, len(own) - most) :]]
        columns = np.concatenate([before, *pieces, after])
        return cls(columns, names, len(before) + n_own + len(after) - len(columns))

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, positions: Int64Array) -> JoinedEncoding:
        """Return the encoding of some of the tokens; it does not keep the others in memory."""
        return JoinedEncoding(self.columns[positions], self.names, self.n_missing)

    @property
    def ids(self) -> Columns:
        """Id of each token: its row in the vocabulary."""
        return self.columns[:, ID]

    @property
    def type_ids(self) -> Columns:
        """Token type of each token: 0 in the first text, 1 in the second."""
        return self.columns[:, TYPE]

    @property
    def special_tokens_mask(self) -> Columns:
        """1 for a token that the tokenizer added, 0 for a token of a text."""
        return self.columns[:, SPECIAL]

    @property
    def offsets(self) -> Columns:
        """First character of each token, and the one after its last."""
        return self.columns[:, OFFSETS]

    @property
    def tokens(self) -> list[str]:
        """The tokens, as in the vocabulary."""
        return [self.names[name] for name in self.columns[:, NAME]]

    @property
    def word_ids(self) -> list[int | None]:
        """Index of the word that each token is part of."""
        return [None if word < 0 else word for word in self.columns[:, WORD].tolist()]

    @property
    def sequence_ids(self) -> list[int | None]:
        """Index of the text that each token comes from."""
        return [None if sequence < 0 else sequence for sequence in self.columns[:, SEQUENCE].tolist()]


def joined_columns(raw: RawEncoding, names: dict[str, int], num_characters: int) -> Columns:
    """Return the columns of one piece of a text of `num_characters`, and add tokens that are new to `names`."""
    columns = np.empty((len(raw), 8), dtype=np.int32 if num_characters < 2**31 else np.int64)
    columns[:, ID] = raw.ids
    columns[:, TYPE] = raw.type_ids
    columns[:, SPECIAL] = raw.special_tokens_mask
    columns[:, OFFSETS] = np.array(raw.offsets, dtype=np.int64).reshape(-1, 2)
    columns[:, WORD] = [-1 if word is None else word for word in raw.word_ids]
    columns[:, SEQUENCE] = [-1 if sequence is None else sequence for sequence in raw.sequence_ids]
    columns[:, NAME] = [names.setdefault(token, len(names)) for token in raw.tokens]
    return columns


class NoRoomError(Exception):
    """A text cannot be cut as requested; the caller names the text and ends the sentence."""


def cut(raw: RawEncoding, max_length: int, strategy: str, side: str, stride: int, overflowing: bool) -> list[Encoding]:
    """Cut one encoding to `max_length` tokens; if `overflowing`, the parts cut off follow it."""
    if len(raw) <= max_length:
        return [Encoding(raw, n_truncated=raw.n_missing if isinstance(raw, JoinedEncoding) else 0)]
    sequences = np.array([-1 if sequence is None else sequence for sequence in raw.sequence_ids])
    special, first, second = (np.flatnonzero(sequences == sequence) for sequence in (-1, 0, 1))
    available = max_length - len(special)
    first_kept, second_kept = _lengths_to_keep(len(first), len(second), available, strategy)
    first_parts = _windows(first, first_kept, side, stride, overflowing)
    second_parts = _windows(second, second_kept, side, stride, overflowing)
    # The order is that of tokenizers: the first parts, pairs with later parts of the first text, pairs with its first.
    pairs = [(first_parts[0], second_parts[0])]
    pairs += [(part, other) for part in first_parts[1:] for other in second_parts]
    pairs += [(first_parts[0], other) for other in second_parts[1:]]
    return [_taken(raw, np.sort(np.concatenate([special, *pair]))) for pair in pairs]


def cut_windows(raw: RawEncoding, max_length: int, stride: int, prompt_length: int) -> list[Encoding]:
    """Cut one encoding of one text into windows of `max_length` tokens, each with the special tokens and the prompt.

    Parameters
    ----------
    raw : RawEncoding
    max_length : int
        Tokens of a window, special tokens and those of the prompt included.
    stride : int
        Tokens that a window repeats from the window before it.
    prompt_length : int
        Characters of the prompt that the text begins with.

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
        shorter = min(first, second)
        # The shorter text is kept whole if it takes at most half of the available tokens.
        if 2 * shorter > available:
            shorter = available // 2
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
