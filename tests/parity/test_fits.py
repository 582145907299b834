"""Fits of one number, against values that were made with that number."""

from __future__ import annotations

import numpy as np
import pytest

from minibert.bert.ops import LayerNorm
from minibert.parity.diagnosis import fits
from minibert.parity.diagnosis.formulas import CURVES

GENERATOR = np.random.default_rng(0)
H, S, A = 24, 17, 3


def norm() -> LayerNorm:
    weight, bias = (GENERATOR.standard_normal(H).astype(np.float32) for _ in range(2))
    return LayerNorm("embeddings.LayerNorm", 1 + weight / 5, bias, 1e-12)


@pytest.mark.parametrize("eps", [1e-3, 1e-5, 3.7e-6])
@pytest.mark.parametrize("outside", [False, True])
def test_eps_and_its_place(eps: float, outside: bool) -> None:
    one, x = norm(), 0.05 * GENERATOR.standard_normal((60, H)) * GENERATOR.uniform(0.5, 2, (60, 1))
    variance = x.var(axis=1, keepdims=True)
    root = np.sqrt(variance) + eps if outside else np.sqrt(variance + eps)
    y = ((x - x.mean(axis=1, keepdims=True)) / root * one.weight + one.bias).astype(np.float32)
    fit = fits.fit_eps(x, y.astype(np.float64), one)
    assert fit == (pytest.approx(eps, rel=0.02), outside)


def test_no_eps_fits_another_formula() -> None:
    one, x = norm(), GENERATOR.standard_normal((60, H))
    assert fits.fit_eps(x, GENERATOR.standard_normal((60, H)), one) is None
    assert fits.fit_eps(x[:1], x[:1], one) is None


def test_scale() -> None:
    query, key = (GENERATOR.standard_normal((S, H)) for _ in range(2))
    heads = [x.reshape(S, A, H // A).transpose(1, 0, 2) for x in (query, key)]
    scores = (heads[0] @ heads[1].transpose(0, 2, 1) * 0.123).astype(np.float32)
    assert fits.fit_scale(query, key, scores.astype(np.float64), A) == pytest.approx(0.123, rel=1e-6)


def test_no_scale_fits_other_scores() -> None:
    query, key = (GENERATOR.standard_normal((S, H)) for _ in range(2))
    assert fits.fit_scale(query, key, GENERATOR.standard_normal((A, S, S)), A) is None


@pytest.mark.parametrize("curve", CURVES)
def test_activation(curve: str) -> None:
    x = GENERATOR.uniform(-6, 6, 3000).astype(np.float32)
    found = fits.fit_activation(x, CURVES[curve](x.astype(np.float64)))
    assert found is not None
    assert found == (curve, 0.0)


@pytest.mark.parametrize("constant", [0.0, -1.0, -5.0])
def test_leak(constant: float) -> None:
    mask = np.ones((2, S), np.bool_)
    mask[0, 11:] = False
    scores = GENERATOR.standard_normal((2, A, S, S))
    shifted = scores + np.where(mask, 0, constant)[:, None, None]
    probs = np.exp(shifted) / np.exp(shifted).sum(axis=-1, keepdims=True)
    assert fits.fit_leak(scores, probs, mask) == pytest.approx(constant, abs=1e-6)


def test_no_leak_with_a_right_mask() -> None:
    mask = np.arange(S) < np.array([[5], [S]])
    scores = GENERATOR.standard_normal((2, A, S, S))
    exponentials = np.exp(scores) * mask[:, None, None]
    assert fits.fit_leak(scores, exponentials / exponentials.sum(axis=-1, keepdims=True), mask) is None


def test_columns() -> None:
    x = GENERATOR.standard_normal((50, H))
    order = GENERATOR.permutation(H)
    np.testing.assert_array_equal(fits.fit_columns(x, x[:, order] + 1e-6), order)
    assert fits.fit_columns(x, x) is None
    assert fits.fit_columns(x, GENERATOR.standard_normal((50, H))) is None
    assert fits.fit_columns(x, np.full_like(x, np.nan)) is None


def test_length() -> None:
    x = GENERATOR.standard_normal((9, H))
    assert fits.fit_length(x, 3 * x) == (pytest.approx(3), pytest.approx(0, abs=1e-12))
    assert fits.fit_length(x, x + 0.1) is None
    unit = fits.fit_length(x, x / np.sqrt((x * x).sum(axis=1, keepdims=True)))
    assert unit is not None
    assert unit[1] > 0.01


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout(rate: float) -> None:
    x = GENERATOR.standard_normal((40, 100))
    dropped = np.where(GENERATOR.random(x.shape) < rate, 0, x / (1 - rate))
    assert fits.fit_dropout(x, dropped) == pytest.approx(rate)
    assert fits.fit_dropout(x, x) is None
    assert fits.fit_dropout(x, np.where(GENERATOR.random(x.shape) < rate, 0, x)) is None


def test_rows_of_a_table() -> None:
    table = GENERATOR.standard_normal((50, H))
    np.testing.assert_array_equal(fits.fit_rows(table, table[[3, 49, 0]] + 1e-4), [3, 49, 0])
