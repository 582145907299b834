"""Pairs of texts: checks of what users give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import brief, check_choice
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts, refuse_lone_surrogate, shown

__all__ = ["as_pairs", "check_truncation", "num_characters", "refuse_cut"]

_TRUNCATION = ("warn", "error", "silent")


def as_pairs(inputs: Any) -> tuple[list[tuple[str, str]], bool]:
    """Return a pair or pairs of texts as a list of pairs, and whether one pair was given.

    Parameters
    ----------
    inputs : two str in a list, tuple or array; or a sequence, array of shape (B, 2) or table with B rows of two str

    Raises
    ------
    TypeError, ValueError
        It is something else. The message names the index.
    """
    if isinstance(inputs, str):
        raise TypeError(f"inputs is {shown(inputs)}; expected a pair of texts, (query, text), or a list of pairs.")
    if getattr(inputs, "ndim", 1) == 2 and hasattr(inputs, "to_numpy"):  # a table of pandas or Polars
        inputs = inputs.to_numpy()
    if isinstance(inputs, np.ndarray) and inputs.ndim == 2:
        inputs = inputs.tolist()
    values = inputs if isinstance(inputs, list | tuple) else as_texts("inputs", inputs)[0]
    single = len(values) > 0 and isinstance(values[0], str)
    if single:
        return [_as_pair(values, "inputs")], True
    return [_as_pair(value, f"inputs[{index}]") for index, value in enumerate(values)], False


def _as_pair(value: Any, name: str) -> tuple[str, str]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is {shown(value)}; expected a pair of texts: (query, text).")
    if len(value) != 2:
        raise ValueError(
            f"{name} has {len(value)} parts, {brief(value)}; expected a pair of texts: (query, text). Give several "
            "pairs as a list of pairs."
        )
    for index, text in enumerate(value):
        if not isinstance(text, str):
            hint = " Leave missing texts out, or replace them by ''." if text is None or text != text else ""
            raise TypeError(f"{name}[{index}] is {shown(text)}; expected a str.{hint}")
        refuse_lone_surrogate(text, f"{name}[{index}]")
    return value[0], value[1]


def num_characters(pair: tuple[str, str]) -> int:
    """Count the characters of both texts."""
    return len(pair[0]) + len(pair[1])


def check_truncation(truncation: object) -> None:
    """Refuse anything but the three ways to treat a pair that is too long."""
    if isinstance(truncation, str) and truncation == "split":
        raise ValueError(
            "truncation='split' is not for pairs, because the score of a window is not that of the pair. Give 'warn', "
            "'error' or 'silent'; or split the text yourself, score each part, and take the maximum."
        )
    check_choice("truncation", truncation, _TRUNCATION)


def refuse_cut(encodings: Sequence[Encoding], indices: Sequence[int], max_length: int) -> None:
    """Refuse pairs of which tokens were cut off; the error names the first one by the caller's index."""
    cut = [(index, encoding) for index, encoding in zip(indices, encodings, strict=True) if encoding.n_truncated]
    if cut:
        index, encoding = min(cut, key=lambda one: one[0])
        raise ValueError(
            f"inputs[{index}] has {max_length + encoding.n_truncated} tokens, the limit is {max_length} "
            "(max_seq_length). Shorten it, or cut it: truncation='warn'."
        )
