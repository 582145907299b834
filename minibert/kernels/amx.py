"""The matrix product of words with Intel's AMX, whose registers are matrices of bytes.

What        `amx_multiplier` and `amx_attention_multiplier` make for AMX what gemm.py has for the other instructions:
            the function that multiplies a micro-tile of x by a panel
Registers   An AMX tile has up to 16 rows of 64 bytes. One instruction adds the product of two tiles to a third one:
            (rows, 64) numbers of x times (64, 16) numbers of the weight, whose 16 rows are 16 lines of a panel. The
            numbers are bytes, with a sign or without
Algorithm   A number of int16 is 256 times its upper byte, which has the sign, plus its lower byte. So the product of
            two numbers is four products of bytes. The tiles hold the sums of low low, of low high + high low, and of
            high high. The whole sum of a group is below 2^31, so its 32 bits are right even if those of a part overflow
Loop order  three groups (int16: one; and one at a time, if fewer than three are left) -> their products of bytes, whose
            sums AMX can only write to memory -> four rows at a time: sums -> scales -> totals, which wait in the result
            for the next groups. A product of int8 with three groups at once takes 0.7 of its time with one at once. One
            of int16 takes longer, because the sums of three groups fill 18 kB of the first cache
Attention   A product of attention is one group, however long: its sums stay in tiles until they are complete
Prefetch    A block of one or two micro-tiles waits for the weight: so the next group of the panel is fetched into the
            first cache (int16, up to 8 rows: 10 to 25 % of the time). With more micro-tiles it is as in gemm.py
Cost        Measured on a Xeon with AMX: a product of tiles takes 16 cycles, as does a store, and the load of a
            tile 8. The load takes 47 if its rows cross the borders of cache lines, so each row of x is whole lines. The
            instructions of AVX-512 do not run beside those of AMX: the times of both are added. A group of 16 x 32 x
            128 numbers of int8 takes 330 cycles in a product of 1024 x 1536 x 384. In the first cache, the instructions
            of AMX take 100 of them, and the scales and totals 75
Contract    Callers have checked every shape; the code here does not check bounds. A chunk with AMX begins with
            `begin_tiles` and ends with `end_tiles`, so that the system need not save the tiles of a thread. If the
            tiles have a row more than a micro-tile, the row of x after it is read; its sums are not used
Source      Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from minibert.kernels.compilation import function
from minibert.kernels.lanes import call_llvm
from minibert.kernels.processor import NR, TILE_BYTES, TILE_ROWS, Words
from minibert.kernels.simd import instruction, prefetch, prefetch_second, stack_floats
from minibert.kernels.threads import FLOAT
from minibert.kernels.tile import add_block, finish_tile, load_sums, load_tile, zero_tile

_LONG, _BYTE, _POINTER = ir.IntType(64), ir.IntType(8), ir.IntType(8).as_pointer()
_LINE = NR * FLOAT  # bytes of a line of a panel, and of a row of sums
_NUM_SUMS, _NUM_TILES = 3, 8  # the tiles of sums are the first ones
_X, _WEIGHT = _NUM_SUMS, 5  # the first tiles of x and of the weight
# Bytes of a number -> its products of bytes in order: (byte of x, byte of the weight). (0, 1) and (1, 0) add to the
# same tile, and the second one waits for the first one. So the two others are between them.
_ORDER = {1: ((0, 0),), 2: ((0, 1), (0, 0), (1, 1), (1, 0))}


@instruction(types.void(types.int64))
def begin_tiles(builder: Any, rows: Any) -> None:
    """Set the number of rows of the tiles of sums and of x; tiles of the weight have 16. All rows have 64 bytes."""
    memory = cgutils.alloca_once(builder, ir.ArrayType(_LONG, 8))
    memory.align = TILE_BYTES
    palette, unused = _LONG(1), _LONG(0)
    widths = _LONG(sum(TILE_BYTES << 16 * tile for tile in range(4)))  # of four tiles, 16 bits each
    of_rows = _LONG(sum(1 << 8 * tile for tile in range(_WEIGHT)))  # 8 bits each
    of_weight = _LONG(sum(TILE_ROWS << 8 * tile for tile in range(_WEIGHT, _NUM_TILES)))
    heights = builder.add(builder.mul(rows, of_rows), of_weight)
    for i, field in enumerate((palette, unused, widths, widths, unused, unused, heights, unused)):
        builder.store(field, cgutils.gep_inbounds(builder, memory, 0, i))
    call_llvm(builder, "llvm.x86.ldtilecfg", ir.VoidType(), builder.bitcast(memory, _POINTER))


@instruction(types.void())
def end_tiles(builder: Any) -> None:
    """Empty all tiles."""
    call_llvm(builder, "llvm.x86.tilerelease", ir.VoidType())


def _call_tiles(builder: Any, name: str, tile: int, *others: Any) -> None:
    call_llvm(builder, f"llvm.x86.{name}", ir.VoidType(), _BYTE(tile), *others)


def _move_tile(builder: Any, name: str, tile: int, address: Any, offset: int, stride: Any) -> None:
    pointer = builder.inttoptr(builder.add(address, _LONG(offset)), _POINTER)
    _call_tiles(builder, name, tile, pointer, stride)


def _sums_writer(words: Words, steps: int) -> Any:
    """Make the function that computes sums of the products of a micro-tile, of turns x steps x TILE_BYTES numbers each.

    a, b and sums are the addresses of the numbers of x, of the lines of a panel, and of memory for the sums. The rows
    of x have a distance of `lda` bytes. The upper bytes of x and of the weight are a_plane and b_plane bytes after the
    lower ones. For each byte of the weight and of x, a plane of memory has the sums of TILE_ROWS rows and NR columns;
    planes of the same power of 256 are one.
    """
    planes = words.dot.x_bytes
    powers = range(2 * planes - 1)
    columns = range(0, min(_LINE, TILE_BYTES * (_NUM_SUMS // len(powers))), TILE_BYTES)  # whose sums have tiles at once
    at_once = np.int64(len(columns) * TILE_BYTES)

    @instruction(types.void())
    def clear(builder: Any) -> None:
        for tile in range(len(columns) * len(powers)):
            _call_tiles(builder, "tilezero", tile)

    @instruction(types.void(types.int64, types.int64, types.int64, types.int64, types.int64))
    def add_steps(builder: Any, a: Any, lda: Any, a_plane: Any, b: Any, b_plane: Any) -> None:
        # A tile is loaded while the one before is multiplied, so the next step has other tiles.
        x_tiles, w_tiles = itertools.cycle(range(_X, _WEIGHT)), itertools.cycle(range(_WEIGHT, _NUM_TILES))
        a_planes, b_planes = ([builder.add(x, builder.mul(y, _LONG(i))) for i in range(planes)]
                              for x, y in ((a, a_plane), (b, b_plane)))  # fmt: skip
        for k in range(steps):
            x = [next(x_tiles) for _ in range(planes)]
            for tile, address in zip(x, a_planes, strict=True):
                _move_tile(builder, "tileloadd64", tile, address, k * TILE_BYTES, lda)
            for place, column in enumerate(columns):
                w = [next(w_tiles) for _ in range(planes)]
                for tile, address in zip(w, b_planes, strict=True):
                    _move_tile(builder, "tileloadd64", tile, address, k * TILE_ROWS * _LINE + column, _LONG(_LINE))
                for i, j in _ORDER[planes]:
                    signs = "".join("s" if plane == planes - 1 else "u" for plane in (i, j))
                    _call_tiles(builder, f"tdpb{signs}d", place * len(powers) + i + j, _BYTE(x[i]), _BYTE(w[j]))

    @instruction(types.void(types.int64))
    def write(builder: Any, sums: Any) -> None:
        for place, column in enumerate(columns):
            for power in powers:
                offset = power * TILE_ROWS * _LINE + column
                _move_tile(builder, "tilestored64", place * len(powers) + power, sums, offset, _LONG(_LINE))

    @function
    def write_sums(a, lda, a_plane, b, b_plane, turns, sums):
        for column in range(0, _LINE, at_once):
            clear()
            for k in range(turns):
                add_steps(a + k * steps * TILE_BYTES, lda, a_plane, b + k * steps * TILE_ROWS * _LINE + column, b_plane)
            write(sums + column)

    return write_sums


def _rows_adder(rows: int, words: Words, groups: int) -> Any:
    """Make the function that adds the sums of some groups, times their scales, to the totals of 1 to 4 rows, c."""
    zeros, load = zero_tile(rows), load_sums(rows, words)
    of_panel, of_sums = np.int64(words.group_bytes), np.int64(words.sums_size * FLOAT)

    @function
    def add_rows(sums, x_scales, lda, b, c, ldc, is_first, added, bias, residual):
        totals = zeros(b)
        if not is_first:
            totals = load_tile(totals, c, ldc)
        for g in range(groups):
            totals = add_block(totals, load(sums + g * of_sums), x_scales + g * FLOAT, lda, b + g * of_panel)
        finish_tile(totals, c, ldc, added, bias, residual)

    return add_rows


def _tile_adder(words: Words, groups: int) -> Any:
    """Make the function that adds the sums of some groups, times their scales, to the totals of a micro-tile, c."""
    _1, _2, _3, _4 = (_rows_adder(rows, words, groups) for rows in range(1, 5))

    @function
    def add_tile(rows, sums, x_scales, lda, b, c, ldc, is_first, added, bias, residual):
        for row in range(0, rows, 4):
            s, x, left = sums + row * _LINE, x_scales + row * lda * FLOAT, rows - row
            y, r = c + row * ldc * FLOAT, residual + row * ldc * FLOAT
            if left >= 4:
                _4(s, x, lda, b, y, ldc, is_first, added, bias, r)
            elif left == 3:
                _3(s, x, lda, b, y, ldc, is_first, added, bias, r)
            elif left == 2:
                _2(s, x, lda, b, y, ldc, is_first, added, bias, r)
            else:
                _1(s, x, lda, b, y, ldc, is_first, added, bias, r)

    return add_tile


def amx_multiplier(words: Words) -> Any:
    """Make the `multiply_tile_and_add` of gemm.py for words and up to 16 rows.

    The totals wait in c, while the sums of the next groups are computed.
    """
    depth_of_group, planes = words.form.group, words.dot.x_bytes
    write_sums, at_once = _sums_writer(words, depth_of_group // TILE_BYTES), 3 if planes == 1 else 1
    add_one = _tile_adder(words, 1)
    add_some = _tile_adder(words, at_once) if at_once > 1 else add_one
    memory = stack_floats(at_once * words.sums_size)
    steps, of_x, of_sums = np.int64(words.steps), np.int64(words.steps * FLOAT), np.int64(words.sums_size * FLOAT)
    header, of_panel = np.int64(words.header * _LINE), np.int64(words.group_bytes)
    x_plane, w_plane, once = np.int64(depth_of_group), np.int64(words.steps // planes * _LINE), np.int64(1)

    @function
    def multiply_tile_and_add(rows, a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace):
        sums, x_scales, groups, done = memory(), a + depth * FLOAT, depth // steps, 0
        while done < groups:
            count = at_once if groups - done >= at_once else 1
            for g in range(count):
                if pace * FLOAT > TILE_BYTES:  # a block of one or two micro-tiles
                    for line in range(0, of_panel, TILE_BYTES):
                        prefetch(b + (g + 1) * of_panel + line)
                else:
                    for _ in range(steps):
                        prefetch_second(ahead)
                        ahead += pace * FLOAT
                lines = b + g * of_panel + header
                write_sums(a + g * of_x, lda * FLOAT, x_plane, lines, w_plane, once, sums + g * of_sums)
            is_first, done = done == 0, done + count
            last = added if done == groups else 0
            if count == at_once:
                add_some(rows, sums, x_scales, lda, b, c, ldc, is_first, last, bias, residual)
            else:
                add_one(rows, sums, x_scales, lda, b, c, ldc, is_first, last, bias, residual)
            a, b, x_scales = a + count * of_x, b + count * of_panel, x_scales + count * FLOAT

    return multiply_tile_and_add


@functools.cache
def amx_attention_multiplier(words: Words) -> Any:
    """Make the function that attention calls as `multiply_tile_and_add`, for up to 16 rows.

    A row of x is a cache line with its scale, and its numbers; their upper bytes are `distance` bytes after the lower
    ones. A panel has a line of scales, then `depth` lines with the bytes of four numbers: first the lower bytes of all
    numbers, then the upper ones, if there are any. `ahead` and `pace` are not used.
    """
    write_sums, add_tile, memory = _sums_writer(words, 1), _tile_adder(words, 1), stack_floats(words.sums_size)
    planes = np.int64(words.dot.x_bytes)

    @function
    def multiply_tile(rows, a, lda, b, depth, distance, c, ldc, added, bias, residual, ahead, pace):
        sums, lines = memory(), depth // planes
        write_sums(a + TILE_BYTES, lda * FLOAT, distance, b + _LINE, lines * _LINE, lines // TILE_ROWS, sums)
        is_first = ldc > 0  # always; Numba would compile `add_tile` again for a literal
        add_tile(rows, sums, a, lda, b, c, ldc, is_first, added, bias, residual)

    return multiply_tile
