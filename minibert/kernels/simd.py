"""A float32 vector type for Numba, so that kernels look like scalar Python and use AVX-512, AVX2 or NEON registers.

What        A type, and functions and operators for it. Numba compiles Python to LLVM. In LLVM, vectors of any width are
            ordinary values: ``<16 x float>`` is a type like ``float``. But Numba's type system does not have a name for
            it. This file only adds this name::

                @function
                def scale(x, y, n):                   # y = 2 x, 16 numbers at a time; x and y are memory
                    for i in range(0, n, WIDTH):
                        store(y, i, 2.0 * load(x, i))

Order       1. A type (`Vector`) and its data model: in LLVM the value *is* the vector.
            2. Intrinsics: functions whose body is LLVM instructions (lanes.py): `load`, `store`, `fma`, ...
            3. Memory: `floats_at(address)`, `ints_at` and `longs_at` give pointers, whose numbers are read as ``x[i]``.
               `task_at(kind)` makes the function that gives the task at an address.
            4. Operators: ``+ - * /`` between vectors, and between a vector and a number.
            5. Functions in plain Python that use 2. activations.py has more of them. LLVM inlines them into the kernels
Layout      A vector has WIDTH = 16 lanes on every processor. With AVX-512 it is one register; with AVX2 LLVM splits it
            into two, with NEON or SSE into four
Numerics    A sum over lanes has the same order, and the same bits, on every processor. Fast math is off: LLVM computes
            exactly the operations that the code contains, in the order of the code. Where a * b + c should be rounded
            once, the code calls `fma`
Contract    Memory does not know its length, and nothing checks bounds. The caller of a kernel keeps the arrays alive.
            The code depends on the level for which it is compiled (libraries.py)
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from minibert.kernels.compilation import inline
from minibert.kernels.lanes import (
    DOUBLES,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    LONG,
    call_llvm,
    choose_lanes,
    combine_lanes,
    fma_lanes,
    load_halves,
    load_lanes,
    mask_of_first,
    splat,
    store_lanes,
)
from minibert.kernels.processor import ARM64, LEVEL, WIDTH
from minibert.kernels.threads import TaskKind

# --- 1. the type -----------------------------------------------------------------------------------------------------


class Vector(types.Type):
    """WIDTH lanes of one float type."""

    def __init__(self, element: Any, lanes: Any) -> None:
        super().__init__(name=f"{element}x{WIDTH}")
        self.element = element
        self.lanes = lanes


vector = Vector(types.float32, FLOATS)
double_vector = Vector(types.float64, DOUBLES)  # twice as many registers; for sums with a very small error


float_memory, long_memory = types.CPointer(types.float32), types.CPointer(types.int64)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector_type: Vector) -> None:
        super().__init__(manager, vector_type, vector_type.lanes)


# --- 2. instructions -------------------------------------------------------------------------------------------------


def instruction(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Mark a function that writes instructions of LLVM: it takes LLVM's builder and values, and returns the result.

    `signature` is Numba's signature, or a function that returns it for the types of the arguments.
    """

    def mark(write: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            result = write(builder, *arguments)
            return context.get_dummy_value() if result is None else result

        @functools.wraps(write)  # Numba reads the names of the arguments
        def define(typingctx: Any, *kinds: Any) -> Any:
            return signature(*kinds) if callable(signature) else signature, codegen

        return intrinsic(define)

    return mark


@instruction(vector(float_memory, types.intp))
def load(builder: Any, memory: Any, index: Any) -> Any:
    """Load memory[index : index + WIDTH] as a vector."""
    return load_lanes(builder, builder.gep(memory, [index]))


@instruction(types.void(float_memory, types.intp, vector))
def store(builder: Any, memory: Any, index: Any, value: Any) -> None:
    """Store memory[index : index + WIDTH] = value."""
    store_lanes(builder, value, builder.gep(memory, [index]))


@instruction(vector(float_memory, types.intp, types.intp))
def load_first(builder: Any, memory: Any, index: Any, count: Any) -> Any:
    """Load the first `count` lanes like ``load(memory, index)``; the others are 0, and their memory is not read."""
    pointer = builder.bitcast(builder.gep(memory, [index]), FLOATS.as_pointer())
    mask = mask_of_first(builder, count)
    name = f"llvm.masked.load.v{WIDTH}f32.p0"
    return call_llvm(builder, name, FLOATS, pointer, ir.Constant(INT, 4), mask, FLOATS(None))


@instruction(types.void(float_memory, types.intp, vector, types.intp))
def store_first(builder: Any, memory: Any, index: Any, value: Any, count: Any) -> None:
    """Store memory[index : index + count] = the first `count` lanes of value; other memory is not changed."""
    pointer = builder.bitcast(builder.gep(memory, [index]), FLOATS.as_pointer())
    mask = mask_of_first(builder, count)
    name = f"llvm.masked.store.v{WIDTH}f32.p0"
    call_llvm(builder, name, ir.VoidType(), value, pointer, ir.Constant(INT, 4), mask)


@instruction(lambda x, count, others: x(x, types.intp, x))
def first_lanes(builder: Any, x: Any, count: Any, others: Any) -> Any:
    """Combine the first `count` lanes of x with the remaining lanes of `others`."""
    return builder.select(mask_of_first(builder, count), x, others)


def _prefetcher(cache: int) -> Any:
    """Make the function that prefetches the cache line of an address into a cache; it does not change any result."""

    @instruction(types.void(types.int64))
    def prefetch(builder: Any, address: Any) -> None:
        to_read, locality, data = INT(0), INT(4 - cache), INT(1)
        line = builder.inttoptr(address, cgutils.voidptr_t)
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), line, to_read, locality, data)

    return prefetch


prefetch, prefetch_second = _prefetcher(1), _prefetcher(2)


@instruction(lambda scalar: double_vector(scalar) if scalar == types.float64 else vector(types.float32))
def broadcast(builder: Any, scalar: Any) -> Any:
    """Return a vector with one number in every lane."""
    return splat(builder, scalar)


@instruction(double_vector(vector))
def widen(builder: Any, x: Any) -> Any:
    """Convert the lanes to float64."""
    return builder.fpext(x, DOUBLES)


@instruction(vector(double_vector))
def narrow(builder: Any, x: Any) -> Any:
    """Round the lanes to float32."""
    return builder.fptrunc(x, FLOATS)


@instruction(vector(types.int64))
def widen_float16(builder: Any, address: Any) -> Any:
    """Load WIDTH finite float16 from an address as float32; this is exact."""
    if ARM64 or "f16c" in LEVEL.features:
        return builder.fpext(load_halves(builder, address, ir.HalfType()), FLOATS)
    # A float32 with the exponent and the digits of a float16 is 2^-112 of its value, also if that is denormal.
    bits = builder.zext(load_halves(builder, address, ir.IntType(16)), INTS)
    size = builder.shl(builder.and_(bits, ir.Constant(INTS, [0x7FFF] * WIDTH)), ir.Constant(INTS, [13] * WIDTH))
    value = builder.fmul(builder.bitcast(size, FLOATS), ir.Constant(FLOATS, [2.0**112] * WIDTH))
    sign = builder.shl(builder.and_(bits, ir.Constant(INTS, [0x8000] * WIDTH)), ir.Constant(INTS, [16] * WIDTH))
    return builder.bitcast(builder.or_(builder.bitcast(value, INTS), sign), FLOATS)


@instruction(vector(types.int64))
def widen_bfloat16(builder: Any, address: Any) -> Any:
    """Load WIDTH bfloat16 from an address as float32: they are its upper halves."""
    bits = builder.zext(load_halves(builder, address, ir.IntType(16)), INTS)
    return builder.bitcast(builder.shl(bits, ir.Constant(INTS, [16] * WIDTH)), FLOATS)


@instruction(lambda x, y, z: x(x, x, x))
def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Compute x * y + z, rounded once."""
    return fma_lanes(builder, x, y, z)


@instruction(vector(vector))
def absolute(builder: Any, x: Any) -> Any:
    """Compute the absolute value of each lane."""
    return call_llvm(builder, f"llvm.fabs.v{WIDTH}f32", FLOATS, x)


@instruction(vector(vector, vector))
def maximum(builder: Any, x: Any, y: Any) -> Any:
    """Compute the larger of each pair of lanes; x where x or y is NaN."""
    return choose_lanes(builder, ">", x, y)


@instruction(vector(vector, vector))
def minimum(builder: Any, x: Any, y: Any) -> Any:
    """Compute the smaller of each pair of lanes; x where x or y is NaN."""
    return choose_lanes(builder, "<", x, y)


@instruction(lambda x: x.element(x))
def sum_lanes(builder: Any, x: Any) -> Any:
    """Compute the sum of all lanes."""
    return combine_lanes(builder, x, lambda builder, x, y: builder.fadd(x, y))


@instruction(lambda x: x.element(x))
def largest(builder: Any, x: Any) -> Any:
    """Find the largest lane."""
    return combine_lanes(builder, x, lambda builder, x, y: choose_lanes(builder, ">", x, y))


@instruction(types.void(float_memory, *(types.intp,) * 3, float_memory, *(types.intp,) * 2))
def transpose_block(
    builder: Any, source: Any, start: Any, stride: Any, count: Any, target: Any, first: Any, step: Any
) -> None:
    """Transpose WIDTH x WIDTH floats: target[first + j step + i] = source[start + i stride + j].

    With a `count` below WIDTH, the source has only this number of rows; its last one is used for the missing ones. This
    happens in registers. Two rows with a distance of WIDTH / 2 exchange halves; then rows with a distance of
    WIDTH / 4 exchange quarters, and so on, down to single lanes.
    """

    def line(memory: Any, origin: Any, distance: Any, number: Any) -> Any:
        return builder.gep(memory, [builder.add(origin, builder.mul(distance, number))])

    numbers = [ir.Constant(count.type, i) for i in range(WIDTH)]
    last = builder.sub(count, numbers[1])
    own = [builder.select(builder.icmp_signed("<", number, last), number, last) for number in numbers]
    rows = [load_lanes(builder, line(source, start, stride, number)) for number in own]
    apart = WIDTH // 2
    while apart:
        lower = [lane if not lane & apart else WIDTH + lane - apart for lane in range(WIDTH)]
        upper = [lane + apart if not lane & apart else WIDTH + lane for lane in range(WIDTH)]
        for i in range(WIDTH):
            if not i & apart:
                pair = rows[i], rows[i + apart]
                rows[i] = builder.shuffle_vector(*pair, ir.Constant(INTS, lower))
                rows[i + apart] = builder.shuffle_vector(*pair, ir.Constant(INTS, upper))
        apart //= 2
    for j, row in enumerate(rows):
        store_lanes(builder, row, line(target, first, step, numbers[j]))


# --- 3. memory -----------------------------------------------------------------------------------------------------


def _memory_at(memory: Any, element: Any, doc: str) -> Any:
    def at(builder: Any, address: Any) -> Any:
        return builder.inttoptr(address, element.as_pointer())

    at.__doc__ = doc
    return instruction(memory(types.int64))(at)


floats_at = _memory_at(float_memory, FLOAT, "Return the float32 memory that begins at an address.")
ints_at = _memory_at(types.CPointer(types.int32), INT, "Return the int32 memory that begins at an address.")
doubles_at = _memory_at(types.CPointer(types.float64), ir.DoubleType(), "Return the float64 memory at an address.")
longs_at = _memory_at(long_memory, LONG, "Return the int64 memory that begins at an address.")


def task_at(kind: TaskKind) -> Any:
    """Make the function that returns the task of this kind at an address, as a record with named fields."""
    record = numba.from_dtype(kind.dtype)

    @instruction(record(types.int64))
    def at(builder: Any, address: Any) -> Any:
        return builder.inttoptr(address, ir.ArrayType(ir.IntType(8), record.size).as_pointer())

    return at


def stack_floats(count: int) -> Any:
    """Make the function that returns the address of memory for `count` floats; its caller's return frees the memory."""

    @instruction(types.int64())
    def allocate(builder: Any) -> Any:
        # Not cgutils.alloca_once: it fills the memory with zeros, and for much memory LLVM would call memset.
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(FLOAT, count))
        memory.align = 64  # a cache line
        return builder.ptrtoint(memory, LONG)

    return allocate


# --- 4. operators ----------------------------------------------------------------------------------------------------


def _define_operator(operation: Any, instruction: str) -> None:
    """Define an operator between two vectors, and between a vector and a number of any float type.

    With Numba's `overload` this would be shorter, but each pair of types would be compiled as a function.
    """

    @type_callable(operation)
    def typer(context: Any) -> Any:
        def choose(x: Any, y: Any) -> Any:
            if isinstance(x, Vector) and (x == y or isinstance(y, types.Float)):
                return x
            return y if isinstance(y, Vector) and isinstance(x, types.Float) else None

        return choose

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = signature.return_type.element
        lanes = [
            value if isinstance(kind, Vector) else splat(builder, context.cast(builder, value, kind, element))
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        return getattr(builder, instruction)(*lanes)

    for pair in ((Vector, Vector), (Vector, types.Float), (types.Float, Vector)):
        lower_builtin(operation, *pair)(lower)


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")
_define_operator(operator.truediv, "fdiv")


# --- 5. in plain Python -----------------------------------------------------------------------------------------------


@inline
def number(x):
    """Return a vector with one float32 constant in every lane."""
    return broadcast(np.float32(x))


@inline
def load_up_to(memory, start, count):
    """Load WIDTH numbers, or the first `count` if there are fewer; the other lanes are 0."""
    if count >= WIDTH:
        return load(memory, start)
    return load_first(memory, start, count)


@inline
def store_up_to(memory, start, value, count):
    """Store WIDTH numbers, or the first `count` if there are fewer."""
    if count >= WIDTH:
        store(memory, start, value)
    else:
        store_first(memory, start, value, count)
