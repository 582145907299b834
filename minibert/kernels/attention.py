"""Attention, softmax(query key^T / sqrt(D) + bias) value, with the micro-kernel of gemm.py.

What        One chunk of work is one attention head of one sequence of S tokens
Layout      The keys are transposed into panels [S / NR][D][NR] and the values copied into panels [D / NR][S][NR]. Both
            are filled up with zeros, so that both products use the same micro-kernel as a packed weight
Loop order  MR rows of queries at a time. Their scores (MR, S) are computed, exponentiated in place, and multiplied by
            the values while they are in the first cache
Algorithm   The plain softmax of complete rows: first the maximum of a row, then its exponentials and their sum. It is
            not the online softmax and not FlashAttention: the keys are not split into blocks, and no sum is rescaled.
            As in FlashAttention, the (S, S) scores are never in memory as a whole, unless the caller asks for them. The
            sum of the exponentials divides the D numbers of a context row, not its S probs
Numerics    Each row is computed alone, in an order that depends on S only. It is the same on every processor: the sum
            of the exponentials is in WIDTH lanes, which are added at the end
Contract    Callers have checked every shape; the code here does not check bounds
Source      Vaswani et al. 2017 (arXiv 1706.03762), equation 1. Not used: Milakov and Gimelshein 2018, online softmax
            (arXiv 1805.02867); Dao et al. 2022, FlashAttention (arXiv 2205.14135)
"""

from __future__ import annotations

import numpy as np

from minibert.kernels.compilation import function
from minibert.kernels.gemm import multiply_tile, prefetch_tile
from minibert.kernels.ops import ATTENTION
from minibert.kernels.processor import MR, NR, WIDTH
from minibert.kernels.simd import (
    broadcast,
    exp2,
    first_lanes,
    floats_at,
    ints_at,
    largest,
    load,
    load_first,
    longs_at,
    maximum,
    number,
    store,
    store_first,
    sum_lanes,
    task_at,
    transpose_block,
)
from minibert.kernels.threads import FLOAT

_ZERO, _NR = np.int64(0), np.int64(NR)  # Numba compiles a function again for each Python integer among its arguments
_BITS_PER_E = np.float32(1.4426950408889634)  # 1 / ln 2: e^x = 2^(x / ln 2)

_attention_task = task_at(ATTENTION)


@function
def attention_chunk(address, chunk, scratch):
    """Compute one attention head of one sequence; the address `scratch` has room for `attention_scratch` floats."""
    task = _attention_task(address)
    cu_seqlens, context = ints_at(task.cu_seqlens), floats_at(task.context)
    D, stride = task.D, task.stride
    b, head = chunk // task.num_heads, chunk % task.num_heads
    first = np.int64(cu_seqlens[b])
    S = np.int64(cu_seqlens[b + 1]) - first
    if S == 0:
        return
    H = task.num_heads * D
    start = first * stride + head * D
    columns = (S + NR - 1) // NR * NR
    value_panels = (D + NR - 1) // NR
    keys = floats_at(scratch)
    values = floats_at(scratch + columns * D * FLOAT)
    scores = scratch + (columns * D + value_panels * S * NR) * FLOAT
    tile = scores + MR * columns * FLOAT
    norms = floats_at(tile + MR * NR * FLOAT)
    pack_keys(floats_at(task.key), start, stride, S, D, keys)
    pack_values(floats_at(task.value), start, stride, S, D, values)
    factor = np.float32(1.0) / np.sqrt(np.float32(D)) if task.bias == 0 else np.float32(1.0)
    pairs = np.int64(0)
    if task.scores != 0 or task.probs != 0:
        pairs = longs_at(task.pairs_first)[b] + head * S * S

    tiles = (S + MR - 1) // MR
    height, taller = S // tiles, S % tiles
    row = 0
    for t in range(tiles):
        rows = height + 1 if t < taller else height
        query = task.query + (start + row * stride) * FLOAT
        offset = (first + row) * H + head * D
        for p in range(value_panels):
            prefetch_tile(rows, query + (rows * stride + p * NR) * FLOAT, stride)  # of the next tile
            prefetch_tile(rows, task.context + (offset + p * NR) * FLOAT, H)
        for p in range(columns // NR):
            multiply_tile(rows, query, stride, scratch + p * D * NR * FLOAT, D, scores + p * NR * FLOAT, columns)
        if task.bias != 0:
            table, middle = floats_at(task.bias + head * task.distances * FLOAT), task.distances // 2
            for i in range(rows):
                add_bias(floats_at(scores), i * columns, row + i, first, S, D, ints_at(task.columns), table, middle)
        if task.scores != 0:
            for i in range(rows):
                keep_row(floats_at(scores), i * columns, S, factor, floats_at(task.scores), pairs + (row + i) * S)
        exponentiate_rows(floats_at(scores), rows, S, columns, factor * _BITS_PER_E, norms)
        if task.probs != 0:
            for i in range(rows):
                keep_row(floats_at(scores), i * columns, S, norms[i], floats_at(task.probs), pairs + (row + i) * S)
        for p in range(value_panels):
            panel = scratch + (columns * D + p * S * NR) * FLOAT
            multiply_tile(rows, scores, columns, panel, S, tile, _NR)
            for i in range(rows):
                norm, features = broadcast(norms[i]), offset + i * H + p * NR
                for j in range(0, min(NR, D - p * NR), WIDTH):
                    weighted = load(floats_at(tile), i * NR + j) * norm
                    if p * NR + j + WIDTH <= D:
                        store(context, features + j, weighted)
                    else:
                        store_first(context, features + j, weighted, D - p * NR - j)
        row += rows


@function
def add_bias(scores, start, row, first, S, D, columns, table, middle):
    """Compute scores[start + j] = scores[start + j] / sqrt(D) + table[middle + columns of token j - that of `row`].

    Without a masked token among them, the columns are consecutive, and so are the numbers of the table.
    """
    factor = np.float32(1.0) / np.sqrt(np.float32(D))
    origin = middle - columns[first + row]
    whole = S - S % WIDTH if columns[first + S - 1] - columns[first] == S - 1 else 0
    place = origin + columns[first]
    for j in range(0, whole, WIDTH):
        store(scores, start + j, load(scores, start + j) * broadcast(factor) + load(table, place + j))
    for j in range(whole, S):
        scores[start + j] = scores[start + j] * factor + table[origin + columns[first + j]]


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
    top = broadcast(row_maximum(scores, _ZERO, count))
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
