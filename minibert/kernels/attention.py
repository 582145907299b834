"""softmax(query key^T / sqrt(D)) value, one head of one sequence at a time, with the micro-kernel of gemm.py.

What        one chunk is one head of one sequence of S tokens
Layout      the keys are transposed into panels [S / NR][D][NR] and the values copied into panels [D / NR][S][NR], both
            filled up with zeros, so that both products are products with a packed weight
Loop order  MR rows of queries at a time: their scores (MR, S) are computed, exponentiated in place, and multiplied with
            the values while they are in the first cache; the sum of the exponentials divides the D numbers of the
            context, not the S of the probs
Numerics    each row by itself, in an order that depends on S alone
"""

from __future__ import annotations

import numpy as np

from minibert.kernels.compilation import function, kernel
from minibert.kernels.gemm import FLOAT, MR, NR, micro_tile, prefetch_tile
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
    """One head of one sequence; the fields of `task` are those of `describe_attention`."""
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
    # All in one piece: where a second found no memory, nobody would free the first (compiled code does not unwind).
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
        place = (first + row) * H + head * D
        for p in range(value_panels):
            prefetch_tile(rows, task[1] + (start + (row + rows) * stride + p * NR) * FLOAT, stride)  # the next tile's
            prefetch_tile(rows, task[5] + (place + p * NR) * FLOAT, H)
        for p in range(columns // NR):
            panel, c = keys.ctypes.data + p * D * NR * FLOAT, scores.ctypes.data + p * NR * FLOAT
            micro_tile(rows, task[1] + (start + row * stride) * FLOAT, stride, panel, D, c, columns)
        if kept_scores != 0:
            for i in range(rows):
                keep_row(scores, i * columns, S, scale, floats_at(kept_scores), pairs + (row + i) * S)
        exponentiate_rows(scores, rows, S, columns, scale * _BITS_PER_E, norms)
        if kept_probs != 0:
            for i in range(rows):
                keep_row(scores, i * columns, S, norms[i], floats_at(kept_probs), pairs + (row + i) * S)
        for p in range(value_panels):
            panel = values.ctypes.data + p * S * NR * FLOAT
            micro_tile(rows, scores.ctypes.data, columns, panel, S, tile.ctypes.data, NR)
            for i in range(rows):
                norm, features = broadcast(norms[i]), place + i * H + p * NR
                for j in range(0, min(NR, D - p * NR), WIDTH):
                    if p * NR + j + WIDTH <= D:
                        store(context, features + j, load(tile, i * NR + j) * norm)
                    else:
                        store_first(context, features + j, load(tile, i * NR + j) * norm, D - p * NR - j)
        row += rows


@function
def keep_row(scores, start, S, factor, kept, place):
    """kept[place : place + S] = factor times the row of scores that begins at start."""
    for j in range(S):
        kept[place + j] = factor * scores[start + j]


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
def exponentiate_rows(scores, rows, S, columns, factor, norms):
    """scores = 2^(factor (scores - max)) over the first S of `columns` of each row; norms = 1 / their sums.

    The maximum of a row is found while the row before is exponentiated, which would have to wait for it otherwise.
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
    """The largest of `count` scores, a multiple of WIDTH."""
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
