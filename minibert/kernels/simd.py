"""A float32 vector type for Numba, so that kernels look like scalar Python and use AVX-512, AVX2 or NEON registers.

What        A type, and functions and operators for it. Numba compiles Python to LLVM. In LLVM, vectors of any width are
            ordinary values: ``<16 x float>`` is a type like ``float``. But Numba's type system does not have a name for
            it. This file only adds this name::

                @function
                def scale(x, y, n):                   # y = 2 x, 16 numbers at a time; x and y are memory
                    for i in range(0, n, WIDTH):
                        store(y, i, 2.0 * load(x, i))

Order       1. A type (`Vector`) and its data model: in LLVM the value *is* the vector.
            2. Intrinsics: functions whose body is LLVM instructions, one each: `load`, `store`, `broadcast`, `fma`, ...
            3. Memory: `floats_at(address)`, `ints_at` and `longs_at` give pointers, whose numbers are read as ``x[i]``.
               `task_at(kind)` makes the function that gives the task at an address.
            4. Operators: ``+ - * /`` between vectors, and between a vector and a number.
            5. Functions in plain Python that use 2 and 4: `exp2`, `tanh`, the activations. LLVM inlines them into the
               kernels
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
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from minibert.bert.low_precision import EXP2_SHORT, EXPONENTS
from minibert.kernels.compilation import inline
from minibert.kernels.ops import ACTIVATION_CODES
from minibert.kernels.processor import ARM64, LEVEL, WIDTH
from minibert.kernels.threads import TaskKind

# --- 1. the type -----------------------------------------------------------------------------------------------------


class Vector(types.Type):
    """WIDTH lanes of one float type."""

    def __init__(self, element: Any, lanes: Any) -> None:
        super().__init__(name=f"{element}x{WIDTH}")
        self.element = element
        self.lanes = lanes


_FLOAT, _DOUBLE, _INT, _LONG = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
FLOATS, _DOUBLES, INTS = (ir.VectorType(element, WIDTH) for element in (_FLOAT, _DOUBLE, _INT))

vector = Vector(types.float32, FLOATS)
double_vector = Vector(types.float64, _DOUBLES)  # twice as many registers; for sums with a very small error


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
    first = builder.insert_element(undefined, scalar, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(INTS, [0] * WIDTH))


def fma_lanes(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Compute x * y + z, rounded once."""
    if ARM64 or "fma" in LEVEL.features:
        suffix = "f64" if x.type == _DOUBLES else "f32"
        return call_llvm(builder, f"llvm.fma.v{WIDTH}{suffix}", x.type, x, y, z)
    if x.type == FLOATS:  # a product of floats is exact in float64
        x, y, z = (builder.fpext(value, _DOUBLES) for value in (x, y, z))
        return builder.fptrunc(_add_to_odd(builder, builder.fmul(x, y), z), FLOATS)
    product, rest = _exact_product(builder, x, y)
    upper, lower = _exact_sum(builder, z, rest)
    total, last = _exact_sum(builder, product, upper)
    return builder.fadd(total, _add_to_odd(builder, lower, last))


# The next three functions make `fma_lanes` of float64 arithmetic for processors without the instruction. The results
# equal those of the instruction, unless the square of a number or of its last bit leaves the range of float64. With
# numbers that were made of float32, this does not happen. Source: Boldo and Melquiond 2008 (IEEE Transactions on
# Computers 57(4)), section 5.


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
        large = builder.fmul(value, ir.Constant(_DOUBLES, [2.0**27 + 1] * WIDTH))
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
    longs = ir.VectorType(_LONG, WIDTH)
    zero, one = ir.Constant(_DOUBLES, [0.0] * WIDTH), ir.Constant(longs, [1] * WIDTH)
    bits = builder.bitcast(total, longs)
    is_even = builder.icmp_signed("!=", builder.and_(bits, one), one)
    changes = builder.and_(is_even, builder.fcmp_ordered("!=", lost, zero))
    grows = builder.icmp_signed("==", builder.fcmp_ordered(">", lost, zero), builder.fcmp_ordered(">", total, zero))
    step = builder.select(grows, one, ir.Constant(longs, [-1] * WIDTH))
    step = builder.select(changes, step, ir.Constant(longs, [0] * WIDTH))
    return builder.bitcast(builder.add(bits, step), _DOUBLES)


def _first_lanes(builder: Any, count: Any) -> Any:
    """Return a mask of the lanes 0, ..., count - 1."""
    return builder.icmp_signed("<", ir.Constant(INTS, list(range(WIDTH))), splat(builder, builder.trunc(count, _INT)))


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
    mask = _first_lanes(builder, count)
    name = f"llvm.masked.load.v{WIDTH}f32.p0"
    return call_llvm(builder, name, FLOATS, pointer, ir.Constant(_INT, 4), mask, FLOATS(None))


@instruction(types.void(float_memory, types.intp, vector, types.intp))
def store_first(builder: Any, memory: Any, index: Any, value: Any, count: Any) -> None:
    """Store memory[index : index + count] = the first `count` lanes of value; other memory is not changed."""
    pointer = builder.bitcast(builder.gep(memory, [index]), FLOATS.as_pointer())
    mask = _first_lanes(builder, count)
    name = f"llvm.masked.store.v{WIDTH}f32.p0"
    call_llvm(builder, name, ir.VoidType(), value, pointer, ir.Constant(_INT, 4), mask)


@instruction(lambda x, count, others: x(x, types.intp, x))
def first_lanes(builder: Any, x: Any, count: Any, others: Any) -> Any:
    """Combine the first `count` lanes of x with the remaining lanes of `others`."""
    return builder.select(_first_lanes(builder, count), x, others)


def _prefetcher(cache: int) -> Any:
    """Make the function that prefetches the cache line of an address into a cache; it does not change any result."""

    @instruction(types.void(types.int64))
    def prefetch(builder: Any, address: Any) -> None:
        to_read, locality, data = _INT(0), _INT(4 - cache), _INT(1)
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
    return builder.fpext(x, _DOUBLES)


@instruction(vector(double_vector))
def narrow(builder: Any, x: Any) -> Any:
    """Round the lanes to float32."""
    return builder.fptrunc(x, FLOATS)


def _load_halves(builder: Any, address: Any, element: Any) -> Any:
    """Load WIDTH numbers of 16 bits from an address."""
    loaded = builder.load(builder.inttoptr(address, ir.VectorType(element, WIDTH).as_pointer()))
    loaded.align = 2
    return loaded


@instruction(vector(types.int64))
def widen_float16(builder: Any, address: Any) -> Any:
    """Load WIDTH finite float16 from an address as float32; this is exact."""
    if ARM64 or "f16c" in LEVEL.features:
        return builder.fpext(_load_halves(builder, address, ir.HalfType()), FLOATS)
    # A float32 with the exponent and the digits of a float16 is 2^-112 of its value, also if that is denormal.
    bits = builder.zext(_load_halves(builder, address, ir.IntType(16)), INTS)
    size = builder.shl(builder.and_(bits, ir.Constant(INTS, [0x7FFF] * WIDTH)), ir.Constant(INTS, [13] * WIDTH))
    value = builder.fmul(builder.bitcast(size, FLOATS), ir.Constant(FLOATS, [2.0**112] * WIDTH))
    sign = builder.shl(builder.and_(bits, ir.Constant(INTS, [0x8000] * WIDTH)), ir.Constant(INTS, [16] * WIDTH))
    return builder.bitcast(builder.or_(builder.bitcast(value, INTS), sign), FLOATS)


@instruction(vector(types.int64))
def widen_bfloat16(builder: Any, address: Any) -> Any:
    """Load WIDTH bfloat16 from an address as float32: they are its upper halves."""
    bits = builder.zext(_load_halves(builder, address, ir.IntType(16)), INTS)
    return builder.bitcast(builder.shl(bits, ir.Constant(INTS, [16] * WIDTH)), FLOATS)


@instruction(lambda x, y, z: x(x, x, x))
def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Compute x * y + z, rounded once."""
    return fma_lanes(builder, x, y, z)


@instruction(vector(vector))
def absolute(builder: Any, x: Any) -> Any:
    """Compute the absolute value of each lane."""
    return call_llvm(builder, f"llvm.fabs.v{WIDTH}f32", FLOATS, x)


def _choose(builder: Any, order: str, x: Any, y: Any) -> Any:
    # LLVM makes one instruction of this. Its function maxnum, which prefers numbers to NaN, takes three.
    return builder.select(builder.fcmp_ordered(order, y, x), y, x)


@instruction(vector(vector, vector))
def maximum(builder: Any, x: Any, y: Any) -> Any:
    """Compute the larger of each pair of lanes; x where x or y is NaN."""
    return _choose(builder, ">", x, y)


@instruction(vector(vector, vector))
def minimum(builder: Any, x: Any, y: Any) -> Any:
    """Compute the smaller of each pair of lanes; x where x or y is NaN."""
    return _choose(builder, "<", x, y)


def combine_lanes(builder: Any, lanes: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """Combine the upper half of the lanes with the lower half until one lane is left, always in this order."""
    width = WIDTH
    while width > 1:
        width //= 2
        undefined = ir.Constant(lanes.type, ir.Undefined)
        half = ir.VectorType(_INT, width)
        lower = builder.shuffle_vector(lanes, undefined, ir.Constant(half, list(range(width))))
        upper = builder.shuffle_vector(lanes, undefined, ir.Constant(half, list(range(width, 2 * width))))
        lanes = combine(builder, lower, upper)
    return builder.extract_element(lanes, ir.Constant(_INT, 0))


@instruction(lambda x: x.element(x))
def sum_lanes(builder: Any, x: Any) -> Any:
    """Compute the sum of all lanes."""
    return combine_lanes(builder, x, lambda builder, x, y: builder.fadd(x, y))


@instruction(lambda x: x.element(x))
def largest(builder: Any, x: Any) -> Any:
    """Find the largest lane."""
    return combine_lanes(builder, x, lambda builder, x, y: _choose(builder, ">", x, y))


@instruction(vector(vector))
def _from_exponent(builder: Any, shifted: Any) -> Any:
    """Return the power of two whose exponent is in the last bits of `shifted`."""
    return builder.bitcast(builder.shl(builder.bitcast(shifted, INTS), ir.Constant(INTS, [23] * WIDTH)), FLOATS)


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


floats_at = _memory_at(float_memory, _FLOAT, "Return the float32 memory that begins at an address.")
ints_at = _memory_at(types.CPointer(types.int32), _INT, "Return the int32 memory that begins at an address.")
doubles_at = _memory_at(types.CPointer(types.float64), ir.DoubleType(), "Return the float64 memory at an address.")
longs_at = _memory_at(long_memory, _LONG, "Return the int64 memory that begins at an address.")


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
            memory = builder.alloca(ir.ArrayType(_FLOAT, count))
        memory.align = 64  # a cache line
        return builder.ptrtoint(memory, _LONG)

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


# --- 5. functions ----------------------------------------------------------------------------------------------------


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


def polynomial(coefficients: Sequence[float]) -> Any:
    """Make the function that computes a polynomial of a vector; the constant term is the first coefficient."""

    @instruction(vector(vector))
    def evaluate(builder: Any, x: Any) -> Any:
        *others, total = (ir.Constant(FLOATS, [coefficient] * WIDTH) for coefficient in coefficients)
        for term in others[::-1]:
            total = fma_lanes(builder, total, x, term)
        return total

    return evaluate


# Fitted for minibert (benchmarks/polynomials.py); these are the numbers in float32.
EXP2 = (1.0, 6.931472057e-1, 2.402264689e-1, 5.550328777e-2, 9.618488974e-3, 1.339993118e-3, 1.534580733e-4)
GELU = (
    (-4.99999999e-1, -3.037392176e-1, -8.921241189e-2, -1.047552577e-2),
    (1.0, 1.40536282, 7.997445996e-1, 2.223215987e-1, 2.632530179e-2),
)
TANH = (
    (1.0, 0.14099227, 0.0044259722, 4.2274314e-05, 1.1117921e-07, 3.6746182e-11),
    (1.0, 0.4743256, 0.029201174, 0.00050083856, 2.603907e-06, 2.951289e-09),
)


def _power_of_two(coefficients: Sequence[float]) -> Any:
    """Make the function that computes 2^x from a polynomial for 2^r with |r| <= 1/2.

    x = k + r, where k is a whole number. So 2^x = 2^k 2^r. x + 1.5 2^23 + 127 is rounded to a whole number. Its last
    bits are k + 127, the exponent of 2^k.
    """
    of_rest = polynomial(coefficients)

    @inline
    def power(x):
        shifted = x + number(EXPONENTS)
        return of_rest(x - (shifted - number(EXPONENTS))) * _from_exponent(shifted)

    return power


# For -127.4 <= x <= 127 with a relative error of 1.6e-8. It is 0 for x < -126.5, where 2^x is below the smallest normal
# number.
exp2 = _power_of_two(EXP2)
# For -125 <= x <= 0 with a relative error of 2.7e-6, for results that are rounded to 16 bits.
exp2_short = _power_of_two(EXP2_SHORT)

_gelu_p, _gelu_q, _tanh_p, _tanh_q = map(polynomial, (*GELU, *TANH))


@inline
def gelu(x):
    """Compute x Phi(x), the exact GELU of BERT, to float32 rounding; Phi is the normal distribution function.

    GELU(x) = max(x, 0) - a Phi(-a) with a = |x|. For negative x, 1 + erf(x / sqrt(2)) loses digits by cancellation, but
    this form does not. Phi(-a) = e^(-a^2 / 2) P(a) / Q(a). The polynomials were fitted on [0, 6.5], with an error of
    a Phi(-a) of at most 1.6e-9. Beyond 6.5, the power itself is smaller than that.
    """
    a = minimum(absolute(x), number(13.27))  # beyond 13.27 the power is 0
    power = exp2(a * a * -0.72134752)  # -1 / (2 ln 2)
    p, q = _gelu_p(a), _gelu_q(a)
    return fma(a * power, p / q, maximum(x, number(0.0)))


@inline
def tanh(x):
    """Compute the hyperbolic tangent as x P(x^2) / Q(x^2).

    The polynomials were fitted on [-9.02, 9.02]: relative error 4.2e-9, with these float32 coefficients. The float32
    arithmetic adds up to 2.7e-7. Beyond 9.02, tanh is 1 in float32.
    """
    x = maximum(minimum(x, number(9.02)), number(-9.02))
    s = x * x
    p, q = _tanh_p(s), _tanh_q(s)
    return maximum(minimum(x * p / q, number(1.0)), number(-1.0))  # rounding may give more than 1


@inline
def gelu_tanh(x):
    """Compute x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    half = x * 0.5
    inner = x * 0.7978845608028654
    inner = fma(inner * x, x * 0.044715, inner)
    return fma(half, tanh(inner), half)


@inline
def silu(x):
    """Compute x / (1 + exp(-x))."""
    half = x * 0.5
    return fma(half, tanh(half), half)


_GELU, _GELU_TANH, _RELU, _SILU, _TANH, _SIGMOID = (
    ACTIVATION_CODES[name] for name in ("gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid")
)


@inline
def activate(x, code):
    """Compute the activation with this code; reference.py has the formulas."""
    if code == _GELU:
        return gelu(x)
    if code == _GELU_TANH:
        return gelu_tanh(x)
    if code == _RELU:
        return maximum(x, number(0.0))
    if code == _SILU:
        return silu(x)
    if code == _TANH:
        return tanh(x)
    if code == _SIGMOID:
        return fma(number(0.5), tanh(x * 0.5), number(0.5))
    return x
