"""Low precision: the quantisation of x.

What        `quantisers` makes the chunks of a task and the source of a small product: groups of features -> integers
            and a scale, with the bits of low_precision.quantise, in the layout of words (processor.py). The other
            functions quantise queries, keys, values and probs (attention_packing.py)
Layout      16 features are a vector, so a block of 128 features is eight vectors. The Hadamard matrix is three rounds
            of sums and differences of these vectors and, in int8, four rounds of those of their lanes. For AMX, each
            byte of the integers of a group is written to a plane of its own
Numerics    x factor + 1.5 2^23 is rounded once, to a float32 without digits after the point. Its last 8 or 16 bits are
            the integer. No number, not even NaN, has an undefined result here, as in a conversion to an integer
Prefetch    The features of eight blocks later are fetched into the first cache. On a Xeon with a slow third cache, 4096
            rows of 1,536 features take half the time, and 1024 rows a tenth less. 2 and 4 blocks gain less, 16 the same
Edges       The last features of a row are copied into a block that is filled up with zeros
Contract    Callers have checked every shape; the code here does not check bounds
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from minibert.bert.low_precision import BLOCK, SMALLEST, Format
from minibert.kernels.compilation import function, inline
from minibert.kernels.lanes import FLOATS, INTS, call_llvm, combine_lanes, fma_lanes, load_lanes, splat
from minibert.kernels.ops import LINEAR_WORDS, QUANTISE, ROWS
from minibert.kernels.processor import WIDTH, Words, row_layout
from minibert.kernels.simd import (
    floats_at,
    fma,
    instruction,
    load_first,
    number,
    prefetch,
    stack_floats,
    store,
    task_at,
    vector,
)
from minibert.kernels.threads import FLOAT
from minibert.kernels.tile import pointer_at

# --- quantisation ----------------------------------------------------------------------------------------------------

_ROUNDS = 1.5 * 2.0**23  # a number of this size has the whole numbers as its neighbours
_ZERO = np.int64(0)
_AHEAD = np.int64(8 * BLOCK)  # floats
_block = stack_floats(BLOCK)
_FLOAT, _INT = FLOATS.element, INTS.element
_SIZE, _INFINITY, _NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # the bits without the sign; of infinity; of NaN


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
            nothing = builder.fcmp_ordered("<", size, _FLOAT(SMALLEST))
            factor = builder.select(nothing, _FLOAT(0.0), builder.fdiv(_FLOAT(form.x_most), size))
            scale = builder.fmul(size, _FLOAT(1.0 / form.x_most))
            scale = builder.select(nothing, _FLOAT(0.0), scale)
            is_finite = builder.icmp_signed("<", bits, ir.Constant(_INT, _INFINITY))
            scale = builder.select(is_finite, builder.bitcast(scale, _INT), _INT(_NAN))
            builder.store(scale, pointer_at(builder, s, _INT, g * words.scale_distance)).align = 4
            factors, rounds = splat(builder, factor), ir.Constant(FLOATS, [_ROUNDS + dot.offset] * WIDTH)
            for i, lanes in enumerate(group):
                rounded = builder.bitcast(fma_lanes(builder, lanes, factors, rounds), INTS)
                for plane in range(planes):
                    numbers = plane * form.group + i * WIDTH  # before these ones
                    start = g * words.group_distance * FLOAT + numbers * (dot.x_bytes // planes)
                    place = pointer_at(builder, q, ir.IntType(8), start)
                    shifted = builder.lshr(rounded, ir.Constant(INTS, [8 * plane] * WIDTH))
                    place = builder.bitcast(place, narrow.as_pointer())
                    builder.store(builder.trunc(shifted, narrow), place).align = 4

    return quantise_block


def quantisers(words: Words) -> tuple[Any, Any]:
    """Make two functions: one quantises ROWS rows of a task, the other quantises the source of a product."""
    quantise_block = _block_quantiser(words)
    groups_of_block, header, layout = np.int64(BLOCK // words.form.group), words.x_header, inline(row_layout(words))
    group_distance, scale_distance = np.int64(words.group_distance), np.int64(words.scale_distance)
    quantise_task, linear_task = task_at(QUANTISE[words.form.name]), task_at(LINEAR_WORDS[words.form.name])

    @function
    def quantise_rows(x, K, first, last, q):
        blocks, block = (K + BLOCK - 1) // BLOCK, _block()
        whole, row_size, _ = layout(K)
        first_scale = 0 if header else whole
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


# --- attention -------------------------------------------------------------------------------------------------------


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


def _integers(builder: Any, x: Any, byte: int) -> Any:
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


def join_integers(size: int, byte: int = 0) -> Any:
    """Make the function that joins `size` bytes of x and y, from this byte on: of `round_lanes`, or joined before."""
    mask = ir.Constant(INTS, [(1 << 8 * size) - 1] * WIDTH)

    @instruction(vector(vector, vector))
    def join(builder: Any, x: Any, y: Any) -> Any:
        lower, upper = (builder.and_(_integers(builder, each, byte), mask) for each in (x, y))
        return builder.bitcast(builder.or_(lower, builder.shl(upper, ir.Constant(INTS, [8 * size] * WIDTH))), FLOATS)

    return join


@instruction(vector(vector, vector))
def take_offset(builder: Any, sums: Any, x: Any) -> Any:
    """Compute sums - 128 q, which are integers of 32 bits; q is the last byte of the integers of `round_lanes`."""
    upper = builder.shl(builder.bitcast(x, INTS), ir.Constant(INTS, [24] * WIDTH))
    product = builder.ashr(upper, ir.Constant(INTS, [17] * WIDTH))
    return builder.bitcast(builder.sub(builder.bitcast(sums, INTS), product), FLOATS)
