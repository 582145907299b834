"""The instructions of LLVM for vectors of WIDTH lanes, as the functions of simd.py and tile.py write them.

What        Each function takes LLVM's builder and values, writes instructions, and returns their result
Numerics    Lanes are combined in the same order on every processor. Where the processor does not have an instruction
            for x * y + z, rounded once, `fma_lanes` writes it with others, whose result has the same bits
Source      Boldo and Melquiond 2008 (IEEE Transactions on Computers 57(4)), section 5
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from minibert.kernels.processor import ARM64, LEVEL, WIDTH

FLOAT, DOUBLE, INT, LONG = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
FLOATS, DOUBLES, INTS = (ir.VectorType(element, WIDTH) for element in (FLOAT, DOUBLE, INT))


def call_llvm(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call an LLVM intrinsic such as llvm.fma.v16f32."""
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


def load_lanes(builder: Any, pointer: Any) -> Any:
    """Load WIDTH floats from memory; they need the alignment of a float only."""
    loaded = builder.load(builder.bitcast(pointer, FLOATS.as_pointer()))
    loaded.align = 4
    return loaded


def store_lanes(builder: Any, lanes: Any, pointer: Any) -> None:
    """Store WIDTH floats to memory; they need the alignment of a float only."""
    builder.store(lanes, builder.bitcast(pointer, FLOATS.as_pointer())).align = 4


def splat(builder: Any, scalar: Any) -> Any:
    """Return a vector with one number in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, WIDTH), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(INTS, [0] * WIDTH))


def fma_lanes(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Compute x * y + z, rounded once."""
    if ARM64 or "fma" in LEVEL.features:
        suffix = "f64" if x.type == DOUBLES else "f32"
        return call_llvm(builder, f"llvm.fma.v{WIDTH}{suffix}", x.type, x, y, z)
    if x.type == FLOATS:  # a product of floats is exact in float64
        x, y, z = (builder.fpext(value, DOUBLES) for value in (x, y, z))
        return builder.fptrunc(_add_to_odd(builder, builder.fmul(x, y), z), FLOATS)
    product, rest = _exact_product(builder, x, y)
    upper, lower = _exact_sum(builder, z, rest)
    total, last = _exact_sum(builder, product, upper)
    return builder.fadd(total, _add_to_odd(builder, lower, last))


# The next three functions make `fma_lanes` of float64 arithmetic for processors without the instruction. The results
# equal those of the instruction, unless the square of a number or of its last bit leaves the range of float64. With
# numbers that were made of float32, this does not happen.


def _exact_sum(builder: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return x + y, rounded, and what rounding has lost: Knuth's TwoSum."""
    total = builder.fadd(x, y)
    part = builder.fsub(total, x)
    lost = builder.fadd(builder.fsub(x, builder.fsub(total, part)), builder.fsub(y, part))
    return total, lost


def _exact_product(builder: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return x * y, rounded, and what rounding has lost: Dekker's product of halves with 26 bits."""
    halves = []
    for value in (x, y):
        large = builder.fmul(value, ir.Constant(DOUBLES, [2.0**27 + 1] * WIDTH))
        upper = builder.fsub(large, builder.fsub(large, value))
        halves.append((upper, builder.fsub(value, upper)))
    product = builder.fmul(x, y)
    lost = builder.fneg(product)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        lost = builder.fadd(lost, builder.fmul(halves[0][i], halves[1][j]))
    return product, lost


def _add_to_odd(builder: Any, x: Any, y: Any) -> Any:
    """Compute x + y; if it is not exact, return the neighbour whose last bit is 1. It may be rounded a second time."""
    total, lost = _exact_sum(builder, x, y)
    longs = ir.VectorType(LONG, WIDTH)
    zero, one = ir.Constant(DOUBLES, [0.0] * WIDTH), ir.Constant(longs, [1] * WIDTH)
    bits = builder.bitcast(total, longs)
    is_even = builder.icmp_signed("!=", builder.and_(bits, one), one)
    changes = builder.and_(is_even, builder.fcmp_ordered("!=", lost, zero))
    grows = builder.icmp_signed("==", builder.fcmp_ordered(">", lost, zero), builder.fcmp_ordered(">", total, zero))
    step = builder.select(grows, one, ir.Constant(longs, [-1] * WIDTH))
    step = builder.select(changes, step, ir.Constant(longs, [0] * WIDTH))
    return builder.bitcast(builder.add(bits, step), DOUBLES)


def mask_of_first(builder: Any, count: Any) -> Any:
    """Return a mask of the lanes 0, ..., count - 1."""
    return builder.icmp_signed("<", ir.Constant(INTS, list(range(WIDTH))), splat(builder, builder.trunc(count, INT)))


def load_halves(builder: Any, address: Any, element: Any) -> Any:
    """Load WIDTH numbers of 16 bits from an address."""
    loaded = builder.load(builder.inttoptr(address, ir.VectorType(element, WIDTH).as_pointer()))
    loaded.align = 2
    return loaded


def choose_lanes(builder: Any, order: str, x: Any, y: Any) -> Any:
    """Return y where it is before x in this order, else x."""
    # LLVM makes one instruction of this. Its function maxnum, which prefers numbers to NaN, takes three.
    return builder.select(builder.fcmp_ordered(order, y, x), y, x)


def combine_lanes(builder: Any, lanes: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """Combine the upper half of the lanes with the lower half until one lane is left, always in this order."""
    width = WIDTH
    while width > 1:
        width //= 2
        undefined = ir.Constant(lanes.type, ir.Undefined)
        half = ir.VectorType(INT, width)
        lower = builder.shuffle_vector(lanes, undefined, ir.Constant(half, list(range(width))))
        upper = builder.shuffle_vector(lanes, undefined, ir.Constant(half, list(range(width, 2 * width))))
        lanes = combine(builder, lower, upper)
    return builder.extract_element(lanes, ir.Constant(INT, 0))
