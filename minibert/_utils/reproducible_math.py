"""exp, log1p, sigmoid, softmax and the largest values, the same in any batch and on every processor.

NumPy's exp, log1p and tanh choose their code by the processor, and the bits differ (numpy/numpy#23523); so do those of
the C library. Sums over an axis depend on the shape of the array. Here the functions are made of additions,
multiplications and divisions, each of which NumPy rounds correctly, in float64, and sums run from left to right. Their
errors are near 1e-16, so results that are rounded to float32 afterwards are the exact ones but for the rarest ties.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, Int64Array

_Float64 = npt.NDArray[np.float64]

# ln 2 in two parts; the first has 32 zeros at the end, so that its product with a small whole number is exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
# exp(-700) is 1e-304. What is smaller is not needed, and subnormal numbers are slow.
_LEAST = -700.0
# The terms of the series of exp up to r^14 / 14!; the next one is below 1e-18 for |r| <= ln(2) / 2.
_EXP_TERMS = tuple(1 / math.factorial(n) for n in range(14, -1, -1))
# The terms of the series of atanh(s) / s in s^2 up to s^22 / 23; the next one is below 1e-19 for |s| <= 0.1716.
_ATANH_TERMS = tuple(1 / n for n in range(23, 0, -2))


def exponential(x: _Float64) -> _Float64:
    """Compute exp(x) as 2^k exp(r), for x <= 0; below -700 the result is exp(-700)."""
    x = np.maximum(x, _LEAST)
    k = np.rint(x * (1 / math.log(2)))
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    return np.ldexp(np.polyval(_EXP_TERMS, r), k.astype(np.int32))


def log1p(x: FloatArray) -> _Float64:
    """Compute log(1 + x) for finite x >= 0, as k log(2) + log(m) with m in [sqrt(1/2), sqrt(2)].

    log(m) = 2 atanh(s) with s = (m - 1) / (m + 1). What the sum 1 + x loses by rounding is added at the end, so that
    the relative error is small for small x too.
    """
    wide = np.asarray(x, dtype=np.float64)
    whole = 1 + wide
    # For x >= 1 the larger of the two numbers is x.
    lost = np.where(wide < 1, wide - (whole - 1), 1 - (whole - wide))
    m, k = np.frexp(whole)
    small = m < math.sqrt(0.5)
    m, k = np.where(small, 2 * m, m), (k - small).astype(np.float64)
    s = (m - 1) / (m + 1)
    return k * _LN2_HIGH + (2 * s * np.polyval(_ATANH_TERMS, s * s) + (k * _LN2_LOW + lost / whole))


def softmax(logits: FloatArray) -> _Float64:
    """Compute exp(logits) / sum(exp(logits)) over the last axis; the maximum is subtracted, so that exp is finite.

    Parameters
    ----------
    logits : float array of shape (..., N), finite, N at least 1

    Returns
    -------
    float64 ndarray of the same shape; the row of a batch has the same bits as alone
    """
    wide = np.asarray(logits, dtype=np.float64)
    powers = exponential(wide - wide.max(axis=-1, keepdims=True))
    return powers / np.add.accumulate(powers, axis=-1)[..., -1:]  # accumulate adds from left to right, sum does not


def sigmoid(logits: FloatArray) -> _Float64:
    """Compute 1 / (1 + exp(-logits)), with exp of negative numbers only, so that exp is finite."""
    wide = np.asarray(logits, dtype=np.float64)
    power = exponential(-np.abs(wide))
    return np.where(wide < 0, power, 1.0) / (1 + power)


def as_score(probability: Any) -> float:
    """Round a probability to float32, and return it as a Python number, because JSON can hold that."""
    return float(np.float32(probability))


def largest(values: FloatArray, count: int) -> Int64Array:
    """Return the indices of the largest values, the largest first; equal ones are in the order of the indices."""
    least = np.partition(values, len(values) - count)[len(values) - count]
    places = np.flatnonzero(~(values < least))  # also NaN; it comes last
    return places[np.argsort(-values[places], kind="stable")[:count]]
