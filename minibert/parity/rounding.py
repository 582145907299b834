"""Rounding to formats with fewer bits: to the nearest number, ties to even; the dtype is kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minibert._utils.validation import FloatArray

__all__ = ["HALF_PRECISIONS", "round_to", "to_bfloat16", "to_float16", "to_tf32"]


def to_float16(x: FloatArray) -> FloatArray:
    """Round to float16, 11 bits of precision."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def _cut(x: FloatArray, bits: int) -> FloatArray:
    """Round float32 numbers to `bits` fewer bits of the fraction."""
    raw = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    lowest = (raw >> np.uint32(bits)) & np.uint32(1)
    rounded = (raw + np.uint32((1 << (bits - 1)) - 1) + lowest) & ~np.uint32((1 << bits) - 1)
    result = rounded.view(np.float32)
    return np.where(np.isfinite(x), result, x).astype(x.dtype)


def to_bfloat16(x: FloatArray) -> FloatArray:
    """Round to bfloat16, 8 bits of precision."""
    return _cut(x, 16)


def to_tf32(x: FloatArray) -> FloatArray:
    """Round to TF32, 11 bits of precision in the range of float32."""
    return _cut(x, 13)


_ROUNDINGS: dict[str, Callable[[FloatArray], FloatArray]] = {"float16": to_float16, "bfloat16": to_bfloat16}

HALF_PRECISIONS = tuple(_ROUNDINGS)


def round_to(precision: str, x: FloatArray) -> FloatArray:
    """Round to one of `HALF_PRECISIONS`."""
    return _ROUNDINGS[precision](x)
