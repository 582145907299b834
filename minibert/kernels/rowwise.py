"""Kernels that treat each row of an array by itself: the epilogues of `linear`, and LayerNorm.

What      `add_bias_gelu`, `add_bias_residual`, `layer_norm`: twins of the formulas in reference.py
Layout    C-contiguous float32 matrices; a kernel fills rows [first, last), so threads can share an array
Numerics  in float64, rounded once, summed in a fixed order: a row's result depends on nothing but that row
Cost      one pass over memory for an epilogue; LayerNorm makes three over a row that is in cache
Contract  callers checked every shape; nothing here checks bounds
"""

from __future__ import annotations

import math

import numpy as np

from minibert.kernels.compilation import kernel
from minibert.ops import FloatArray

__all__ = ["add_bias_gelu", "add_bias_residual", "layer_norm"]

_Coefficients = tuple[float, float, float, float, float, float, float]


@kernel
def add_bias_gelu(y: FloatArray, bias: FloatArray, p: _Coefficients, q: _Coefficients, first: int, last: int) -> None:
    """y = GELU(y + bias) in place, GELU(v) = v / 2 (1 + erf(v / sqrt(2))), erf(z) = z P(z^2) / Q(z^2).

    Parameters
    ----------
    y : ndarray of shape (T, N), float32
    bias : ndarray of shape (N,), float32
    p, q : 7 floats each    the polynomials of `reference.erf`, lowest power first
    first, last : int       rows [first, last) are done
    """
    for i in range(first, last):
        for j in range(y.shape[1]):
            v = np.float64(y[i, j]) + np.float64(bias[j])
            z = min(max(v * math.sqrt(0.5), -4.0), 4.0)
            s = z * z
            numerator = (((((p[6] * s + p[5]) * s + p[4]) * s + p[3]) * s + p[2]) * s + p[1]) * s + p[0]
            denominator = (((((q[6] * s + q[5]) * s + q[4]) * s + q[3]) * s + q[2]) * s + q[1]) * s + q[0]
            y[i, j] = np.float32(0.5 * v * (1.0 + z * numerator / denominator))


@kernel
def add_bias_residual(y: FloatArray, bias: FloatArray, residual: FloatArray, first: int, last: int) -> None:
    """y = y + bias + residual in place.

    Parameters
    ----------
    y, residual : ndarrays of shape (T, N), float32    not overlapping
    bias : ndarray of shape (N,), float32
    first, last : int                                  rows [first, last) are done
    """
    for i in range(first, last):
        for j in range(y.shape[1]):
            y[i, j] = np.float32(np.float64(y[i, j]) + np.float64(bias[j]) + np.float64(residual[i, j]))


@kernel
def layer_norm(
    y: FloatArray, x: FloatArray, weight: FloatArray, bias: FloatArray, eps: float, first: int, last: int
) -> None:
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row; y must not overlap x.

    Parameters
    ----------
    y, x : ndarrays of shape (T, H), float32
    weight, bias : ndarrays of shape (H,), float32
    eps : float
    first, last : int    rows [first, last) are done
    """
    H = x.shape[1]
    whole = H - H % 8
    for i in range(first, last):
        # Eight sums side by side: the processor adds them at once, where a single one would wait for itself.
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for j in range(0, whole, 8):
            s0 += x[i, j]
            s1 += x[i, j + 1]
            s2 += x[i, j + 2]
            s3 += x[i, j + 3]
            s4 += x[i, j + 4]
            s5 += x[i, j + 5]
            s6 += x[i, j + 6]
            s7 += x[i, j + 7]
        for j in range(whole, H):
            s0 += x[i, j]
        mean = ((s0 + s1) + (s2 + s3) + ((s4 + s5) + (s6 + s7))) / H

        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for j in range(0, whole, 8):
            s0 += (x[i, j] - mean) ** 2
            s1 += (x[i, j + 1] - mean) ** 2
            s2 += (x[i, j + 2] - mean) ** 2
            s3 += (x[i, j + 3] - mean) ** 2
            s4 += (x[i, j + 4] - mean) ** 2
            s5 += (x[i, j + 5] - mean) ** 2
            s6 += (x[i, j + 6] - mean) ** 2
            s7 += (x[i, j + 7] - mean) ** 2
        for j in range(whole, H):
            s0 += (x[i, j] - mean) ** 2
        variance = ((s0 + s1) + (s2 + s3) + ((s4 + s5) + (s6 + s7))) / H

        scale = 1.0 / math.sqrt(variance + eps)
        for j in range(H):
            y[i, j] = np.float32((x[i, j] - mean) * scale * weight[j] + bias[j])
