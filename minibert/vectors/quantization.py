"""Vectors in fewer bits, with the names and the results of sentence_transformers.util.quantization, version 6.2."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import warn_caller
from minibert._utils.torch_interop import as_dense_array
from minibert._utils.validation import FloatArray, as_array, as_vectors, check_choice

__all__ = ["PRECISIONS", "quantization_ranges", "quantize_embeddings"]

PRECISIONS = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
"""The precisions of `quantize_embeddings`."""

# `_rounded` finds overflows itself, and `_levels` avoids them, so NumPy must not warn or raise.
_quietly = np.errstate(over="ignore", under="ignore", invalid="ignore")


def quantize_embeddings(
    embeddings: npt.ArrayLike,
    precision: str,
    ranges: npt.ArrayLike | None = None,
    calibration_embeddings: npt.ArrayLike | None = None,
) -> Any:
    """Store vectors in fewer bits.

    Parameters
    ----------
    embeddings : array-like or tensor of shape (n, H), or (H,); floats
        Or a list of matrices, which can differ in their numbers of rows; they share their ranges.
    precision : {"float32", "float16", "int8", "uint8", "binary", "ubinary"}
        float16, which sentence-transformers does not have, rounds each number to 11 bits. int8 and uint8 have 256
        levels in the range of each feature. binary and ubinary keep one bit per feature, 1 if it is above 0, packed
        into bytes.
    ranges : array-like of shape (2, H), optional
        Least and greatest value of each feature, for int8 and uint8.
    calibration_embeddings : array-like of shape (m, H), optional
        Vectors from which the ranges are computed; default: `embeddings`.

    Returns
    -------
    ndarray, also for tensors, as in sentence-transformers; or a list of ndarrays for a list of matrices
        Of shape (n, H), or (n, H / 8 rounded up) for binary (int8) and ubinary (uint8).

    Raises
    ------
    TypeError, ValueError
        `embeddings` is not an array of floats, or holds NaN, infinity or a number too large for float16; the precision
        is unknown; or the ranges would have to come from a single vector.

    Warns
    -----
    UserWarning
        The ranges come from fewer than 100 vectors, so other texts will have values outside the ranges.
    """
    check_choice("precision", precision, PRECISIONS)
    if isinstance(embeddings, list) and (not embeddings or np.ndim(as_dense_array(embeddings[0])) == 2):
        return _quantized_matrices(embeddings, precision, ranges, calibration_embeddings)
    x = as_array("embeddings", embeddings)
    if x.dtype.kind != "f" or x.ndim not in (1, 2):
        raise TypeError(f"embeddings is {x.dtype} of shape {x.shape}; expected floats of shape (n, H) or (H,).")
    if precision != "float32" and not np.isfinite(x).all():
        raise ValueError(f"embeddings holds NaN or infinity, which {precision} does not have.")
    if precision in ("float32", "float16"):
        return _rounded(x, np.dtype(precision))
    if precision in ("binary", "ubinary"):
        packed = np.packbits(x > 0, axis=-1)
        return packed if precision == "ubinary" else (packed.astype(np.int16) - 128).astype(np.int8)
    if len(x) == 0:
        return x.astype(precision)
    levels = np.clip(_levels(x, quantization_ranges(x, precision, ranges, calibration_embeddings)), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)


def _quantized_matrices(
    matrices: list[Any], precision: str, ranges: npt.ArrayLike | None, calibration_embeddings: npt.ArrayLike | None
) -> list[npt.NDArray[Any]]:
    """Quantize matrices of any numbers of rows with common ranges, those of all their rows."""
    arrays = [as_vectors(f"embeddings[{i}]", matrix) for i, matrix in enumerate(matrices)]
    for i, array in enumerate(arrays):
        if array.ndim != 2 or array.shape[1] != arrays[0].shape[1]:
            raise ValueError(
                f"embeddings[{i}] has shape {array.shape}, embeddings[0] {arrays[0].shape}; expected matrices (n, H) "
                "with the same H."
            )
    if arrays and precision in ("int8", "uint8") and ranges is None:
        rows = np.concatenate(arrays)
        ranges = quantization_ranges(rows, precision, None, calibration_embeddings) if len(rows) else None
    return [quantize_embeddings(array, precision, ranges) for array in arrays]


@_quietly
def _rounded(x: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
    """Convert to a float dtype; ValueError if a finite number would become infinity."""
    if x.dtype.itemsize > dtype.itemsize:
        sizes = np.abs(x[np.isfinite(x)])
        greatest = np.finfo(dtype).max
        if sizes.max(initial=0) > greatest:
            raise ValueError(
                f"embeddings holds {sizes.max():.6g}; the greatest number of {dtype} is {float(greatest):g}."
            )
    return x.astype(dtype)


@_quietly
def _levels(x: FloatArray, ranges: FloatArray) -> FloatArray:
    """Return the step of its feature's range, of 255, in which each number lies: (..., H), (2, H) -> (..., H).

    Numbers outside the range give steps below 0 or above 255. As in sentence-transformers, ranges are rounded to
    float32. Features whose range or steps float32 cannot hold are computed in float64, scaled so that the ends of their
    range lie within [-1, 1].
    """
    least, greatest = ranges.astype(np.float32)
    steps = (greatest - least) / 255
    levels = np.floor((x - least) / np.where(steps == 0, 1, steps))
    constant = ranges[0] == ranges[1]
    held = np.isfinite(steps) & (constant | (steps >= np.finfo(np.float32).tiny))
    if not held.all():
        wide = np.result_type(x, ranges, np.float64)
        ends = ranges[:, ~held].astype(wide)
        exponents = np.frexp(np.abs(ends).max(axis=0))[1]
        low, high = np.ldexp(ends, -exponents)
        steps = np.where(low == high, np.ldexp(wide.type(1), -exponents), (high - low) / 255)
        levels[..., ~held] = np.floor((np.ldexp(x[..., ~held].astype(wide), -exponents) - low) / steps)
    return levels


def quantization_ranges(
    x: FloatArray, precision: str, ranges: npt.ArrayLike | None, calibration_embeddings: npt.ArrayLike | None
) -> FloatArray:
    """Return the least and the greatest value of each feature, of shape (2, H); ValueError if one is not finite."""
    if ranges is not None:
        given = as_vectors("ranges", ranges)
        if given.shape != (2, x.shape[-1]):
            raise ValueError(f"ranges has shape {given.shape}; expected (2, {x.shape[-1]}): least and greatest values.")
        if not np.isfinite(given).all():
            raise ValueError("ranges holds NaN or infinity; expected the least and the greatest value of each feature.")
        if not (given[0] <= given[1]).all():
            raise ValueError("ranges[0] must hold the least values of the features, ranges[1] the greatest.")
        return given
    source = x
    if calibration_embeddings is not None:
        source = as_vectors("calibration_embeddings", calibration_embeddings)
        if source.ndim != 2 or source.shape[1] != x.shape[-1] or not len(source):
            raise ValueError(
                f"calibration_embeddings has shape {source.shape}; expected (m, {x.shape[-1]}) with m at least 1."
            )
        if not np.isfinite(source).all():
            raise ValueError("calibration_embeddings holds NaN or infinity.")
    elif x.ndim == 1 or len(x) == 1:
        raise ValueError(
            f"precision={precision!r} needs the range of each feature, which a single vector does not have; give "
            "more vectors (100 are enough), or give quantize_embeddings the ranges of a representative set."
        )
    elif len(x) < 100:
        warn_caller(
            f"The {precision} ranges come from {len(x)} vectors only. For more reliable ranges give at least 100 "
            "vectors, or give quantize_embeddings the ranges of a representative set.",
        )
    return np.stack([source.min(axis=0), source.max(axis=0)])
