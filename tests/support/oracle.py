"""The allowed difference between a float32 op's result and the float64 one (tests/support/definition.py).

It is not a constant: it depends on the size of the numbers that were added and cancelled. So each op has a *magnitude*,
an array of its result's shape: the op on absolute values, or an equivalent. Errors are given in units of
`EPSILON * magnitude`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.ops import (
    AttentionInput,
    AttentionOutput,
    LayerNorm,
    Linear,
    LookUp,
    Queries,
    RelativeBias,
    Rotation,
)
from tests.support.definition import ACTIVATIONS, OPS, Float64Array, double, sequences

__all__ = ["ACTIVATIONS", "EPSILON", "MAGNITUDES", "OPS", "arrays", "measure_ulps", "rounding_errors"]

EPSILON = float(np.finfo(np.float32).eps)
"""2^-23: the step from 1 to the next float32. One rounding has a relative error of at most half of it."""


# --- magnitudes ------------------------------------------------------------------------------------------------------


def _embed_magnitude(**arguments: Any) -> Sequence[Float64Array]:
    values = iter(arguments.values())
    return [OPS.embed(*(LookUp(np.abs(table), ids) for table, ids in zip(values, values, strict=True)))]


def _linear_magnitude(
    x: FloatArray, linear: Linear, activation: str | None = None, residual: FloatArray | None = None
) -> Sequence[Float64Array]:
    # The slope of every activation is at most 1.13, so the epilogue hardly increases the product's error.
    positive = Linear(linear.paths, np.abs(linear.weight), np.abs(linear.bias))
    sizes = OPS.linear(np.abs(x), positive, residual=None if residual is None else np.abs(residual))
    if not linear.gated or activation is None:
        return [sizes]
    (gate, up), (of_gate, of_up) = (np.split(y, 2, axis=1) for y in (OPS.linear(x, linear), sizes))
    return [of_gate * np.abs(up) + of_up * np.abs(ACTIVATIONS[activation](gate))]


def _attention_magnitude(
    query: FloatArray, key: FloatArray, value: FloatArray, cu_seqlens: IntArray, num_heads: int, **options: Any
) -> Sequence[Float64Array]:
    """Scores have the error of their products; exp turns a score's absolute error into a prob's relative one."""
    bias: RelativeBias | None = options.get("bias")
    queries: Queries | None = options.get("queries")
    rotation, window = options.get("rotation"), options.get("window")
    inputs = AttentionInput(query, key, value, cu_seqlens, num_heads, bias, rotation, window, queries)
    exact = OPS.attention(inputs, return_probs=True)
    added = bias and RelativeBias(np.abs(bias.table), bias.columns)
    q, k, v = (np.abs(x) for x in (query, key, value))
    if rotation is not None:
        q, k = (rotated_sizes(x, num_heads, rotation, at) for x, at in ((q, queries), (k, None)))
    rows = inputs._replace(query=q, key=k, value=v, bias=added, rotation=None, window=None)
    positive = OPS.attention(rows, return_scores=True)
    context, scores, probs = np.zeros(query.shape), positive.scores or [], []
    starts = cu_seqlens if queries is None else queries.cu_seqlens
    for b, (tokens, heads) in enumerate(sequences(query.shape[1], cu_seqlens, num_heads)):
        probs.append((exact.probs or [])[b] * (1.0 + 2.0 * scores[b].max(axis=2, keepdims=True, initial=0.0)))
        for a, columns in enumerate(heads):
            context[starts[b] : starts[b + 1], columns] = np.dot(probs[b][a], double(v[tokens, columns]))
    return [context, *(scores if options.get("return_scores") else ()), *(probs if options.get("return_probs") else ())]


def rotated_sizes(x: Float64Array, num_heads: int, rotation: Rotation, queries: Queries | None) -> Float64Array:
    """Return |a cos| + |b sin| for each rotated number of x."""
    positions = rotation.positions if queries is None else rotation.positions[queries.tokens]
    cos, sin = np.split(np.abs(double(rotation.table))[positions, None], 2, axis=2)
    a, b, rest = np.split(x.reshape(len(x), num_heads, -1), [cos.shape[2], 2 * cos.shape[2]], axis=2)
    return np.concatenate([a * cos + b * sin, b * cos + a * sin, rest], axis=2).reshape(x.shape)


def _layer_norm_magnitude(x: FloatArray, norm: LayerNorm) -> Sequence[Float64Array]:
    """The mean's error is proportional to the row's largest number; a small standard deviation increases it."""
    rows = double(x)
    deviation = np.sqrt(np.var(rows, axis=1, keepdims=True) + norm.eps)
    return [np.abs(rows).max(axis=1, keepdims=True) / deviation * np.abs(norm.weight) + np.abs(norm.bias)]


MAGNITUDES: dict[str, Callable[..., Sequence[Float64Array]]] = {
    "embed": _embed_magnitude,
    "linear": _linear_magnitude,
    "attention": _attention_magnitude,
    "layer_norm": _layer_norm_magnitude,
}
"""For each op: (the op's arguments) -> the magnitude of each array of its result, in the order of `arrays`."""

BUDGETS = {"embed": 1.0, "linear": 4.0, "attention": 6.0, "layer_norm": 0.51}
"""The greatest error of each op, in units of `EPSILON` x its magnitude.

layer_norm rounds once, by half a unit, embed twice; the others add hundreds of numbers, in any order.
"""


# --- errors ----------------------------------------------------------------------------------------------------------


def measure_ulps(actual: FloatArray, exact: Float64Array) -> Float64Array:
    """Return the errors of float32 values in units of the last place of the float64 ones; 0.5 is a correct rounding."""
    assert actual.dtype == np.float32
    with np.errstate(under="ignore"):
        return np.abs(double(actual) - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


def rounding_errors(op: str, result: object, exact: object, arguments: dict[str, Any]) -> list[float]:
    """Return the greatest error of each array of an op's result, in units of `EPSILON` x its magnitude."""
    # A difference below the smallest normal number does not count: float32 has no relative precision there, and an op
    # may flush the rest to zero.
    least = float(np.finfo(np.float32).tiny) / EPSILON
    errors = []
    for actual, wanted, magnitude in zip(arrays(result), arrays(exact), MAGNITUDES[op](**arguments), strict=True):
        assert actual.shape == wanted.shape == magnitude.shape
        assert np.isfinite(actual).all(), "not every value is finite"
        units = np.abs(double(actual) - wanted) / (EPSILON * np.maximum(magnitude, least))
        errors.append(float(units.max(initial=0.0)))
    return errors


def arrays(result: object) -> list[FloatArray]:
    """Return the arrays of an op's result in order: the array itself, or context and the requested scores and probs."""
    if isinstance(result, AttentionOutput):
        return [result.context, *(result.scores or ()), *(result.probs or ())]
    assert isinstance(result, np.ndarray)
    return [result]
