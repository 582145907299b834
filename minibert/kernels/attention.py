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
Window      With a window, each tile of queries has its own range of keys (attention_scores.py)
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

from typing import Any, NamedTuple

import numpy as np

from minibert.bert.low_precision import BITS_PER_E
from minibert.kernels.activations import exp2, exp2_short
from minibert.kernels.amx import amx_attention_multiplier, begin_tiles, end_tiles
from minibert.kernels.attention_packing import float_packers, rotate_rows, word_packers
from minibert.kernels.attention_scores import ALIGNED, PART, keep_probs, next_key, place_scores, row_exponentiator
from minibert.kernels.compilation import function, inline
from minibert.kernels.gemm import KC, block_length, do_nothing, prefetch_tile, tile_multiplier
from minibert.kernels.ops import ATTENTION, ATTENTION_WORDS
from minibert.kernels.processor import LEAST_IN_TILES, MR, NR, WIDTH, HeadWords, head_layout, head_words
from minibert.kernels.simd import broadcast, floats_at, ints_at, load, longs_at, store, store_up_to, task_at
from minibert.kernels.threads import FLOAT

_ZERO, _NR = np.int64(0), np.int64(NR)  # Numba compiles a function again for each Python integer among its arguments


# --- a head, and what a tile of its queries sees ---------------------------------------------------------------------


class Head(NamedTuple):
    """One head of one sequence: its sizes, the addresses where its numbers begin, and the distances of its rows."""

    S: int  # tokens, with a key and a value each
    Q: int  # queries
    D: int  # features
    query: int  # (Q, D)
    query_stride: int
    key: int  # (S, D)
    value: int  # (S, D)
    stride: int  # of keys and values
    context: int  # (Q, D)
    context_stride: int
    query_positions: int  # (Q,)
    positions: int  # (S,)
    query_columns: int  # (Q,)
    columns: int  # (S,)
    window: int  # -1: a query sees all keys
    bias: int  # (distances,); 0: there is none
    distances: int
    scores: int  # (Q, S), for the caller; 0: they are not kept
    probs: int  # (Q, S)
    factor: np.float32  # by which a score, after the bias, is multiplied


@inline
def head_of(task, chunk):
    """Return the head that is this chunk of a task."""
    sequence, number, D, H = chunk // task.num_heads, chunk % task.num_heads, task.D, task.num_heads * task.D
    starts, query_starts = ints_at(task.cu_seqlens), ints_at(task.query_seqlens)
    first, first_query = np.int64(starts[sequence]), np.int64(query_starts[sequence])
    S, Q = np.int64(starts[sequence + 1]) - first, np.int64(query_starts[sequence + 1]) - first_query
    query, context = first_query * task.query_stride + number * D, first_query * H + number * D
    key, bias = first * task.stride + number // task.sharing * D, number * task.distances * FLOAT
    scores, probs = task.scores, task.probs
    if scores != 0 or probs != 0:
        pairs = longs_at(task.pairs_first)[sequence] + number * Q * S
        scores, probs = scores and scores + pairs * FLOAT, probs and probs + pairs * FLOAT
    return Head(
        S, Q, D, task.query + query * FLOAT, task.query_stride,
        task.key + key * FLOAT, task.value + key * FLOAT, task.stride, task.context + context * FLOAT, H,
        task.query_positions + first_query * FLOAT, task.positions + first * FLOAT,
        task.query_columns + first_query * FLOAT, task.columns + first * FLOAT, task.window,
        task.bias and task.bias + bias, task.distances, scores, probs,
        np.float32(1.0) / np.sqrt(np.float32(D)) if task.bias == 0 else np.float32(1.0),
    )  # fmt: skip


class Seen(NamedTuple):
    """The keys that a tile of queries sees: `keys` of them, from key `first` on; their scores have rows of `pitch`."""

    first: int
    keys: int
    pitch: int
    line: int  # the first one of their values in a panel
    depth: int  # lines of their values
    low: int  # the first key in the window of the first query
    high: int  # the key after the last one in the window of the last query
    last_high: int  # that of the tile before


@inline
def rotate_queries(head, row, rows, rotation):
    """Return the address and the distance of the rows of a tile, (rows, D), rotated if there is a rotation."""
    query, positions = head.query + row * head.query_stride * FLOAT, head.query_positions + row * FLOAT
    if rotation[0] == 0:
        return query, head.query_stride
    rotate_rows(query, head.query_stride, rows, head.D, rotation, positions, rotation[2])
    return rotation[2], head.D


@inline
def store_context(head, row, rows, column, tile, norms):
    """Store a tile of sums, (rows, NR), times the norms of its rows, in the context from this column on."""
    context = floats_at(head.context)
    for i in range(rows):
        norm, target = broadcast(norms[i]), (row + i) * head.context_stride + column
        for j in range(0, min(NR, head.D - column), WIDTH):
            store_up_to(context, target + j, load(tile, i * NR + j) * norm, head.D - column - j)


# --- chunks ----------------------------------------------------------------------------------------------------------


def _product(multiply: Any) -> Any:
    """Make the function that computes c (rows, NR) = a b with a multiplier; nothing is added or fetched ahead."""

    @inline
    def product(rows, a, lda, b, depth, length, c, ldc):
        multiply(rows, a, lda, b, depth, length, c, ldc, _ZERO, b, b, b, _ZERO)

    return product


def _attention_chunk(name: str = "", words: HeadWords | None = None) -> Any:
    """Make the function that computes one attention head of one sequence, with floats or with words of a format."""
    attention_task = task_at(ATTENTION_WORDS[name] if name else ATTENTION)
    layout, in_words, in_tiles = inline(head_layout(words)), words is not None, False
    most_rows, key_header, value_header, before, of_value_line = np.int64(MR), 0, 0, _ZERO, np.int64(1)
    multipliers, packers = (tile_multiplier(None), tile_multiplier(None)), float_packers
    if words is not None:
        packers, in_tiles, most_rows = word_packers(name, words), words.values.dot.in_tiles, np.int64(words.values.rows)
        key_header, value_header = words.keys.header, words.values.header
        multipliers = tuple(map(amx_attention_multiplier if in_tiles else tile_multiplier, words))
        before, of_value_line = np.int64(words.values.before_scores), np.int64(words.values.word_numbers)
    multiply_keys, multiply_values = map(_product, multipliers)
    pack_keys, pack_values, quantise_queries, round_probs = packers
    begin, end = (begin_tiles, end_tiles) if in_tiles else (do_nothing, do_nothing)
    exponentiate_rows = row_exponentiator(exp2_short, -125.0) if in_words else row_exponentiator(exp2, -127.0)

    @inline
    def key_length(head, at):
        """Return the length of a block of D for `multiply_keys`; with AMX, the distance of the upper bytes."""
        if in_tiles:
            return 2 * at.features
        return at.features if in_words else block_length(head.D)

    @inline
    def value_length(head, seen):
        """Return the length of a block of keys for `multiply_values`; with AMX, the distance of the upper bytes."""
        if in_tiles:
            return (head.S + NR - 1) // NR * NR * FLOAT
        if in_words:
            return seen.depth
        return block_length(head.S) if head.window < 0 else np.int64(KC)

    @inline
    def find_keys(head, at, row, rows, last):
        """Return what a tile of queries sees; `last` is what the tile before sees."""
        if head.window < 0:
            return last
        columns, own_columns = ints_at(head.columns), ints_at(head.query_columns + row * FLOAT)
        low = next_key(columns, last.low, head.S, own_columns[0] - head.window)
        high = next_key(columns, last.high, head.S, own_columns[rows - 1] + head.window + 1)
        first = low // ALIGNED * ALIGNED
        stop, line = min(head.S, (high + ALIGNED - 1) // ALIGNED * ALIGNED), first // of_value_line
        depth = (at.tokens if stop == head.S else stop // of_value_line) - line
        return Seen(first, stop - first, (stop - first + NR - 1) // NR * NR, line, depth, low, high, last.high)

    @inline
    def write_queries(head, at, row, rows, rotation, queries):
        """Write the queries of a tile, (rows, D), as words."""
        query, stride = rotate_queries(head, row, rows, rotation)
        quantise_queries(query, stride, rows, head.D, queries, at.query_distance, key_length(head, at))

    @inline
    def multiply_queries(head, at, seen, rows, query, distance, keys, scores):
        """Compute scores (rows, keys) = query (rows, D) keys^T (D, keys), a panel of NR keys at a time."""
        for p in range(seen.first // NR, (seen.first + seen.keys + NR - 1) // NR):
            panel, target = keys + p * (key_header + at.features) * NR * FLOAT, scores + (p * NR - seen.first) * FLOAT
            multiply_keys(rows, query, distance, panel, at.features, key_length(head, at), target, seen.pitch)

    @inline
    def sum_values(seen, rows, probs, panel, length, tile):
        """Compute tile (rows, NR) = probs (rows, keys) values (keys, NR); each PART of many keys has its own sum."""
        addend = tile + most_rows * NR * FLOAT
        if seen.line > 0:
            header, panel = panel, panel + seen.line * NR * FLOAT
            if in_words:  # the scales take the place of the line before, which later tiles do not need
                for j in range(0, NR, WIDTH):
                    store(floats_at(panel), j, load(floats_at(header), j))
        stop = seen.depth if in_words else min(seen.depth, PART - seen.line % PART)
        multiply_values(rows, probs, seen.pitch, panel, stop, length, tile, _NR)
        while stop < seen.depth:
            more, rest = min(seen.depth - stop, PART), panel + stop * NR * FLOAT
            multiply_values(rows, probs + stop * FLOAT, seen.pitch, rest, more, length, addend, _NR)
            for j in range(0, rows * NR, WIDTH):
                store(floats_at(tile), j, load(floats_at(tile), j) + load(floats_at(addend), j))
            stop += more

    @function
    def attention_chunk(address, chunk, scratch):
        """Compute the head; the address `scratch` has room for `attention_scratch` floats."""
        task = attention_task(address)
        head = head_of(task, chunk)
        if head.Q == 0:
            return
        at = layout(head.S, head.D)
        values, scores, queries = scratch + at.values * FLOAT, scratch + at.scores * FLOAT, scratch + at.queries * FLOAT
        tile, norms = scratch + at.tile * FLOAT, floats_at(scratch + at.norms * FLOAT)
        rotation = (task.angles, task.rotated, scratch + at.rotated * FLOAT)
        tiles, panels = (head.Q + most_rows - 1) // most_rows, (head.D + NR - 1) // NR
        height, taller = head.Q // tiles, head.Q % tiles  # the first `taller` tiles have one row more
        begin(height + min(taller, 1))
        pack_keys(head.key, head.stride, head.S, head.D, scratch, at.features, queries, rotation, head.positions)
        if in_words:
            write_queries(head, at, _ZERO, height + min(taller, 1), rotation, queries)
        pack_values(head.value, head.stride, head.S, head.D, values, at.tokens)
        row, seen = _ZERO, Seen(_ZERO, head.S, at.score_distance, _ZERO, at.tokens, _ZERO, _ZERO, _ZERO)
        for t in range(tiles):
            rows = height + 1 if t < taller else height
            query, distance = head.query + row * head.query_stride * FLOAT, head.query_stride
            context = head.context + row * head.context_stride * FLOAT
            for p in range(panels):
                prefetch_tile(rows, query + (rows * distance + p * NR) * FLOAT, distance)  # of the next tile
                prefetch_tile(rows, context + p * NR * FLOAT, head.context_stride)
            if in_words:
                query, distance = queries, at.query_distance
            else:
                query, distance = rotate_queries(head, row, rows, rotation)
            seen = find_keys(head, at, row, rows, seen)
            # scores = query keys^T; only a bias needs the factor 1 / sqrt(D) at once
            multiply_queries(head, at, seen, rows, query, distance, scratch, scores)
            if in_words and t + 1 < tiles:  # early, because AMX waits for numbers that were just written
                write_queries(head, at, row + rows, height + (t + 1 < taller), rotation, queries)
            place_scores(head, seen, row, rows, floats_at(scores))
            # exponentials = e^(scores - maximum), and the norm of each row, which makes probs of them
            scale, length = head.factor * BITS_PER_E, value_length(head, seen)
            exponentiate_rows(floats_at(scores), rows, seen.first, seen.keys, seen.pitch, scale, norms)
            if head.probs != 0:
                keep_probs(head, seen, row, rows, floats_at(scores), norms)
            if in_words:
                round_probs(scores, rows, seen.keys, seen.pitch, length, norms)
            # context = probs values: the exponentials times the values, times the norms
            for p in range(panels):
                panel = values + p * (value_header + at.tokens) * NR * FLOAT
                sum_values(seen, rows, scores - before * FLOAT, panel, length, tile)
                store_context(head, row, rows, p * NR, floats_at(tile), norms)
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
