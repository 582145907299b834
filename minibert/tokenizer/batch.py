"""The result of a tokenizer: a mapping of lists, arrays or tensors, and what each row says about its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minibert._utils.reporting import html_table
from minibert._utils.torch_interop import to_array, to_tensor
from minibert._utils.validation import Int64Array, brief, check_int, check_return_tensors, is_cpu
from minibert.tokenizer.encodings import Encoding

__all__ = ["CharSpan", "TokenSpan", "TokenizedBatch", "converted", "lists", "padded_array"]

Element = TypeVar("Element")


class CharSpan(NamedTuple):
    """The first character of a span, and the one after its last."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """The first token of a span, and the one after its last."""

    start: int
    end: int


class TokenizedBatch(MutableMapping[str, Any]):
    """The result of a tokenizer: names -> lists, int64 arrays or tensors, ready for ``model(**inputs)``.

    ``inputs["input_ids"]`` and ``inputs.input_ids`` are the same object. Items can be set, added and removed.
    ``tokens(i)``, ``word_ids(i)`` and ``sequence_ids(i)`` describe row i with its padding; ``encodings[i]``, which is
    also ``inputs[i]``, describes it without padding. The methods that take a row and a position take the position alone
    for row 0, as in transformers.

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

    def convert_to_tensors(self, tensor_type: str | None = None, prepend_batch_axis: bool = False) -> TokenizedBatch:
        """Turn the values into arrays ("np") or tensors ("pt") in place, and return the batch.

        Parameters
        ----------
        tensor_type : {None, "np", "pt"}
            None changes nothing.
        prepend_batch_axis : bool
            Put an axis of length 1 before the others.

        Raises
        ------
        ValueError
            The rows of a value differ in length.
        """
        kind = check_return_tensors(tensor_type)
        if kind is not None:
            for name, value in self.data.items():
                self.data[name] = converted(name, [value] if prepend_batch_axis else value, kind)
        return self

    def __str__(self) -> str:
        return str(self.data)  # as transformers prints it

    def __repr__(self) -> str:
        return f"TokenizedBatch({', '.join(f'{name}: {_described(value)}' for name, value in self.data.items())})"

    def _repr_html_(self) -> str:
        starts = (
            " ".join(encoding.tokens[:20]) + (" ..." if len(encoding) > 20 else "") for encoding in self.encodings
        )
        rows = (
            (i, len(encoding), encoding.n_truncated, start)
            for i, (encoding, start) in enumerate(zip(self.encodings, starts, strict=True))
        )
        return html_table(repr(self), ("row", "tokens", "cut", "they begin"), rows, len(self.encodings))

    # --- what a row says about its text ---

    @property
    def n_sequences(self) -> int | None:
        """Number of texts of each row, 1 or 2; None if there is no row."""
        return None if not self.encodings else 1 + (1 in self.encodings[0].sequence_ids)

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
        was truncated.
        """
        i, char = (0, i) if char is None else (i, char)
        char, sequence = check_int("char", char), check_int("sequence", sequence, 0, 1)
        offsets = self._encoding(i).offsets
        belongs = np.array(self._encoding(i).sequence_ids, dtype=object) == sequence
        holders = np.flatnonzero(belongs & (offsets[:, 0] <= char) & (char < offsets[:, 1]))
        return self._spans[i].start + int(holders[0]) if len(holders) else None

    def token_to_chars(self, i: int, token: int | None = None) -> CharSpan | None:
        """Return a token's first character and the one after its last; None for special tokens and padding."""
        i, token = self._row_and_token(i, token)
        if self.sequence_ids(i)[token] is None:
            return None
        return CharSpan(*self._padded(i, self._encoding(i).offsets.tolist(), [0, 0])[token])

    def token_to_word(self, i: int, token: int | None = None) -> int | None:
        """Return the index of a token's word; None for special tokens and padding."""
        i, token = self._row_and_token(i, token)
        return self.word_ids(i)[token]

    def token_to_sequence(self, i: int, token: int | None = None) -> int | None:
        """Return the index of a token's text, 0 or 1; None for special tokens and padding."""
        i, token = self._row_and_token(i, token)
        return self.sequence_ids(i)[token]

    def word_to_tokens(self, i: int, word: int | None = None, sequence: int = 0) -> TokenSpan | None:
        """Return the first token of a word and the one after its last; None if no token of it is left."""
        i, word = (0, i) if word is None else (i, word)
        owners = list(zip(self.word_ids(i), self.sequence_ids(i), strict=True))
        found = [place for place, owner in enumerate(owners) if owner == (check_int("word", word), sequence)]
        return TokenSpan(found[0], found[-1] + 1) if found else None

    def word_to_chars(self, i: int, word: int | None = None, sequence: int = 0) -> CharSpan | None:
        """Return the first character of a word and the one after its last; None if no token of it is left."""
        i, word = (0, i) if word is None else (i, word)
        tokens = self.word_to_tokens(i, word, sequence)
        if tokens is None:
            return None
        first, last = self.token_to_chars(i, tokens.start), self.token_to_chars(i, tokens.end - 1)
        return None if first is None or last is None else CharSpan(first.start, last.end)

    def char_to_word(self, i: int, char: int | None = None, sequence: int = 0) -> int | None:
        """Return the index of the word that holds a character; None if no token holds it."""
        i, char = (0, i) if char is None else (i, char)
        token = self.char_to_token(i, char, sequence)
        return None if token is None else self.word_ids(i)[token]

    def _row_and_token(self, i: int, token: int | None) -> tuple[int, int]:
        """Return the row and the position; a position alone is one of row 0."""
        i, token = (0, i) if token is None else (i, token)
        count, token = len(self.sequence_ids(i)), check_int("token", token)
        if not -count <= token < count:
            raise ValueError(f"row {i} has {count} tokens, asked for number {brief(token)}.")
        return i, token

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


def padded_array(rows: Sequence[Int64Array], spans: Sequence[slice], width: int, fill: int) -> Int64Array:
    """Copy rows into one array: B arrays of shape (S_b,) -> (B, width)."""
    array = np.full((len(rows), width), fill, dtype=np.int64)
    for row, values, span in zip(array, rows, spans, strict=True):
        row[span] = values
    return array


def lists(rows: Sequence[Int64Array], spans: Sequence[slice], widths: Sequence[int], fill: int) -> list[list[int]]:
    """Copy rows into lists, each padded to its own width."""
    return [
        [fill] * span.start + values.tolist() + [fill] * (width - span.stop)
        for values, span, width in zip(rows, spans, widths, strict=True)
    ]


def converted(name: str, value: Any, kind: str) -> Any:
    """Return a value as an array ("np") or a tensor ("pt"); whole numbers are int64.

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
            f"{name} cannot become an array ({error}). Pad the rows: tokenizer(..., padding=True), or tokenizer.pad."
        ) from error
