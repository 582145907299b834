"""The inputs of a call: one, several, or an iterable that is read while the answers are taken; texts and pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from minibert.tokenizer.texts import as_texts, refuse_lone_surrogate, shown

__all__ = ["as_pair", "check_text", "is_text", "sort_inputs"]


def sort_inputs(inputs: Any, is_one: Callable[[Any], bool], what: str) -> tuple[str, Iterable[Any]]:
    """Return "one", "several" or "lazy", and the inputs as an iterable.

    A list, tuple, array or column is computed at once. Any other iterable, such as a generator or a dataset, is lazy:
    the caller gets an iterator. `what` names one input, for the message.

    Raises
    ------
    TypeError
        It is neither an input nor an iterable.
    """
    if is_one(inputs):
        return "one", [inputs]
    if isinstance(inputs, list | tuple):
        return "several", inputs
    if isinstance(inputs, str | bytes | bytearray | memoryview | Mapping) or not isinstance(inputs, Iterable):
        raise TypeError(f"inputs is {shown(inputs)}; expected {what}, or a list or an iterable of such inputs.")
    if hasattr(inputs, "ndim") or hasattr(inputs, "to_pylist"):
        return "several", as_texts("inputs", inputs)[0]
    return "lazy", inputs


def is_text(value: Any) -> bool:
    """Return whether a value is one text."""
    return isinstance(value, str)


def check_text(value: Any, name: str) -> str:
    """Return a text as it is.

    Raises
    ------
    TypeError, ValueError
        It is not a str, or it holds half a character.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}; expected a str.")
    refuse_lone_surrogate(value, name)
    return value


def as_pair(value: Any, name: str, first: str, second: str) -> tuple[str, str]:
    """Return the two texts of a mapping with these keys.

    Raises
    ------
    TypeError, ValueError
        It is not a mapping, has other keys, or its values are not texts.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {shown(value)}; expected a dict with {first!r} and {second!r}.")
    if set(value) != {first, second}:
        keys = ", ".join(sorted(map(repr, value)))[:200] or "no keys"
        raise ValueError(f"{name} has {keys}; expected {first!r} and {second!r}.")
    return check_text(value[first], f"{name}[{first!r}]"), check_text(value[second], f"{name}[{second!r}]")
