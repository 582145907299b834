"""Vectors as arguments: arrays of numbers, from arrays, lists, tensors and sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.base.arrays import FloatArray
from minibert.base.scores import as_dense_array

__all__ = ["as_array", "as_vectors", "not_single"]


def as_array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return `values` as an array of numbers of the same dtype; `TypeError` or `ValueError` gives `name`."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, whose hidden numbers would count; give .filled(...), or fewer rows."
        )
    try:
        array = np.asarray(as_dense_array(values))
    except Exception as error:  # lists of unequal length, or any error of another library's __array__
        raise ValueError(f"{name} is not an array of vectors ({error}); all of them must have one length.") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {array.dtype} values ({type(values).__name__}); expected vectors of numbers.")
    return array


def as_vectors(name: str, values: npt.ArrayLike) -> FloatArray:
    """Return `values` as an array of floats with at least one dimension; `TypeError` or `ValueError` gives `name`."""
    array = not_single(name, as_array(name, values))
    if array.dtype.kind != "f" or array.dtype.itemsize < 4:
        return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def not_single(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array; `ValueError`, which gives `name`, if it is a single number."""
    if array.ndim == 0:
        raise ValueError(f"{name} is a single number; expected vectors of shape (n, H), or one of shape (H,).")
    return array
