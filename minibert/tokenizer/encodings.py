"""What a tokenizer gives: encodings cut to a length, and batches of them padded to one width.

Works on the whole, untouched encoding that the `tokenizers` library made, so that the library's tokenizer never has to
be told to cut or pad: a tokenizer that changes cannot be shared by threads (huggingface/transformers#47085).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from minibert.base.arrays import Int64Array
from minibert.base.checks import brief, check_int, is_cpu
from minibert.base.display import html_table, token_table

__all__ = [
    "PLACES",
    "WORD",
    "Columns",
    "Encoding",
    "JoinedEncoding",
    "NoRoomError",
    "RawEncoding",
    "TokenizedBatch",
    "cut",
    "cut_windows",
    "joined_columns",
    "padded_array",
]

Columns: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Element = TypeVar("Element")


class RawEncoding(Protocol):
    """What is read of the library's encoding; each attribute is a new list of S values, made when it is asked for.

    Those of a `JoinedEncoding` that are numbers are arrays.
    """

    @property
    def ids(self) -> list[int] | Columns:
        """Row of each token in the vocabulary."""

    @property
    def type_ids(self) -> list[int] | Columns:
        """Which text each token belongs to, 0 or 1."""

    @property
    def special_tokens_mask(self) -> list[int] | Columns:
        """1 for a token of the tokenizer's own."""

    @property
    def offsets(self) -> list[tuple[int, int]] | Columns:
        """First character, and the one after the last."""

    @property
    def tokens(self) -> list[str]:
        """The tokens as the vocabulary has them."""

    @property
    def word_ids(self) -> list[int | None]:
        """The word each token is part of."""

    @property
    def sequence_ids(self) -> list[int | None]:
        """The text each token comes from."""

    def __len__(self) -> int: ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoding:
    """The tokens of one text (or pair of texts), cut but never padded; S of them.

    Every attribute is read from the library's own encoding when it is asked for, because turning all of them into
    Python objects costs more than tokenizing does.

    Parameters
    ----------
    n_truncated : int
        Tokens of the text that were cut off and that this encoding therefore does not hold.
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

    @property
    def ids(self) -> Int64Array:
        """Row of each token in the vocabulary; int64 array of shape (S,)."""
        return self._kept_array(self._raw.ids)

    @property
    def token_types(self) -> Int64Array:
        """Which text each token belongs to, 0 or 1; int64 array of shape (S,)."""
        return self._kept_array(self._raw.type_ids)

    @property
    def special_tokens_mask(self) -> Int64Array:
        """1 where the tokenizer put a token of its own ([CLS], [SEP]), 0 for the text's; int64 array of shape (S,)."""
        return self._kept_array(self._raw.special_tokens_mask)

    @property
    def offsets(self) -> Int64Array:
        """First character of each token, and the one after its last; int64 array of shape (S, 2).

        They count from the start of the token's text, or of its word if the text came split into words.
        """
        return self._kept_array(self._raw.offsets).reshape(-1, 2)

    @property
    def tokens(self) -> list[str]:
        """The S tokens as they stand in the vocabulary."""
        return self._kept_list(self._raw.tokens)

    @property
    def word_ids(self) -> list[int | None]:
        """The word of its text that each token is part of, from 0; None for [CLS] and [SEP]."""
        return self._kept_list(self._raw.word_ids)

    @property
    def sequence_ids(self) -> list[int | None]:
        """The text that each token comes from, 0 or 1; None for [CLS] and [SEP]."""
        return self._kept_list(self._raw.sequence_ids)

    def _kept_array(self, values: list[Any] | Columns) -> Int64Array:
        array = np.array(values, dtype=np.int64)
        return array if self._kept is None else array[self._kept]

    def _kept_list(self, values: list[Element]) -> list[Element]:
        return values if self._kept is None else [values[position] for position in self._kept]


# The columns of a JoinedEncoding.
ID, TYPE, SPECIAL, PLACES, WORD, SEQUENCE, NAME = 0, 1, 2, slice(3, 5), 5, 6, 7


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class JoinedEncoding:
    """The encoding of a text that was tokenized in pieces (see long_texts.py), in one array.

    Parameters
    ----------
    columns : int ndarray of shape (S, 8)
        Of each token: id, token type, whether it is a special one, its first character and the one after its last, its
        word and its text (-1: none), the number of its name.
    names : tuple of str
        The tokens that occur.
    n_missing : int
        Tokens of the text that are not held.
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
        """Put pieces of a text together, at most `most` of its `n_own` tokens, and the special tokens around them."""
        before, after = around
        if most is not None:
            own = np.concatenate(pieces)
            pieces = [own[:most] if side == "right" else own[max(0, len(own) - most) :]]
        columns = np.concatenate([before, *pieces, after])
        return cls(columns, names, len(before) + n_own + len(after) - len(columns))

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, positions: Int64Array) -> JoinedEncoding:
        """Return the encoding of some of the tokens, which does not keep the others in memory."""
        return JoinedEncoding(self.columns[positions], self.names, self.n_missing)

    @property
    def ids(self) -> Columns:
        """Row of each token in the vocabulary."""
        return self.columns[:, ID]

    @property
    def type_ids(self) -> Columns:
        """Which text each token belongs to, 0 or 1."""
        return self.columns[:, TYPE]

    @property
    def special_tokens_mask(self) -> Columns:
        """1 for a token of the tokenizer's own."""
        return self.columns[:, SPECIAL]

    @property
    def offsets(self) -> Columns:
        """First character, and the one after the last."""
        return self.columns[:, PLACES]

    @property
    def tokens(self) -> list[str]:
        """The tokens as the vocabulary has them."""
        return [self.names[name] for name in self.columns[:, NAME]]

    @property
    def word_ids(self) -> list[int | None]:
        """The word each token is part of."""
        return [None if word < 0 else word for word in self.columns[:, WORD].tolist()]

    @property
    def sequence_ids(self) -> list[int | None]:
        """The text each token comes from."""
        return [None if sequence < 0 else sequence for sequence in self.columns[:, SEQUENCE].tolist()]


def joined_columns(raw: RawEncoding, names: dict[str, int], num_characters: int) -> Columns:
    """Return the columns of one piece of a text of so many characters; tokens that are new are added to `names`."""
    columns = np.empty((len(raw), 8), dtype=np.int32 if num_characters < 2**31 else np.int64)
    columns[:, ID] = raw.ids
    columns[:, TYPE] = raw.type_ids
    columns[:, SPECIAL] = raw.special_tokens_mask
    columns[:, PLACES] = np.array(raw.offsets, dtype=np.int64).reshape(-1, 2)
    columns[:, WORD] = [-1 if word is None else word for word in raw.word_ids]
    columns[:, SEQUENCE] = [-1 if sequence is None else sequence for sequence in raw.sequence_ids]
    columns[:, NAME] = [names.setdefault(token, len(names)) for token in raw.tokens]
    return columns


class TokenizedBatch(Mapping[str, Int64Array]):
    """What a tokenizer returns: a mapping of int64 arrays of shape (B, S), ready for ``model(**inputs)``.

    ``inputs["input_ids"]`` and ``inputs.input_ids`` are the same array. Row i of every array is described by
    ``tokens(i)``, ``word_ids(i)``, ``sequence_ids(i)``, which count padding too, and by ``encodings[i]``, which does
    not.
    """

    def __init__(
        self,
        arrays: dict[str, Int64Array],
        encodings: Sequence[Encoding],
        places: Sequence[slice],
        pad_token: str | None,
    ) -> None:
        self._arrays = arrays
        self._places = places
        self._pad_token = pad_token
        self.encodings = tuple(encodings)

    def __getitem__(self, key: str) -> Int64Array:
        return self._arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getattr__(self, name: str) -> Int64Array:
        # Through __dict__, because copy and pickle ask for attributes before __init__ has run.
        arrays = self.__dict__.get("_arrays", {})
        if name not in arrays:
            raise AttributeError(f"TokenizedBatch has no {name!r}; it holds {', '.join(arrays)}")
        return arrays[name]

    def to(self, device: object) -> TokenizedBatch:
        """Return the batch itself for "cpu"; refuse any other device."""
        if not is_cpu(device):
            raise ValueError(f"minibert's arrays are NumPy's, on the CPU; .to({brief(device)}) is not possible")
        return self

    def __repr__(self) -> str:
        return f"TokenizedBatch({', '.join(f'{key}: {array.shape}' for key, array in self._arrays.items())})"

    def _repr_html_(self) -> str:
        starts = (
            " ".join(encoding.tokens[:20]) + (" ..." if len(encoding) > 20 else "") for encoding in self.encodings
        )
        rows = (
            (i, len(encoding), encoding.n_truncated, start)
            for i, (encoding, start) in enumerate(zip(self.encodings, starts, strict=True))
        )
        return html_table(repr(self), ("row", "tokens", "cut", "they begin"), rows, len(self.encodings))

    def tokens(self, i: int = 0) -> list[str]:
        """Tokens of row i; list of S str."""
        return self._padded(i, self._encoding(i).tokens, str(self._pad_token))

    def word_ids(self, i: int = 0) -> list[int | None]:
        """Word that each token of row i is part of; list of S int, None for special tokens and padding."""
        return self._padded(i, self._encoding(i).word_ids, None)

    def sequence_ids(self, i: int = 0) -> list[int | None]:
        """Text that each token of row i comes from; list of S int, None for special tokens and padding."""
        return self._padded(i, self._encoding(i).sequence_ids, None)

    def char_to_token(self, i: int, char: int, sequence: int = 0) -> int | None:
        """Place in row i of the token that holds a character of the text (`sequence` 1: of the second text of a pair).

        None where no token holds it: a space, a character that was cut off.
        """
        char, sequence = check_int("char", char), check_int("sequence", sequence, 0, 1)
        offsets = self._encoding(i).offsets
        belongs = np.array(self._encoding(i).sequence_ids, dtype=object) == sequence
        holders = np.flatnonzero(belongs & (offsets[:, 0] <= char) & (char < offsets[:, 1]))
        return self._places[i].start + int(holders[0]) if len(holders) else None

    def token_to_chars(self, i: int, token: int) -> tuple[int, int] | None:
        """First character of a token of row i, and the one after its last; None for special tokens and padding."""
        sequences, token = self.sequence_ids(i), check_int("token", token)
        if not -len(sequences) <= token < len(sequences):
            raise ValueError(f"row {i} has {len(sequences)} tokens, asked for number {brief(token)}")
        if sequences[token] is None:
            return None
        start, stop = self._padded(i, self._encoding(i).offsets.tolist(), [0, 0])[token]
        return start, stop

    def _encoding(self, i: int) -> Encoding:
        if not -len(self.encodings) <= check_int("i", i) < len(self.encodings):
            raise ValueError(f"the batch has {len(self.encodings)} rows, asked for row {brief(i)}")
        return self.encodings[i]

    def _padded(self, i: int, values: list[Element], fill: Element) -> list[Element]:
        place, width = self._places[i], self._arrays["input_ids"].shape[1]
        return [fill] * place.start + values + [fill] * (width - place.stop)


class NoRoomError(Exception):
    """A text cannot be cut as asked; the caller adds which text."""


def cut(raw: RawEncoding, max_length: int, strategy: str, side: str, stride: int, overflowing: bool) -> list[Encoding]:
    """Cut one encoding to `max_length` tokens; the parts cut off follow it if `overflowing`."""
    if len(raw) <= max_length:
        return [Encoding(raw, n_truncated=raw.n_missing if isinstance(raw, JoinedEncoding) else 0)]
    sequences = np.array([-1 if sequence is None else sequence for sequence in raw.sequence_ids])
    special, first, second = (np.flatnonzero(sequences == sequence) for sequence in (-1, 0, 1))
    room = max_length - len(special)
    first_kept, second_kept = _lengths_to_keep(len(first), len(second), room, strategy)
    first_parts = _windows(first, first_kept, side, stride, overflowing)
    second_parts = _windows(second, second_kept, side, stride, overflowing)
    # The order in which tokenizers lists them: with the first text's later parts, then with its first part again.
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
        In tokens, special ones and the prompt's included.
    stride : int
        Tokens that a window repeats from the one before.
    prompt_length : int
        Characters of the prompt that the text begins with.

    Raises
    ------
    NoRoomError
        There is no room for a token of the text, or not for more than `stride`.
    """
    if len(raw) <= max_length:
        return [Encoding(raw)]
    special = np.array([sequence is None for sequence in raw.sequence_ids])
    prompt = np.array(raw.offsets).reshape(-1, 2)[:, 1] <= prompt_length
    always = np.flatnonzero(special | prompt)
    room = max_length - len(always)
    if room < 1:
        raise NoRoomError(f"its special tokens and its prompt take {len(always)} tokens, so none is left for the text")
    parts = _windows(np.flatnonzero(~(special | prompt)), room, "right", stride, overflowing=True)
    return [_taken(raw, np.sort(np.concatenate([always, part]))) for part in parts]


def _taken(raw: RawEncoding, positions: Int64Array) -> Encoding:
    """Return the encoding of some tokens; the many windows of a long text must not each go through all of it."""
    n_truncated = len(raw) - len(positions)
    if isinstance(raw, JoinedEncoding):
        return Encoding(raw.take(positions), None, n_truncated)
    return Encoding(raw, positions, n_truncated)


def _lengths_to_keep(first: int, second: int, room: int, strategy: str) -> tuple[int, int]:
    """How many tokens of each text to keep so that both have room.

    Source: huggingface/tokenizers, utils/truncation.rs, truncate_encodings.
    """
    if room == 0:
        return 0, 0
    if strategy == "longest_first":
        shorter = min(first, second)
        # The shorter text stays whole while it takes no more than half of the room.
        if 2 * shorter > room:
            shorter = room // 2
        return (room - shorter, shorter) if first > second else (shorter, room - shorter)
    other = second if strategy == "only_first" else first
    if other >= room:
        raise NoRoomError(f"truncation={strategy!r} may cut one text only, and the other has {other} tokens")
    return (room - other, other) if strategy == "only_first" else (other, room - other)


def _windows(positions: Int64Array, length: int, side: str, stride: int, overflowing: bool) -> list[Int64Array]:
    """The `length` positions to keep and, if `overflowing`, the windows of as many that follow until the text's end."""
    total = len(positions)
    if length >= total:
        return [positions]
    if not overflowing:
        return [positions[:length] if side == "right" else positions[total - length :]]
    if stride >= length:
        raise NoRoomError(f"stride={brief(stride)} must be less than the {length} tokens that are left for the text")
    if side == "left":
        # The same walk, from the other end.
        return [window[::-1] for window in _windows(positions[::-1], length, "right", stride, overflowing)]
    step = length - stride
    # The first window that reaches the end is the last one: ceil((total - length) / step) steps from the start.
    num_windows = 1 - (length - total) // step
    return [positions[start : start + length] for start in range(0, num_windows * step, step)]


def padded_array(rows: list[Int64Array], places: list[slice], width: int, fill: int) -> Int64Array:
    """Lay rows out in one array: B arrays of shape (S_b,) -> (B, width)."""
    array = np.full((len(rows), width), fill, dtype=np.int64)
    for row, values, place in zip(array, rows, places, strict=True):
        row[place] = values
    return array
