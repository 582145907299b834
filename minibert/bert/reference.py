"""The ops in NumPy, as definitions: tests check that the kernels compute the same as these functions.

The code is written to be read, and it is never tuned for speed. It is the simplest form of each formula, except in
six places, which differ from it because the results must be accurate or finite in float32:

- `embed` adds in float64 and rounds once, because two roundings would have twice the error.
- `matmul` adds up blocks of 128 features, because several short sums have a smaller rounding error than one long sum.
- `layer_norm` computes in float64 and rounds once, because every step in float32 would add a rounding error.
- `softmax` subtracts each row's maximum first, because exp of a large score would be infinite.
- `silu` uses tanh, because exp(-x) of a large negative number would be infinite.
- `erf` is a quotient of two polynomials, because NumPy does not have the function.

`make_ops` gives the same formulas in another arithmetic. encoder.py explains the letters of the shapes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.ops import (
    AttentionInput,
    AttentionOutput,
    LayerNorm,
    Linear,
    LookUp,
    Ops,
    PreparedLinear,
    RelativeBias,
    Rotation,
    Window,
)


def embed(words: LookUp, *added: LookUp, scale: FloatArray | None = None) -> FloatArray:
    """Add the rows of up to three look-ups: ``table[ids]`` of the words, the token types and the positions.

    Parameters
    ----------
    words : LookUp       table (V, H) or (T, H), ids (T,)
    added : LookUps      of types and positions, as far as the model adds them: tables (type_vocab_size, H) and (P, H)
    scale : ndarray of shape (T,), float64, optional     multiplies the sum of each token

    Returns
    -------
    ndarray of shape (T, H)

    Notes
    -----
    Source: Devlin et al. 2018 (arXiv 1810.04805), figure 2. transformers adds in the same order.
    """
    total = words.table[words.ids].astype(np.float64)  # (T, H)
    for table, ids in added:
        total = total + table[ids]  # (T, H)
    if scale is not None:
        total = total * scale[:, None]  # (T, H)
    return total.astype(words.table.dtype)  # (T, H)


def layer_norm(x: FloatArray, norm: LayerNorm, *, dtype: npt.DTypeLike = np.float64) -> FloatArray:
    """Normalise each row: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; in an RMSNorm mean(x) is 0.

    Parameters
    ----------
    x : ndarray of shape (T, H)
    norm : LayerNorm, weight and bias of shape (H,)
    dtype : of all numbers from the mean on

    Returns
    -------
    ndarray of shape (T, H)

    Notes
    -----
    The variance is the biased one: the sum of squares is divided by H. The result is rounded once, at the end.
    Source: Ba et al. 2016 (arXiv 1607.06450), section 3; RMSNorm: Zhang and Sennrich 2019 (arXiv 1910.07467), eq. 4.
    """
    mean = x.mean(axis=-1, keepdims=True, dtype=dtype) * norm.centered  # (T, 1)
    centered = x - mean  # (T, H)
    variance = (centered * centered).mean(axis=-1, keepdims=True)  # (T, 1)
    normalized: FloatArray = centered / np.sqrt(variance + norm.eps)  # (T, H)
    return (normalized * norm.weight + norm.bias).astype(x.dtype)  # (T, H)


def apply_linear(
    x: FloatArray, linear: PreparedLinear, *, activation: str | None = None, residual: FloatArray | None = None
) -> FloatArray:
    """Apply a linear map and its epilogue: y = activation(x weight^T + bias) + residual, or y = activation(gate) * up.

    Parameters
    ----------
    x : ndarray of shape (T, K)
    linear : Linear, weight (N, K) and bias (N,); if it is gated, x weight^T + bias is [gate, up]
    activation : str, optional     a key of `ACTIVATION_FUNCTIONS`
    residual : ndarray of shape (T, N), optional

    Returns
    -------
    ndarray of shape (T, N), or (T, N / 2) if it is gated

    Notes
    -----
    Source of the gate: Shazeer 2020 (arXiv 2002.05202), equation 6.
    """
    y: FloatArray = matmul(x, linear.weight) + linear.bias  # (T, N)
    if linear.gated and activation is not None:
        gate, up = np.split(y, 2, axis=1)  # 2 x (T, N / 2)
        return ACTIVATION_FUNCTIONS[activation](gate) * up  # (T, N / 2)
    if activation is not None:
        y = ACTIVATION_FUNCTIONS[activation](y)  # (T, N)
    if residual is not None:
        y = y + residual  # (T, N)
    return y


def matmul(x: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute x weight^T as a sum over blocks of 128 features, which makes the rounding error smaller.

    Parameters
    ----------
    x : ndarray of shape (T, K)
    weight : ndarray of shape (N, K)

    Returns
    -------
    ndarray of shape (T, N)

    Notes
    -----
    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 4.2: the error of a sum grows with the
    length of its longest chain of additions.
    """
    y: FloatArray = x[:, :128] @ weight[:, :128].T  # (T, N)
    for k in range(128, x.shape[1], 128):
        y += x[:, k : k + 128] @ weight[:, k : k + 128].T  # (T, N)
    return y


def attention(inputs: AttentionInput, *, return_scores: bool = False, return_probs: bool = False) -> AttentionOutput:
    """Compute scaled dot-product attention within each sequence: softmax(query key^T / sqrt(D)) value, head by head.

    Parameters
    ----------
    inputs : AttentionInput
        A bias adds ``bias.table[:, R - 1 + columns[j] - columns[i]]`` to the scores of query i and key j. A window
        makes this score -inf if ``|columns[j] - columns[i]|`` is above its size.
    return_scores, return_probs : bool
        Keep the scores (before softmax, scaled, with the bias) or the probs (after), one (A, S, S) array per sequence.

    Returns
    -------
    AttentionOutput

    Notes
    -----
    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2, equation 1. There is no mask: masked tokens are not in
    a packed batch.
    """
    query, key, value, cu_seqlens, num_heads, bias, rotation, window, queries, _ = inputs
    tokens, starts = (np.arange(len(query)), cu_seqlens) if queries is None else queries  # (T,), (B + 1,)
    if rotation is not None:
        query = rotate(query, num_heads, rotation, tokens)  # (T, H)
        key = rotate(key, inputs.num_key_heads, rotation)  # (T, G)
    context = np.empty(query.shape, dtype=query.dtype)  # (T, H)
    kept_scores: list[FloatArray] | None = [] if return_scores else None
    kept_probs: list[FloatArray] | None = [] if return_probs else None
    for (start, end), (first, last) in zip(pairwise(cu_seqlens), pairwise(starts), strict=True):
        q = split_heads(query[first:last], num_heads, num_heads)  # (A, S, D)
        k, v = (split_heads(x[start:end], num_heads, inputs.num_key_heads) for x in (key, value))  # 2 x (A, S, D)
        scores: FloatArray = q @ k.transpose(0, 2, 1) * q.dtype.type(1 / math.sqrt(q.shape[2]))  # (A, S, S)
        scores = _with_distances(scores, bias, window, slice(start, end), tokens[first:last])  # (A, S, S)
        probs = softmax(scores)  # (A, S, S)
        context[first:last] = (probs @ v).transpose(1, 0, 2).reshape(last - first, query.shape[1])  # (S, H)
        if kept_scores is not None:
            kept_scores.append(scores)
        if kept_probs is not None:
            kept_probs.append(probs)
    return AttentionOutput(context, kept_scores, kept_probs)


def _with_distances(
    scores: FloatArray, bias: RelativeBias | None, window: Window | None, keys: slice, queries: IntArray
) -> FloatArray:
    """Return scores with what depends on the distance of two tokens. BERT has neither a bias nor a window."""
    if bias is not None:
        distances = bias.columns[keys] - bias.columns[queries, None]  # (S, S)
        scores = scores + bias.table.astype(scores.dtype)[:, distances + bias.table.shape[1] // 2]  # (A, S, S)
    if window is not None:
        distances = window.columns[keys] - window.columns[queries, None]  # (S, S)
        hidden = np.abs(distances) > window.size  # (S, S)
        scores = np.where(hidden, scores.dtype.type(-np.inf), scores)  # (A, S, S)
    return scores


def split_heads(x: FloatArray, num_heads: int, stored: int) -> FloatArray:
    """Return the heads of rows; if fewer are stored than there are, each is that of several neighbours."""
    heads = x.reshape(len(x), stored, x.shape[1] // stored).transpose(1, 0, 2)  # (A, S, D) or (G / D, S, D)
    return heads if stored == num_heads else np.repeat(heads, num_heads // stored, axis=0)  # (A, S, D)


def rotate(x: FloatArray, num_heads: int, rotation: Rotation, tokens: IntArray | None = None) -> FloatArray:
    """Rotate the first R numbers of each head by its token's angles: pair (j, j + R / 2) by the angle of number j.

    (a, b) becomes (a cos - b sin, b cos + a sin), so the score of two tokens depends on their distance.

    Parameters
    ----------
    x : ndarray of shape (T, H)
    tokens : int ndarray, optional
        The token of each row of x; default: 0, 1, ..., T - 1.

    Returns
    -------
    ndarray of shape (T, H)

    Notes
    -----
    Source: Su et al. 2021 (arXiv 2104.09864), section 3.4.2; there the pairs are (2 j, 2 j + 1).
    """
    positions = rotation.positions[: len(x)] if tokens is None else rotation.positions[tokens]  # (T,)
    table = rotation.table[positions, None].astype(x.dtype)  # (T, 1, R)
    cos, sin = np.split(table, 2, axis=2)  # 2 x (T, 1, R / 2)
    half = cos.shape[2]
    heads = x.reshape(len(x), num_heads, x.shape[1] // num_heads)  # (T, A, D)
    a, b = heads[:, :, :half], heads[:, :, half : 2 * half]  # 2 x (T, A, R / 2)
    rotated = np.concatenate([a * cos - b * sin, b * cos + a * sin, heads[:, :, 2 * half :]], axis=2)  # (T, A, D)
    return rotated.reshape(x.shape)  # (T, H)


def softmax(scores: FloatArray) -> FloatArray:
    """Compute exp(scores) / sum(exp(scores)) over the last axis; the maximum is subtracted, so that exp is finite."""
    # An empty sequence has no maximum; `initial` gives NumPy one.
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))  # (A, S, S)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)  # (A, S, S)


# erf(x) = x P(x^2) / Q(x^2) on [-4, 4], lowest power first. Fitted for minibert: the largest relative error is as small
# as possible, 9.4e-10, far below the 6e-8 that float32 rounds away. At 4 and beyond, erf is 1 in float32. The script
# benchmarks/polynomials.py fits it again.
_ERF_P = (
    1.1283791681193104,
    0.16687047725149461,
    0.050931160510717481,
    0.0029542390834236085,
    0.00030556707743907485,
    -3.0001630569555039e-7,
    -4.4898305315177046e-8,
)
_ERF_Q = (
    1.0,
    0.48121848156245155,
    0.10554246363017747,
    0.013487333498999295,
    0.0010392720896988532,
    4.0943542339504931e-5,
    -6.2134873769276104e-7,
)


def erf(x: FloatArray) -> FloatArray:
    """Compute the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x, to float32 rounding.

    Parameters
    ----------
    x : ndarray of any shape

    Returns
    -------
    ndarray of the shape and dtype of `x`
        Below 4 the relative error is at most 1e-9, before the result is rounded to the dtype. From 4 on the result is
        1, which is within 1.6e-8 of erf(x).

    Notes
    -----
    NumPy has no erf, so this is a quotient of two polynomials of degree 6 in x^2 (`_ERF_P`, `_ERF_Q`) in float64. The
    form is from W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969).
    """
    z = np.clip(x.astype(np.float64), -4.0, 4.0)  # shape of x
    square = z * z  # shape of x
    p, q = np.polynomial.polynomial.polyval(square, np.array([_ERF_P, _ERF_Q]).T)  # 2 x shape of x
    return np.where(np.abs(z) < 4, z * p / q, np.sign(z)).astype(x.dtype)


def gelu(x: FloatArray) -> FloatArray:
    """Compute GELU(x) = x Phi(x) = x / 2 (1 + erf(x / sqrt(2))), Hendrycks and Gimpel 2016 (arXiv 1606.08415).

    hidden_act="gelu" means this formula in transformers; google-research/bert itself computes `gelu_tanh`.
    """
    return x * (1 + erf(x * x.dtype.type(math.sqrt(0.5)))) * x.dtype.type(0.5)


def gelu_tanh(x: FloatArray) -> FloatArray:
    """Approximate GELU by x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    half, slope, cubic = (x.dtype.type(c) for c in (0.5, math.sqrt(2 / math.pi), 0.044715))
    return half * x * (1 + np.tanh(slope * (x + cubic * x * x * x)))


def relu(x: FloatArray) -> FloatArray:
    """Compute max(x, 0)."""
    return np.maximum(x, 0)


def silu(x: FloatArray) -> FloatArray:
    """Compute x / (1 + exp(-x)), also called swish; with tanh, because exp(-x) can be infinite."""
    half = x.dtype.type(0.5)
    return half * x * (1 + np.tanh(half * x))


def sigmoid(x: FloatArray) -> FloatArray:
    """Compute 1 / (1 + exp(-x)) as (1 + tanh(x / 2)) / 2, because exp(-x) can be infinite."""
    half = x.dtype.type(0.5)
    return half + half * np.tanh(half * x)


ACTIVATION_FUNCTIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "silu": silu,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
}
"""The formula of each activation."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""The values of ``hidden_act`` that minibert implements -> the activation that each means, as in transformers."""


def prepare(linear: Linear) -> Linear:
    """Return the weight as it is, because the reference multiplies by the checkpoint's own array."""
    return linear


OPS = Ops(prepare=prepare, embed=embed, linear=apply_linear, attention=attention, layer_norm=layer_norm)
"""The reference set of ops."""


def make_ops(
    *,
    dtype: npt.DTypeLike,
    matmul: Callable[[FloatArray, FloatArray], FloatArray] = lambda x, weight: x @ weight.T,
    round: Callable[[FloatArray], FloatArray] = lambda x: x,
    activations: Mapping[str, Callable[[FloatArray], FloatArray]] = ACTIVATION_FUNCTIONS,
) -> Ops:
    """Return ops that compute the same formulas in another arithmetic, without blocks and without wider sums.

    The ops use weights that any other set has prepared, because they read ``linear.weight``.

    Parameters
    ----------
    dtype : of all numbers
    matmul : takes x (T, K) and a weight (N, K), gives (T, N)
    round : rounds every argument and every result, for example to the numbers that float16 has
    activations : as `ACTIVATION_FUNCTIONS`
    """

    def take(x: FloatArray) -> FloatArray:
        return round(x.astype(dtype, copy=False))  # shape of x

    def embed(words: LookUp, *added: LookUp, scale: FloatArray | None = None) -> FloatArray:
        total = take(words.table[words.ids])  # (T, H)
        for table, ids in added:
            total = round(total + take(table[ids]))  # (T, H)
        return total if scale is None else round(total * take(scale)[:, None])  # (T, H)

    def linear(
        x: FloatArray, linear: PreparedLinear, *, activation: str | None = None, residual: FloatArray | None = None
    ) -> FloatArray:
        y = round(matmul(take(x), take(linear.weight)) + take(linear.bias))  # (T, N)
        if linear.gated and activation is not None:
            gate, up = np.split(y, 2, axis=1)  # 2 x (T, N / 2)
            return round(round(activations[activation](gate)) * up)  # (T, N / 2)
        if activation is not None:
            y = round(activations[activation](y))  # (T, N)
        return y if residual is None else round(y + take(residual))  # (T, N)

    def attend(inputs: AttentionInput, **returned: bool) -> AttentionOutput:
        query, key, value = map(take, inputs[:3])  # 3 x (T, H)
        output = attention(inputs._replace(query=query, key=key, value=value), **returned)
        pairs = (None if kept is None else [round(array) for array in kept] for kept in output[1:])
        scores, probs = pairs  # B x (A, S, S), B x (A, S, S)
        return AttentionOutput(round(output.context), scores, probs)

    def normalise(x: FloatArray, norm: LayerNorm) -> FloatArray:
        rounded = dataclasses.replace(norm, weight=take(norm.weight), bias=take(norm.bias))
        return round(layer_norm(take(x), rounded, dtype=dtype))  # (T, H)

    return Ops(prepare=prepare, embed=embed, linear=linear, attention=attend, layer_norm=normalise, dtype=dtype)
