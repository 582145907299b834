"""What was given as numbers -> arrays: arrays of other libraries, bfloat16, nested lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import printable
from minibert._utils.validation import brief

__all__ = ["DEEPEST", "NOT_FINITE", "as_numbers", "from_lists", "widen"]

NOT_FINITE = "Find the first step of the port whose result is not finite; .npz and .safetensors hold such values."
"""The remedy where a format cannot hold NaN and infinity."""


def as_numbers(value: Any, name: str) -> Any:
    """Return an array of numbers in the byte order of the machine; floats that NumPy lacks are widened."""
    if isinstance(value, list):
        return [as_numbers(one, name) for one in value]
    if type(value) is np.ndarray and value.dtype == np.float32 and value.dtype.isnative:
        return value
    from minibert._utils.torch_interop import to_array

    array = np.asarray(to_array(value))
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype.names is None:
        array = widen(array.view(np.uint16))  # bfloat16, as ml_dtypes writes it
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{printable(name)} holds {array.dtype} values; expected numbers: float32, float16 or integers."
        )
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def widen(stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return bfloat16 numbers, given as 16-bit integers, as float32."""
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


DEEPEST = 32
"""The most levels of lists in lists that are read."""


def from_lists(value: Any, shown: str, depth: int = 0) -> Any:
    """Turn nested lists of numbers into an array; lists of different lengths into a list of arrays."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        if depth == DEEPEST or not isinstance(value, list | tuple):
            text = f"{shown[:60]} is {brief(value)}; expected numbers in at most {DEEPEST} levels of lists"
            raise ValueError(f"{text} ({error}).") from None
        array = None
    if array is None:
        return [from_lists(one, f"{shown}[{i}]", depth + 1) for i, one in enumerate(value)]
    if array.dtype.kind not in "biuf":
        if _has_null(value):
            text = (
                "holds null among its numbers: JavaScript writes NaN and Infinity as null, and Python writes None so."
            )
            raise ValueError(f"{shown} {text} {NOT_FINITE}")
        raise ValueError(f"{shown} is {brief(value)}; expected numbers in nested lists, or {{shape, dtype, data}}.")
    if array.dtype == np.float64:  # JSON has one type of numbers; what float32 numbers became is float32 again
        narrow = array.astype(np.float32)
        if _prints_as_float32(array, narrow):
            return narrow
    return array


def _has_null(value: Any) -> bool:
    """Return whether there is a None in nested lists, among numbers."""
    if isinstance(value, list | tuple):
        return any(map(_has_null, value))
    return value is None


def _prints_as_float32(array: npt.NDArray[Any], narrow: npt.NDArray[Any]) -> bool:
    """Return whether numbers are within the digits that programs print of a float32."""
    with np.errstate(all="ignore"):
        return bool(np.all(np.abs(array - narrow) <= np.abs(array) * 2.0**-24))
