"""The numbers of attention as the micro-kernels read them: keys and values in panels, queries and probs in rows.

What        `float_layout` has the functions for floats, and `word_layout` makes those for words, which have integers of
            16 bits (bert/low_precision.py)
Layout      Keys are transposed into panels [S / NR][D][NR], values are copied into panels [D / NR][S][NR]. In words, a
            panel begins with a line of scales. Each of its other lines has two numbers of each column: features of the
            keys, or tokens of the values. A row of queries or of probs is its scale, then its words
AMX         It multiplies bytes (low_precision.py). So the lines of a panel have four bytes of each column: first the
            lower bytes of all numbers, then the upper ones. A row has its scale in a cache line of its own, then all
            lower bytes, and at a distance the upper ones. The probs replace the scores in place: the lower bytes of a
            number are written where scores have been read, but the upper ones are written after the row
Edges       Columns beyond the last token have the key of the last token. In panels of words, features and tokens beyond
            the last one are 0 (if the numbers are finite), so a row may have any numbers there
Contract    Callers have checked every shape; the code here does not check bounds
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minibert.bert.low_precision import PROB_MOST, PROB_TOTAL, VALUE_MOST
from minibert.kernels.compilation import function, inline
from minibert.kernels.gemm import UNROLL
from minibert.kernels.low_precision import (
    byte_words,
    factor_of,
    larger_size,
    largest_size,
    pair_words,
    round_lanes,
    scale_of,
    store_integers,
    whole_lanes,
)
from minibert.kernels.processor import NR, TILE_BYTES, WIDTH, Words
from minibert.kernels.simd import broadcast, floats_at, load, load_first, number, store, sum_lanes, transpose_block
from minibert.kernels.threads import FLOAT

_ZERO, _NR, _WIDTH = np.int64(0), np.int64(NR), np.int64(WIDTH)  # int64, as in gemm.py


class Layout(NamedTuple):
    """A layout of the numbers of attention, and the functions that write it."""

    count_lines: Any  # function of a number of features or tokens: the lines of a panel without its line of scales
    scales: Any  # lines of scales of a panel
    header: Any  # words of a row of queries before its numbers; the first one is the scale
    before: Any  # floats of a row of scores before its scores, which become the header of the probs
    pack_keys: Any
    pack_values: Any
    quantise_queries: Any = None
    round_probs: Any = None


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


float_layout = Layout(inline(lambda count: count), _ZERO, _ZERO, _ZERO, pack_float_keys, pack_float_values)


# --- words -----------------------------------------------------------------------------------------------------------


@inline
def _most_of_products(D):
    """Return the largest integer of which D squares have a sum below 2^31, at most that of 16 bits."""
    return np.float32(min(np.floor(np.sqrt(2147483647.0 / D)), 32767.0))


@inline
def rounded_feature(lines, d, D, factor):
    """Return feature d of WIDTH tokens as integers of `round_lanes`; those from D on are 0."""
    return round_lanes(load(lines, d * WIDTH) if d < D else number(0.0), factor)


@inline
def rounded_token(source, stride, S, j, d, D, factor):
    """Return WIDTH features of token j, from d on, as integers of `round_lanes`; tokens from S on are 0."""
    return round_lanes(load_features(source, j * stride, d, D) if j < S else number(0.0), factor)


def word_layout(words: Words) -> Layout:
    """Make the functions that write words, for the tiles of AMX or for instructions on vectors.

    `store_numbers` stores WIDTH integers of `round_lanes` in a row, from number i on; the upper bytes are `distance`
    further. `store_four` stores the numbers i to i + 3 of WIDTH columns in a panel with this number of lines.
    """
    if words.dot.in_tiles:
        unit, header = np.int64(TILE_BYTES // 2), np.int64(TILE_BYTES // FLOAT)
        before = header
        store_lower, store_upper = store_integers(1), store_integers(1, byte=1)
        lower_words, upper_words = byte_words(0), byte_words(1)

        @inline
        def store_numbers(row, distance, i, whole):
            store_lower(row + TILE_BYTES + i, whole)
            store_upper(row + TILE_BYTES + distance + i, whole)

        @inline
        def store_four(panel, place, lines, i, x0, x1, x2, x3):
            store(panel, (1 + i // 4) * NR + place, lower_words(x0, x1, x2, x3))
            store(panel, (1 + lines // 2 + i // 4) * NR + place, upper_words(x0, x1, x2, x3))

    else:
        unit, header, before = np.int64(UNROLL), np.int64(1), _ZERO
        store_shorts = store_integers(2)

        @inline
        def store_numbers(row, distance, i, whole):
            store_shorts(row + FLOAT + 2 * i, whole)

        @inline
        def store_four(panel, place, lines, i, x0, x1, x2, x3):
            store(panel, (1 + i // 2) * NR + place, pair_words(x0, x1))
            store(panel, (2 + i // 2) * NR + place, pair_words(x2, x3))

    @inline
    def count_lines(count):
        return (count + 2 * unit - 1) // (2 * unit) * unit

    @function
    def pack_key_words(key, stride, S, D, keys, features, transposed):
        """Fill panels with the keys as words, each with a scale; `transposed` is memory for D x WIDTH floats."""
        lines, most = floats_at(transposed), _most_of_products(D)
        for j in range(0, (S + NR - 1) // NR * NR, WIDTH):
            transpose_keys(key + j * stride * FLOAT, stride, S - j, D, transposed, _WIDTH)
            panel = floats_at(keys + (j // NR * (1 + features) * NR + j % NR) * FLOAT)
            sizes = number(0.0)
            for d in range(D):
                sizes = larger_size(sizes, load(lines, d * WIDTH))
            store(panel, 0, scale_of(sizes, broadcast(most)))
            factor = factor_of(sizes, broadcast(most))
            for d in range(0, 2 * features, 4):
                x0, x1 = rounded_feature(lines, d, D, factor), rounded_feature(lines, d + 1, D, factor)
                x2, x3 = rounded_feature(lines, d + 2, D, factor), rounded_feature(lines, d + 3, D, factor)
                store_four(panel, _ZERO, features, d, x0, x1, x2, x3)

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
                first = p * NR + d
                for j in range(0, 2 * tokens, 4):
                    x0 = rounded_token(source, stride, S, j, first, D, factor)
                    x1 = rounded_token(source, stride, S, j + 1, first, D, factor)
                    x2 = rounded_token(source, stride, S, j + 2, first, D, factor)
                    x3 = rounded_token(source, stride, S, j + 3, first, D, factor)
                    store_four(panel, d, tokens, j, x0, x1, x2, x3)

    @function
    def quantise_queries(query, stride, rows, D, queries, features):
        """Fill queries[i] with the scale and the words of a row of queries."""
        most = _most_of_products(D)
        for i in range(rows):
            source, target = floats_at(query + i * stride * FLOAT), queries + i * (header + features) * FLOAT
            sizes = number(0.0)
            for d in range(0, D, WIDTH):
                sizes = larger_size(sizes, load_features(source, _ZERO, d, D))
            size = largest_size(sizes)
            floats_at(target)[0] = scale_of(size, most)
            factor = broadcast(factor_of(size, most))
            for d in range(0, D, WIDTH):
                store_numbers(target, 2 * features, d, round_lanes(load_features(source, _ZERO, d, D), factor))

    @function
    def round_probs(scores, rows, S, pitch, distance, norms):
        """Replace each row of exponentials, in place, by words of integers, whose scale is 1.

        In norms, 1 / their sum replaces 1 / its sum. With the sum before rounding, equal probs would all have the same
        rounding error.
        """
        for i in range(rows):
            row = scores + i * pitch * FLOAT
            factor = broadcast(min(np.float32(PROB_MOST), np.float32(PROB_TOTAL) * norms[i]))
            total = number(0.0)
            for j in range(0, S, WIDTH):
                whole = round_lanes(load(floats_at(row), j), factor)
                store_numbers(row - before * FLOAT, distance, j, whole)
                total = total + whole_lanes(whole)
            floats_at(row - before * FLOAT)[0] = np.float32(1.0)
            if norms[i] > 0:  # not if it is NaN
                norms[i] = np.float32(1.0) / sum_lanes(total)

    packers = pack_key_words, pack_value_words, quantise_queries, round_probs
    return Layout(count_lines, np.int64(1), header, before, *packers)
