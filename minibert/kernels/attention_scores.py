"""The scores of a tile of queries: bias, window, and their exponentials, in place.

What        From the scores of a tile, (rows, keys), `place_scores` and `exponentiate_rows` make what attention.py
            multiplies by the values. `place_scores` and `keep_probs` copy what the caller asks for
Window      With a window, each tile of queries has a range of keys: from the first key of its first query to the last
            one of its last query, and up to ALIGNED more on both sides, whose scores become -infinity. The blocks of
            partial sums begin at the same keys for all tiles, because a range begins at a multiple of ALIGNED, and a
            part at a multiple of PART; so a row's bits do not depend on the tile. The scales of values in words are
            those of the whole sequence
Edges       Columns beyond the last token have the key of the last token. Up to the next multiple of WIDTH their scores
            become -infinity; the others are not read
Contract    Callers have checked every shape; the code here does not check bounds
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minibert.bert.low_precision import KEYS_OF_A_SUM
from minibert.kernels.compilation import function, inline
from minibert.kernels.gemm import KC
from minibert.kernels.processor import NR, WIDTH
from minibert.kernels.simd import (
    broadcast,
    first_lanes,
    floats_at,
    ints_at,
    largest,
    load,
    maximum,
    number,
    store,
    store_up_to,
    sum_lanes,
)
from minibert.kernels.threads import FLOAT

_ZERO = np.int64(0)
PART = np.int64(KEYS_OF_A_SUM)

# --- bias ------------------------------------------------------------------------------------------------------------


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


# --- window ----------------------------------------------------------------------------------------------------------

ALIGNED = np.int64(math.lcm(NR, KC))


@inline
def next_key(columns, key, S, column):
    """Return the first of S keys, from this one on, whose column is at least `column`."""
    while key < S and columns[key] < column:
        key += 1
    return key


@function
def hide_keys(scores, rows, columns, query_columns, window, seen, hidden):
    """Replace the scores of keys outside the window of each row, among those that the tile sees, by `hidden`."""
    begin, end, after = seen.low, seen.last_high, seen.first + seen.keys
    for i in range(rows):
        begin = next_key(columns, begin, after, query_columns[i] - window)
        end = next_key(columns, max(begin, end), after, query_columns[i] + window + 1)
        for part in range(2):
            start, stop = (_ZERO, begin - seen.first) if part == 0 else (end - seen.first, seen.keys)
            for j in range(start, stop, WIDTH):
                store_up_to(scores, i * seen.pitch + j, number(hidden), stop - j)


# --- softmax ---------------------------------------------------------------------------------------------------------


def row_exponentiator(exp2: Any, smallest: float) -> Any:
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


# --- a tile ----------------------------------------------------------------------------------------------------------


@function
def keep_row(scores, start, seen, S, factor, kept, row, other):
    """Keep row `row` of (row, S): factor * score for the keys that are seen, and `other` for the others."""
    for j in range(seen.first):
        kept[row * S + j] = other
    for j in range(seen.keys):
        kept[row * S + seen.first + j] = factor * scores[start + j]
    for j in range(seen.first + seen.keys, S):
        kept[row * S + j] = other


@inline
def place_scores(head, seen, row, rows, scores):
    """Add the bias to the scores of a tile, (rows, keys), hide keys outside the window, and keep scores if asked."""
    columns, own_columns = ints_at(head.columns), ints_at(head.query_columns + row * FLOAT)
    if head.bias != 0:
        table, middle = floats_at(head.bias), head.distances // 2
        for i in range(rows):
            start, column = i * seen.pitch, own_columns[i]
            add_bias(scores, start, column, seen.first, seen.keys, head.D, columns, table, middle)
    infinite = np.float32(-np.inf)
    if head.window >= 0:
        hide_keys(scores, rows, columns, own_columns, head.window, seen, infinite)
    if head.scores != 0:
        for i in range(rows):
            keep_row(scores, i * seen.pitch, seen, head.S, head.factor, floats_at(head.scores), row + i, infinite)


@inline
def keep_probs(head, seen, row, rows, exponentials, norms):
    """Keep the probs of a tile, (rows, S), which are its exponentials (rows, keys) times the norms of their rows."""
    zero = head.factor - head.factor  # of a constant 0, LLVM would make calls of memset
    if head.window >= 0:  # in words, the least exponential is not 0
        columns, own_columns = ints_at(head.columns), ints_at(head.query_columns + row * FLOAT)
        hide_keys(exponentials, rows, columns, own_columns, head.window, seen, zero)
    for i in range(rows):
        keep_row(exponentials, i * seen.pitch, seen, head.S, norms[i], floats_at(head.probs), row + i, zero)
