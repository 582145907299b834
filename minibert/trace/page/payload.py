"""The arrays of the page as few bytes that a browser can read. page.js reads the kinds of numbers defined here.

A number is kept in one of five kinds, two bytes each, or three for "f24":

    "f24"    float32 rounded to its 24 leading bits: relative error at most 2^-16
    "digits" 64 times the number rounded to 3 digits, as float16, which is finer than these, so the 3 digits stay; the
             factor is for small numbers: below 1e-6 there are fewer digits
    "mille"  a share from 0 to 1 as round(1000 share)
    "cos"    a cosine, as round(1000 (cosine + 1)): the three digits that the page shows, rounded once
    "whole"  an int, plus 1000

The bytes of equal significance lie together ("planes"), because they compress better so.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray

_NOT_A_NUMBER = 65535
# Larger numbers are not kept in float16.
_LARGEST_DIGITS = 900.0
_FACTOR = 64.0


class Payload:
    """Arrays, one after the other in one string of bytes, each with a description that finds it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.sizes: dict[str, int] = {}

    def add(self, group: str, kind: str, array: npt.NDArray[Any]) -> dict[str, Any]:
        """Append an array and return the description that finds it; `group` is its name in messages."""
        if kind == "digits" and (np.abs(array[np.isfinite(array)]) > _LARGEST_DIGITS).any():
            kind = "f24"
        planes = _planes(kind, array)
        entry = {"kind": kind, "at": self._size, "shape": list(array.shape)}
        self._parts.append(planes)
        self._size += len(planes)
        self.sizes[group] = self.sizes.get(group, 0) + len(zlib.compress(planes, 1)) * 5 // 4
        return entry

    def compressed(self, description: bytes) -> bytes:
        """Return the length of the description in 4 bytes, the description and all arrays, compressed.

        The same arrays give the same bytes.
        """
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
        parts = [len(description).to_bytes(4, "little") + description, *self._parts]
        # The end of a block after each array, because the statistics of the next one differ.
        written = [deflate.compress(part) + deflate.flush(zlib.Z_SYNC_FLUSH) for part in parts]
        return b"".join([*written, deflate.flush()])


def _planes(kind: str, array: npt.NDArray[Any]) -> bytes:
    if kind == "f24":
        bits = _rounded_bits(array.astype(np.float32))
        return _by_significance(bits, 4)[bits.size :].tobytes()
    if kind == "digits":
        return _by_significance((three_digits(array) * _FACTOR).astype("<f2"), 2).tobytes()
    if kind == "whole":
        return _by_significance((array + 1000).astype("<u2"), 2).tobytes()
    scaled = np.rint(1000.0 * array).clip(0, 1000) if kind == "mille" else np.rint((array + 1.0) * 1000.0)
    return _by_significance(np.where(np.isfinite(array), scaled, _NOT_A_NUMBER).astype("<u2"), 2).tobytes()


def three_digits(x: npt.NDArray[Any]) -> FloatArray:
    """Round to 3 significant digits."""
    x = x.astype(np.float64)
    size = np.abs(x)
    usual = np.isfinite(x) & (size > 1e-30)
    power = np.floor(np.log10(size, out=np.zeros_like(x), where=usual))
    factor = 10.0 ** (2 - power)
    return np.where(usual, np.rint(np.where(usual, x, 0) * factor) / factor, np.where(np.isfinite(x), 0.0, x))


def _rounded_bits(x: FloatArray) -> npt.NDArray[np.uint32]:
    """Round float32 to its 24 leading bits, ties to even; the last byte is 0 afterwards."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    finite = (bits & 0x7F800000) != 0x7F800000
    up = np.where(finite, 0x7F + ((bits >> 8) & 1), 0).astype(np.uint32)
    return ((bits + up) & 0xFFFFFF00).astype("<u4")


def _by_significance(x: npt.NDArray[Any], size: int) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(x.reshape(-1)).view(np.uint8).reshape(-1, size).T.reshape(-1)
