"""Attention, softmax(query key^T / sqrt(D) + bias) value, with the micro-kernels of gemm.py.

What        One chunk of work is one attention head of one sequence of S tokens. The products are of floats, or in low
            precision of words with two integers each (bert/low_precision.py)
Layout      The keys are transposed into panels [S / NR][D][NR] and the values copied into panels [D / NR][S][NR]. So
            both products use the same micro-kernels as a packed weight. In words, a panel begins with a line of scales,
            and each of its other lines has two features of the keys, or two tokens of the values
Loop order  MR rows of queries at a time. Their scores (MR, S) are computed, exponentiated in place (in words, also
            rounded in place), and multiplied by the values while they are in the first cache
Algorithm   The plain softmax of complete rows: first the maximum of a row, then its exponentials and their sum. It is
            not the online softmax and not FlashAttention: the keys are not split into blocks, and no sum is rescaled.
            As in FlashAttention, the (S, S) scores are never in memory as a whole, unless the caller asks for them. The
            sum of the exponentials divides the D numbers of a context row, not its S probs
Numerics    Each row is computed alone, in an order that depends on S only. It is the same on every processor: the sum
            of the exponentials is in WIDTH lanes, which are added at the end
Edges       Columns beyond the last token have the key of the last token. Up to the next multiple of WIDTH their scores
            become -infinity; the others are not read
Words       The time of words divided by that of floats (one thread of a Zen 5, heads of D = 32 and 64) is 1.10 and 1.04
            for 22 tokens, 0.77 and 0.75 for 128, 0.68 and 0.61 for 512. With AVX2 alone it is 1.10 and 1.09, 0.97 and
            0.91, 0.90 and 0.85
Contract    Callers have checked every shape; the code here does not check bounds
Source      Vaswani et al. 2017 (arXiv 1706.03762), equation 1. Not used: Milakov and Gimelshein 2018, online softmax
            (arXiv 1805.02867); Dao et al. 2022, FlashAttention (arXiv 2205.14135)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert.bert.low_precision import BITS_PER_E, PROB_MOST, PROB_TOTAL, VALUE_MOST
from minibert.kernels.compilation import function, inline
from minibert.kernels.gemm import UNROLL, block_length, prefetch_tile, tile_multiplier
from minibert.kernels.low_precision import (
    factor_of,
    larger_size,
    largest_size,
    pair_words,
    round_lanes,
    scale_of,
    store_shorts,
    whole_lanes,
)
from minibert.kernels.ops import ATTENTION, ATTENTION_WORDS
from minibert.kernels.processor import MR, NR, WIDTH, Words
from minibert.kernels.simd import (
    broadcast,
    exp2,
    exp2_short,
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
from minibert.kernels.threads import FLOAT, TaskKind

_ZERO, _NR = np.int64(0), np.int64(NR)  # Numba compiles a function again for each Python integer among its arguments
_WIDTH = np.int64(WIDTH)


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
def pack_float_keys(key, stride, S, D, keys, features, transposed):
    """Fill keys[p][d][j] with feature d of the key of token p NR + j; `features` and `transposed` are not used."""
    for j in range(0, (S + NR - 1) // NR * NR, WIDTH):
        panel = keys + (j // NR * D * NR + j % NR) * FLOAT
        transpose_keys(key + j * stride * FLOAT, stride, S - j, D, panel, _NR)


@function
def transpose_keys(key, stride, count, D, target, step):
    """Compute target[d step + j] = key[j stride + d] for WIDTH tokens j; with fewer, the last one counts again."""
    source, keys = floats_at(key), floats_at(target)
    whole = D - D % WIDTH
    for d in range(0, whole, WIDTH):
        transpose_block(source, d, stride, count, keys, d * step, step)
    for d in range(whole, D):
        for j in range(WIDTH):
            keys[d * step + j] = source[min(j, count - 1) * stride + d]


@function
def pack_float_values(value, stride, S, D, values, tokens):
    """Fill values[p][j][d] with feature p NR + d of the value of token j, or with 0 beyond the last feature."""
    source, target = floats_at(value), floats_at(values)
    for j in range(S):
        for p in range((D + NR - 1) // NR):
            for d in range(0, NR, WIDTH):
                lanes = load_features(source, j * stride, p * NR + d, D)
                store(target, (p * S + j) * NR + d, lanes)


@function
def load_features(source, start, d, D):
    """Load WIDTH of D features, from d on; those from D on are 0."""
    if d + WIDTH <= D:
        return load(source, start + d)
    return load_first(source, start + d, max(D - d, 0))


# --- words -----------------------------------------------------------------------------------------------------------


@inline
def _num_words(count):
    """Return the number of words for `count` numbers of 16 bits, a multiple of UNROLL."""
    return (count + 2 * UNROLL - 1) // (2 * UNROLL) * UNROLL


@inline
def _most_of_products(D):
    """Return the largest integer of which D squares have a sum below 2^31, at most that of 16 bits."""
    return np.float32(min(np.floor(np.sqrt(2147483647.0 / D)), 32767.0))


@function
def pack_key_words(key, stride, S, D, keys, features, transposed):
    """Fill panels with the keys as words, each with a scale; `transposed` is memory for 2 features x WIDTH floats."""
    lines, most = floats_at(transposed), _most_of_products(D)
    for j in range(0, (S + NR - 1) // NR * NR, WIDTH):
        transpose_keys(key + j * stride * FLOAT, stride, S - j, D, transposed, _WIDTH)
        panel = floats_at(keys + (j // NR * (1 + features) * NR + j % NR) * FLOAT)
        sizes = number(0.0)
        for d in range(D):
            sizes = larger_size(sizes, load(lines, d * WIDTH))
        store(panel, 0, scale_of(sizes, broadcast(most)))
        factor = factor_of(sizes, broadcast(most))
        for d in range(features):
            first = load(lines, 2 * d * WIDTH) if 2 * d < D else number(0.0)
            second = load(lines, (2 * d + 1) * WIDTH) if 2 * d + 1 < D else number(0.0)
            store(panel, (1 + d) * NR, pair_words(round_lanes(first, factor), round_lanes(second, factor)))


@function
def pack_value_words(value, stride, S, D, values, tokens):
    """Fill panels with the values as words, each feature with a scale."""
    source = floats_at(value)
    for p in range((D + NR - 1) // NR):
        panel = floats_at(values + p * (1 + tokens) * NR * FLOAT)
        for d in range(0, NR, WIDTH):
            sizes = number(0.0)
            for j in range(S):
                sizes = larger_size(sizes, load_features(source, j * stride, p * NR + d, D))
            store(panel, d, scale_of(sizes, number(VALUE_MOST)))
            factor = factor_of(sizes, number(VALUE_MOST))
            for j in range(tokens):
                first = load_features(source, 2 * j * stride, p * NR + d, D) if 2 * j < S else number(0.0)
                after = (2 * j + 1) * stride
                second = load_features(source, after, p * NR + d, D) if 2 * j + 1 < S else number(0.0)
                store(panel, (1 + j) * NR + d, pair_words(round_lanes(first, factor), round_lanes(second, factor)))


@function
def quantise_queries(query, stride, rows, D, queries, features):
    """Fill queries[i] with the scale and the words of a row of queries."""
    most = _most_of_products(D)
    for i in range(rows):
        source, target = floats_at(query + i * stride * FLOAT), queries + i * (1 + features) * FLOAT
        sizes = number(0.0)
        for d in range(0, D, WIDTH):
            sizes = larger_size(sizes, load_features(source, _ZERO, d, D))
        size = largest_size(sizes)
        floats_at(target)[0] = scale_of(size, most)
        factor = broadcast(factor_of(size, most))
        for d in range(0, D, WIDTH):
            store_shorts(target + FLOAT + 2 * d, round_lanes(load_features(source, _ZERO, d, D), factor))


@function
def round_probs(scores, rows, S, columns, norms):
    """Replace each row of exponentials, in place, by words of integers. In norms, 1 / their sum replaces 1 / its sum.

    With the sum before rounding, equal probs would all have the same rounding error. The scale of a row is 1.
    """
    for i in range(rows):
        row = scores + i * columns * FLOAT
        factor = broadcast(min(np.float32(PROB_MOST), np.float32(PROB_TOTAL) * norms[i]))
        total = number(0.0)
        for j in range(0, S, WIDTH):
            whole = round_lanes(load(floats_at(row), j), factor)
            store_shorts(row + FLOAT + 2 * j, whole)
            total = total + whole_lanes(whole)
        floats_at(row)[0] = np.float32(1.0)
        if norms[i] > 0:  # not if it is NaN
            norms[i] = np.float32(1.0) / sum_lanes(total)


# --- softmax ---------------------------------------------------------------------------------------------------------


def _row_exponentiator(exp2: Any, smallest: float) -> Any:
    """Make the function that exponentiates rows of scores; `smallest` is the least exponent that `exp2` takes."""

    @function
    def exponentiate_rows(scores, rows, S, columns, factor, norms):
        """Compute scores = 2^(factor (scores - max)) for the first S of the `columns` of a row, and norms = 1 / sums.

        The maximum of a row is found while the row before it is exponentiated, so that no row waits for its maximum.
        """
        whole = S - S % WIDTH
        if whole < S:
            for i in range(rows):
                last = i * columns + whole
                store(scores, last, first_lanes(load(scores, last), S - whole, number(-np.inf)))
        count = (S + WIDTH - 1) // WIDTH * WIDTH
        scale, least = broadcast(factor), number(smallest)
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

    return exponentiate_rows


@function
def row_maximum(scores, start, count):
    """Return the largest of `count` scores; `count` is a multiple of WIDTH."""
    top = load(scores, start)
    for j in range(WIDTH, count, WIDTH):
        top = maximum(top, load(scores, start + j))
    return largest(top)


# --- chunks ----------------------------------------------------------------------------------------------------------


def _attention_chunk(kind: TaskKind, words: Words | None) -> Any:
    """Make the function that computes one attention head of one sequence, with floats or with words."""
    attention_task, multiply = task_at(kind), tile_multiplier(words)
    header = np.int64(0 if words is None else 1)  # lines of a panel before its numbers, and words of a row
    in_words = words is not None
    pack_keys, pack_values = (pack_key_words, pack_value_words) if in_words else (pack_float_keys, pack_float_values)
    exponentiate_rows = _row_exponentiator(exp2_short, -125.0) if in_words else _row_exponentiator(exp2, -127.0)

    @function
    def attention_chunk(address, chunk, scratch):
        """Compute the head; the address `scratch` has room for `attention_scratch` floats."""
        task = attention_task(address)
        cu_seqlens, context = ints_at(task.cu_seqlens), floats_at(task.context)
        D, stride = task.D, task.stride
        sequence, head = chunk // task.num_heads, chunk % task.num_heads
        first = np.int64(cu_seqlens[sequence])
        S = np.int64(cu_seqlens[sequence + 1]) - first
        if S == 0:
            return
        H = task.num_heads * D
        start = first * stride + head * D
        columns = (S + NR - 1) // NR * NR
        value_panels = (D + NR - 1) // NR
        features, tokens = D, S  # lines of a panel of keys, and of values
        if in_words:
            features, tokens = _num_words(D), _num_words(S)
        key_panel, value_panel = (header + features) * NR * FLOAT, (header + tokens) * NR * FLOAT
        values = scratch + columns // NR * key_panel
        scores = values + value_panels * value_panel
        tile = scores + MR * columns * FLOAT
        norms = floats_at(tile + MR * NR * FLOAT)
        queries = tile + MR * (NR + 1) * FLOAT
        pack_keys(task.key + start * FLOAT, stride, S, D, scratch, features, queries)
        pack_values(task.value + start * FLOAT, stride, S, D, values, tokens)
        factor = np.float32(1.0) / np.sqrt(np.float32(D)) if task.bias == 0 else np.float32(1.0)
        pairs = np.int64(0)
        if task.scores != 0 or task.probs != 0:
            pairs = longs_at(task.pairs_first)[sequence] + head * S * S
        key_block, value_block = features, tokens
        if not in_words:
            key_block, value_block = block_length(D), block_length(S)

        tiles = (S + MR - 1) // MR
        height, taller = S // tiles, S % tiles
        row = 0
        for t in range(tiles):
            rows = height + 1 if t < taller else height
            query, distance = task.query + (start + row * stride) * FLOAT, stride
            offset = (first + row) * H + head * D
            for p in range(value_panels):
                prefetch_tile(rows, query + (rows * stride + p * NR) * FLOAT, stride)  # of the next tile
                prefetch_tile(rows, task.context + (offset + p * NR) * FLOAT, H)
            if in_words:
                quantise_queries(query, stride, rows, D, queries, features)
                query, distance = queries, header + features
            for p in range(columns // NR):
                b, c = scratch + p * key_panel, scores + p * NR * FLOAT
                multiply(rows, query, distance, b, features, key_block, c, columns, _ZERO, b, b, b, _ZERO)
            if task.bias != 0:
                table, middle = floats_at(task.bias + head * task.distances * FLOAT), task.distances // 2
                for i in range(rows):
                    add_bias(floats_at(scores), i * columns, row + i, first, S, D, ints_at(task.columns), table, middle)
            if task.scores != 0:
                for i in range(rows):
                    keep_row(floats_at(scores), i * columns, S, factor, floats_at(task.scores), pairs + (row + i) * S)
            exponentiate_rows(floats_at(scores), rows, S, columns, factor * BITS_PER_E, norms)
            if task.probs != 0:
                for i in range(rows):
                    keep_row(floats_at(scores), i * columns, S, norms[i], floats_at(task.probs), pairs + (row + i) * S)
            if in_words:
                round_probs(scores, rows, S, columns, norms)
            for p in range(value_panels):
                b = values + p * value_panel
                multiply(rows, scores, columns, b, tokens, value_block, tile, _NR, _ZERO, b, b, b, _ZERO)
                for i in range(rows):
                    norm, target = broadcast(norms[i]), offset + i * H + p * NR
                    for j in range(0, min(NR, D - p * NR), WIDTH):
                        weighted = load(floats_at(tile), i * NR + j) * norm
                        if p * NR + j + WIDTH <= D:
                            store(context, target + j, weighted)
                        else:
                            store_first(context, target + j, weighted, D - p * NR - j)
            row += rows

    return attention_chunk


attention_chunk = _attention_chunk(ATTENTION, None)


def attention_words_chunk(words: Words) -> Any:
    """Make the function that does the same as `attention_chunk` with words."""
    return _attention_chunk(ATTENTION_WORDS, words)
