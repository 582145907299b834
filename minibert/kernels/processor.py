"""The processor that the kernels are compiled for: registers, instructions, and the layouts that fit them.

What        The level of this process (libraries.py) decides the size of the micro-tile, MR x NR. `words_of` gives the
            layout of a format of bert/low_precision.py, in words of 32 bits; `head_words` and `head_layout` give that
            of an attention head
Registers   A micro-tile of MR rows and NR columns has its sums in registers. Beside them, one vector of each NR columns
            of the weight and one number of x need registers too
Algorithm   An instruction multiplies the two or four numbers of a word of x by those of a word of the weight, and adds
            the products to a sum of 32 bits. With VNNI it is vpdpwssd for int16 and vpdpbusd for int8, whose x does not
            have a sign: x + 128 is multiplied, and the sums begin with -128 times the sum of the weights. ARM has sdot
            for int8. Otherwise vpmaddwd multiplies 16 bits (plain multiplications, if it is not an x86): then x is kept
            in 16 bits, and the weight of int8 is widened to 16 bits when it is loaded
            Intel's AMX multiplies matrices of bytes, four bytes of x by four of the weight in each step
            (amx.py). The two bytes of the numbers of int16 are two planes: first all lower bytes of a group, then all
            upper ones
Layout      A row of x is groups of words, each after a header of one word: its scale. With AMX the scales follow after
            all groups, and a row is filled up to whole cache lines. A panel of the weight is groups of lines, each
            after a header of one or two lines: NR scales, and the numbers with which the sums begin. A line has one
            word (two bytes, if the weight is widened) of each of its NR columns
Attention   A panel has one group of lines, filled up to a whole number of steps of the loop. With AMX, the scale of a
            row has a cache line of its own
Contract    This file does not import numba, because it is read when minibert runs, too
Source      Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; Arm Architecture Reference Manual
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

from minibert.bert.low_precision import BLOCK, FORMATS, FORMATS_OF, Format
from minibert.kernels.libraries import Level, level, level_of

LEVEL = level()
"""The level of this process. All compute types use its registers, also float32, which does not use AMX."""

WIDTH = 16
"""The number of lanes of a vector; a lane is one number of it. It is the same on every processor (see simd.py)."""

REGISTER_LANES = 16 if "avx512f" in LEVEL.features else 8 if "avx" in LEVEL.features else 4
"""The number of float32 in one register of the processor."""

ARM64 = LEVEL.machine == "arm64"
"""Whether the processor is a 64-bit ARM; if not, it is a 64-bit x86."""

REGISTERS = 32 if REGISTER_LANES == 16 or ARM64 else 16
"""The number of vector registers of the processor."""

NR = max(WIDTH, 2 * REGISTER_LANES)
"""The number of columns of a micro-tile, and of a panel of a packed weight."""

MR = 5 if REGISTER_LANES == 8 else min(7, (REGISTERS - 1) * REGISTER_LANES // NR - 1)
"""The number of rows of a micro-tile: 7 x 32 with AVX-512, 5 x 16 with AVX2, 6 x 16 with NEON, 2 x 16 with SSE.

With AVX2 there are registers for six rows, but then none for the totals. On a Zen 3, 1,020 rows take 1.05 to 1.07 times
as long with six, and 8 to 16 rows the same time; with four, many rows take 0.98, and 22 rows 1.05."""

UNROLL = 4
"""Lines of a panel in one turn of the inner loop; divides the lengths of all blocks. Not measured with other values."""


def processor_name() -> str:
    """Return the name of the level of this process, and the width of the registers that its kernels use."""
    return f"{LEVEL.name}, {32 * REGISTER_LANES} bits"


# --- low precision ---------------------------------------------------------------------------------------------------

_WORD = 4  # bytes
TILE_ROWS, TILE_BYTES = 16, 64  # of a register of AMX: rows, and bytes of a row


class Dot(NamedTuple):
    """The instruction with which a processor multiplies words, and its layout of numbers."""

    name: str  # of the instruction in LLVM, after "llvm."; "AMX" for its instructions; "" for plain multiplications
    lanes: int  # words that one instruction multiplies
    adds: bool  # whether it adds the products to the sums
    x_bytes: int  # of a number of x; a word has 4 / x_bytes numbers
    w_bytes: int  # of a number of the weight
    offset: int = 0  # 0, or 128: is added to x, because the instruction takes it for a number without a sign
    in_tiles: bool = False  # whether it multiplies matrices of bytes, the tiles of AMX


def dot_for(form: Format, used: Level) -> Dot:
    """Return the best instruction of a level for a format."""
    features, w_bytes = used.features, 2 if form.weight_most > 127 else 1
    if "amx-int8" in features:
        return Dot("AMX", TILE_BYTES // _WORD, True, w_bytes, w_bytes, in_tiles=True)
    vnni = 512 if "avx512vnni" in features else 256 if "avxvnni" in features else 0
    if vnni and w_bytes == 2:
        return Dot(f"x86.avx512.vpdpwssd.{vnni}", vnni // 32, True, 2, 2)
    if vnni:
        return Dot(f"x86.avx512.vpdpbusd.{vnni}", vnni // 32, True, 1, 1, offset=128)
    if w_bytes == 1 and "dotprod" in features:
        return Dot("aarch64.neon.sdot.v4i32.v16i8", 4, True, 1, 1)
    if used.machine != "x86_64":
        return Dot("", 16, False, 2, w_bytes)
    if "avx512bw" in features:
        return Dot("x86.avx512.pmaddw.d.512", 16, False, 2, w_bytes)
    return Dot("x86.avx2.pmadd.wd", 8, False, 2, w_bytes)


class Words(NamedTuple):
    """The layout of x and of a weight in a format, on this processor."""

    form: Format
    dot: Dot

    @property
    def steps(self) -> int:
        """The number of words of a group in a row of x, and of lines of a group in a panel."""
        return self.form.group * self.dot.x_bytes // _WORD

    @property
    def header(self) -> int:
        """The number of header lines before the lines of a group in a panel, each NR numbers of 4 bytes."""
        return 2 if self.dot.offset else 1

    @property
    def line(self) -> int:
        """The size of a line of a panel in bytes."""
        return NR * _WORD * self.dot.w_bytes // self.dot.x_bytes

    @property
    def group_bytes(self) -> int:
        """The size of a group in a panel in bytes."""
        return self.header * NR * _WORD + self.steps * self.line

    @property
    def rows(self) -> int:
        """The largest number of rows of a micro-tile."""
        return TILE_ROWS if self.dot.in_tiles else MR

    @property
    def sums_size(self) -> int:
        """The count of 4-byte numbers that AMX writes per group of a micro-tile: TILE_ROWS x NR per tile of sums."""
        return (2 * self.dot.x_bytes - 1) * TILE_ROWS * NR

    @property
    def x_header(self) -> int:
        """The number of header words before the words of a group in a row of x."""
        return 0 if self.dot.in_tiles else 1

    @property
    def group_distance(self) -> int:
        """The distance from a group to the next one in a row of x, in words."""
        return self.x_header + self.steps

    @property
    def scale_distance(self) -> int:
        """The distance from the scale of a group to the next scale in a row of x, in words."""
        return self.group_distance if self.x_header else 1

    @property
    def unit(self) -> int:
        """The number of scales in a row of x is a multiple of this; in attention, a row has so many words for one."""
        return TILE_BYTES // _WORD if self.dot.in_tiles else 1

    @property
    def before_scores(self) -> int:
        """The number of words before a row of scores; they become the header of its probs. 0 without AMX."""
        return self.unit if self.dot.in_tiles else 0

    @property
    def word_numbers(self) -> int:
        """The count of numbers in a word of x."""
        return _WORD // self.dot.x_bytes

    @property
    def step_numbers(self) -> int:
        """The count of numbers to a multiple of which a row and a panel of attention are filled up."""
        return TILE_BYTES if self.dot.in_tiles else UNROLL * self.word_numbers

    def row_size(self, K: int) -> int:
        """Return the number of words of a row of x with K features."""
        return row_layout(self)(K)[1]

    def panel_shape(self, K: int) -> tuple[int, int]:
        """Return the shape of a panel for K features: (groups, words of a group)."""
        return self.form.groups(K), self.group_bytes // _WORD


def row_layout(words: Words | None) -> Callable[[int], tuple[int, int, int]]:
    """Make the function that returns the layout of rows of K features; the kernels compile it, too.

    It returns the steps of a row, the distance from a row of x to the next one, and the size of a panel, in words.
    """
    if words is None:
        return lambda K: (K, K, K * NR)
    of_block, steps, unit, size = BLOCK // words.form.group, words.steps, words.unit, words.group_bytes // _WORD

    def layout(K: int) -> tuple[int, int, int]:
        groups = (K + BLOCK - 1) // BLOCK * of_block
        return groups * steps, groups * steps + (groups + unit - 1) // unit * unit, groups * size

    return layout


@functools.cache
def words_of(name: str) -> Words:
    """Return the layout of the format with this name. In a process with AMX, the first call asks the system for it.

    Raises
    ------
    ImportError
        The library of this processor does not have low precision.
    """
    compiles = "MINIBERT_COMPILED_LEVEL" in os.environ
    return Words(FORMATS[name], dot_for(FORMATS[name], LEVEL if compiles else level_of(name)))


def is_faster(compute_type: str) -> bool:
    """Return whether a compute type is at least as fast as float32 on this processor; the rule was measured on x86-64.

    On a Xeon that acts as other processors, the products of int16 and int8 take 0.82 and 0.83 times as long as those of
    float32 with AVX2 alone, and 0.95 and 0.97 with AVX-512 without VNNI. On a Zen 5 it is 0.69 and 0.77, and 0.69 and
    0.74 (int8 with groups of 64 features). On a Zen 3, which has AVX2 alone, it is 0.66 and 0.67. Measured with
    benchmarks/low_precision_processors.py.
    """
    return all(words_of(name).dot.name for name in FORMATS_OF[compute_type])


# --- attention -------------------------------------------------------------------------------------------------------

LEAST_IN_TILES = 3200
"""In low precision, AMX computes a head with more tokens times features than this. For int16 with D = 32 and 64 on a
Xeon, the time of AMX divided by that of VNNI is 1.3 and 1.2 for 22 tokens, 1.1 and 0.9 for 64, 0.93 and 0.72 for 128,
0.8 and 0.6 for 512. The limit of int8 was not measured."""


class HeadWords(NamedTuple):
    """The layouts of attention in low precision: one of queries and keys, one of probs and values."""

    keys: Words
    values: Words


def head_words(name: str, in_tiles: bool = True) -> HeadWords:
    """Return the words of attention in the format with this name; `in_tiles` allows AMX.

    Queries and keys of int8 are in the words of int16, if no instruction multiplies four bytes at once.
    """
    forms, vectors = (FORMATS[name], FORMATS["int16"]), LEVEL._replace(features=LEVEL.features - {"amx-int8"})
    keys, values = (words_of(form.name) if in_tiles else Words(form, dot_for(form, vectors)) for form in forms)
    return HeadWords(keys if keys.dot.x_bytes == 1 else values, values)


class HeadLayout(NamedTuple):
    """Where the parts of an attention head are in its memory, in words of 4 bytes; the keys begin at 0.

    Parameters
    ----------
    features, tokens : int                          lines of a panel of keys, and of values, without their headers
    query_distance, score_distance : int            from one row to the next one
    values, scores, tile, queries, norms : int      where they begin: two tiles of the context, a norm for each row
    rotated : int                                   where WIDTH rows of rotated queries or keys begin
    size : int                                      of all parts
    """

    features: int
    tokens: int
    query_distance: int
    score_distance: int
    values: int
    scores: int
    tile: int
    queries: int
    norms: int
    rotated: int
    size: int


def head_layout(words: HeadWords | None) -> Callable[[int, int], HeadLayout]:
    """Make the function that returns the layout of a head of S tokens and D features; the kernels compile it, too."""
    rows, key_step, key_lines, value_step, value_lines = MR, 1, 1, 1, 1
    key_header = value_header = row_header = before = query_rows = transposed = beyond = 0
    if words is not None:
        keys, values = words
        rows, key_header, value_header, row_header = values.rows, keys.header, values.header, keys.unit
        key_step, value_step, before = keys.step_numbers, values.step_numbers, values.before_scores
        key_lines, value_lines = key_step // keys.word_numbers, value_step // values.word_numbers
        query_rows, transposed = rows, WIDTH  # the keys are transposed where the queries will be
        beyond = max(0, WIDTH - key_step) // keys.word_numbers  # a row of queries is written in whole vectors

    def layout(S: int, D: int) -> HeadLayout:
        columns, value_columns = (S + NR - 1) // NR * NR, (D + NR - 1) // NR * NR
        features = (D + key_step - 1) // key_step * key_lines
        tokens = (S + value_step - 1) // value_step * value_lines
        query_distance = row_header + features
        score_distance = before + columns + (tokens // 2 if before else 0)  # the last are the upper bytes of probs
        first_value = columns * (key_header + features)
        scores = first_value + value_columns * (value_header + tokens) + before
        tile = scores + rows * score_distance
        queries = tile + 2 * rows * NR
        norms = queries + max(query_rows * query_distance + beyond, D * transposed)
        rotated = norms + rows
        size = rotated + WIDTH * D
        return HeadLayout(
            features, tokens, query_distance, score_distance, first_value, scores, tile, queries, norms, rotated, size
        )

    return layout
