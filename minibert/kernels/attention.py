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
            of the exponentials is in WIDTH lanes, which are added at the end. A sum of floats over many keys begins
            again after each PART of them, and these sums are added. With 8,192 keys this halves the error of a context
Rotation    Queries and keys are rotated in a small buffer, on their way into rows and panels (attention_packing.py)
Window      With a window, each tile of queries has a range of keys: from the first key of its first query to the last
            one of its last query, and up to ALIGNED more on both sides, whose scores become -infinity. The blocks of
            partial sums begin at the same keys for all tiles, because a range begins at a multiple of ALIGNED, and a
            part at a multiple of PART; so a row's bits do not depend on the tile. The scales of values in words are
            those of the whole sequence
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

import math
from typing import Any

import numpy as np

from minibert.bert.low_precision import BITS_PER_E, KEYS_OF_A_SUM
from minibert.kernels.amx import amx_attention_multiplier, begin_tiles, end_tiles
from minibert.kernels.attention_packing import float_packers, rotate_rows, word_packers
from minibert.kernels.compilation import function, inline
from minibert.kernels.gemm import KC, block_length, do_nothing, prefetch_tile, tile_multiplier
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
    store_up_to,
    sum_lanes,
    task_at,
)
from minibert.kernels.threads import FLOAT

_ZERO, _NR = np.int64(0), np.int64(NR)  # Numba compiles a function again for each Python integer among its arguments
PART = np.int64(KEYS_OF_A_SUM)


@function
def add_bias(scores, start, column, first, S, D, columns, table, middle):
    """Compute scores[start + j] = scores[start + j] / sqrt(D) + table[middle + column of token j - column].

    `column` is that of the query. Without a masked token among them, the columns are consecutive, and so are the
    numbers of the table.
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
def keep_row(scores, start, first, count, S, factor, kept, offset, other):
    """Keep a row of S numbers: factor * score for `count` of them, from `first` on, and `other` around them."""
    for j in range(first):
        kept[offset + j] = other
    for j in range(count):
        kept[offset + first + j] = factor * scores[start + j]
    for j in range(first + count, S):
        kept[offset + j] = other


# --- window ----------------------------------------------------------------------------------------------------------

ALIGNED = np.int64(math.lcm(NR, KC))


@inline
def next_key(columns, key, S, column):
    """Return the first of S keys, from this one on, whose column is at least `column`."""
    while key < S and columns[key] < column:
        key += 1
    return key


@function
def hide_keys(scores, rows, pitch, columns, query_columns, window, first, count, begin, end, hidden):
    """Replace the scores of keys outside the window of each row by `hidden`; the first of `count` keys is `first`.

    `begin` and `end` are keys that are not behind the first and the last key of the first row.
    """
    for i in range(rows):
        begin = next_key(columns, begin, first + count, query_columns[i] - window)
        end = next_key(columns, max(begin, end), first + count, query_columns[i] + window + 1)
        for part in range(2):
            start, stop = (_ZERO, begin - first) if part == 0 else (end - first, count)
            for j in range(start, stop, WIDTH):
                store_up_to(scores, i * pitch + j, number(hidden), stop - j)


# --- softmax ---------------------------------------------------------------------------------------------------------


def _row_exponentiator(exp2: Any, smallest: float) -> Any:
    """Make the function that exponentiates rows of scores; `smallest` is the least exponent that `exp2` takes."""

    @function
    def exponentiate_rows(scores, rows, first, S, pitch, factor, norms):
        """Compute scores = 2^(factor (scores - max)) for the first S numbers of each row, and norms = 1 / sums.

        The scores are those of the keys from `first` on. The maximum of a row is found while the row before it is
        exponentiated, so that no row waits for its maximum.
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
            total, start, stop = number(0.0), _ZERO, min(count, PART - first % PART)
            while start < count:
                part = number(0.0)
                for j in range(i * pitch + start, i * pitch + stop, WIDTH):
                    power = exp2(maximum((load(scores, j) - top) * scale, least))
                    store(scores, j, power)
                    part = part + power
                total = total + part
                start, stop = stop, min(count, stop + PART)
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
    most_rows, key_header, value_header, before, of_value_line = np.int64(MR), 0, 0, _ZERO, np.int64(1)
    multiply_keys, multiply_values, packers = tile_multiplier(None), tile_multiplier(None), float_packers
    if words is not None:
        packers, in_tiles, most_rows = word_packers(name, words), words.values.dot.in_tiles, np.int64(words.values.rows)
        key_header, value_header = words.keys.header, words.values.header
        multiply_keys, multiply_values = map(amx_attention_multiplier if in_tiles else tile_multiplier, words)
        before, of_value_line = np.int64(words.values.before_scores), np.int64(words.values.word_numbers)
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
        start, query_start = first * stride + head // task.sharing * D, first_query * query_stride + head * D
        panels, value_panels = (S + NR - 1) // NR, (D + NR - 1) // NR
        at = layout(S, D)
        features, tokens, pitch = at.features, at.tokens, at.score_distance
        values, scores, tile = scratch + at.values * FLOAT, scratch + at.scores * FLOAT, scratch + at.tile * FLOAT
        addend = tile + most_rows * NR * FLOAT
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
        rotation = (task.angles, task.rotated, scratch + at.rotated * FLOAT)
        positions, query_positions = task.positions + first * FLOAT, task.query_positions + first_query * FLOAT
        pack_keys(task.key + start * FLOAT, stride, S, D, scratch, features, queries, rotation, positions)
        if in_words:
            query, distance = task.query + query_start * FLOAT, query_stride
            if rotation[0] != 0:
                rotate_rows(query, distance, tallest, D, rotation, query_positions, rotation[2])
                query, distance = rotation[2], D
            quantise_queries(query, distance, tallest, D, queries, at.query_distance, key_block)
        pack_values(task.value + start * FLOAT, stride, S, D, values, tokens)
        columns, query_columns = task.columns + first * FLOAT, task.query_columns + first_query * FLOAT
        window, low, high = task.window, _ZERO, _ZERO
        first_key, count, line, depth = _ZERO, S, _ZERO, tokens  # the keys of a tile, and the lines of their values
        if window >= 0 and not in_words:
            value_block = np.int64(KC)
        factor = np.float32(1.0) / np.sqrt(np.float32(D)) if task.bias == 0 else np.float32(1.0)
        infinite, zero = np.float32(-np.inf), factor - factor  # of a constant 0, LLVM would make calls of memset
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
            next_query, next_distance = query + rows * query_stride * FLOAT, query_stride
            if in_words:
                query, distance = queries, at.query_distance
            elif rotation[0] != 0:
                rotate_rows(query, distance, rows, D, rotation, query_positions + row * FLOAT, rotation[2])
                query, distance = rotation[2], D
            own_columns, last_high = ints_at(query_columns + row * FLOAT), high
            if window >= 0:
                low = next_key(ints_at(columns), low, S, own_columns[0] - window)
                high = next_key(ints_at(columns), high, S, own_columns[rows - 1] + window + 1)
                first_key = low // ALIGNED * ALIGNED
                count = min(S, (high + ALIGNED - 1) // ALIGNED * ALIGNED) - first_key
                pitch = (count + NR - 1) // NR * NR
                line = first_key // of_value_line
                depth = (tokens if first_key + count == S else (first_key + count) // of_value_line) - line
                if in_words:
                    value_block = depth
            # scores = query key^T. Nothing is added, and nothing is fetched ahead: the last five arguments.
            for p in range(first_key // NR, (first_key + count + NR - 1) // NR):
                b, c = scratch + p * key_panel, scores + (p * NR - first_key) * FLOAT
                multiply_keys(rows, query, distance, b, features, key_block, c, pitch, _ZERO, b, b, b, _ZERO)
            if in_words and t + 1 < tiles:  # early, because AMX waits for numbers that were just written
                rows_then = height + (t + 1 < taller)
                if rotation[0] != 0:
                    next_positions = query_positions + (row + rows) * FLOAT
                    rotate_rows(next_query, next_distance, rows_then, D, rotation, next_positions, rotation[2])
                    next_query, next_distance = rotation[2], D
                quantise_queries(next_query, next_distance, rows_then, D, queries, at.query_distance, key_block)
            # Scores + bias, and -infinity beyond the window.
            if task.bias != 0:
                table, middle = floats_at(task.bias + head * task.distances * FLOAT), task.distances // 2
                for i in range(rows):
                    column, keys = own_columns[i], ints_at(columns)
                    add_bias(floats_at(scores), i * pitch, column, first_key, count, D, keys, table, middle)
            if window >= 0:
                hide_keys(
                    floats_at(scores), rows, pitch, ints_at(columns), own_columns, window,
                    first_key, count, low, last_high, infinite
                )  # fmt: skip
            if task.scores != 0:
                for i in range(rows):
                    kept, place = floats_at(task.scores), pairs + (row + i) * S
                    keep_row(floats_at(scores), i * pitch, first_key, count, S, factor, kept, place, infinite)
            # 2^(scores - maximum), and the factor that makes probs of them.
            exponentiate_rows(floats_at(scores), rows, first_key, count, pitch, factor * BITS_PER_E, norms)
            if task.probs != 0:
                if window >= 0:  # in words, the least exponential is not 0
                    hide_keys(
                        floats_at(scores), rows, pitch, ints_at(columns), own_columns, window,
                        first_key, count, low, last_high, zero
                    )  # fmt: skip
                for i in range(rows):
                    kept, place = floats_at(task.probs), pairs + (row + i) * S
                    keep_row(floats_at(scores), i * pitch, first_key, count, S, norms[i], kept, place, zero)
            if in_words:
                round_probs(scores, rows, count, pitch, value_block, norms)
            # context = probs values, a panel of columns at a time.
            for p in range(value_panels):
                a, b = scores - before * FLOAT, values + p * value_panel
                if line > 0:
                    header, b = b, b + line * NR * FLOAT
                    if in_words:  # the scales take the place of the line before, which later tiles do not need
                        for j in range(0, NR, WIDTH):
                            store(floats_at(b), j, load(floats_at(header), j))
                stop = depth if in_words else min(depth, PART - line % PART)
                multiply_values(rows, a, pitch, b, stop, value_block, tile, _NR, _ZERO, b, b, b, _ZERO)
                while stop < depth:
                    more, a_part, b_part = min(depth - stop, PART), a + stop * FLOAT, b + stop * NR * FLOAT
                    multiply_values(
                        rows, a_part, pitch, b_part, more, value_block, addend, _NR, _ZERO, b, b, b, _ZERO
                    )  # fmt: skip
                    for j in range(0, rows * NR, WIDTH):
                        store(floats_at(tile), j, load(floats_at(tile), j) + load(floats_at(addend), j))
                    stop += more
                for i in range(rows):
                    norm, target = broadcast(norms[i]), offset + i * H + p * NR
                    for j in range(0, min(NR, D - p * NR), WIDTH):
                        weighted = load(floats_at(tile), i * NR + j) * norm
                        store_up_to(context, target + j, weighted, D - p * NR - j)
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
        if S * task.D > LEAST_IN_TILES and task.window < 0:  # AMX needs all keys of a head
            in_tiles(address, chunk, scratch)
        else:
            in_vectors(address, chunk, scratch)

    return attention_chunk
