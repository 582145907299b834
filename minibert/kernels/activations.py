"""Powers of two and the activations, as polynomials of a vector.

What        `exp2` and `exp2_short` are for the exponentials of attention, `activate` is for the products. They are
            plain Python with the vectors of simd.py, and LLVM inlines them into the kernels
Numerics    The polynomials were fitted for minibert (benchmarks/polynomials.py). reference.py has the exact formulas.
            low_precision.py has the same `exp2_short`, bit for bit
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from minibert.bert.low_precision import EXP2_SHORT, EXPONENTS
from minibert.kernels.compilation import inline
from minibert.kernels.lanes import FLOATS, INTS, fma_lanes
from minibert.kernels.ops import ACTIVATION_CODES
from minibert.kernels.processor import WIDTH
from minibert.kernels.simd import absolute, fma, instruction, maximum, minimum, number, vector


@instruction(vector(vector))
def _from_exponent(builder: Any, shifted: Any) -> Any:
    """Return the power of two whose exponent is in the last bits of `shifted`."""
    return builder.bitcast(builder.shl(builder.bitcast(shifted, INTS), ir.Constant(INTS, [23] * WIDTH)), FLOATS)


def polynomial(coefficients: Sequence[float]) -> Any:
    """Make the function that computes a polynomial of a vector; the constant term is the first coefficient."""

    @instruction(vector(vector))
    def evaluate(builder: Any, x: Any) -> Any:
        *others, total = (ir.Constant(FLOATS, [coefficient] * WIDTH) for coefficient in coefficients)
        for term in others[::-1]:
            total = fma_lanes(builder, total, x, term)
        return total

    return evaluate


# These are the numbers in float32.
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
