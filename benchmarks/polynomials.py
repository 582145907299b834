"""Fit the stored polynomials again from scratch, and compare the largest errors.

    python -m benchmarks.polynomials

minibert computes erf (bert/reference.py), exp2, GELU and tanh (kernels/activations.py) as polynomials, or as quotients
of two polynomials, that were fitted for it. This script fits each one anew to the function itself, by weighted least
squares whose weights grow where the error is large (Lawson's iteration). The kernels use float32 coefficients, so the
new ones are rounded to float32 too, each to its nearest number, before the errors are compared.

Very different coefficients of a quotient can have nearly the same error, and rounding them is a matter of luck: of 201
fits of tanh whose errors differ by 2 %, the worst has ten times the error of the best after rounding. So the stored
coefficients are compared with the median of 201 fits, and the best of them is printed beside it.

Errors are computed in float64 on a dense grid, without the rounding of the kernels' own arithmetic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.special  # type: ignore[import-untyped]
from numpy.polynomial import Chebyshev, Polynomial, chebyshev, polynomial

from minibert.bert import low_precision, reference
from minibert.kernels import activations

Array: TypeAlias = npt.NDArray[np.float64]
Coefficients: TypeAlias = tuple[Array, Array]
"""Of P and of Q, lowest power first."""

GRID = 4001
FIT_GRIDS = range(300, 501)  # one fit on each number of points
ITERATIONS = 25


@dataclasses.dataclass(frozen=True)
class Approximation:
    """A quotient P(s) / Q(s) that approximates `target(x)`; its error at x is multiplied by `weight(x)`.

    Parameters
    ----------
    name : str
    interval : (float, float)       of x
    squared : bool                  whether s is x^2 instead of x
    degrees : (int, int)            of P and of Q
    target, weight : functions of x
    error : str                     what the weighted error is, in words
    dtype : type                    of the coefficients when they are used
    """

    name: str
    interval: tuple[float, float]
    squared: bool
    degrees: tuple[int, int]
    target: Callable[[Array], Array]
    weight: Callable[[Array], Array]
    error: str
    dtype: type[np.floating]


def _erf_slope(x: Array) -> Array:
    """erf(x) / x."""
    return np.where(x > 0, scipy.special.erf(x) / np.where(x > 0, x, 1), 2 / math.sqrt(math.pi))


def _tanh_slope(x: Array) -> Array:
    """tanh(x) / x."""
    return np.where(x > 0, np.tanh(x) / np.where(x > 0, x, 1), 1.0)


def _normal_tail(a: Array) -> Array:
    """-Phi(-a) e^(a^2 / 2)."""
    return -scipy.special.erfcx(a / math.sqrt(2)) / 2


APPROXIMATIONS = (
    Approximation("erf", (0, 4), True, (6, 6), _erf_slope, lambda x: 1 / _erf_slope(x), "relative", np.float64),
    Approximation("exp2", (-0.5, 0.5), False, (6, 0), np.exp2, lambda x: np.exp2(-x), "relative", np.float32),
    Approximation("exp2_short", (-0.5, 0.5), False, (4, 0), np.exp2, lambda x: np.exp2(-x), "relative", np.float32),
    Approximation(
        "gelu", (0, 6.5), False, (3, 4), _normal_tail, lambda a: a * np.exp(-a * a / 2), "of GELU, absolute", np.float32
    ),
    Approximation("tanh", (0, 9.02), True, (5, 5), _tanh_slope, lambda x: 1 / _tanh_slope(x), "relative", np.float32),
)


def stored_coefficients(name: str) -> Coefficients:
    """Return the coefficients as they are written in the source."""
    if name == "erf":
        return np.array(reference._ERF_P), np.array(reference._ERF_Q)
    if name == "exp2_short":
        return np.array(low_precision.EXP2_SHORT), np.array([1.0])
    p, *q = {"exp2": (activations.EXP2,), "gelu": activations.GELU, "tanh": activations.TANH}[name]
    return np.array(p), np.array(q[0] if q else [1.0])


# --- the fit ---------------------------------------------------------------------------------------------------------


def _grid(approximation: Approximation, points: int = GRID) -> tuple[Array, Array]:
    """Return x, densest at the ends of the interval, and s."""
    low, high = approximation.interval
    x = (low + high) / 2 - (high - low) / 2 * np.cos(np.linspace(0, math.pi, points))
    return x, x * x if approximation.squared else x


def largest_error(approximation: Approximation, coefficients: Coefficients) -> float:
    """Measure the largest weighted error on the grid."""
    x, s = _grid(approximation)
    p, q = (polynomial.polyval(s, powers) for powers in coefficients)
    return float(np.abs(approximation.weight(x) * (p / q - approximation.target(x))).max())


def fit(approximation: Approximation, points: int) -> Coefficients:
    """Find coefficients whose largest error is close to the smallest possible one.

    This starts from nothing but the function. Each iteration solves P - target Q = 0, a linear problem, in least
    squares. Dividing by the Q of the iteration before makes that the error of the quotient. Weights that grow with the
    error make the largest errors equal in the end.
    """
    x, s = _grid(approximation, points)
    target, weight = approximation.target(x), approximation.weight(x)
    domain = (s[0], s[-1])
    t = (2 * s - s[0] - s[-1]) / (s[-1] - s[0])  # from -1 to 1: there Chebyshev's polynomials are well conditioned
    basis_p, basis_q = (chebyshev.chebvander(t, degree) for degree in approximation.degrees)
    q = np.eye(basis_q.shape[1])[0]
    importance = np.ones(points)
    for i in range(ITERATIONS):
        scale = np.sqrt(importance) * weight / (basis_q @ q)
        columns = np.hstack([basis_p, -target[:, None] * basis_q[:, 1:]]) * scale[:, None]
        solution = np.linalg.lstsq(columns, target * scale, rcond=0)[0]
        p, q = solution[: basis_p.shape[1]], np.append(1.0, solution[basis_p.shape[1] :])
        errors = np.abs(weight * ((basis_p @ p) / (basis_q @ q) - target))
        if i >= 5:  # Q has settled
            importance *= errors / errors.mean()
            importance /= importance.mean()
    powers = [Chebyshev(series, domain=domain).convert(kind=Polynomial).coef for series in (p, q)]
    return powers[0] / powers[1][0], powers[1] / powers[1][0]


@dataclasses.dataclass(frozen=True)
class Row:
    """The largest errors of one approximation.

    Parameters
    ----------
    approximation : Approximation
    fitted_exact : (float, float)    the smallest and largest of all fits, before rounding
    stored_exact : float             with the coefficients as they are written in the source
    fitted, best, upper : float      the median, the smallest and the third quartile of all fits, rounded to `dtype`
    stored : float                   with the stored coefficients, rounded to `dtype`
    """

    approximation: Approximation
    fitted_exact: tuple[float, float]
    stored_exact: float
    fitted: float
    best: float
    upper: float
    stored: float

    @property
    def ratio(self) -> float:
        """Error of the stored coefficients over the median of the fits, all rounded."""
        return self.stored / self.fitted


def compare(approximation: Approximation) -> Row:
    """Fit an approximation again, and measure it and the stored one."""

    def rounded(coefficients: Coefficients) -> Coefficients:
        p, q = (powers.astype(approximation.dtype).astype(np.float64) for powers in coefficients)
        return p, q

    fitted, stored = [fit(approximation, points) for points in FIT_GRIDS], stored_coefficients(approximation.name)
    exact = [largest_error(approximation, coefficients) for coefficients in fitted]
    used = [largest_error(approximation, rounded(coefficients)) for coefficients in fitted]
    return Row(
        approximation,
        fitted_exact=(min(exact), max(exact)),
        stored_exact=largest_error(approximation, stored),
        fitted=float(np.median(used)),
        best=min(used),
        upper=float(np.quantile(used, 0.75)),
        stored=largest_error(approximation, rounded(stored)),
    )


def main() -> None:
    print("                                                     before rounding       as used")
    print(
        "function  interval       degrees  error              fitted    stored      best      median    stored    ratio"
    )
    for row in map(compare, APPROXIMATIONS):
        one = row.approximation
        interval, degrees = "[{}, {}]".format(*one.interval), "{} / {}".format(*one.degrees)
        print(
            f"{one.name:9} {interval:14} {degrees:8} {one.error:18} {row.fitted_exact[0]:.2e}  {row.stored_exact:.2e}"
            f"    {row.best:.2e}  {row.fitted:.2e}  {row.stored:.2e}  {row.ratio:.3f}"
        )
    print(
        f"""
Before rounding: the best of {len(FIT_GRIDS)} fits, and the coefficients that the source writes (10 digits).
As used: each coefficient rounded to the nearest float32 (erf: float64). The ratio is stored / median of the fits.
The ratios of gelu and tanh depend on the choice of the fits, because rounding is a matter of luck. The stored tanh is
the fit that was best after rounding.
This script does not search among other float32 coefficients nearby. The kernels' own arithmetic rounds every step by up
to 6e-8 (relative), which is more than any error as used."""
    )


if __name__ == "__main__":
    main()
