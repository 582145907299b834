"""Checks of arguments, the types of arrays, and short forms of values for messages."""

from __future__ import annotations

import operator
import reprlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.torch_interop import as_dense_array, check_torch
from minibert.errors import ModelFormatError

FloatArray = npt.NDArray[np.floating[Any]]
"""Numbers: float32, except in a float64 forward."""

IntArray = npt.NDArray[np.integer[Any]]
"""Ids, positions and counts of any integer type."""

Int64Array = npt.NDArray[np.int64]
"""Ids, masks and offsets from a tokenizer."""


class NotFiniteError(ValueError):
    """JSON holds NaN or Infinity, as Python's json writes them: the cause of an error of `files.parse_json`."""


class _Brief(reprlib.Repr):
    """reprlib's short repr, also for integers of thousands of digits; Python refuses to write those in decimal."""

    def repr_int(self, x: int, level: int) -> str:
        return f"<an integer of {x.bit_length()} bits>" if x.bit_length() > 4096 else super().repr_int(x, level)


_BRIEF = _Brief()


def brief(value: object) -> str:
    """Return a short repr of a value for a message; this function never raises."""
    try:
        return _BRIEF.repr(value)
    except Exception:  # reprlib uses the name of the type, and a foreign class can have the name of a built-in one
        return f"<a {type(value).__name__}>"


def counted(number: int, thing: str) -> str:
    """Return a number and its noun, singular or plural, for a message.

    >>> counted(1, "text"), counted(2, "text")
    ('1 text', '2 texts')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def some_of(names: Sequence[str], most: int = 8) -> str:
    """Return the first names and the number of the others, for a message.

    >>> some_of(["a", "b", "c"], 1)
    'a and 2 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def is_cpu(device: object) -> bool:
    """Return whether a device is the CPU: "cpu", "cpu:0", None, or an object whose str is one of these, as torch's."""
    try:
        return device is None or str(device) in ("cpu", "cpu:0")
    except Exception:  # an integer of thousands of digits, or an object without a working str()
        return False


def check_int(name: str, value: object, least: int | None = None, most: int | None = None, *, also: str = "") -> int:
    """Return an argument as a Python int after checking its type and its range.

    The result is a Python int, because sums of NumPy's small integers overflow.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : int, np.integer, or another object with ``__index__``
        Other values, bool included, are refused.
    least, most : int, optional
        The range, both ends included. `most` needs `least`.
    also : str
        The end of the sentence that says what is expected, such as ", or None".

    Raises
    ------
    TypeError, ValueError
    """
    number = _as_int(value)
    if number is not None and (least is None or number >= least) and (most is None or number <= most):
        return number
    span = "" if least is None else f" of at least {least:,}" if most is None else f", {least:,} to {most:,}"
    message = f"{name}={brief(value)}; expected an int{span}{also}."
    raise TypeError(message) if number is None else ValueError(message)


def check_stored_int(name: str, value: object, least: int, most: int = 2**31 - 1) -> int:
    """Return an integer that was read from JSON, after checking its type and its range.

    Raises
    ------
    ModelFormatError
    """
    if not isinstance(value, int):
        raise ModelFormatError(f"{name}={brief(value)}; expected an int, {least:,} to {most:,}.")
    try:
        return check_int(name, value, least, most)
    except (TypeError, ValueError) as error:
        raise ModelFormatError(str(error)) from None


def check_indices(name: str, value: object, count: int, *, what: str, expected: str) -> list[int]:
    """Return one or several indices as a list of 0 to count - 1; negative ones count from the end.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : int or ints
        In any order; equal ones are kept.
    count : int
        Number of items that can be indexed.
    what : str
        The name of the items, such as "hidden states".
    expected : str
        The accepted kinds of value, such as "an int or several".

    Raises
    ------
    TypeError, ValueError
    """
    try:
        asked: list[Any] = [value] if isinstance(value, str | bytes | dict) else list(value)  # type: ignore[call-overload]
    except TypeError:  # an int, or an array without axes
        asked = [value]
    indices = []
    for number in asked:
        index = _as_int(number)
        if index is None:
            raise TypeError(f"{name}={brief(value)}; expected {expected}.")
        if not -count <= index < count:
            span = f"0 to {count - 1}, or -{count} to -1"
            raise ValueError(f"{name}={brief(index)}; this model has {count} {what}: {span}.")
        indices.append(index % count)
    return indices


def _as_int(value: Any) -> int | None:
    """Return a value as a Python int; None if it is not an integer, or is a bool."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_bool(name: str, value: object) -> bool:
    """Return an argument as a bool; TypeError for anything but True and False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={brief(value)}; expected True or False.")
    return bool(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a ValueError if a value is not among the choices of a parameter."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={brief(value)}; expected one of {', '.join(map(repr, choices))}.")


def is_masked(value: object) -> bool:
    """Return whether a value is a masked array; without importing numpy.ma, because that takes 20 ms."""
    # While another thread imports it, the module is there and the class is not.
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def as_array(name: str, values: object, remedy: str = "All vectors must have one length.") -> npt.NDArray[Any]:
    """Return `values` as an array of numbers of the same dtype; a `TypeError` or `ValueError` gives `name`."""
    if is_masked(values):
        raise TypeError(f"{name} is a masked array, whose hidden numbers would count; give its data, or fewer rows.")
    try:
        array = np.asarray(as_dense_array(values))
    except Exception as error:  # lists of unequal length, or any error of another library's __array__
        raise ValueError(f"{name} is not a rectangular array of numbers ({error}). {remedy}") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {array.dtype} values ({type(values).__name__}); expected an array of numbers.")
    return array


def as_vectors(name: str, values: npt.ArrayLike) -> FloatArray:
    """Return `values` as an array of floats with at least one axis; a `TypeError` or `ValueError` gives `name`."""
    array = not_single(name, as_array(name, values))
    if array.dtype.kind != "f" or array.dtype.itemsize < 4:
        return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_return_tensors(value: object) -> str | None:
    """Return the value of ``return_tensors=`` as None, "np" or "pt".

    Raises
    ------
    ValueError
        It is another value, such as "tf".
    ImportError
        It is "pt", and torch is not installed.
    """
    value = getattr(value, "value", value)  # transformers has an enum of these names
    if value is not None and (not isinstance(value, str) or value not in ("np", "pt")):
        raise ValueError(
            f"return_tensors={brief(value)}; expected None for lists, 'np' for NumPy arrays or 'pt' for tensors."
        )
    if value == "pt":
        check_torch("return_tensors='pt'")
    return value


def not_single(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array; if it is a single number, raise a ValueError that gives `name`."""
    if array.ndim == 0:
        raise ValueError(f"{name} is a single number; expected vectors of shape (n, H), or one of shape (H,).")
    return array
