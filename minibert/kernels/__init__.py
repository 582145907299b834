"""The ops in Numba, which people run. Importing this package imports numba.

Read the files in this order: simd.py (a vector type), gemm.py (the matrix product), attention.py, rowwise.py,
threads.py (how threads share the work of an op).
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


class Resources(NamedTuple):
    """The threads and the memory for results that the ops of one model share."""

    team: Team
    buffers: Buffers


def make_ops(num_threads: int, *, use_blas: bool = False) -> Ops:
    """Return the set of ops whose kernels use up to `num_threads` threads (at least 1).

    The matrix product is chosen here: minibert's own (gemm.py), or that of NumPy's BLAS, which is better on some
    platforms (Apple's Accelerate). With a BLAS, the results depend on the batch.
    """
    resources = Resources(Team(num_threads), Buffers())
    prepare, multiply = (reference.prepare, blas_linear) if use_blas else (functools.partial(pack, Slabs()), linear)
    return Ops(
        prepare=prepare,
        embed=functools.partial(embed, resources),
        linear=functools.partial(multiply, resources),
        attention=functools.partial(attention, resources),
        layer_norm=functools.partial(layer_norm, resources),
    )


def embed(
    resources: Resources,
    words: FloatArray,
    token_ids: IntArray,
    token_type_table: FloatArray,
    token_types: IntArray,
    position_table: FloatArray,
    positions: IntArray,
) -> FloatArray:
    """Compute the same as `reference.embed`."""
    y = resources.buffers.empty(len(token_ids), words.shape[1])
    tables = (words, token_ids, token_type_table, token_types, position_table, positions)
    resources.team.run(describe_embed, *tables, y)
    return y


def linear(
    resources: Resources,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Compute the same as `reference.apply_linear`, with a packed weight."""
    packed = cast(PackedLinear, linear)  # `prepare` returned it
    y = resources.buffers.empty(len(x), packed.shape[0])
    code = ACTIVATION_CODES[activation]
    added = _NOTHING if residual is None else residual.reshape(-1)
    arrays = (np.ascontiguousarray(x), packed.panels, packed.bias, added, y)
    resources.team.run(describe_linear, *arrays, code, residual is not None, resources.team.num_threads)
    return y


def blas_linear(
    resources: Resources,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Compute the same as `reference.apply_linear`: NumPy's product, then the epilogue in one pass over it."""
    y = reference.matmul(x, linear.weight)
    added = _NOTHING if residual is None else residual.reshape(-1)
    code = ACTIVATION_CODES[activation]
    resources.team.run(describe_epilogue, linear.bias, added, y, code, residual is not None)
    return y


def layer_norm(resources: Resources, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute the same as `reference.layer_norm`."""
    y = resources.buffers.empty(*x.shape)
    resources.team.run(describe_layer_norm, np.ascontiguousarray(x), norm.weight, norm.bias, y, norm.eps)
    return y


def attention(
    resources: Resources,
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
    """Compute the same as `reference.attention`."""
    if not query.strides == key.strides == value.strides or query.strides[1] != query.itemsize:
        query, key, value = map(np.ascontiguousarray, (query, key, value))
    context = resources.buffers.empty(*query.shape)
    first, scores, probs = _NOWHERE, _NOTHING, _NOTHING
    if return_scores or return_probs:
        lengths = np.diff(cu_seqlens).astype(np.int64)
        first = np.concatenate([[0], np.cumsum(num_heads * lengths * lengths)])
        scores, probs = (np.empty(first[-1] if kept else 0, dtype=np.float32) for kept in (return_scores, return_probs))
    resources.team.run(describe_attention, query, key, value, cu_seqlens, context, num_heads, scores, probs, first)

    def by_sequence(flat: FloatArray) -> list[FloatArray]:
        return [
            flat[start : start + num_heads * n * n].reshape(num_heads, n, n)
            for start, n in zip(first, lengths, strict=False)
        ]

    return AttentionOutput(
        context, by_sequence(scores) if return_scores else None, by_sequence(probs) if return_probs else None
    )
