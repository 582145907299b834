"""The stored polynomials against polynomials that are fitted again from scratch."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import polynomials
from benchmarks.polynomials import APPROXIMATIONS, Approximation
from tests.support.report import REPORT


@pytest.mark.parametrize("approximation", APPROXIMATIONS, ids=lambda one: one.name)
def test_a_stored_polynomial_is_within_5_percent_of_a_new_fit(approximation: Approximation) -> None:
    row = polynomials.compare(approximation)
    REPORT.append(f"{approximation.name}: stored error {row.stored:.2e}, fitted {row.fitted:.2e}, {row.ratio:.3f}x")
    assert row.ratio <= 1.05
    assert row.fitted_exact[1] <= 1.05 * row.fitted_exact[0], "the fits are equally good before they are rounded"


@pytest.mark.parametrize("approximation", APPROXIMATIONS, ids=lambda approximation: approximation.name)
def test_the_fit_is_the_best_one(approximation: Approximation) -> None:
    """Its error reaches the same size with alternating signs one time more than it has coefficients (Chebyshev)."""
    x, s = polynomials._grid(approximation)
    p, q = (np.polynomial.polynomial.polyval(s, powers) for powers in polynomials.fit(approximation, 1001))
    errors = approximation.weight(x) * (p / q - approximation.target(x))
    largest = np.abs(errors).max()
    runs = np.split(errors, np.flatnonzero(np.diff(np.sign(errors))) + 1)
    peaks = [run for run in runs if np.abs(run).max() > 0.95 * largest]
    assert len(peaks) >= sum(approximation.degrees) + 2
    assert q.min() > 0


def test_all_coefficients_are_read_from_the_source() -> None:
    for approximation in APPROXIMATIONS:
        p, q = polynomials.stored_coefficients(approximation.name)
        assert (len(p) - 1, len(q) - 1) == approximation.degrees
