"""A float32 vector type for Numba: kernels that read like scalar Python and run on AVX-512, AVX2 or NEON registers.

Numba compiles Python to LLVM, and LLVM has vectors of any width as ordinary values: ``<16 x float>`` is as good a type
as ``float``. What is missing is a name for it in Numba's type system. This file gives it one, and that is all::

    @njit
    def scale(x, y, n):                      # y = 2 x, sixteen numbers at a time
        for i in range(0, n, WIDTH):
            store(y, i, 2.0 * load(x, i))

How it works, in the order of the file:

1. A type (`Vector`), and its data model: in LLVM it *is* the vector, one register.
2. Intrinsics: functions whose body is LLVM instructions, one each. They are the words of the language: `load`, `store`,
   `broadcast`, `fma`, `maximum`, ...
3. Operators: ``+ - * /`` between vectors, and between a vector and a number.
4. Functions written in those words, in plain Python: `exp`, `gelu`, `tanh`. LLVM inlines them into the kernels.

WIDTH follows the processor Numba compiles for: 16 lanes with AVX-512, 8 with AVX, else 4 (NEON, SSE). LLVM would split
wider vectors, so every width computes everywhere. To try another one, name another processor before Python starts:
``NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx,+avx2,+fma`` makes it 8, ``NUMBA_CPU_NAME=generic`` 4.

Nothing here asks for fast math: the only operations are those that were written down, in the order they were written.
An a * b + c that should be rounded once says `fma`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, overload, register_model

from minibert.kernels.compilation import inline

__all__ = [
    "WIDTH",
    "absolute",
    "broadcast",
    "call_llvm",
    "element_pointer",
    "exp",
    "fma",
    "fma_lanes",
    "gelu",
    "largest",
    "load",
    "load_first",
    "load_lanes",
    "maximum",
    "minimum",
    "number",
    "round_even",
    "splat",
    "store",
    "store_first",
    "store_lanes",
    "sum_lanes",
    "tanh",
    "transpose_block",
    "zero_below",
    "zero_lanes",
]


def _host_width() -> int:
    features = cpu_target.target_context.codegen()._tm_features.split(",")
    if "+avx512f" in features:
        return 16
    return 8 if "+avx" in features else 4


WIDTH = _host_width()
"""Lanes of one vector."""


# --- 1. the type -----------------------------------------------------------------------------------------------------


class Vector(types.Type):
    """WIDTH float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{WIDTH}")


vector = Vector()

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_LANES, _INT_LANES = ir.VectorType(_FLOAT, WIDTH), ir.VectorType(_INT, WIDTH)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector_type: Vector) -> None:
        super().__init__(manager, vector_type, _LANES)


# --- 2. intrinsics ---------------------------------------------------------------------------------------------------


def call_llvm(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call an LLVM intrinsic such as llvm.fma.v16f32."""
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


def element_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Pointer to one element of a flat array."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def load_lanes(builder: Any, pointer: Any) -> Any:
    """WIDTH floats from memory, at any alignment a float may have."""
    loaded = builder.load(builder.bitcast(pointer, _LANES.as_pointer()))
    loaded.align = 4
    return loaded


def store_lanes(builder: Any, lanes: Any, pointer: Any) -> None:
    """WIDTH floats to memory."""
    builder.store(lanes, builder.bitcast(pointer, _LANES.as_pointer())).align = 4


def splat(builder: Any, scalar: Any) -> Any:
    """One float in every lane."""
    undefined = ir.Constant(_LANES, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INT_LANES, [0] * WIDTH))


def zero_lanes() -> Any:
    """The constant 0 in every lane."""
    return ir.Constant(_LANES, [0.0] * WIDTH)


def fma_lanes(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    return call_llvm(builder, f"llvm.fma.v{WIDTH}f32", _LANES, x, y, z)


def _first_lanes(builder: Any, count: Any) -> Any:
    """A mask of the lanes 0, ..., count - 1."""
    numbers = ir.Constant(_INT_LANES, list(range(WIDTH)))
    undefined = ir.Constant(_INT_LANES, ir.Undefined)
    first = builder.insert_element(undefined, builder.trunc(count, _INT), ir.Constant(_INT, 0))
    return builder.icmp_signed(
        "<", numbers, builder.shuffle_vector(first, undefined, ir.Constant(_INT_LANES, [0] * WIDTH))
    )


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index : index + WIDTH] of a flat float32 array, as a vector."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return load_lanes(builder, element_pointer(context, builder, signature.args[0], *arguments))

    return vector(array, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index : index + WIDTH] = value."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_lanes(builder, arguments[2], element_pointer(context, builder, signature.args[0], *arguments[:2]))
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@intrinsic
def load_first(typingctx: Any, array: Any, index: Any, count: Any) -> Any:
    """The first `count` lanes of ``load(array, index)``, zeros in the others, whose memory is not touched."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args[0], *arguments[:2])
        pointer = builder.bitcast(pointer, _LANES.as_pointer())
        mask = _first_lanes(builder, arguments[2])
        name = f"llvm.masked.load.v{WIDTH}f32.p0"
        return call_llvm(builder, name, _LANES, pointer, ir.Constant(_INT, 4), mask, zero_lanes())

    return vector(array, types.intp, types.intp), codegen


@intrinsic
def store_first(typingctx: Any, array: Any, index: Any, value: Any, count: Any) -> Any:
    """array[index : index + count] = the first `count` lanes of value; nothing beyond is touched."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args[0], *arguments[:2])
        pointer = builder.bitcast(pointer, _LANES.as_pointer())
        mask = _first_lanes(builder, arguments[3])
        name = f"llvm.masked.store.v{WIDTH}f32.p0"
        call_llvm(builder, name, ir.VoidType(), arguments[2], pointer, ir.Constant(_INT, 4), mask)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector, types.intp), codegen


@intrinsic
def broadcast(typingctx: Any, scalar: Any) -> Any:
    """One number in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splat(builder, arguments[0])

    return vector(types.float32), codegen


@intrinsic
def fma(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return fma_lanes(builder, *arguments)

    return vector(vector, vector, vector), codegen


def _lane_by_lane(name: str, count: int, doc: str) -> Any:
    """An intrinsic of LLVM's that takes `count` vectors and gives one."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call_llvm(builder, f"llvm.{name}.v{WIDTH}f32", _LANES, *arguments)

    if count == 1:

        @intrinsic
        def function(typingctx: Any, x: Any) -> Any:
            return vector(vector), codegen

    else:

        @intrinsic
        def function(typingctx: Any, x: Any, y: Any) -> Any:
            return vector(vector, vector), codegen

    function.__doc__ = doc
    return function


round_even = _lane_by_lane("rint", 1, "The nearest whole number, halves to the even one.")
absolute = _lane_by_lane("fabs", 1, "The size without the sign.")
maximum = _lane_by_lane("maxnum", 2, "The larger of each pair of lanes.")
minimum = _lane_by_lane("minnum", 2, "The smaller of each pair of lanes.")


def _across(combine: Callable[[Any, Any, Any], Any], doc: str) -> Any:
    """A reduction over the lanes: upper half onto lower half until one is left, an order that is always the same."""

    @intrinsic
    def function(typingctx: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes, width = arguments[0], WIDTH
            while width > 1:
                width //= 2
                undefined = ir.Constant(lanes.type, ir.Undefined)
                half = ir.VectorType(_INT, width)
                lower = builder.shuffle_vector(lanes, undefined, ir.Constant(half, list(range(width))))
                upper = builder.shuffle_vector(lanes, undefined, ir.Constant(half, list(range(width, 2 * width))))
                lanes = combine(builder, lower, upper)
            return builder.extract_element(lanes, ir.Constant(_INT, 0))

        return types.float32(vector), codegen

    function.__doc__ = doc
    return function


def _larger(builder: Any, x: Any, y: Any) -> Any:
    return call_llvm(builder, f"llvm.maxnum.v{x.type.count}f32", x.type, x, y)


sum_lanes = _across(lambda builder, x, y: builder.fadd(x, y), "The sum of all lanes.")
largest = _across(_larger, "The largest lane.")


@intrinsic
def zero_below(typingctx: Any, value: Any, x: Any, bound: Any) -> Any:
    """The lanes of value where x >= bound, zeros in the others."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value_, x_, bound_ = arguments
        return builder.select(builder.fcmp_ordered(">=", x_, bound_), value_, zero_lanes())

    return vector(vector, vector, vector), codegen


@intrinsic
def _power_of_two(typingctx: Any, k: Any) -> Any:
    """2 to the k, for lanes that hold whole numbers from -126 to 127: k goes into the exponent's bits."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        biased = builder.add(builder.fptosi(arguments[0], _INT_LANES), ir.Constant(_INT_LANES, [127] * WIDTH))
        return builder.bitcast(builder.shl(biased, ir.Constant(_INT_LANES, [23] * WIDTH)), _LANES)

    return vector(vector), codegen


@intrinsic
def transpose_block(typingctx: Any, source: Any, start: Any, stride: Any, target: Any, first: Any, step: Any) -> Any:
    """target[first + j step + i] = source[start + i stride + j] for a block of WIDTH x WIDTH floats.

    In registers: rows that are WIDTH / 2 apart exchange halves, then quarters, ..., then single lanes.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_, start_, stride_, target_, first_, step_ = arguments

        def line(kind: int, array: Any, origin: Any, distance: Any, number: int) -> Any:
            place = builder.add(origin, builder.mul(distance, ir.Constant(distance.type, number)))
            return element_pointer(context, builder, signature.args[kind], array, place)

        rows = [load_lanes(builder, line(0, source_, start_, stride_, i)) for i in range(WIDTH)]
        apart = WIDTH // 2
        while apart:
            lower = [lane if not lane & apart else WIDTH + lane - apart for lane in range(WIDTH)]
            upper = [lane + apart if not lane & apart else WIDTH + lane for lane in range(WIDTH)]
            for i in range(WIDTH):
                if not i & apart:
                    pair = rows[i], rows[i + apart]
                    rows[i] = builder.shuffle_vector(*pair, ir.Constant(_INT_LANES, lower))
                    rows[i + apart] = builder.shuffle_vector(*pair, ir.Constant(_INT_LANES, upper))
            apart //= 2
        for j, row in enumerate(rows):
            store_lanes(builder, row, line(3, target_, first_, step_, j))
        return context.get_dummy_value()

    arrays = (source, types.intp, types.intp, target, types.intp, types.intp)
    return types.void(*arrays), codegen


# --- 3. operators ----------------------------------------------------------------------------------------------------


def _define_operator(operation: Any, instruction: str) -> None:
    @intrinsic
    def lane_by_lane(typingctx: Any, x: Any, y: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return vector(vector, vector), codegen

    @overload(operation)
    def choose(x, y):
        if x is vector and y is vector:
            return lambda x, y: lane_by_lane(x, y)
        if x is vector and isinstance(y, types.Float):
            return lambda x, y: lane_by_lane(x, broadcast(np.float32(y)))
        if y is vector and isinstance(x, types.Float):
            return lambda x, y: lane_by_lane(broadcast(np.float32(x)), y)
        return None


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_operation, _instruction)


# --- 4. functions ----------------------------------------------------------------------------------------------------


@inline
def number(x):
    """A constant in every lane."""
    return broadcast(np.float32(x))


@inline
def exp(x):
    """e to the x, for x <= 88; 0 where it would be below the smallest normal number (x < -87.3).

    x = k ln 2 + r with k whole and |r| <= ln 2 / 2, so e^x = 2^k e^r, and e^r is a polynomial.
    Source: Cephes expf (S. L. Moshier), within 1.5 ulp.
    """
    least = number(-87.33654)
    bounded = maximum(x, least)
    k = round_even(bounded * 1.4426950408889634)
    r = fma(k, number(-0.693359375), bounded)  # ln 2 in two parts: k times the first is exact
    r = fma(k, number(2.12194440e-4), r)
    p = fma(number(1.9875691500e-4), r, number(1.3981999507e-3))
    p = fma(p, r, number(8.3334519073e-3))
    p = fma(p, r, number(4.1665795894e-2))
    p = fma(p, r, number(1.6666665459e-1))
    p = fma(p, r, number(5.0000001201e-1))
    return zero_below(fma(p * r, r, r + 1.0) * _power_of_two(k), x, least)


@inline
def gelu(x):
    """x Phi(x), Phi being the normal distribution: the exact GELU of BERT, to float32 rounding.

    GELU(x) = max(x, 0) - |x| Phi(-|x|), where nothing cancels for negative x as it does in 1 + erf(x / sqrt(2)).
    Phi(-a) = e^(-a^2 / 2) P(a) / Q(a), polynomials of degree 4 and 5 fitted for minibert on [0, 6.5] (relative error
    6.4e-10 before rounding); beyond, the product with e^(-a^2 / 2) is below float32's notice.
    """
    size = absolute(x)
    a = minimum(size, number(20.0))
    p = fma(number(3.161099495e-3), a, number(3.391511439e-2))
    p = fma(p, a, number(1.62769731e-1))
    p = fma(p, a, number(4.096617366e-1))
    p = fma(p, a, number(5.000000003e-1))
    q = fma(number(7.92306612e-3), a, number(8.503574232e-2))
    q = fma(q, a, number(4.155382947e-1))
    q = fma(q, a, number(1.115884099))
    q = fma(q, a, number(1.617208087))
    q = fma(q, a, number(1.0))
    tail = exp(size * -0.5 * size) * (p / q)
    return fma(tail, number(0.0) - size, maximum(x, number(0.0)))


@inline
def tanh(x):
    """Hyperbolic tangent.

    x P(x^2) / Q(x^2) with polynomials of degree 5, fitted for minibert on [-9.02, 9.02] (relative error 3.7e-11 before
    rounding); beyond, tanh is 1 in float32.
    """
    x = maximum(minimum(x, number(9.02)), number(-9.02))
    s = x * x
    p = fma(number(3.674193483e-11), s, number(1.111726926e-7))
    p = fma(p, s, number(4.227322047e-5))
    p = fma(p, s, number(4.42593049e-3))
    p = fma(p, s, number(1.409919605e-1))
    p = fma(p, s, number(1.0))
    q = fma(number(2.951042105e-9), s, number(2.603803579e-6))
    q = fma(q, s, number(5.008304898e-4))
    q = fma(q, s, number(2.920102904e-2))
    q = fma(q, s, number(4.743252935e-1))
    q = fma(q, s, number(1.0))
    return x * p / q
