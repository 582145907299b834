"""Low precision: the quantisation of x, and the matrix product of words with Intel's AMX (registers that are matrices).

What        `quantisers` makes the chunks of a task and the source of a small product: groups of features ->
            integers and a scale, with the bits of low_precision.quantise, in the layout of words (processor.py).
            `amx_multiplier` and `amx_attention_multiplier` do for AMX what the micro-kernels of gemm.py do for the
            other instructions

Quantisation
------------
Layout      16 features are a vector, so a block of 128 features is eight vectors. The Hadamard matrix is three rounds
            of sums and differences of these vectors and, in int8, four rounds of those of their lanes. For AMX, each
            byte of the integers of a group is written to a plane of its own
Numerics    x factor + 1.5 2^23 is rounded once, to a float32 without digits after the point. Its last 8 or 16 bits are
            the integer. No number, not even NaN, has an undefined result here, as in a conversion to an integer
Prefetch    The features of eight blocks later are fetched into the first cache. On a Xeon with a slow third cache, 4096
            rows of 1,536 features take half the time, and 1024 rows a tenth less. 2 and 4 blocks gain less, 16 the same
Edges       The last features of a row are copied into a block that is filled up with zeros

AMX
---
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

from minibert.bert.low_precision import BLOCK, SMALLEST, Format
from minibert.kernels.compilation import function, inline
from minibert.kernels.ops import LINEAR_WORDS, QUANTISE, ROWS
from minibert.kernels.processor import NR, TILE_BYTES, TILE_ROWS, WIDTH, Words
from minibert.kernels.simd import (
    FLOATS,
    INTS,
    call_llvm,
    combine_lanes,
    floats_at,
    fma,
    fma_lanes,
    instruction,
    load_first,
    load_lanes,
    number,
    prefetch,
    prefetch_second,
    splat,
    stack_floats,
    store,
    task_at,
    vector,
)
from minibert.kernels.threads import FLOAT
from minibert.kernels.tile import add_block, finish_tile, load_sums, load_tile, pointer_at, zero_tile

# --- quantisation ----------------------------------------------------------------------------------------------------

_ROUNDS = 1.5 * 2.0**23  # a number of this size has the whole numbers as its neighbours
_ZERO = np.int64(0)
_AHEAD = np.int64(8 * BLOCK)  # floats
_block = stack_floats(BLOCK)
_FLOAT, _INT = FLOATS.element, INTS.element
_SIZE, _INFINITY, _NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # the bits without the sign; of infinity; of NaN


def _number(value: float) -> Any:
    return ir.Constant(_FLOAT, value)


def _turn(builder: Any, vectors: list[Any], form: Format) -> list[Any]:
    """Negate some vectors, then multiply by the Hadamard matrix: sums and differences of vectors, then of lanes."""
    vectors = [builder.fneg(vector) if i in form.negated else vector for i, vector in enumerate(vectors)]
    for distance in form.distances:
        if distance >= WIDTH:
            apart = distance // WIDTH
            for i in (i for i in range(len(vectors)) if not i & apart):
                pair = vectors[i], vectors[i + apart]
                vectors[i], vectors[i + apart] = builder.fadd(*pair), builder.fsub(*pair)
        else:
            signs = ir.Constant(FLOATS, [-1.0 if lane & distance else 1.0 for lane in range(WIDTH)])
            others = ir.Constant(INTS, [lane ^ distance for lane in range(WIDTH)])
            vectors = [fma_lanes(builder, v, signs, builder.shuffle_vector(v, v, others)) for v in vectors]
    return vectors


def _block_quantiser(words: Words) -> Any:
    """Make the function that quantises the BLOCK floats at an address x.

    It writes the integers of the first group to an address q, and its scale to an address s.
    """
    form, dot = words.form, words.dot
    planes = dot.x_bytes if dot.in_tiles else 1
    narrow = ir.VectorType(ir.IntType(8 * dot.x_bytes // planes), WIDTH)

    @instruction(types.void(types.int64, types.int64, types.int64))
    def quantise_block(builder: Any, x: Any, q: Any, s: Any) -> None:
        def halve(vectors: list[Any], combine: Any) -> Any:
            while len(vectors) > 1:
                half = len(vectors) // 2
                vectors = [combine(*pair) for pair in zip(vectors[:half], vectors[half:], strict=True)]
            return vectors[0]

        def size_of(group: list[Any]) -> Any:
            """Return the bits of a group's size; compared as integers, they have the same order as the sizes."""
            sizes = [builder.and_(builder.bitcast(x, INTS), ir.Constant(INTS, [_SIZE] * WIDTH)) for x in group]
            most = halve(sizes, functools.partial(call_llvm, builder, f"llvm.smax.v{WIDTH}i32", INTS))
            most = call_llvm(builder, f"llvm.vector.reduce.smax.v{WIDTH}i32", _INT, most)
            if form.total >= form.group:
                return most
            part = ir.Constant(FLOATS, [1.0 / form.total] * WIDTH)
            lanes = halve([builder.fmul(builder.bitcast(x, FLOATS), part) for x in sizes], builder.fadd)
            total = combine_lanes(builder, lanes, lambda builder, x, y: builder.fadd(x, y))
            return call_llvm(builder, "llvm.smax.i32", _INT, most, builder.bitcast(total, _INT))

        vectors = [load_lanes(builder, pointer_at(builder, x, _FLOAT, i)) for i in range(0, BLOCK, WIDTH)]
        vectors = _turn(builder, vectors, form)
        each = form.group // WIDTH
        for g in range(BLOCK // form.group):
            group = vectors[g * each : (g + 1) * each]
            bits = size_of(group)
            size = builder.bitcast(bits, _FLOAT)
            nothing = builder.fcmp_ordered("<", size, _number(SMALLEST))
            factor = builder.select(nothing, _number(0.0), builder.fdiv(_number(form.x_most), size))
            scale = builder.fmul(size, _number(1.0 / form.x_most))
            scale = builder.select(nothing, _number(0.0), scale)
            is_finite = builder.icmp_signed("<", bits, ir.Constant(_INT, _INFINITY))
            scale = builder.select(is_finite, builder.bitcast(scale, _INT), ir.Constant(_INT, _NAN))
            builder.store(scale, pointer_at(builder, s, _INT, g * words.scale_distance)).align = 4
            factors, rounds = splat(builder, factor), ir.Constant(FLOATS, [_ROUNDS + dot.offset] * WIDTH)
            for i, lanes in enumerate(group):
                rounded = builder.bitcast(fma_lanes(builder, lanes, factors, rounds), INTS)
                for plane in range(planes):
                    start = g * words.group_distance * FLOAT + (plane * form.group + i * WIDTH) * (
                        dot.x_bytes // planes
                    )
                    place = pointer_at(builder, q, ir.IntType(8), start)
                    shifted = builder.lshr(rounded, ir.Constant(INTS, [8 * plane] * WIDTH))
                    place = builder.bitcast(place, narrow.as_pointer())
                    builder.store(builder.trunc(shifted, narrow), place).align = 4

    return quantise_block


def quantisers(words: Words) -> tuple[Any, Any]:
    """Make two functions: one quantises ROWS rows of a task, the other quantises the source of a product."""
    quantise_block = _block_quantiser(words)
    groups_of_block, steps = np.int64(BLOCK // words.form.group), np.int64(words.steps)
    header, unit = np.int64(words.x_header), np.int64(words.scales_unit)
    group_distance, scale_distance = np.int64(words.group_distance), np.int64(words.scale_distance)
    quantise_task, linear_task = task_at(QUANTISE[words.form.name]), task_at(LINEAR_WORDS[words.form.name])

    @function
    def quantise_rows(x, K, first, last, q):
        blocks, block = (K + BLOCK - 1) // BLOCK, _block()
        groups = blocks * groups_of_block
        row_size = groups * steps + (groups + unit - 1) // unit * unit
        first_scale = 0 if header else groups * steps
        for row in range(first, last):
            for b in range(blocks):
                source, count = x + (row * K + b * BLOCK) * FLOAT, K - b * BLOCK
                for i in range(0, BLOCK, WIDTH):
                    prefetch(source + (_AHEAD + i) * FLOAT)
                if count < BLOCK:
                    for i in range(0, BLOCK, WIDTH):
                        store(floats_at(block), i, load_first(floats_at(source), i, count - i))
                    source = block
                group, start = b * groups_of_block, row * row_size
                numbers, scale = header + group * group_distance, first_scale + group * scale_distance
                quantise_block(source, q + (start + numbers) * FLOAT, q + (start + scale) * FLOAT)

    @function
    def quantise_chunk(address, chunk):
        task = quantise_task(address)
        quantise_rows(task.x, task.K, chunk * ROWS, min(task.M, (chunk + 1) * ROWS), task.y)

    @function
    def quantise_source(address):
        task = linear_task(address)
        if task.source != 0:
            quantise_rows(task.source, task.K, _ZERO, task.M, task.x)

    return quantise_chunk, quantise_source


# The next ones are for attention, whose numbers have 16 bits.


@instruction(vector(vector, vector))
def larger_size(builder: Any, size: Any, x: Any) -> Any:
    """Compute the larger of a size and |x| in each lane; NaN is larger than infinity."""
    sizes = builder.bitcast(size, INTS), builder.and_(builder.bitcast(x, INTS), ir.Constant(INTS, [_SIZE] * WIDTH))
    return builder.bitcast(call_llvm(builder, f"llvm.smax.v{WIDTH}i32", INTS, *sizes), FLOATS)


@instruction(types.float32(vector))
def largest_size(builder: Any, size: Any) -> Any:
    """Find the largest lane; NaN is larger than infinity."""
    return builder.bitcast(
        call_llvm(builder, f"llvm.vector.reduce.smax.v{WIDTH}i32", _INT, builder.bitcast(size, INTS)), _FLOAT
    )


def _constant(size: Any, value: float) -> Any:
    return ir.Constant(size.type, [value] * WIDTH if size.type == FLOATS else value)


def _select_small(builder: Any, size: Any, other: Any) -> Any:
    small = builder.fcmp_ordered("<", size, _constant(size, SMALLEST))
    return builder.select(small, _constant(size, 0.0), other)


@instruction(lambda size, most: size(size, size))
def factor_of(builder: Any, size: Any, most: Any) -> Any:
    """Compute most / size, of numbers or of vectors; 0 for a size below SMALLEST."""
    return _select_small(builder, size, builder.fdiv(most, size))


@instruction(lambda size, most: size(size, size))
def scale_of(builder: Any, size: Any, most: Any) -> Any:
    """Compute size (1 / most), of numbers or of vectors; 0 for a size below SMALLEST, NaN for one not finite."""
    is_finite = builder.fcmp_ordered("<", size, _constant(size, float("inf")))
    scale = builder.fmul(size, builder.fdiv(_constant(size, 1.0), most))
    scale = builder.select(is_finite, scale, _constant(size, float("nan")))
    return _select_small(builder, size, scale)


@inline
def round_lanes(x, factor):
    """Compute x factor + 1.5 2^23, whose last 16 bits are the integer nearest to x factor."""
    return fma(x, factor, number(_ROUNDS))


@inline
def whole_lanes(rounded):
    """Return the integers of `round_lanes` as floats."""
    return rounded - number(_ROUNDS)


@instruction(vector(vector, vector))
def pair_words(builder: Any, x: Any, y: Any) -> Any:
    """Make words of the integers of `round_lanes`."""
    lower = builder.and_(builder.bitcast(x, INTS), ir.Constant(INTS, [0xFFFF] * WIDTH))
    upper = builder.shl(builder.bitcast(y, INTS), ir.Constant(INTS, [16] * WIDTH))
    return builder.bitcast(builder.or_(lower, upper), FLOATS)


def _integers(builder: Any, x: Any, byte: int = 0) -> Any:
    """Return the bits of the integers of `round_lanes`, from this byte on."""
    return builder.lshr(builder.bitcast(x, INTS), ir.Constant(INTS, [8 * byte] * WIDTH))


def store_integers(size: int, byte: int = 0) -> Any:
    """Make the function that stores `size` bytes of the integers of `round_lanes`, from this byte on."""

    @instruction(types.void(types.int64, vector))
    def store(builder: Any, address: Any, x: Any) -> None:
        narrow = ir.VectorType(ir.IntType(8 * size), WIDTH)
        place = builder.inttoptr(address, narrow.as_pointer())
        builder.store(builder.trunc(_integers(builder, x, byte), narrow), place).align = 4

    return store


def byte_words(byte: int) -> Any:
    """Make the function that makes words of four bytes: this byte of the integers of `round_lanes`."""

    @instruction(vector(vector, vector, vector, vector))
    def words(builder: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> Any:
        parts = []
        for i, x in enumerate((x0, x1, x2, x3)):
            part = builder.and_(_integers(builder, x, byte), ir.Constant(INTS, [0xFF] * WIDTH))
            parts.append(builder.shl(part, ir.Constant(INTS, [8 * i] * WIDTH)))
        lower, upper = builder.or_(*parts[:2]), builder.or_(*parts[2:])
        return builder.bitcast(builder.or_(lower, upper), FLOATS)

    return words


# --- AMX -------------------------------------------------------------------------------------------------------------

_LONG, _BYTE, _POINTER = ir.IntType(64), ir.IntType(8), ir.IntType(8).as_pointer()
_LINE = NR * FLOAT  # bytes of a line of a panel, and of a row of sums
_NUM_SUMS, _NUM_TILES = 3, 8  # the tiles of sums are the first ones
_X, _WEIGHT = _NUM_SUMS, 5  # the first tiles of x and of the weight


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


def _group_multiplier(words: Words) -> Any:
    """Make the function that computes the sums of one group of a micro-tile.

    a, b and sums are the addresses of its numbers in x, of its lines in a panel, and of memory for the sums. The rows
    of x have a distance of `lda` bytes. For each byte of the weight and of x, a plane of memory has the sums of
    TILE_ROWS rows and NR columns; planes of the same power of 256 are one.
    """
    planes, depth = words.dot.x_bytes, words.form.group
    lines = words.steps // planes  # of the panel, with one byte of each number
    powers, columns = range(2 * planes - 1), range(0, _LINE, TILE_BYTES)
    at_once = max(1, _NUM_SUMS // len(powers))  # sums of this number of columns have tiles at the same time

    @instruction(types.void(types.int64, types.int64, types.int64, types.int64))
    def multiply_group(builder: Any, a: Any, lda: Any, b: Any, sums: Any) -> None:
        call, move = functools.partial(_call_tiles, builder), functools.partial(_move_tile, builder)
        # A tile is loaded while the one before is multiplied, so the next tile in turn is another one.
        x_tiles, w_tiles = itertools.cycle(range(_X, _WEIGHT)), itertools.cycle(range(_WEIGHT, _NUM_TILES))
        for first in range(0, len(columns), at_once):
            places = list(enumerate(columns[first : first + at_once]))
            for tile in range(len(places) * len(powers)):
                call("tilezero", tile)
            for k in range(0, depth, TILE_BYTES):
                x = [next(x_tiles) for _ in range(planes)]
                for plane in range(planes):
                    move("tileloadd64", x[plane], a, plane * depth + k, lda)
                for place, column in places:
                    for j in range(planes):
                        w, line = next(w_tiles), j * lines + k // FLOAT
                        move("tileloadd64", w, b, line * _LINE + column, _LONG(_LINE))
                        for i in range(planes):
                            signs = "".join("s" if plane == planes - 1 else "u" for plane in (i, j))
                            call(f"tdpb{signs}d", place * len(powers) + i + j, _BYTE(x[i]), _BYTE(w))
            for place, column in places:
                for power in powers:
                    offset = power * TILE_ROWS * _LINE + column
                    move("tilestored64", place * len(powers) + power, sums, offset, _LONG(_LINE))

    return multiply_group


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
    multiply_group, at_once = _group_multiplier(words), words.groups_at_once
    add_one = _tile_adder(words, 1)
    add_some = _tile_adder(words, at_once) if at_once > 1 else add_one
    memory = stack_floats(at_once * words.sums_size)
    steps, of_x, of_sums = np.int64(words.steps), np.int64(words.steps * FLOAT), np.int64(words.sums_size * FLOAT)
    header, of_panel = np.int64(words.header * _LINE), np.int64(words.group_bytes)

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
                multiply_group(a + g * of_x, lda * FLOAT, b + g * of_panel + header, sums + g * of_sums)
            is_first, done = done == 0, done + count
            last = added if done == groups else 0
            if count == at_once:
                add_some(rows, sums, x_scales, lda, b, c, ldc, is_first, last, bias, residual)
            else:
                add_one(rows, sums, x_scales, lda, b, c, ldc, is_first, last, bias, residual)
            a, b, x_scales = a + count * of_x, b + count * of_panel, x_scales + count * FLOAT

    return multiply_tile_and_add


# Attention has numbers of 16 bits, and sums over all features of a head, or over all tokens.


@instruction(types.void())
def _clear_sums(builder: Any) -> None:
    """Set the tiles of sums to zero."""
    for tile in range(_NUM_SUMS):
        _call_tiles(builder, "tilezero", tile)


@instruction(types.void(types.int64, types.int64, types.int64, types.int64, types.int64))
def _add_bytes(builder: Any, a: Any, lda: Any, a_plane: Any, b: Any, b_plane: Any) -> None:
    """Add the products of 64 numbers of x and of the weight; their upper bytes are a_plane and b_plane after these."""
    for plane in range(2):
        distance = [builder.mul(size, _LONG(plane)) for size in (a_plane, b_plane)]
        _move_tile(builder, "tileloadd64", _X + plane, builder.add(a, distance[0]), 0, lda)
        _move_tile(builder, "tileloadd64", _WEIGHT + plane, builder.add(b, distance[1]), 0, _LONG(_LINE))
    # The second one that adds to a tile waits for the first one, so two others are between them.
    for i, j in ((0, 1), (0, 0), (1, 1), (1, 0)):
        _call_tiles(builder, f"tdpb{'us'[i]}{'us'[j]}d", i + j, _BYTE(_X + i), _BYTE(_WEIGHT + j))


@instruction(types.void(types.int64))
def _write_sums(builder: Any, sums: Any) -> None:
    """Write the tiles of sums, each to a plane of its own."""
    for tile in range(_NUM_SUMS):
        _move_tile(builder, "tilestored64", tile, sums, tile * TILE_ROWS * _LINE, _LONG(_LINE))


def amx_attention_multiplier(words: Words) -> Any:
    """Make the function that attention calls as `multiply_tile_and_add`, for up to 16 rows.

    A row of x is a cache line with its scale, and two planes of bytes with a distance of `distance` bytes. A panel has
    a line of scales, and two planes of lines with the bytes of four numbers. `ahead` and `pace` are not used.
    """
    add_tile, memory = _tile_adder(words, 1), stack_floats(words.sums_size)

    @function
    def multiply_tile(rows, a, lda, b, depth, distance, c, ldc, added, bias, residual, ahead, pace):
        sums, plane = memory(), depth // 2 * _LINE
        for column in range(0, _LINE, TILE_BYTES):
            _clear_sums()
            for k in range(depth // (2 * TILE_ROWS)):
                line = b + _LINE + k * TILE_ROWS * _LINE + column
                _add_bytes(a + (k + 1) * TILE_BYTES, lda * FLOAT, distance, line, plane)
            _write_sums(sums + column)
        is_first = ldc > 0  # always; Numba would compile `add_tile` again for a literal
        add_tile(rows, sums, a, lda, b, c, ldc, is_first, added, bias, residual)

    return multiply_tile
