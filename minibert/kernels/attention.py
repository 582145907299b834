"""Attention, softmax(query key^T / sqrt(D)) value, with the micro-kernel of gemm.py.

What        One chunk of work is one attention head of one sequence of S tokens
Layout      The keys are transposed into panels [S / NR][D][NR] and the values copied into panels [D / NR][S][NR]. Both
            are filled up with zeros, so that both products use the same micro-kernel as a packed weight
Loop order  MR rows of queries at a time. Their scores (MR, S) are computed, exponentiated in place, and multiplied by
            the values while they are in the first cache
Algorithm   The plain softmax of complete rows: first the maximum of a row, then its exponentials and their sum. It is
            not the online softmax and not FlashAttention: the keys are not split into blocks, and no sum is rescaled.
            As in FlashAttention, the (S, S) scores are never in memory as a whole, unless the caller asks for them. The
            sum of the exponentials divides the D numbers of a context row, not its S probs
Numerics    Each row is computed alone, in an order that depends on S only
Contract    Callers have checked every shape; the code here does not check bounds
Source      Vaswani et al. 2017 (arXiv 1706.03762), equation 1. Not used: Milakov and Gimelshein 2018, online softmax
            (arXiv 1805.02867); Dao et al. 2022, FlashAttention (arXiv 2205.14135)
"""

from __future__ import annotations

import numpy as np

from minibert.kernels.compilation import function, kernel
from minibert.kernels.gemm import FLOAT, MR, NR, multiply_tile, prefetch_tile
from minibert.kernels.memory import floats_at, ints_at, longs_at, scratch
from minibert.kernels.simd import (
    WIDTH,
    broadcast,
    exp2,
    first_lanes,
    largest,
    load,
    load_first,
    maximum,
    number,
    store,
    store_first,
    sum_lanes,
    transpose_block,
)

__all__ = ["ATTENTION", "attention_chunk", "describe_attention"]

ATTENTION = 2  # kind of task
_BITS_PER_E = np.float32(1.4426950408889634)  # 1 / ln 2: e^x = 2^(x / ln 2)


@function
def attention_chunk(task, chunk):
    """Compute one attention head of one sequence; `describe_attention` writes the fields of `task`."""
    key, value = floats_at(task[2]), floats_at(task[3])
    cu_seqlens, context = ints_at(task[4]), floats_at(task[5])
    num_heads, D, stride = task[6], task[7], task[8]
    b, head = chunk // num_heads, chunk % num_heads
    first = np.int64(cu_seqlens[b])
    S = np.int64(cu_seqlens[b + 1]) - first
    if S == 0:
        return
    H = num_heads * D
    start = first * stride + head * D
    columns = (S + NR - 1) // NR * NR
    value_panels = (D + NR - 1) // NR
    # One allocation for all arrays: if a second one failed, the first would never be freed, because compiled code does
    # not unwind.
    keys = scratch(columns * D + value_panels * S * NR + MR * (columns + NR + 1))
    values = keys[columns * D :]
    scores = values[value_panels * S * NR :]
    tile = scores[MR * columns :]
    norms = tile[MR * NR :]
    pack_keys(key, start, stride, S, D, keys)
    pack_values(value, start, stride, S, D, values)
    scale = np.float32(1.0) / np.sqrt(np.float32(D))
    kept_scores, kept_probs = task[9], task[10]
    pairs = np.int64(0)
    if kept_scores != 0 or kept_probs != 0:
        pairs = longs_at(task[11])[b] + head * S * S

    tiles = (S + MR - 1) // MR
    height, taller = S // tiles, S % tiles
    row = 0
    for t in range(tiles):
        rows = height + 1 if t < taller else height
        offset = (first + row) * H + head * D
        for p in range(value_panels):
            prefetch_tile(rows, task[1] + (start + (row + rows) * stride + p * NR) * FLOAT, stride)  # of the next tile
            prefetch_tile(rows, task[5] + (offset + p * NR) * FLOAT, H)
        for p in range(columns // NR):
            panel, c = keys.ctypes.data + p * D * NR * FLOAT, scores.ctypes.data + p * NR * FLOAT
            multiply_tile(rows, task[1] + (start + row * stride) * FLOAT, stride, panel, D, c, columns)
        if kept_scores != 0:
            for i in range(rows):
                keep_row(scores, i * columns, S, scale, floats_at(kept_scores), pairs + (row + i) * S)
        exponentiate_rows(scores, rows, S, columns, scale * _BITS_PER_E, norms)
        if kept_probs != 0:
            for i in range(rows):
                keep_row(scores, i * columns, S, norms[i], floats_at(kept_probs), pairs + (row + i) * S)
        for p in range(value_panels):
            panel = values.ctypes.data + p * S * NR * FLOAT
            multiply_tile(rows, scores.ctypes.data, columns, panel, S, tile.ctypes.data, NR)
            for i in range(rows):
                norm, features = broadcast(norms[i]), offset + i * H + p * NR
                for j in range(0, min(NR, D - p * NR), WIDTH):
                    if p * NR + j + WIDTH <= D:
                        store(context, features + j, load(tile, i * NR + j) * norm)
                    else:
                        store_first(context, features + j, load(tile, i * NR + j) * norm, D - p * NR - j)
        row += rows


@function
def keep_row(scores, start, S, factor, kept, offset):
    """Compute kept[offset : offset + S] = factor * scores[start : start + S]."""
    for j in range(S):
        kept[offset + j] = factor * scores[start + j]


@function
def pack_keys(key, start, stride, S, D, keys):
    """Fill keys[p][d][j] with feature d of the key of token p NR + j, or with 0 beyond the last token."""
    for j in range(0, (S + NR - 1) // NR * NR, WIDTH):
        panel = j // NR * D * NR + j % NR
        whole = D - D % WIDTH if j + WIDTH <= S else 0
        for d in range(0, whole, WIDTH):
            transpose_block(key, start + j * stride + d, stride, keys, panel + d * NR, NR)
        for d in range(whole, D):
            for lane in range(WIDTH):
                keys[panel + d * NR + lane] = key[start + (j + lane) * stride + d] if j + lane < S else np.float32(0.0)


@function
def pack_values(value, start, stride, S, D, values):
    """Fill values[p][j][d] with feature p NR + d of the value of token j, or with 0 beyond the last feature."""
    for j in range(S):
        source = start + j * stride
        for p in range((D + NR - 1) // NR):
            target = (p * S + j) * NR
            for d in range(p * NR, (p + 1) * NR, WIDTH):
                count = min(WIDTH, D - d)
                if count == WIDTH:
                    store(values, target + d - p * NR, load(value, source + d))
                elif count > 0:
                    store(values, target + d - p * NR, load_first(value, source + d, count))
                else:
                    store(values, target + d - p * NR, number(0.0))


@function
def exponentiate_rows(scores, rows, S, columns, factor, norms):
    """Compute scores = 2^(factor (scores - max)) for the first S of the `columns` of each row, and norms = 1 / sums.

    The maximum of a row is found while the row before it is exponentiated, so that no row waits for its maximum.
    """
    whole = S - S % WIDTH
    if whole < S:
        for i in range(rows):
            last = i * columns + whole
            store(scores, last, first_lanes(load(scores, last), S - whole, number(-np.inf)))
    count = (S + WIDTH - 1) // WIDTH * WIDTH
    scale, least = broadcast(factor), number(-127.0)
    top = broadcast(row_maximum(scores, 0, count))
    for i in range(rows):
        next_top = broadcast(row_maximum(scores, min(i + 1, rows - 1) * columns, count))
        total = number(0.0)
        for j in range(i * columns, i * columns + count, WIDTH):
            power = exp2(maximum((load(scores, j) - top) * scale, least))
            store(scores, j, power)
            total = total + power
        norms[i] = np.float32(1.0) / sum_lanes(total)
        top = next_top


@function
def row_maximum(scores, start, count):
    """Return the largest of `count` scores; `count` is a multiple of WIDTH."""
    top = load(scores, start)
    for j in range(WIDTH, count, WIDTH):
        top = maximum(top, load(scores, start + j))
    return largest(top)


@kernel
def describe_attention(task, query, key, value, cu_seqlens, context, num_heads, scores, probs, pairs_first):
    """Fill in the task for `attention_chunk` and return its number of chunks."""
    task[0] = ATTENTION
    task[1] = query.ctypes.data
    task[2] = key.ctypes.data
    task[3] = value.ctypes.data
    task[4] = cu_seqlens.ctypes.data
    task[5] = context.ctypes.data
    task[6] = num_heads
    task[7] = query.shape[1] // num_heads
    task[8] = query.strides[0] // 4
    task[9] = scores.ctypes.data if scores.size else 0
    task[10] = probs.ctypes.data if probs.size else 0
    task[11] = pairs_first.ctypes.data
    return (len(cu_seqlens) - 1) * num_heads
