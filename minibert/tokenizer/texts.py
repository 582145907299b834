"""Check the texts that users give: one or many, whole or split into words, single or in pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import brief

Texts = str | Sequence[str] | Sequence[Sequence[str]] | npt.NDArray[Any]

LONE_SURROGATE = re.compile("[\ud800-\udfff]")

# Where a sentence may end, with the quotes and brackets behind the stop.
_STOP = re.compile(r"""[.!?…]["'”’»)\]]*(?=\s)|[。！？]["'”’」』）]*|\n[^\S\n]*(?=\n)""")


# A control or format character inside a word, such as a soft hyphen, belongs to the word.
_LETTER = r"[\p{L}\p{M}\p{N}&&[^\p{Han}]]"
_WORD = rf"{_LETTER}+(?:[\p{{C}}&&[^\s]]+{_LETTER}+)*|[^\s]"


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the sentences of a text: the first character of each, and the one after its last.

    A sentence ends behind . ! ? or … that white space follows, behind the stops of Chinese and Japanese, at an empty
    line. What has no letter and no digit belongs to the sentence before it, if there is one. "2.5" is not parted, and
    "e.g. this" is.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for end in (*(stop.end() for stop in _STOP.finditer(text)), len(text)):
        piece = text[start:end]
        if any(map(str.isalnum, piece)):
            first = start + len(piece) - len(piece.lstrip())
            spans.append((first, start + len(piece.rstrip())))
        elif spans and piece.strip():
            spans[-1] = spans[-1][0], start + len(piece.rstrip())
        start = end
    return spans


def word_spans(texts: Iterable[str], normalizer: Any) -> list[list[tuple[str, int, int]]]:
    """Return the words of each text: normalized, with the first character of each, and the one after its last.

    A word is a run of letters, digits and combining marks. A Chinese character is a word of its own, and so is each
    other character that is not a space.
    """
    from tokenizers import Regex, pre_tokenizers

    split, normalize = pre_tokenizers.Split(Regex(_WORD), "isolated"), normalizer.normalize_str if normalizer else str
    rows = ([(normalize(piece).strip(), *span) for piece, span in split.pre_tokenize_str(text)] for text in texts)
    return [[word for word in row if word[0]] for row in rows]


def as_batch(text: Texts, text_pair: Texts | None, is_split: bool) -> tuple[list[Any], list[Any] | None, bool]:
    """Return texts and their pairs as lists of equal length, and whether it was one text.

    Each item is a str, or a list of words if `is_split` is true.
    """
    texts, single = checked_texts("text", text, is_split)
    if text_pair is None:
        return texts, None, single
    pairs, single_pair = checked_texts("text_pair", text_pair, is_split)
    if single != single_pair:
        raise TypeError("text and text_pair must both be one text, or both be lists of equal length.")
    if len(texts) != len(pairs):
        raise ValueError(f"{len(texts)} texts and {len(pairs)} in text_pair; expected as many pairs as texts.")
    return texts, pairs, single


def split_pairs(text: Any, text_pair: Any, is_split: bool) -> tuple[Any, Any]:
    """Split a list of pairs into the first and the second texts; return other texts as they are.

    A pair is a tuple or list of two texts; with `is_split`, of two lists of words. If the first is one, all must be.
    """
    if text_pair is not None or not isinstance(text, list | tuple) or not text or not _is_pair(text[0], is_split):
        return text, text_pair
    for index, pair in enumerate(text):
        if not _is_pair(pair, is_split):
            raise TypeError(f"text[{index}] is {shown(pair)}; expected a pair of texts, as text[0] is one.")
    return [first for first, _ in text], [second for _, second in text]


def _is_pair(value: Any, is_split: bool) -> bool:
    kinds: Any = list | tuple if is_split else str
    return isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(part, kinds) for part in value)


def as_texts(name: str, values: Any) -> tuple[Sequence[Any], bool]:
    """Return a text or texts as a sequence, and whether it was one text. The items are not checked.

    Parameters
    ----------
    name : str
        Name of the argument, for messages.
    values : str, or a sequence, 1-D array, or pandas, Arrow or Polars column of str

    Raises
    ------
    TypeError
        `values` is of another type, such as a generator, bytes or a dict.
    """
    if isinstance(values, np.ndarray) and values.ndim == 0:
        values = values.item()  # an array of one text is that text
    if isinstance(values, str):
        return [values], True
    for convert in ("to_pylist", "tolist", "to_list"):  # of Arrow; of NumPy and pandas; of Polars
        if hasattr(values, convert) and getattr(values, "ndim", 1) == 1:
            return getattr(values, convert)(), False
    if not isinstance(values, Sequence) or isinstance(values, bytes | bytearray | memoryview):
        shape = getattr(values, "shape", None)
        raise TypeError(
            f"{name} is a {type(values).__name__}{f' of shape {shape}' if shape else ''}; expected a str, or a list, "
            "array or column of str, of one dimension. Convert other iterables: list(...). Give one column: df['text'] "
            "or x[:, 0], or in a ColumnTransformer name it as 'text', not ['text']."
        )
    return values, False


def checked_texts(name: str, value: Any, is_split: bool = False) -> tuple[list[Any], bool]:
    """Check a text or texts (they may be split into words); return a list, and whether it was one text.

    Raises
    ------
    TypeError, ValueError
        It is something else. The message names the index.
    """
    if isinstance(value, np.ndarray) and is_split:
        value = value.tolist()
    if not is_split:
        texts, single = as_texts(name, value)
        check_texts(texts, name=name)
        return list(texts), single
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is {shown(value)}; expected a list of words, or a list of such lists.")
    # As in transformers, an empty list is one text without words.
    single = not (value and isinstance(value[0], list | tuple | np.ndarray))
    return [_as_words(f"{name}[{index}]", words) for index, words in enumerate([value] if single else value)], single


def _as_words(name: str, text: Any) -> list[str]:
    if not isinstance(text, (list, tuple, np.ndarray)):
        raise TypeError(f"{name} is {shown(text)}; expected a list of words, because is_split_into_words is set.")
    words = list(text)
    check_texts(words, name=name)
    return words


def check_texts(texts: Sequence[Any], first: int = 0, name: str = "inputs") -> None:
    """Raise an error, with the index, if an item in a sequence of texts is not a text.

    Parameters
    ----------
    texts : sequence
    first : int
        The caller's index of `texts[0]`, for messages.
    name : str
        The caller's name of the texts, for messages.

    Raises
    ------
    TypeError, ValueError
        As in `check_text`; the message names the index.
    """
    for index, text in enumerate(texts, first):
        if not isinstance(text, str) or LONE_SURROGATE.search(text):
            check_text(text, f"{name}[{index}]")


def check_text(value: Any, name: str) -> str:
    """Return a text unchanged after checking it.

    Raises
    ------
    TypeError, ValueError
        It is not a str, or UTF-8 cannot hold it: it has a lone surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}; expected a str.{_hint(value)}")
    match = LONE_SURROGATE.search(value)
    if match:
        raise ValueError(f"{name} holds half a character, the surrogate {match[0]!r}, at position {match.start()}.")
    return value


def _hint(value: object) -> str:
    """Say what to do with a value that users often give instead of a text."""
    if value is None or isinstance(value, float):
        return " Leave missing texts out, or replace them by ''."
    if isinstance(value, bytes):
        return " Decode it first: text.decode()."
    if isinstance(value, list | tuple):
        return " Pairs are for CrossEncoder and text_pair= of a tokenizer, lists of words for is_split_into_words=True."
    return ""


def shown(value: object) -> str:
    """Return a value's type and the start of its repr, for messages."""
    return f"{type(value).__name__} {brief(value)}"


def without_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """Move the ends of a span of characters inwards over spaces, because some tokens hold spaces."""
    held = text[start:end]
    if not held.strip():
        return start, end
    return end - len(held.lstrip()), start + len(held.rstrip())
