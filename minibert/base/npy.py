"""Arrays in NumPy's file format, from bytes that somebody else wrote; nothing in them is run or believed."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["declared_nbytes", "parse_npy"]


def parse_npy(content: bytes) -> npt.NDArray[Any]:
    """Read the bytes of an .npy file; the array shares their memory and is read-only.

    Raises
    ------
    ValueError
        It is not such a file, its length differs from its shape, or it holds Python objects, which are a pickle.
    """
    file = io.BytesIO(content)
    shape, in_columns, dtype = _read_header(file)
    rest = content[file.tell() :]
    # NumPy's own reader asks for the memory of the shape before it compares the shape with the file.
    if math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"an array of shape {shape} has {len(rest)} bytes")
    array = np.frombuffer(rest, dtype)
    return array.reshape(shape[::-1]).T if in_columns else array.reshape(shape)


def declared_nbytes(begin: bytes) -> int:
    """Return how long an .npy file is, by its header, which must be within its first bytes `begin`.

    Raises
    ------
    ValueError
        As `parse_npy`.
    """
    file = io.BytesIO(begin)
    shape, _, dtype = _read_header(file)
    return file.tell() + math.prod(shape) * dtype.itemsize


def _read_header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the shape, whether the array lies column by column, and the dtype."""
    version = np.lib.format.read_magic(file)
    # The formats 2.0 and 3.0 differ from 1.0 in the length of the header only; NumPy has no public reader of 3.0.
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"it has an array of the format {version}")
    shape, in_columns, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are a pickle; save an array of numbers")
    return shape, in_columns, dtype
