"""softmax(query key^T / sqrt(D)) value, one head of one sequence at a time, with the micro-kernel of gemm.py.

What        one chunk is one head of one sequence of S tokens
Layout      the keys are transposed into panels [S / NR][D][NR] and the values copied into panels [D / NR][S][NR], both
            filled up with zeros, so that both products are products with a packed weight
Loop order  MR rows of queries at a time: their scores (MR, S) are computed, turned into probs in place, and multiplied
            with the values while they are in the first cache
Numerics    each row by itself, in an order that depends on S alone
"""

from __future__ import annotations

import numpy as np

from minibert.kernels.compilation import function, kernel
from minibert.kernels.gemm import MR, NR, micro_tile
from minibert.kernels.memory import floats_at, ints_at, longs_at
from minibert.kernels.simd import (
    WIDTH,
    broadcast,
    exp,
    fma,
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


@function
def attention_chunk(task, chunk):
    """One head of one sequence; the fields of `task` are those of `describe_attention`."""
    query, key, value = floats_at(task[1]), floats_at(task[2]), floats_at(task[3])
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
    keys = np.empty(columns * D, np.float32)
    values = np.empty(value_panels * S * NR, np.float32)
    pack_keys(key, start, stride, S, D, keys)
    pack_values(value, start, stride, S, D, values)
    scores = np.empty(MR * columns, np.float32)
    edge = np.empty(MR * NR, np.float32)
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
        for p in range(columns // NR):
            micro_tile(rows, query, start + row * stride, stride, keys, p * D * NR, D, scores, p * NR, columns)
        if kept_scores != 0:
            keep_rows(scores, rows, columns, S, scale, floats_at(kept_scores), pairs + row * S)
        for i in range(rows):
            softmax_row(scores, i * columns, S, columns, scale)
        if kept_probs != 0:
            keep_rows(scores, rows, columns, S, np.float32(1.0), floats_at(kept_probs), pairs + row * S)
        place = (first + row) * H + head * D
        for p in range(value_panels):
            if (p + 1) * NR <= D:
                micro_tile(rows, scores, 0, columns, values, p * S * NR, S, context, place + p * NR, H)
            else:
                micro_tile(rows, scores, 0, columns, values, p * S * NR, S, edge, 0, NR)
                for i in range(rows):
                    for j in range(p * NR, D, WIDTH):
                        store_first(context, place + i * H + j, load(edge, i * NR + j - p * NR), min(WIDTH, D - j))
        row += rows


@function
def keep_rows(scores, rows, columns, S, factor, kept, place):
    """kept[place : place + rows S] = factor times the first S columns of each row."""
    for i in range(rows):
        for j in range(S):
            kept[place + i * S + j] = factor * scores[i * columns + j]


@function
def pack_keys(key, start, stride, S, D, keys):
    """keys[p][d][j] = key of token p NR + j, feature d; zeros beyond the last token."""
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
    """values[p][j][d] = value of token j, feature p NR + d; zeros beyond the last feature."""
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
def softmax_row(scores, start, S, columns, scale):
    """scores = exp(scale scores - max) / sum, over the first S of `columns`; what it leaves beyond is never read."""
    for j in range(S, columns):
        scores[start + j] = np.float32(-3.4e38)
    top = load(scores, start)
    for j in range(WIDTH, columns, WIDTH):
        top = maximum(top, load(scores, start + j))
    shift = broadcast(np.float32(-1.0) * scale * largest(top))
    factor = broadcast(scale)
    total = number(0.0)
    for j in range(0, columns, WIDTH):
        e = exp(fma(load(scores, start + j), factor, shift))
        store(scores, start + j, e)
        total = total + e
    norm = broadcast(np.float32(1.0) / sum_lanes(total))
    for j in range(0, columns, WIDTH):
        store(scores, start + j, load(scores, start + j) * norm)


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
