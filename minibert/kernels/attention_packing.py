"""The numbers of attention as the micro-kernels read them: keys and values in panels, queries and probs in rows.

What        `float_packers` has the functions for floats, and `word_packers` makes those for words (processor.py), which
            have integers of 8 or 16 bits (bert/low_precision.py). processor.head_layout says where they write
Layout      Keys are transposed into panels [S / NR][D][NR], values are copied into panels [D / NR][S][NR]. In words, a
            panel begins with a line of scales. Each of its other lines has two or four numbers of each column: features
            of the keys, or tokens of the values. A row of queries or of probs is its scale, then its words
Offset      An instruction that takes the bytes of x for numbers without a sign multiplies x + 128. So a second line of
            the panel has the numbers with which the sums begin, -128 times the sum of the column
AMX         It multiplies bytes (amx.py). So the lines of a panel have four bytes of each column: first the lower bytes
            of all numbers, then the upper ones, if there are any. A row has its scale in a cache line of its own, then
            all lower bytes, and at a distance the upper ones. The probs replace the scores in place: the lower bytes of
            a number are written where scores have been read, but the upper ones are written after the row
Edges       Columns beyond the last token have the key of the last token. In panels of words, features and tokens beyond
            the last one are 0 (if the numbers are finite), so a row may have any numbers there
Contract    Callers have checked every shape; the code here does not check bounds
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert.bert.low_precision import FORMATS, PROB_MOST, PROB_TOTAL, VALUE_MOST
from minibert.kernels.compilation import function, inline
from minibert.kernels.low_precision import (
    factor_of,
    join_integers,
    larger_size,
    largest_size,
    round_lanes,
    scale_of,
    store_integers,
    take_offset,
    whole_lanes,
)
from minibert.kernels.processor import NR, WIDTH, HeadWords, Words
from minibert.kernels.simd import (
    broadcast,
    floats_at,
    ints_at,
    load,
    load_up_to,
    number,
    store,
    store_up_to,
    sum_lanes,
    transpose_block,
)
from minibert.kernels.threads import FLOAT

_ZERO, _NR, _WIDTH = np.int64(0), np.int64(NR), np.int64(WIDTH)  # int64, as in gemm.py


@function
def rotate_rows(source, stride, rows, D, rotation, positions, target):
    """Fill rows of D numbers with rows of queries or keys, turned by the angles of their positions.

    `rotation` is the address of the table, the numbers of each of its rows, and memory for WIDTH rows that have been
    rotated. `reference.rotate` says what is computed; each product and each sum is rounded.
    """
    table, size, _ = rotation
    half, x, y, angles = size // 2, floats_at(source), floats_at(target), floats_at(table)
    for i in range(rows):
        row, place, angle = i * stride, i * D, ints_at(positions)[i] * size
        for d in range(0, half, WIDTH):
            a, b = load_up_to(x, row + d, half - d), load_up_to(x, row + half + d, half - d)
            cos, sin = load_up_to(angles, angle + d, half - d), load_up_to(angles, angle + half + d, half - d)
            store_up_to(y, place + d, a * cos - b * sin, half - d)
            store_up_to(y, place + half + d, b * cos + a * sin, half - d)
        for d in range(size, D, WIDTH):
            store_up_to(y, place + d, load_up_to(x, row + d, D - d), D - d)


@function
def pack_float_keys(key, stride, S, D, keys, features, transposed, rotation, positions):
    """Fill keys[p][d][j] with feature d of the key of token p NR + j; `features` and `transposed` are not used."""
    for j in range(0, (S + NR - 1) // NR * NR, WIDTH):
        panel = keys + (j // NR * D * NR + j % NR) * FLOAT
        transpose_keys(key, stride, j, S, D, panel, _NR, rotation, positions)


@function
def transpose_keys(key, stride, first, S, D, target, step, rotation, positions):
    """Compute target[d step + j] = key[j stride + d] for WIDTH tokens from `first` on; the last of S counts again.

    The keys are rotated before, if there is a rotation (`rotate_rows`); `positions` has one for each of the S tokens.
    """
    count = S - first
    if rotation[0] != 0:
        first, count = min(first, S - 1), max(1, min(count, WIDTH))
        start = key + first * stride * FLOAT
        rotate_rows(start, stride, count, D, rotation, positions + first * FLOAT, rotation[2])
        key, stride, first = rotation[2], D, _ZERO
    source, keys = floats_at(key + first * stride * FLOAT), floats_at(target)
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
                lanes = load_up_to(source, j * stride + p * NR + d, D - p * NR - d)
                store(target, (p * S + j) * NR + d, lanes)


float_packers = pack_float_keys, pack_float_values, None, None  # as of `word_packers`


# --- words -----------------------------------------------------------------------------------------------------------


@inline
def rounded_feature(lines, d, D, factor):
    """Return feature d of WIDTH tokens as integers of `round_lanes`; those from D on are 0."""
    return round_lanes(load(lines, d * WIDTH) if d < D else number(0.0), factor)


@inline
def rounded_token(source, stride, S, j, d, D, factor):
    """Return WIDTH features of token j, from d on, as integers of `round_lanes`; tokens from S on are 0."""
    return round_lanes(load_up_to(source, min(j, S - 1) * stride + d, D - d), factor if j < S else number(0.0))


def _storers(words: Words) -> tuple[Any, Any]:
    """Make two functions that store integers of `round_lanes` in a row of x and in a panel.

    The first one stores WIDTH integers, from number i on; the upper bytes are `distance` further. The second one stores
    the numbers i to i + 3 of WIDTH columns in a panel with this number of lines.
    """
    size, start, header = words.dot.x_bytes, np.int64(words.unit * FLOAT), np.int64(words.header)
    join_shorts = join_integers(2)
    if size == 2 and not words.dot.in_tiles:
        store_shorts = store_integers(2)

        @inline
        def store_numbers(row, distance, i, whole):
            store_shorts(row + start + 2 * i, whole)

        @inline
        def store_four(panel, place, lines, i, x0, x1, x2, x3):
            store(panel, (header + i // 2) * NR + place, join_shorts(x0, x1))
            store(panel, (header + 1 + i // 2) * NR + place, join_shorts(x2, x3))

        return store_numbers, store_four
    store_lower, store_upper = store_integers(1), store_integers(1, byte=1)
    join_lower, join_upper = join_integers(1), join_integers(1, byte=1)

    @inline
    def store_bytes(row, distance, i, whole):
        store_lower(row + start + i, whole)
        if size == 2:
            store_upper(row + start + distance + i, whole)

    @inline
    def store_four_bytes(panel, place, lines, i, x0, x1, x2, x3):
        store(panel, (header + i // 4) * NR + place, join_shorts(join_lower(x0, x1), join_lower(x2, x3)))
        if size == 2:
            upper = (header + lines // 2 + i // 4) * NR + place
            store(panel, upper, join_shorts(join_upper(x0, x1), join_upper(x2, x3)))

    return store_bytes, store_four_bytes


def word_packers(name: str, words: HeadWords) -> tuple[Any, Any, Any, Any]:
    """Make the functions that write the words of keys, values, queries and probs in the format with this name."""
    (store_query, store_four_features), (store_prob, store_four_tokens) = map(_storers, words)
    query_most, offset, key_header = np.float32(FORMATS[name].x_most), words.keys.dot.offset, words.keys.header
    value_header, before = words.values.header, np.int64(words.values.before_scores)
    of_key_line, of_value_line = np.int64(words.keys.word_numbers), np.int64(words.values.word_numbers)

    @inline
    def most_of_products(D):
        """Compute the same as low_precision.most_of_products."""
        return np.float32(min(np.floor(np.sqrt(2147483647.0 / D)), query_most))

    @function
    def pack_key_words(key, stride, S, D, keys, features, transposed, rotation, positions):
        """Fill panels with the keys as words, each with a scale; `transposed` is memory for D x WIDTH floats."""
        lines, most = floats_at(transposed), most_of_products(D)
        for j in range(0, (S + NR - 1) // NR * NR, WIDTH):
            transpose_keys(key, stride, j, S, D, transposed, _WIDTH, rotation, positions)
            panel = floats_at(keys + (j // NR * (key_header + features) * NR + j % NR) * FLOAT)
            sizes = number(0.0)
            for d in range(D):
                sizes = larger_size(sizes, load(lines, d * WIDTH))
            store(panel, 0, scale_of(sizes, broadcast(most)))
            factor, sums = factor_of(sizes, broadcast(most)), number(0.0)
            for d in range(0, of_key_line * features, 4):
                x0, x1 = rounded_feature(lines, d, D, factor), rounded_feature(lines, d + 1, D, factor)
                x2, x3 = rounded_feature(lines, d + 2, D, factor), rounded_feature(lines, d + 3, D, factor)
                store_four_features(panel, _ZERO, features, d, x0, x1, x2, x3)
                if offset:
                    sums = take_offset(take_offset(take_offset(take_offset(sums, x0), x1), x2), x3)
            if offset:
                store(panel, _NR, sums)

    @function
    def pack_value_words(value, stride, S, D, values, tokens):
        """Fill panels with the values as words, each feature with a scale."""
        source = floats_at(value)
        for p in range((D + NR - 1) // NR):
            panel = floats_at(values + p * (value_header + tokens) * NR * FLOAT)
            for d in range(0, NR, WIDTH):
                sizes, first = number(0.0), p * NR + d
                for j in range(S):
                    sizes = larger_size(sizes, load_up_to(source, j * stride + first, D - first))
                store(panel, d, scale_of(sizes, number(VALUE_MOST)))
                factor = factor_of(sizes, number(VALUE_MOST))
                for j in range(0, of_value_line * tokens, 4):
                    x0 = rounded_token(source, stride, S, j, first, D, factor)
                    x1 = rounded_token(source, stride, S, j + 1, first, D, factor)
                    x2 = rounded_token(source, stride, S, j + 2, first, D, factor)
                    x3 = rounded_token(source, stride, S, j + 3, first, D, factor)
                    store_four_tokens(panel, d, tokens, j, x0, x1, x2, x3)

    @function
    def quantise_queries(query, stride, rows, D, queries, distance, plane):
        """Fill rows of queries, `distance` words apart, with scales and words; upper bytes are `plane` bytes later."""
        most = most_of_products(D)
        for i in range(rows):
            source, target = floats_at(query + i * stride * FLOAT), queries + i * distance * FLOAT
            sizes = number(0.0)
            for d in range(0, D, WIDTH):
                sizes = larger_size(sizes, load_up_to(source, d, D - d))
            size = largest_size(sizes)
            floats_at(target)[0] = scale_of(size, most)
            factor = broadcast(factor_of(size, most))
            for d in range(0, D, WIDTH):
                whole = round_lanes(load_up_to(source, d, D - d), factor)
                if offset:
                    whole = whole + number(offset)
                store_query(target, plane, d, whole)

    @function
    def round_probs(scores, rows, S, pitch, plane, norms):
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
                store_prob(row - before * FLOAT, plane, j, whole)
                total = total + whole_lanes(whole)
            floats_at(row - before * FLOAT)[0] = np.float32(1.0)
            if norms[i] > 0:  # not if it is NaN
                norms[i] = np.float32(1.0) / sum_lanes(total)

    return pack_key_words, pack_value_words, quantise_queries, round_probs
