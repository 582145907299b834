"""Attention, softmax(query key^T / sqrt(D) + bias) value, with the micro-kernels of gemm.py.

What        One chunk of work is one attention head of one sequence of S tokens. The products are of floats, or in low
            precision of words with two or four integers each (bert/low_precision.py)
Layout      The keys and the values are copied into panels (attention_packing.py). So both products use the same
            micro-kernels as a packed weight; those with AMX add up all of K in its tiles (amx.py)
Loop order  MR rows of queries at a time, or 16 with AMX. Their scores are computed, exponentiated in place (in words,
            also rounded in place), and multiplied by the values while they are in the first cache
Algorithm   The plain softmax of complete rows: first the maximum of a row, then its exponentials and their sum. It is
            not the online softmax and not FlashAttention: the keys are not split into blocks, and no sum is rescaled.
            As in FlashAttention, the (S, S) scores are never in memory as a whole, unless the caller asks for them. The
            sum of the exponentials divides the D numbers of a context row, not its S probs
Numerics    Each row is computed alone, in an order that depends on S only. It is the same on every processor: the sum
            of the exponentials is in WIDTH lanes, which are added at the end
Edges       Columns beyond the last token have the key of the last token. Up to the next multiple of WIDTH their scores
            become -infinity; the others are not read
Words       The time of int16 divided by that of floats (one thread of a Zen 5, heads of D = 32 and 64) is 1.10 and 1.04
            for 22 tokens, 0.77 and 0.75 for 128, 0.68 and 0.61 for 512. With AVX2 alone it is 1.10 and 1.09, 0.97 and
            0.91, 0.90 and 0.85. The time of int8 divided by that of int16 (Zen 4) is 0.95 and 1.00 for 22 tokens, 0.92
            and 0.86 for 128, 0.84 and 0.81 for 512. On a Xeon, a product of int16 takes as long with VNNI as one of
            floats, so AMX computes all heads that are not small (LEAST_IN_TILES)
Contract    Callers have checked every shape; the code here does not check bounds
Source      Vaswani et al. 2017 (arXiv 1706.03762), equation 1. Not used: Milakov and Gimelshein 2018, online softmax
            (arXiv 1805.02867); Dao et al. 2022, FlashAttention (arXiv 2205.14135)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert.bert.low_precision import BITS_PER_E
from minibert.kernels.amx import amx_attention_multiplier, begin_tiles, end_tiles
from minibert.kernels.attention_packing import float_packers, word_packers
from minibert.kernels.compilation import function, inline
from minibert.kernels.gemm import block_length, do_nothing, prefetch_tile, tile_multiplier
from minibert.kernels.ops import ATTENTION, ATTENTION_WORDS
from minibert.kernels.processor import LEAST_IN_TILES, MR, NR, WIDTH, HeadWords, head_layout, head_words
from minibert.kernels.simd import (
    broadcast,
    exp2,
    exp2_short,
    first_lanes,
    floats_at,
    ints_at,
    largest,
    load,
    longs_at,
    maximum,
    number,
    store,
    store_first,
    sum_lanes,
    task_at,
)
from minibert.kernels.threads import FLOAT

_ZERO, _NR = np.int64(0), np.int64(NR)  # Numba compiles a function again for each Python integer among its arguments


@function
def add_bias(scores, start, column, first, S, D, columns, table, middle):
    """Compute scores[start + j] = scores[start + j] / sqrt(D) + table[middle + column of token j - that of the query].

    Without a masked token among them, the columns are consecutive, and so are the numbers of the table.
    """
    factor = np.float32(1.0) / np.sqrt(np.float32(D))
    origin = middle - column
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


# --- softmax ---------------------------------------------------------------------------------------------------------


def _row_exponentiator(exp2: Any, smallest: float) -> Any:
    """Make the function that exponentiates rows of scores; `smallest` is the least exponent that `exp2` takes."""

    @function
    def exponentiate_rows(scores, rows, S, pitch, factor, norms):
        """Compute scores = 2^(factor (scores - max)) for the first S numbers of each row, and norms = 1 / sums.

        The maximum of a row is found while the row before it is exponentiated, so that no row waits for its maximum.
        """
        whole = S - S % WIDTH
        if whole < S:
            for i in range(rows):
                last = i * pitch + whole
                store(scores, last, first_lanes(load(scores, last), S - whole, number(-np.inf)))
        count = (S + WIDTH - 1) // WIDTH * WIDTH
        scale, least = broadcast(factor), number(smallest)
        top = broadcast(row_maximum(scores, _ZERO, count))
        for i in range(rows):
            next_top = broadcast(row_maximum(scores, min(i + 1, rows - 1) * pitch, count))
            total = number(0.0)
            for j in range(i * pitch, i * pitch + count, WIDTH):
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


def _attention_chunk(name: str = "", words: HeadWords | None = None) -> Any:
    """Make the function that computes one attention head of one sequence, with floats or with words of a format."""
    attention_task = task_at(ATTENTION_WORDS[name] if name else ATTENTION)
    layout, in_words, in_tiles = inline(head_layout(words)), words is not None, False
    most_rows, key_header, value_header, before = np.int64(MR), 0, 0, np.int64(0)
    multiply_keys, multiply_values, packers = tile_multiplier(None), tile_multiplier(None), float_packers
    if words is not None:
        packers, in_tiles, most_rows = word_packers(name, words), words.values.dot.in_tiles, np.int64(words.values.rows)
        key_header, value_header = words.keys.header, words.values.header
        multiply_keys, multiply_values = map(amx_attention_multiplier if in_tiles else tile_multiplier, words)
        before = np.int64(words.values.before_scores)
    pack_keys, pack_values, quantise_queries, round_probs = packers
    begin, end = (begin_tiles, end_tiles) if in_tiles else (do_nothing, do_nothing)
    exponentiate_rows = _row_exponentiator(exp2_short, -125.0) if in_words else _row_exponentiator(exp2, -127.0)

    @function
    def attention_chunk(address, chunk, scratch):
        """Compute the head; the address `scratch` has room for `attention_scratch` floats."""
        task = attention_task(address)
        cu_seqlens, context = ints_at(task.cu_seqlens), floats_at(task.context)
        query_seqlens = ints_at(task.query_seqlens)
        D, stride, query_stride = task.D, task.stride, task.query_stride
        sequence, head = chunk // task.num_heads, chunk % task.num_heads
        first, first_query = np.int64(cu_seqlens[sequence]), np.int64(query_seqlens[sequence])
        S, Q = np.int64(cu_seqlens[sequence + 1]) - first, np.int64(query_seqlens[sequence + 1]) - first_query
        if Q == 0:
            return
        H = task.num_heads * D
        start, query_start = first * stride + head * D, first_query * query_stride + head * D
        panels, value_panels = (S + NR - 1) // NR, (D + NR - 1) // NR
        at = layout(S, D)
        features, tokens, pitch = at.features, at.tokens, at.score_distance
        values, scores, tile = scratch + at.values * FLOAT, scratch + at.scores * FLOAT, scratch + at.tile * FLOAT
        queries, norms = scratch + at.queries * FLOAT, floats_at(scratch + at.norms * FLOAT)
        key_panel, value_panel = (key_header + features) * NR * FLOAT, (value_header + tokens) * NR * FLOAT
        # What the multipliers take as the length of a block; those with AMX take the distance of the upper bytes.
        key_block, value_block = features, tokens
        if not in_words:
            key_block, value_block = block_length(D), block_length(S)
        elif in_tiles:
            key_block, value_block = 2 * features, panels * NR * FLOAT
        tiles = (Q + most_rows - 1) // most_rows
        height, taller = Q // tiles, Q % tiles
        tallest = height + min(taller, 1)
        begin(tallest)
        pack_keys(task.key + start * FLOAT, stride, S, D, scratch, features, queries)
        if in_words:
            query = task.query + query_start * FLOAT
            quantise_queries(query, query_stride, tallest, D, queries, at.query_distance, key_block)
        pack_values(task.value + start * FLOAT, stride, S, D, values, tokens)
        factor = np.float32(1.0) / np.sqrt(np.float32(D)) if task.bias == 0 else np.float32(1.0)
        pairs = np.int64(0)
        if task.scores != 0 or task.probs != 0:
            pairs = longs_at(task.pairs_first)[sequence] + head * Q * S

        row = 0
        for t in range(tiles):
            rows = height + 1 if t < taller else height
            query, distance = task.query + (query_start + row * query_stride) * FLOAT, query_stride
            offset = (first_query + row) * H + head * D
            for p in range(value_panels):
                prefetch_tile(rows, query + (rows * query_stride + p * NR) * FLOAT, query_stride)  # of the next tile
                prefetch_tile(rows, task.context + (offset + p * NR) * FLOAT, H)
            next_query = query + rows * query_stride * FLOAT
            if in_words:
                query, distance = queries, at.query_distance
            # scores = query key^T. Nothing is added, and nothing is fetched ahead: the last five arguments.
            for p in range(panels):
                b, c = scratch + p * key_panel, scores + p * NR * FLOAT
                multiply_keys(rows, query, distance, b, features, key_block, c, pitch, _ZERO, b, b, b, _ZERO)
            if in_words and t + 1 < tiles:  # early, because AMX waits for numbers that were just written
                rows_then = height + (t + 1 < taller)
                quantise_queries(next_query, query_stride, rows_then, D, queries, at.query_distance, key_block)
            if task.bias != 0:
                table, middle = floats_at(task.bias + head * task.distances * FLOAT), task.distances // 2
                for i in range(rows):
                    column = ints_at(task.query_columns)[first_query + row + i]
                    add_bias(floats_at(scores), i * pitch, column, first, S, D, ints_at(task.columns), table, middle)
            if task.scores != 0:
                for i in range(rows):
                    keep_row(floats_at(scores), i * pitch, S, factor, floats_at(task.scores), pairs + (row + i) * S)
            # 2^(scores - maximum), and the factor that makes probs of them.
            exponentiate_rows(floats_at(scores), rows, S, pitch, factor * BITS_PER_E, norms)
            if task.probs != 0:
                for i in range(rows):
                    keep_row(floats_at(scores), i * pitch, S, norms[i], floats_at(task.probs), pairs + (row + i) * S)
            if in_words:
                round_probs(scores, rows, S, pitch, value_block, norms)
            # context = probs values, a panel of columns at a time.
            for p in range(value_panels):
                a, b = scores - before * FLOAT, values + p * value_panel
                multiply_values(rows, a, pitch, b, tokens, value_block, tile, _NR, _ZERO, b, b, b, _ZERO)
                for i in range(rows):
                    norm, target = broadcast(norms[i]), offset + i * H + p * NR
                    for j in range(0, min(NR, D - p * NR), WIDTH):
                        weighted = load(floats_at(tile), i * NR + j) * norm
                        if p * NR + j + WIDTH <= D:
                            store(context, target + j, weighted)
                        else:
                            store_first(context, target + j, weighted, D - p * NR - j)
            row += rows
        end()

    return attention_chunk


attention_chunk = _attention_chunk()


def attention_words_chunk(name: str) -> Any:
    """Make the function that does the same as `attention_chunk` with words of the format with this name."""
    best, in_vectors = head_words(name), _attention_chunk(name, head_words(name, in_tiles=False))
    if not best.values.dot.in_tiles:
        return in_vectors
    in_tiles, attention_task = _attention_chunk(name, best), task_at(ATTENTION_WORDS[name])

    @function
    def attention_chunk(address, chunk, scratch):
        task = attention_task(address)
        cu_seqlens, sequence = ints_at(task.cu_seqlens), chunk // task.num_heads
        S = np.int64(cu_seqlens[sequence + 1]) - np.int64(cu_seqlens[sequence])
        if S * task.D > LEAST_IN_TILES:
            in_tiles(address, chunk, scratch)
        else:
            in_vectors(address, chunk, scratch)

    return attention_chunk
