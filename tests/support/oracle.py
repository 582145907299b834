"""The ops in float64, and how far a float32 result may lie from them.

Definitions, not a second implementation: one row, one head, one element at a time where that is clearer, and nothing
taken from minibert/bert/reference.py. `encoder.forward(weights, batch, OPS)`, with weights loaded by `OPS.prepare`, is
the float64 forward that every hidden state is measured against.

How far a float32 op may be off is not a constant: it depends on how large the numbers were that were added up and
cancelled on the way. Each op therefore has a *magnitude*, an array of its result's shape: the op on absolute values, or
what comes to the same. Errors are given in units of `EPSILON * magnitude`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special  # type: ignore[import-untyped]

from minibert.base.arrays import FloatArray, IntArray
from minibert.bert.ops import AttentionOutput, LayerNorm, Linear, Ops, PreparedLinear

__all__ = [
    "ACTIVATIONS",
    "EPSILON",
    "MAGNITUDES",
    "OPS",
    "Error",
    "arrays",
    "erf",
    "measure",
    "measure_ulps",
    "rms",
    "rounding_errors",
]

Float64Array = npt.NDArray[np.float64]

EPSILON = float(np.finfo(np.float32).eps)
"""2^-23: the step from 1 to the next float32. Rounding once is wrong by at most half of it, relative."""


# --- the ops ---------------------------------------------------------------------------------------------------------


def erf(x: npt.ArrayLike) -> Float64Array:
    return np.asarray(scipy.special.erf(np.asarray(x, dtype=np.float64)))


def _gelu(x: Float64Array) -> Float64Array:
    return x * np.asarray(scipy.special.ndtr(x))  # x Phi(x), Phi being the normal distribution's


def _gelu_tanh(x: Float64Array) -> Float64Array:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _silu(x: Float64Array) -> Float64Array:
    return x * np.asarray(scipy.special.expit(x))


ACTIVATIONS: dict[str, Callable[[Float64Array], Float64Array]] = {
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "relu": lambda x: np.where(x > 0.0, x, 0.0),
    "silu": _silu,
    "swish": _silu,
    "tanh": np.tanh,
}


def _prepare(linear: Linear) -> Linear:
    return dataclasses.replace(linear, weight=_double(linear.weight), bias=_double(linear.bias))


def _embed(
    words: FloatArray,
    token_ids: IntArray,
    token_type_table: FloatArray,
    token_types: IntArray,
    position_table: FloatArray,
    positions: IntArray,
) -> Float64Array:
    y = np.zeros((len(token_ids), words.shape[1]))
    for t in range(len(y)):
        for table, rows in ((words, token_ids), (token_type_table, token_types), (position_table, positions)):
            y[t] += table[rows[t]]
    return y


def _linear(
    x: FloatArray, linear: PreparedLinear, *, activation: str | None = None, residual: FloatArray | None = None
) -> Float64Array:
    y = np.einsum("tk,nk->tn", _double(x), _double(linear.weight), optimize=True) + _double(linear.bias)
    if activation is not None:
        y = ACTIVATIONS[activation](y)
    return y if residual is None else y + _double(residual)


def _attention(
    query: FloatArray,
    key: FloatArray,
    value: FloatArray,
    cu_seqlens: IntArray,
    num_heads: int,
    *,
    path: str = "",
    return_scores: bool = False,
    return_probs: bool = False,
) -> AttentionOutput:
    context = np.zeros(query.shape)
    all_scores, all_probs = [], []
    for tokens, heads in _sequences(query.shape[1], cu_seqlens, num_heads):
        length = tokens.stop - tokens.start
        scores, probs = np.zeros((num_heads, length, length)), np.zeros((num_heads, length, length))
        for a, columns in enumerate(heads):
            q, k, v = (_double(x[tokens, columns]) for x in (query, key, value))
            scores[a] = np.dot(q, k.T) / np.sqrt(q.shape[1])
            if length:
                probs[a] = scipy.special.softmax(scores[a], axis=1)
            context[tokens, columns] = np.dot(probs[a], v)
        all_scores.append(scores)
        all_probs.append(probs)
    return AttentionOutput(context, all_scores if return_scores else None, all_probs if return_probs else None)


def _layer_norm(x: FloatArray, norm: LayerNorm) -> Float64Array:
    y = np.zeros(x.shape)
    for t, row in enumerate(_double(x)):
        y[t] = (row - np.mean(row)) / np.sqrt(np.var(row) + norm.eps) * norm.weight + norm.bias
    return y


OPS = Ops(prepare=_prepare, embed=_embed, linear=_linear, attention=_attention, layer_norm=_layer_norm)
"""The float64 set of ops: same contract as `reference.OPS`, every result float64."""


# --- magnitudes ------------------------------------------------------------------------------------------------------


def _embed_magnitude(**arguments: Any) -> Sequence[Float64Array]:
    tables = ("words", "token_type_table", "position_table")
    return [_embed(**{name: np.abs(v) if name in tables else v for name, v in arguments.items()})]


def _linear_magnitude(
    x: FloatArray, linear: Linear, activation: str | None = None, residual: FloatArray | None = None
) -> Sequence[Float64Array]:
    # No activation is steeper than 1.13, so the epilogue hardly magnifies what the product lost.
    positive = Linear(linear.paths, np.abs(linear.weight), np.abs(linear.bias))
    return [_linear(np.abs(x), positive, residual=None if residual is None else np.abs(residual))]


def _attention_magnitude(
    query: FloatArray,
    key: FloatArray,
    value: FloatArray,
    cu_seqlens: IntArray,
    num_heads: int,
    *,
    path: str = "",
    return_scores: bool = False,
    return_probs: bool = False,
) -> Sequence[Float64Array]:
    """Scores lose what their products lose; exp turns a score's absolute error into a prob's relative one."""
    exact = _attention(query, key, value, cu_seqlens, num_heads, return_probs=True)
    positive = _attention(np.abs(query), np.abs(key), np.abs(value), cu_seqlens, num_heads, return_scores=True)
    context, scores, probs = np.zeros(query.shape), positive.scores or [], []
    for b, (tokens, heads) in enumerate(_sequences(query.shape[1], cu_seqlens, num_heads)):
        probs.append((exact.probs or [])[b] * (1.0 + 2.0 * scores[b].max(axis=2, keepdims=True, initial=0.0)))
        for a, columns in enumerate(heads):
            context[tokens, columns] = np.dot(probs[b][a], np.abs(_double(value[tokens, columns])))
    return [context, *(scores if return_scores else ()), *(probs if return_probs else ())]


def _layer_norm_magnitude(x: FloatArray, norm: LayerNorm) -> Sequence[Float64Array]:
    """The mean is wrong in proportion to the row's largest number, and a small deviation magnifies that."""
    rows = _double(x)
    deviation = np.sqrt(np.var(rows, axis=1, keepdims=True) + norm.eps)
    return [np.abs(rows).max(axis=1, keepdims=True) / deviation * np.abs(norm.weight) + np.abs(norm.bias)]


MAGNITUDES: dict[str, Callable[..., Sequence[Float64Array]]] = {
    "embed": _embed_magnitude,
    "linear": _linear_magnitude,
    "attention": _attention_magnitude,
    "layer_norm": _layer_norm_magnitude,
}
"""For each op: (the op's arguments) -> the magnitude of each array of its result, in the order of `arrays`."""


# --- errors ----------------------------------------------------------------------------------------------------------


class Error(NamedTuple):
    """How far an array lies from what it should be: root mean square, and the greatest of all."""

    rms: float
    max: float

    def __str__(self) -> str:
        return f"RMS {self.rms:.2e}, max {self.max:.2e}"


def rms(values: npt.ArrayLike) -> float:
    """Root mean square; 0 for no values."""
    doubles = np.asarray(values, dtype=np.float64)
    return float(np.sqrt(np.mean(doubles * doubles))) if doubles.size else 0.0


def measure(actual: FloatArray, exact: FloatArray) -> Error:
    """The error of `actual`; NaN or another shape is no error to measure but a failure."""
    assert actual.shape == exact.shape, f"shape {actual.shape}, expected {exact.shape}"
    assert np.isfinite(actual).all(), "not every value is finite"
    difference = _double(actual) - _double(exact)
    return Error(rms(difference), float(np.abs(difference).max(initial=0.0)))


def measure_ulps(actual: FloatArray, exact: Float64Array) -> Float64Array:
    """Errors of float32 values in units of the last place of the exact float64 ones; 0.5 is a correct rounding."""
    assert actual.dtype == np.float32
    with np.errstate(under="ignore"):
        return np.abs(_double(actual) - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


def rounding_errors(op: str, result: object, exact: object, arguments: dict[str, Any]) -> list[float]:
    """For each array of an op's result its greatest error, in units of `EPSILON` x its magnitude."""
    # A difference below the smallest normal number is none: float32 has no relative precision there, and an op may
    # well flush what is left to zero.
    least = float(np.finfo(np.float32).tiny) / EPSILON
    errors = []
    for actual, wanted, magnitude in zip(arrays(result), arrays(exact), MAGNITUDES[op](**arguments), strict=True):
        assert actual.shape == wanted.shape == magnitude.shape
        assert np.isfinite(actual).all(), "not every value is finite"
        units = np.abs(_double(actual) - wanted) / (EPSILON * np.maximum(magnitude, least))
        errors.append(float(units.max(initial=0.0)))
    return errors


def arrays(result: object) -> list[FloatArray]:
    """Every array of an op's result in order: the array itself, or context, scores and probs as far as asked for."""
    if isinstance(result, AttentionOutput):
        return [result.context, *(result.scores or ()), *(result.probs or ())]
    assert isinstance(result, np.ndarray)
    return [result]


def _sequences(width: int, cu_seqlens: IntArray, num_heads: int) -> list[tuple[slice, list[slice]]]:
    """For each sequence its rows, and the columns of each head."""
    size = width // num_heads
    heads = [slice(a * size, (a + 1) * size) for a in range(num_heads)]
    bounds = [int(bound) for bound in cu_seqlens]
    return [(slice(start, end), heads) for start, end in pairwise(bounds)]


def _double(array: FloatArray) -> Float64Array:
    return array.astype(np.float64)
