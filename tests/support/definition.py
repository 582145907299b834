"""The ops in float64: the forward that every hidden state is compared with, and the measure of the error.

These are definitions: they compute one row, head or element at a time where that is clearer, and use nothing of
minibert/bert/reference.py. `encoder.forward(weights, batch, OPS)`, with weights loaded by `OPS.prepare`, is the
float64 forward. The benchmarks use it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special  # type: ignore[import-untyped]

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.ops import AttentionInput, AttentionOutput, LayerNorm, Linear, LookUp, Ops, PreparedLinear, Rotation

Float64Array = npt.NDArray[np.float64]


# --- the ops ---------------------------------------------------------------------------------------------------------


def erf(x: npt.ArrayLike) -> Float64Array:
    """Compute the error function of each element."""
    return np.asarray(scipy.special.erf(np.asarray(x, dtype=np.float64)))


def _gelu(x: Float64Array) -> Float64Array:
    return x * np.asarray(scipy.special.ndtr(x))  # x Phi(x); Phi is the normal distribution function


def _gelu_tanh(x: Float64Array) -> Float64Array:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _silu(x: Float64Array) -> Float64Array:
    return x * np.asarray(scipy.special.expit(x))


ACTIVATIONS: dict[str, Callable[[Float64Array], Float64Array]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.where(x > 0.0, x, 0.0),
    "silu": _silu,
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
}


def _prepare(linear: Linear) -> Linear:
    return dataclasses.replace(linear, weight=double(linear.weight), bias=double(linear.bias))


def _embed(*look_ups: LookUp, scale: FloatArray | None = None) -> Float64Array:
    y = np.zeros((len(look_ups[0].ids), look_ups[0].table.shape[1]))
    for t in range(len(y)):
        for table, rows in look_ups:
            y[t] += table[rows[t]]
    return y if scale is None else y * scale[:, None]


def _linear(
    x: FloatArray, linear: PreparedLinear, *, activation: str | None = None, residual: FloatArray | None = None
) -> Float64Array:
    y = np.einsum("tk,nk->tn", double(x), double(linear.weight), optimize=True) + double(linear.bias)
    if linear.gated and activation is not None:
        middle = y.shape[1] // 2
        return ACTIVATIONS[activation](y[:, :middle]) * y[:, middle:]
    if activation is not None:
        y = ACTIVATIONS[activation](y)
    return y if residual is None else y + double(residual)


def _attention(inputs: AttentionInput, *, return_scores: bool = False, return_probs: bool = False) -> AttentionOutput:
    query, key, value, cu_seqlens, num_heads, bias, rotation, window, queries, _ = inputs
    if rotation is not None:
        own = rotation if queries is None else rotation._replace(positions=rotation.positions[queries.tokens])
        query, key = _rotate(query, num_heads, own), _rotate(key, num_heads, rotation)
    context = np.zeros(query.shape)
    all_scores, all_probs = [], []
    for tokens, heads in sequences(query.shape[1], cu_seqlens, num_heads):
        length = tokens.stop - tokens.start
        asked = np.arange(tokens.start, tokens.stop)
        rows = np.arange(len(query))[tokens]
        if queries is not None:
            rows = np.flatnonzero(np.isin(queries.tokens, asked))
            asked = queries.tokens[rows]
        scores, probs = np.zeros((num_heads, len(rows), length)), np.zeros((num_heads, len(rows), length))
        for a, columns in enumerate(heads):
            q, k, v = double(query[rows, columns]), double(key[tokens, columns]), double(value[tokens, columns])
            scores[a] = np.dot(q, k.T) / np.sqrt(q.shape[1])
            for i, j in np.ndindex(scores[a].shape if bias is not None else (0, 0)):
                distance = int(bias.columns[tokens][j]) - int(bias.columns[asked[i]])  # type: ignore[union-attr]
                scores[a, i, j] += double(bias.table)[a, distance + bias.table.shape[1] // 2]  # type: ignore[union-attr]
            if window is not None:
                distances = np.subtract.outer(window.columns[asked], window.columns[tokens])
                scores[a][np.abs(distances) > window.size] = -np.inf
            if length:
                probs[a] = scipy.special.softmax(scores[a], axis=1)
            context[rows, columns] = np.dot(probs[a], v)
        all_scores.append(scores)
        all_probs.append(probs)
    return AttentionOutput(context, all_scores if return_scores else None, all_probs if return_probs else None)


def _rotate(x: FloatArray, num_heads: int, rotation: Rotation) -> Float64Array:
    """Multiply each pair of numbers, seen as a complex number, by cos + i sin."""
    y, half, size = double(x), rotation.table.shape[1] // 2, x.shape[1] // num_heads
    for t, head in np.ndindex(len(y), num_heads):
        row = double(rotation.table[rotation.positions[t]])
        turns, first = row[:half] + 1j * row[half:], head * size
        pairs = (y[t, first : first + half] + 1j * y[t, first + half : first + 2 * half]) * turns
        y[t, first : first + 2 * half] = [*pairs.real, *pairs.imag]
    return y


def _layer_norm(x: FloatArray, norm: LayerNorm) -> Float64Array:
    y = np.zeros(x.shape)
    for t, row in enumerate(double(x)):
        y[t] = (row - np.mean(row)) / np.sqrt(np.var(row) + norm.eps) * norm.weight + norm.bias
    return y


OPS = Ops(
    prepare=_prepare, embed=_embed, linear=_linear, attention=_attention, layer_norm=_layer_norm, dtype=np.float64
)
"""The float64 set of ops: the contract of `reference.OPS`, but every result is float64."""


def sequences(width: int, cu_seqlens: IntArray, num_heads: int) -> list[tuple[slice, list[slice]]]:
    """Return the rows of each sequence, with the columns of each attention head."""
    size = width // num_heads
    heads = [slice(a * size, (a + 1) * size) for a in range(num_heads)]
    bounds = [int(bound) for bound in cu_seqlens]
    return [(slice(start, end), heads) for start, end in pairwise(bounds)]


def double(array: FloatArray) -> Float64Array:
    """Convert an array to float64."""
    return array.astype(np.float64)


# --- errors ----------------------------------------------------------------------------------------------------------


class Error(NamedTuple):
    """The error of an array: root mean square, and the largest absolute error."""

    rms: float
    max: float

    def __str__(self) -> str:
        return f"RMS {self.rms:.2e}, max {self.max:.2e}"


def rms(values: npt.ArrayLike) -> float:
    """Compute the root mean square; 0 for no values."""
    doubles = np.asarray(values, dtype=np.float64)
    return float(np.sqrt(np.mean(doubles * doubles))) if doubles.size else 0.0


def measure(actual: FloatArray, exact: FloatArray) -> Error:
    """Measure the error of `actual`; fail if it has another shape or a value that is not finite."""
    assert actual.shape == exact.shape, f"shape {actual.shape}, expected {exact.shape}"
    assert np.isfinite(actual).all(), "not every value is finite"
    difference = double(actual) - double(exact)
    return Error(rms(difference), float(np.abs(difference).max(initial=0.0)))
