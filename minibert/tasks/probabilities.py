"""Logits -> probabilities, with the same bits alone, in any batch and on every processor.

NumPy's exp and tanh choose their code by the processor, and the bits differ (numpy/numpy#23523). Sums over an axis
depend on the shape of the array. Here exp is made of additions and multiplications, each of which NumPy rounds
correctly, in float64, and sums run from left to right. The results are rounded to float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.base.arrays import FloatArray

__all__ = ["as_score", "exponential", "sigmoid", "softmax"]

# ln 2 in two parts; the first has 32 zeros at the end, so that its product with a small whole number is exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
# exp(-700) is 1e-304. What is smaller is not needed, and subnormal numbers are slow.
_LEAST = -700.0
# The terms of the series of exp up to r^14 / 14!; the next one is below 1e-18 for |r| <= ln(2) / 2.
_TERMS = tuple(1 / math.factorial(n) for n in range(14, -1, -1))


def exponential(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute exp(x) as 2^k exp(r), for x <= 0; below -700 the result is exp(-700)."""
    x = np.maximum(x, _LEAST)
    k = np.rint(x * (1 / math.log(2)))
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = np.full_like(r, _TERMS[0])
    for term in _TERMS[1:]:
        series = series * r + term
    return np.ldexp(series, k.astype(np.int32))


def softmax(logits: FloatArray) -> npt.NDArray[np.float64]:
    """Compute exp(logits) / sum(exp(logits)) over the last axis; minus the maximum, so that exp is never infinite.

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


def sigmoid(logits: FloatArray) -> npt.NDArray[np.float64]:
    """Compute 1 / (1 + exp(-logits)), with exp of negative numbers only, so that it is never infinite."""
    wide = np.asarray(logits, dtype=np.float64)
    power = exponential(-np.abs(wide))
    return np.where(wide < 0, power, 1.0) / (1 + power)


def as_score(probability: Any) -> float:
    """Round a probability to float32, and return it as a Python number, which JSON can hold."""
    return float(np.float32(probability))
