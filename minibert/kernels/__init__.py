"""The ops in Numba: what people run. Importing this package imports numba.

To read it: simd.py (a vector type), gemm.py (the matrix product), attention.py, rowwise.py, threads.py (who computes).
"""

from __future__ import annotations

import functools
from typing import cast

import numpy as np

from minibert import reference
from minibert.kernels.attention import describe_attention
from minibert.kernels.gemm import ACTIVATION_CODES, PackedLinear, describe_epilogue, describe_linear, pack
from minibert.kernels.rowwise import describe_embed, describe_layer_norm
from minibert.kernels.threads import Team
from minibert.ops import AttentionOutput, FloatArray, IntArray, LayerNorm, Ops, PreparedLinear

__all__ = ["attention", "blas_linear", "embed", "layer_norm", "linear", "make_ops"]

_NOTHING = np.zeros(0, dtype=np.float32)


def make_ops(num_threads: int, *, use_blas: bool = False) -> Ops:
    """Return the set of ops whose kernels use up to `num_threads` threads (at least 1).

    The one place where the matrix product is chosen: minibert's own (gemm.py), or that of NumPy's BLAS, which some
    platforms have better (Apple's Accelerate); results then depend on the batch, as a BLAS's do.
    """
    team = Team(num_threads)
    prepare, multiply = (reference.prepare, blas_linear) if use_blas else (pack, linear)
    return Ops(
        prepare=prepare,
        embed=functools.partial(embed, team),
        linear=functools.partial(multiply, team),
        attention=functools.partial(attention, team),
        layer_norm=functools.partial(layer_norm, team),
    )


def embed(
    team: Team,
    words: FloatArray,
    token_ids: IntArray,
    token_type_table: FloatArray,
    token_types: IntArray,
    position_table: FloatArray,
    positions: IntArray,
) -> FloatArray:
    """Twin of `reference.embed`."""
    y = np.empty((len(token_ids), words.shape[1]), dtype=np.float32)
    tables = (words, token_ids, token_type_table, token_types, position_table, positions)
    team.run(describe_embed, *tables, y)
    return y


def linear(
    team: Team,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Twin of `reference.linear`, on a packed weight."""
    packed = cast(PackedLinear, linear)  # what `prepare` made
    y = np.empty((len(x), packed.shape[0]), dtype=np.float32)
    code = ACTIVATION_CODES[activation]
    added = _NOTHING if residual is None else residual.reshape(-1)
    arrays = (x, packed.panels, packed.bias, added, y)
    team.run(describe_linear, *arrays, code, residual is not None, team.num_threads)
    return y


def blas_linear(
    team: Team,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Twin of `reference.linear`: NumPy's product, then the epilogue in one pass over it."""
    y = reference.matmul(x, linear.weight)
    added = _NOTHING if residual is None else residual.reshape(-1)
    code = ACTIVATION_CODES[activation]
    team.run(describe_epilogue, linear.bias, added, y, code, residual is not None)
    return y


def layer_norm(team: Team, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Twin of `reference.layer_norm`."""
    y = np.empty_like(x)
    team.run(describe_layer_norm, x, norm.weight, norm.bias, y, norm.eps)
    return y


def attention(
    team: Team,
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
    """Twin of `reference.attention`."""
    context = np.empty(query.shape, dtype=np.float32)
    lengths = np.diff(cu_seqlens).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(num_heads * lengths * lengths)])
    scores, probs = (np.empty(first[-1] if kept else 0, dtype=np.float32) for kept in (return_scores, return_probs))
    team.run(describe_attention, query, key, value, cu_seqlens, context, num_heads, scores, probs, first)

    def by_sequence(flat: FloatArray) -> list[FloatArray]:
        return [
            flat[start : start + num_heads * n * n].reshape(num_heads, n, n)
            for start, n in zip(first, lengths, strict=False)
        ]

    return AttentionOutput(
        context, by_sequence(scores) if return_scores else None, by_sequence(probs) if return_probs else None
    )
