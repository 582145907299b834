"""Encodings: the tokens of one text, truncated or cut into windows. `TokenizedBatch`: the tokens of several texts.

This module truncates the whole encoding that the `tokenizers` library made. The library's own truncation and
padding change its tokenizer, and threads cannot share a tokenizer that changes (huggingface/transformers#47085).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, KeysView, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import html_table, token_table, warn_caller
from minibert._utils.system import require_memory
from minibert._utils.torch_interop import to_array, to_tensor
from minibert._utils.validation import (
    Int64Array,
    brief,
    check_choice,
    check_int,
    check_return_tensors,
    counted,
    is_cpu,
)

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
    """The encoding, as one array, of a text that was tokenized in pieces (see long_texts.py).

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


def joined_columns(raw: RawEncoding, num_characters: int) -> Columns:
    """Return the columns of one piece of a text with `num_characters`."""
    columns = np.empty((len(raw), 7), dtype=np.int32 if num_characters < 2**31 else np.int64)
    columns[:, ID] = raw.ids
    columns[:, TYPE] = raw.type_ids
    columns[:, SPECIAL] = raw.special_tokens_mask
    columns[:, OFFSETS] = np.array(raw.offsets, dtype=np.int64).reshape(-1, 2)
    columns[:, WORD] = [-1 if word is None else word for word in raw.word_ids]
    columns[:, SEQUENCE] = [-1 if sequence is None else sequence for sequence in raw.sequence_ids]
    return columns


class NoRoomError(Exception):
    """A text cannot be cut as requested; the caller completes the message with the name of the text."""


def cut(raw: RawEncoding, max_length: int, strategy: str, side: str, stride: int, overflowing: bool) -> list[Encoding]:
    """Cut an encoding to `max_length` tokens; if `overflowing`, also return the parts that were cut off."""
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
    """Cut the encoding of one text into windows of `max_length` tokens, each with the special tokens and the prompt.

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


# --- a batch of encodings ---------------------------------------------------------------------------------------------


class CharSpan(NamedTuple):
    """The index of the first character of a span, and of the character after its last one."""

    start: int
    end: int


class TokenizedBatch(MutableMapping[str, Any]):
    """The result of a tokenizer: names -> lists, int64 arrays or tensors, ready for ``model(**inputs)``.

    ``inputs["input_ids"]`` and ``inputs.input_ids`` are the same object. Items can be set, added and removed.
    ``tokens(i)``, ``word_ids(i)`` and ``sequence_ids(i)`` describe row i with its padding; ``encodings[i]``, which is
    also ``inputs[i]``, describes it without padding.

    Attributes
    ----------
    data : dict of str to list, ndarray or tensor
    encodings : tuple of Encoding
    """

    is_fast = True

    def __init__(
        self,
        data: dict[str, Any],
        encodings: Sequence[Encoding] = (),
        spans: Sequence[slice] = (),
        widths: Sequence[int] = (),
        pad_token: str | None = None,
    ) -> None:
        self.data = data
        self._spans, self._widths = spans, widths
        self._pad_token = pad_token
        self.encodings = tuple(encodings)

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            return self.data[key]
        if isinstance(key, slice):
            return {name: value[key] for name, value in self.data.items()}
        return self._encoding(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def __delitem__(self, key: str) -> None:
        del self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def keys(self) -> KeysView[str]:
        """Return the names of the values."""
        return KeysView(self.data)  # prints as in transformers

    def __getattr__(self, name: str) -> Any:
        # Read through __dict__, because copy and pickle read attributes before __init__ has run.
        data = self.__dict__.get("data", {})
        if name not in data:
            raise AttributeError(f"TokenizedBatch has no {name!r}; it holds {', '.join(data)}.")
        return data[name]

    def copy(self) -> TokenizedBatch:
        """Return a batch with the same values, whose items can be changed without changing this one."""
        return TokenizedBatch(dict(self.data), self.encodings, self._spans, self._widths, self._pad_token)

    def to(self, device: object, *, non_blocking: bool = False) -> TokenizedBatch:
        """Return the batch itself for "cpu"; refuse any other device."""
        if not is_cpu(device):
            raise ValueError(f"device={brief(device)}; minibert runs on the CPU: expected 'cpu'.")
        return self

    def convert_to_tensors(self, tensor_type: str | None = None) -> TokenizedBatch:
        """Turn the values into arrays ("np") or tensors ("pt") in place, and return the batch.

        Parameters
        ----------
        tensor_type : {None, "np", "pt"}
            None changes nothing.

        Raises
        ------
        ValueError
            The rows of a value differ in length.
        """
        kind = check_return_tensors(tensor_type)
        if kind is not None:
            for name, value in self.data.items():
                self.data[name] = converted(name, value, kind)
        return self

    def __str__(self) -> str:
        return str(self.data)  # as transformers prints it

    def __repr__(self) -> str:
        return f"TokenizedBatch({', '.join(f'{name}: {_described(value)}' for name, value in self.data.items())})"

    def _repr_html_(self) -> str:
        rows = [
            (i, len(encoding), encoding.n_truncated, " ".join(encoding.tokens[:20]))
            for i, encoding in enumerate(self.encodings)
        ]
        return html_table(repr(self), ("row", "tokens", "cut", "they begin"), rows, len(self.encodings))

    # --- what a row says about its text ---

    def tokens(self, i: int = 0) -> list[str]:
        """Return the tokens of row i; list of S str."""
        return self._padded(i, self._encoding(i).tokens, str(self._pad_token))

    def word_ids(self, i: int = 0) -> list[int | None]:
        """Return the word index of each token of row i; list of S int, None for special tokens and padding."""
        return self._padded(i, self._encoding(i).word_ids, None)

    def sequence_ids(self, i: int = 0) -> list[int | None]:
        """Return the text index of each token of row i; list of S int, None for special tokens and padding."""
        return self._padded(i, self._encoding(i).sequence_ids, None)

    def char_to_token(self, i: int, char: int | None = None, sequence: int = 0) -> int | None:
        """Return the index in row i of the token that holds a character; None if no token holds it.

        With `sequence` 1 the character is one of the second text of a pair. No token holds a space, or a character that
        was truncated. ``char_to_token(char)`` is that of row 0, as in transformers.
        """
        i, char = (0, i) if char is None else (i, char)
        char, sequence = check_int("char", char), check_int("sequence", sequence, 0, 1)
        encoding = self._encoding(i)
        rows = zip(encoding.offsets.tolist(), encoding.sequence_ids, strict=True)
        for token, ((start, end), text) in enumerate(rows, self._spans[i].start):
            if text == sequence and start <= char < end:
                return token
        return None

    def token_to_chars(self, i: int, token: int | None = None) -> CharSpan | None:
        """Return the index of a token's first character and the one after its last; None for padding, [CLS], [SEP].

        ``token_to_chars(token)`` is that of row 0, as in transformers.
        """
        i, token = (0, i) if token is None else (i, token)
        sequences = self.sequence_ids(i)
        if not -len(sequences) <= check_int("token", token) < len(sequences):
            raise ValueError(f"row {i} has {len(sequences)} tokens, asked for number {brief(token)}.")
        if sequences[token] is None:
            return None
        return CharSpan(*self._padded(i, self._encoding(i).offsets.tolist(), [0, 0])[token])

    def _encoding(self, i: int) -> Encoding:
        if not -len(self.encodings) <= check_int("i", i) < len(self.encodings):
            raise ValueError(f"the batch has {len(self.encodings)} rows, asked for row {brief(i)}.")
        return self.encodings[i]

    def _padded(self, i: int, values: list[Element], fill: Element) -> list[Element]:
        span = self._spans[i]
        return [fill] * span.start + values + [fill] * (self._widths[i] - span.stop)


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a list of {len(value)}" if shape is None and isinstance(value, list) else str(tuple(shape or ()))


# --- rows -> lists, arrays, tensors -----------------------------------------------------------------------------------


def pad_rows(rows: Sequence[Any], widths: Sequence[int], side: str, fill: int) -> Any:
    """Copy rows of numbers into an int64 array (B, width), or into an array each if their widths differ."""
    if len(set(widths)) == 1:
        padded: Any = np.full((len(rows), widths[0]), fill, dtype=np.int64)
    else:
        padded = [np.full(width, fill, dtype=np.int64) for width in widths]
    for line, row, width in zip(padded, rows, widths, strict=True):
        line[span_of(len(row), width, side)] = row
    return padded


def span_of(length: int, width: int, side: str) -> slice:
    """Return where the tokens of a padded row are."""
    return slice(0, length) if side == "right" else slice(width - length, width)


def converted(name: str, value: Any, kind: str) -> Any:
    """Return a value as an array ("np") or a tensor ("pt"); integers become int64.

    Raises
    ------
    ValueError
        The rows differ in length.
    """
    convert: Callable[[Any], Any] = to_tensor if kind == "pt" else np.asarray
    try:
        array = np.asarray(to_array(value))
        if array.size == 0 and not isinstance(value, np.ndarray):
            array = array.astype(np.int64)  # NumPy makes an empty list float64
        if array.dtype.kind == "O":
            raise ValueError("its rows do not hold numbers")
        return convert(array)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{name} cannot become an array ({error}). Pad the rows: tokenizer(..., padding=True)."
        ) from error


# --- the lengths of rows: limits of truncation, and padding of rows that are kept as lists ----------------------------

PADDING = ("longest", "max_length", "do_not_pad")
STRATEGIES = ("longest_first", "only_first", "only_second")


def choose_limit(
    truncation: bool | str | None, max_length: int | None, padding: str, model_max_length: int | None
) -> tuple[str, int | None]:
    """Return the truncation strategy and the length for these arguments, with transformers' defaults."""
    if truncation is None:
        truncation = max_length is not None and padding == "do_not_pad"
    strategy = choose_strategy("truncation", truncation, (*STRATEGIES, "do_not_truncate"))
    needed = strategy != "do_not_truncate" or padding == "max_length"
    if max_length is not None:
        max_length = check_int("max_length", max_length, 1)
        if not needed:
            warn_caller(
                f"max_length={brief(max_length)} has no effect: add truncation=True to truncate texts to it, "
                "or padding='max_length' to pad them to it.",
            )
        return strategy, max_length
    if needed and model_max_length is None:
        raise ValueError(
            f"truncation={truncation!r}, padding={padding!r} need max_length=: neither tokenizer_config.json nor "
            "config.json says how many tokens this model takes."
        )
    return strategy, model_max_length


def choose_widths(
    lengths: list[int],
    padding: str,
    strategy: str,
    max_length: int | None,
    multiple: int | None,
    *,
    equal: bool,
    can_pad: bool,
) -> list[int]:
    """Return the width of each row with its padding; if `equal`, refuse rows of different width.

    Rows that are longer than `max_length` keep their length, as in transformers.
    """
    width, widths = max(lengths, default=0), lengths
    if padding != "do_not_pad":
        if not can_pad:
            raise ValueError("this tokenizer has no padding token; tokenize without padding=.")
        if padding == "max_length" and max_length is not None and lengths:
            width = max_length
        if multiple is not None:
            multiple = check_int("pad_to_multiple_of", multiple, 1)
            if strategy != "do_not_truncate" and max_length is not None and max_length % multiple:
                raise ValueError(
                    f"max_length={brief(max_length)} is not a multiple of pad_to_multiple_of={brief(multiple)}; "
                    "change one of them."
                )
            width = -(-width // multiple) * multiple
        # Ids, types and mask, each of 8 bytes.
        what = f"{counted(len(lengths), 'row')} of {brief(width)} tokens"
        require_memory(3 * 8 * len(lengths) * width, what, "Give a smaller length.")
        widths = [max(width, length) for length in lengths]
    if equal and len(set(widths)) > 1:
        first, last = sorted((lengths.index(min(lengths)), lengths.index(max(lengths))))
        raise ValueError(
            f"rows of different length do not make an array: row {first} has {lengths[first]} tokens, row {last} has "
            f"{lengths[last]}; add padding=True or truncation=True."
        )
    return widths


def choose_strategy(name: str, value: bool | str, choices: tuple[str, ...]) -> str:
    """Return the name of a strategy; True means the first one of `choices`, False the last one."""
    if isinstance(value, bool):
        return choices[0] if value else choices[-1]
    check_choice(name, value, choices)
    return value
