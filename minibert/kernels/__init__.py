"""The ops in Numba: what people run. Importing this package imports numba.

To read it: simd.py (a vector type), gemm.py (the matrix product), attention.py, rowwise.py, threads.py (who computes).
"""

from __future__ import annotations

import functools
from typing import NamedTuple, cast

import numpy as np

from minibert.base.arrays import FloatArray, IntArray
from minibert.bert import reference
from minibert.bert.ops import AttentionOutput, LayerNorm, Ops, PreparedLinear
from minibert.kernels.attention import describe_attention
from minibert.kernels.buffers import Buffers, Slabs
from minibert.kernels.gemm import ACTIVATION_CODES, PackedLinear, describe_epilogue, describe_linear, pack
from minibert.kernels.rowwise import describe_embed, describe_layer_norm
from minibert.kernels.threads import Team

__all__ = ["attention", "blas_linear", "embed", "layer_norm", "linear", "make_ops"]

_NOTHING = np.zeros(0, dtype=np.float32)
_NOWHERE = np.zeros(0, dtype=np.int64)


class Workshop(NamedTuple):
    """What the ops of one model share: who computes, and the memory for what they make."""

    team: Team
    buffers: Buffers


def make_ops(num_threads: int, *, use_blas: bool = False) -> Ops:
    """Return the set of ops whose kernels use up to `num_threads` threads (at least 1).

    The one place where the matrix product is chosen: minibert's own (gemm.py), or that of NumPy's BLAS, which some
    platforms have better (Apple's Accelerate); results then depend on the batch, as a BLAS's do.
    """
    shop = Workshop(Team(num_threads), Buffers())
    prepare, multiply = (reference.prepare, blas_linear) if use_blas else (functools.partial(pack, Slabs()), linear)
    return Ops(
        prepare=prepare,
        embed=functools.partial(embed, shop),
        linear=functools.partial(multiply, shop),
        attention=functools.partial(attention, shop),
        layer_norm=functools.partial(layer_norm, shop),
    )


def embed(
    shop: Workshop,
    words: FloatArray,
    token_ids: IntArray,
    token_type_table: FloatArray,
    token_types: IntArray,
    position_table: FloatArray,
    positions: IntArray,
) -> FloatArray:
    """Twin of `reference.embed`."""
    y = shop.buffers.empty(len(token_ids), words.shape[1])
    tables = (words, token_ids, token_type_table, token_types, position_table, positions)
    shop.team.run(describe_embed, *tables, y)
    return y


def linear(
    shop: Workshop,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Twin of `reference.apply_linear`, on a packed weight."""
    packed = cast(PackedLinear, linear)  # what `prepare` made
    y = shop.buffers.empty(len(x), packed.shape[0])
    code = ACTIVATION_CODES[activation]
    added = _NOTHING if residual is None else residual.reshape(-1)
    arrays = (np.ascontiguousarray(x), packed.panels, packed.bias, added, y)
    shop.team.run(describe_linear, *arrays, code, residual is not None, shop.team.num_threads)
    return y


def blas_linear(
    shop: Workshop,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Twin of `reference.apply_linear`: NumPy's product, then the epilogue in one pass over it."""
    y = reference.matmul(x, linear.weight)
    added = _NOTHING if residual is None else residual.reshape(-1)
    code = ACTIVATION_CODES[activation]
    shop.team.run(describe_epilogue, linear.bias, added, y, code, residual is not None)
    return y


def layer_norm(shop: Workshop, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Twin of `reference.layer_norm`."""
    y = shop.buffers.empty(*x.shape)
    shop.team.run(describe_layer_norm, np.ascontiguousarray(x), norm.weight, norm.bias, y, norm.eps)
    return y


def attention(
    shop: Workshop,
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
    if not query.strides == key.strides == value.strides or query.strides[1] != query.itemsize:
        query, key, value = map(np.ascontiguousarray, (query, key, value))
    context = shop.buffers.empty(*query.shape)
    first, scores, probs = _NOWHERE, _NOTHING, _NOTHING
    if return_scores or return_probs:
        lengths = np.diff(cu_seqlens).astype(np.int64)
        first = np.concatenate([[0], np.cumsum(num_heads * lengths * lengths)])
        scores, probs = (np.empty(first[-1] if kept else 0, dtype=np.float32) for kept in (return_scores, return_probs))
    shop.team.run(describe_attention, query, key, value, cu_seqlens, context, num_heads, scores, probs, first)

    def by_sequence(flat: FloatArray) -> list[FloatArray]:
        return [
            flat[start : start + num_heads * n * n].reshape(num_heads, n, n)
            for start, n in zip(first, lengths, strict=False)
        ]

    return AttentionOutput(
        context, by_sequence(scores) if return_scores else None, by_sequence(probs) if return_probs else None
    )
