"""The five ops: each describes its work as a task and lets the threads compute it.

What        `make_ops` returns them as the `Ops` that encoder.forward takes. What each computes is in bert/reference.py
Layout      The kernels see only addresses. So inputs that are not C-contiguous float32 (ids: int32) are copied first
Contract    Callers have checked every shape and every id (bert/ops.py). This file imports numba only to compile
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.low_precision import format_of, quantise_linear
from minibert.bert.ops import AttentionOutput, LayerNorm, Linear, Ops, PreparedLinear
from minibert.kernels.buffers import CACHE_LINE, Buffers, Slabs
from minibert.kernels.machine_code import load_run_task
from minibert.kernels.packing import PackedLinear, PackedWords, pack, pack_words
from minibert.kernels.processor import MR, processor_name
from minibert.kernels.tasks import (
    ACTIVATION_CODES,
    ATTENTION,
    EMBED,
    FLOAT,
    LAYER_NORM,
    LINEAR,
    LINEAR_WORDS,
    QUANTISE,
    SMALL,
    address,
    attention_scratch,
    linear_chunks,
    row_chunks,
)
from minibert.kernels.threads import Team
from minibert.kernels.words import words_of

__all__ = ["attention", "embed", "layer_norm", "linear", "make_ops"]


class Resources(NamedTuple):
    """The threads and the memory for results that the ops of one model share."""

    team: Team
    buffers: Buffers

    compute_type: str

    def __reduce__(self) -> tuple[Callable[[int, str], Resources], tuple[int, str]]:
        return make_resources, (self.team.num_threads, self.compute_type)


def make_resources(num_threads: int, compute_type: str) -> Resources:
    """Return new threads and new memory; the threads start with the first op."""
    return Resources(Team(num_threads, load_run_task(compute_type)), Buffers(), compute_type)


def make_ops(num_threads: int, *, compute_type: str = "float32") -> Ops:
    """Return the set of ops whose kernels use up to `num_threads` threads (at least 1).

    Raises
    ------
    ImportError
        The machine code is not on disk, and Numba, which would compile it, cannot be imported.
    """
    resources = make_resources(num_threads, compute_type)
    return Ops(
        prepare=functools.partial(prepare_linear, Slabs().empty, compute_type),
        embed=functools.partial(embed, resources),
        linear=functools.partial(linear, resources),
        attention=functools.partial(attention, resources),
        layer_norm=functools.partial(layer_norm, resources),
        processor=processor_name,
        num_threads=num_threads,
    )


def prepare_linear(empty: Callable[..., FloatArray], compute_type: str, linear: Linear) -> PackedLinear | PackedWords:
    """Pack a weight, quantised if its product is computed in low precision; `empty` allocates the panels."""
    form = format_of(linear, compute_type)
    return pack(empty, linear) if form is None else pack_words(empty, quantise_linear(linear, form))


def _floats(array: FloatArray) -> FloatArray:
    """Return an array as the kernels read it; they see only its address, not its dtype and its strides."""
    return np.ascontiguousarray(array, np.float32)


def _ints(array: IntArray) -> IntArray:
    return np.ascontiguousarray(array, np.int32)


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
    T, H = len(token_ids), words.shape[1]
    y = resources.buffers.empty(T, H)
    words, types, places = _floats(words), _floats(token_type_table), _floats(position_table)
    token_ids, token_types, positions = _ints(token_ids), _ints(token_types), _ints(positions)
    arrays = (words, token_ids, types, token_types, places, positions, y)
    resources.team.run(EMBED, *map(address, arrays), T, H, num_chunks=row_chunks(T))
    return y


def linear(
    resources: Resources,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Compute the same as `reference.apply_linear`, or as `low_precision.apply_linear`, with a packed weight."""
    packed = cast("PackedLinear | PackedWords", linear)  # `prepare` returned it
    M, (N, K) = len(x), packed.shape
    x = _floats(x)
    kind, source, factor, row_size, rows = LINEAR, 0, address(x), K, MR
    if isinstance(packed, PackedWords):
        name, words = packed.format.name, words_of(packed.format.name)
        kind, row_size, rows = LINEAR_WORDS[name], words.row_size(K), words.rows
        # The rows of x begin at a cache line, and AMX may read one more (amx.py).
        memory = resources.buffers.empty((M + 1) * row_size + CACHE_LINE // FLOAT)
        factor = -(-address(memory) // CACHE_LINE) * CACHE_LINE
        if x.size > SMALL:
            resources.team.run(QUANTISE[name], address(x), factor, M, K, num_chunks=row_chunks(M))
        else:
            source = address(x)
    y = resources.buffers.empty(M, N)
    added = None if residual is None else _floats(residual)
    chunks, num_chunks = linear_chunks(M, N, row_size, resources.team.num_threads, rows)
    resources.team.run(
        kind,
        factor,
        address(packed.panels),
        address(packed.bias),
        0 if added is None else address(added),
        address(y),
        M,
        N,
        K,
        ACTIVATION_CODES[activation],
        added is not None,
        *chunks,
        source,
        num_chunks=num_chunks,
    )
    return y


def layer_norm(resources: Resources, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute the same as `reference.layer_norm`."""
    T, H = x.shape
    x, weight, bias = _floats(x), _floats(norm.weight), _floats(norm.bias)
    y = resources.buffers.empty(T, H)
    addresses = address(x), address(weight), address(bias), address(y)
    resources.team.run(LAYER_NORM, *addresses, T, H, norm.eps, num_chunks=row_chunks(T))
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
    same = query.strides == key.strides == value.strides and query.dtype == key.dtype == value.dtype == np.float32
    if not same or query.strides[1] != query.itemsize or query.strides[0] % query.itemsize:
        query, key, value = map(_floats, (query, key, value))
    cu_seqlens = _ints(cu_seqlens)
    T, H = query.shape
    context = resources.buffers.empty(T, H)
    first = scores = probs = None
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    longest = max(lengths.tolist(), default=0)
    if return_scores or return_probs:
        lengths = lengths.astype(np.int64)
        first = np.concatenate([[0], np.cumsum(num_heads * lengths * lengths)])
        scores, probs = (np.empty(first[-1], np.float32) if kept else None for kept in (return_scores, return_probs))
    resources.team.run(
        ATTENTION,
        address(query),
        address(key),
        address(value),
        address(cu_seqlens),
        address(context),
        num_heads,
        H // num_heads,
        query.strides[0] // query.itemsize,
        0 if scores is None else address(scores),
        0 if probs is None else address(probs),
        0 if first is None else address(first),
        num_chunks=len(lengths) * num_heads,
        scratch=attention_scratch(longest, H // num_heads),
    )

    if first is None:
        return AttentionOutput(context, None, None)

    def by_sequence(flat: FloatArray | None) -> list[FloatArray] | None:
        if flat is None:
            return None
        return [
            flat[start : start + num_heads * n * n].reshape(num_heads, n, n)
            for start, n in zip(first, lengths, strict=False)
        ]

    return AttentionOutput(context, by_sequence(scores), by_sequence(probs))
