"""The quantisation of x for a product of low precision: groups of features -> whole numbers and a scale, in words.

What        The chunks of a task and the source of a small product. They have the bits of low_precision.quantise, in
            the layout of words.py
Layout      16 features are a vector, so a block of 128 features is eight vectors. The Hadamard matrix is three rounds
            of sums and differences of these vectors and, in int8, four rounds of those of their lanes. For AMX, each
            byte of the whole numbers of a group is written to a plane of its own
Numerics    x factor + 1.5 2^23 is rounded once, to a float32 without digits after the point. Its last 8 or 16 bits are
            the whole number. No number, not even NaN, has an undefined result here, as in a conversion to an integer
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
from numba.extending import intrinsic

from minibert.bert.low_precision import BLOCK, SMALLEST, Format
from minibert.kernels.compilation import function
from minibert.kernels.memory import floats_at, stack_floats, task_at
from minibert.kernels.processor import WIDTH
from minibert.kernels.simd import (
    FLOATS,
    INTS,
    call_llvm,
    combine_lanes,
    fma_lanes,
    load_first,
    load_lanes,
    prefetch,
    splat,
    store,
)
from minibert.kernels.tasks import FLOAT, LINEAR_WORDS, QUANTISE, ROWS
from minibert.kernels.tile import pointer_at
from minibert.kernels.words import Words

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

    It writes the whole numbers of the first group to an address q, and its scale to an address s.
    """
    form, dot = words.form, words.dot
    planes = dot.x_bytes if dot.in_tiles else 1
    narrow = ir.VectorType(ir.IntType(8 * dot.x_bytes // planes), WIDTH)

    @intrinsic
    def quantise_block(typingctx: Any, x: Any, q: Any, s: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def halve(vectors: list[Any], combine: Any) -> Any:
                while len(vectors) > 1:
                    half = len(vectors) // 2
                    vectors = [combine(*pair) for pair in zip(vectors[:half], vectors[half:], strict=True)]
                return vectors[0]

            def size_of(group: list[Any]) -> Any:
                """Return the bits of the size of a group: the order of the bits is that of the sizes."""
                sizes = [builder.and_(builder.bitcast(x, INTS), ir.Constant(INTS, [_SIZE] * WIDTH)) for x in group]
                most = halve(sizes, functools.partial(call_llvm, builder, f"llvm.smax.v{WIDTH}i32", INTS))
                most = call_llvm(builder, f"llvm.vector.reduce.smax.v{WIDTH}i32", _INT, most)
                if form.total >= form.group:
                    return most
                part = ir.Constant(FLOATS, [1.0 / form.total] * WIDTH)
                lanes = halve([builder.fmul(builder.bitcast(x, FLOATS), part) for x in sizes], builder.fadd)
                total = combine_lanes(builder, lanes, lambda builder, x, y: builder.fadd(x, y))
                return call_llvm(builder, "llvm.smax.i32", _INT, most, builder.bitcast(total, _INT))

            x_, q_, s_ = arguments
            vectors = [load_lanes(builder, pointer_at(builder, x_, _FLOAT, i)) for i in range(0, BLOCK, WIDTH)]
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
                builder.store(scale, pointer_at(builder, s_, _INT, g * words.scale_distance)).align = 4
                factors, rounds = splat(builder, factor), ir.Constant(FLOATS, [_ROUNDS + dot.offset] * WIDTH)
                for i, vector in enumerate(group):
                    rounded = builder.bitcast(fma_lanes(builder, vector, factors, rounds), INTS)
                    for plane in range(planes):
                        start = g * words.group_distance * FLOAT + (plane * form.group + i * WIDTH) * (
                            dot.x_bytes // planes
                        )
                        place = pointer_at(builder, q_, ir.IntType(8), start)
                        shifted = builder.lshr(rounded, ir.Constant(INTS, [8 * plane] * WIDTH))
                        place = builder.bitcast(place, narrow.as_pointer())
                        builder.store(builder.trunc(shifted, narrow), place).align = 4
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return quantise_block


def quantisers(words: Words) -> tuple[Any, Any]:
    """Make the function that quantises ROWS rows of a task, and the one that quantises the source of a product."""
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
