"""`TokenizedBatch`: the tokens of several texts as lists, arrays or tensors; the lengths of its rows, and padding."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, KeysView, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.reporting import html_table, warn_caller
from minibert._utils.system import require_memory
from minibert._utils.torch_interop import to_array, to_tensor
from minibert._utils.validation import brief, check_choice, check_int, check_return_tensors, counted, is_cpu
from minibert.tokenizer.encodings import Element, Encoding


class CharSpan(NamedTuple):
    """The index of the first character of a span, and of the character after its last one."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """The index of the first token of a span, and of the token after its last one."""

    start: int
    end: int


class TokenizedBatch(UserDict[str, Any]):
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
        widths: Sequence[int] = (),
        padding_side: str = "right",
        pad_token: str | None = None,
    ) -> None:
        self.data = data
        self._padding = widths, padding_side, pad_token
        self.encodings = tuple(encodings)

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            return self.data[key]
        if isinstance(key, slice):
            return {name: value[key] for name, value in self.data.items()}
        return self._encoding(key)

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
        return TokenizedBatch(dict(self.data), self.encodings, *self._padding)

    def to(self, device: object, *, non_blocking: bool = False) -> TokenizedBatch:
        """Return the batch itself for "cpu" and None; refuse any other device."""
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
        return self._padded(i, self._encoding(i).tokens, str(self._padding[2]))

    def word_ids(self, i: int = 0) -> list[int | None]:
        """Return the word index of each token of row i; list of S int, None for special tokens and padding."""
        return self._padded(i, self._encoding(i).word_ids, None)

    def sequence_ids(self, i: int = 0) -> list[int | None]:
        """Return the text index of each token of row i; list of S int, None for special tokens and padding."""
        return self._padded(i, self._encoding(i).sequence_ids, None)

    def token_to_sequence(self, i: int, token: int | None = None) -> int | None:
        """Return the index of a token's text, 0 or 1; None for padding, [CLS], [SEP].

        Here and below the first index, the row, may be left out: ``token_to_sequence(token)`` means row 0.
        """
        return self._of_token(self.sequence_ids, i, token)

    def token_to_word(self, i: int, token: int | None = None) -> int | None:
        """Return the index of a token's word in its text; None for padding, [CLS], [SEP]."""
        return self._of_token(self.word_ids, i, token)

    def token_to_chars(self, i: int, token: int | None = None) -> CharSpan | None:
        """Return the index of a token's first character and the one after its last; None for padding, [CLS], [SEP]."""
        return self._of_token(self._characters, i, token)

    def char_to_token(self, i: int, char: int | None = None, sequence_index: int = 0) -> int | None:
        """Return the index in row i of the token that holds a character; None if no token holds it.

        With `sequence_index` 1 the character is one of the second text of a pair. No token holds a space, or a
        character that was truncated.
        """
        i, char = (0, i) if char is None else (i, char)
        char, sequence = check_int("char", char), check_int("sequence_index", sequence_index, 0, 1)
        for token, (span, text) in enumerate(zip(self._characters(i), self.sequence_ids(i), strict=True)):
            if span is not None and text == sequence and span.start <= char < span.end:
                return token
        return None

    def char_to_word(self, i: int, char: int | None = None, sequence_index: int = 0) -> int | None:
        """Return the index of the word that holds a character; None as in `char_to_token`."""
        i, char = (0, i) if char is None else (i, char)
        token = self.char_to_token(i, char, sequence_index)
        return None if token is None else self.word_ids(i)[token]

    def word_to_tokens(self, i: int, word: int | None = None, sequence_index: int = 0) -> TokenSpan | None:
        """Return the index of a word's first token and the one after its last; None if the row does not have any."""
        i, word = (0, i) if word is None else (i, word)
        key = check_int("word", word), check_int("sequence_index", sequence_index, 0, 1)
        tokens = [n for n, place in enumerate(zip(self.word_ids(i), self.sequence_ids(i), strict=True)) if place == key]
        return TokenSpan(tokens[0], tokens[-1] + 1) if tokens else None

    def word_to_chars(self, i: int, word: int | None = None, sequence_index: int = 0) -> CharSpan | None:
        """Return the index of a word's first character and the one after its last; None as in `word_to_tokens`."""
        i, word = (0, i) if word is None else (i, word)
        tokens = self.word_to_tokens(i, word, sequence_index)
        spans = [] if tokens is None else self._characters(i)[slice(*tokens)]
        return CharSpan(spans[0].start, spans[-1].end) if spans else None

    def _of_token(self, values: Callable[[int], list[Any]], i: int, token: int | None) -> Any:
        i, token = (0, i) if token is None else (i, token)
        row = values(i)
        if not -len(row) <= check_int("token", token) < len(row):
            raise ValueError(f"row {i} has {len(row)} tokens, asked for number {brief(token)}.")
        return row[token]

    def _characters(self, i: int) -> list[Any]:
        encoding = self._encoding(i)
        spans = zip(encoding.offsets.tolist(), encoding.sequence_ids, strict=True)
        return self._padded(i, [None if text is None else CharSpan(*span) for span, text in spans], None)

    def _encoding(self, i: int) -> Encoding:
        if not -len(self.encodings) <= check_int("i", i) < len(self.encodings):
            raise ValueError(f"the batch has {len(self.encodings)} rows, asked for row {brief(i)}.")
        return self.encodings[i]

    def _padded(self, i: int, values: list[Element], fill: Element) -> list[Element]:
        widths, side, _ = self._padding
        span = span_of(len(values), widths[i], side)
        return [fill] * span.start + values + [fill] * (widths[i] - span.stop)


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a list of {len(value)}" if shape is None and isinstance(value, list) else str(tuple(shape or ()))


# --- rows -> lists, arrays, tensors -----------------------------------------------------------------------------------


def pad_rows(rows: Sequence[Any], widths: Sequence[int], side: str, fill: int) -> Any:
    """Copy rows of numbers, or of pairs, into an int64 array (B, width), or into an array each if the widths differ."""
    pairs = np.shape(rows[0])[1:] if len(rows) else ()
    if len(set(widths)) == 1:
        padded: Any = np.full((len(rows), widths[0], *pairs), fill, dtype=np.int64)
    else:
        padded = [np.full((width, *pairs), fill, dtype=np.int64) for width in widths]
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
        raise ValueError(f"{name} is not an array ({error}). Pad the rows: tokenizer(..., padding=True).") from error


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
                "or padding='max_length' to pad them to it."
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
                    f"max_length={brief(max_length)} is not a multiple of pad_to_multiple_of={brief(multiple)}."
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
