"""exp, log1p, sigmoid and softmax: against exact numbers, and the same bits whatever else is in the array."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from minibert._utils.reproducible_math import as_score, exponential, largest, log1p, sigmoid, softmax


def test_exponential_is_within_two_units_of_the_last_place() -> None:
    x = -np.concatenate([[0.0], np.geomspace(1e-12, 699, 20_000)])
    exact = np.array([math.exp(value) for value in x])
    assert (np.abs(exponential(x) - exact) <= 2 * np.spacing(exact)).all()
    assert exponential(np.zeros(1))[0] == 1
    assert exponential(np.array([-1e30, -np.inf])).tolist() == [exponential(np.array([-700.0]))[0]] * 2


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 130, 30_522])
def test_softmax_is_exact_to_rounding(width: int) -> None:
    logits = (np.random.default_rng(width).standard_normal((3, width)) * 8).astype(np.float32)
    for row, found in zip(logits.tolist(), softmax(logits), strict=True):
        largest = max(row)
        powers = [math.exp(value - largest) for value in row]
        exact = np.array(powers) / math.fsum(powers)
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=0)


def test_sigmoid_is_exact_to_rounding() -> None:
    logits = np.concatenate([np.linspace(-40, 40, 999), [0, -800, 800, -1e30, 1e30]]).astype(np.float32)
    exact = [1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x)) for x in map(float, logits)]
    np.testing.assert_allclose(sigmoid(logits), exact, rtol=1e-14, atol=1e-300)


def test_a_row_has_the_same_bits_alone_and_in_any_array() -> None:
    logits = (np.random.default_rng(0).standard_normal((64, 33)) * 4).astype(np.float32)
    for width in range(1, 34):
        whole = softmax(logits[:, :width])
        odd = softmax(np.asfortranarray(logits)[::-1, :width])[::-1]
        deep = softmax(logits[:, :width].reshape(4, 16, width)).reshape(64, width)
        alone = np.stack([softmax(row[:width]) for row in logits])
        assert whole.tobytes() == alone.tobytes() == np.ascontiguousarray(odd).tobytes() == deep.tobytes()
    whole = sigmoid(logits)
    assert whole.tobytes() == np.stack([[sigmoid(one) for one in row] for row in logits]).tobytes()


def test_the_bits_are_those_of_every_processor() -> None:
    """The hash was computed once; sums and products of float64 are rounded in the same way everywhere."""
    steps = np.arange(-4000, 4001, dtype=np.float32) / 64
    rows = np.stack([steps, steps[::-1], np.abs(steps)])
    bits = softmax(rows).tobytes() + sigmoid(rows).tobytes()
    expected = "94fdd3ddbb7bc8d4ea97561e25bb218c05b2b4b85ff18f51d844029883dd76c7"
    assert hashlib.sha256(bits).hexdigest() == expected
    x = np.linspace(0, 30, 10_001, dtype=np.float32)
    assert hashlib.sha256(log1p(x).tobytes()).hexdigest()[:16] == "8a96af3f01c97d14"
    assert log1p(x[7:8]).tobytes() == log1p(x)[7:8].tobytes()


def test_large_logits_and_ties() -> None:
    least = float(exponential(np.array([-700.0]))[0] / 2)
    assert softmax(np.array([1e30, -1e30, 1e30], dtype=np.float32)).tolist() == [0.5, least, 0.5]
    assert [as_score(one) for one in softmax(np.array([3e38, -3e38], dtype=np.float32))] == [1.0, 0.0]
    assert type(as_score(np.float64(0.1))) is float
    assert as_score(0.1) == float(np.float32(0.1))


def test_log1p_is_exact_to_rounding_and_to_float32() -> None:
    generator = np.random.default_rng(5)
    wide = np.concatenate([10.0 ** generator.uniform(-44, 38, 20_000), generator.uniform(0, 9, 20_000)])
    x = np.concatenate([wide.astype(np.float32), np.array([0, 1, 2, 2**-24, 3.4e38], np.float32)])
    exact = np.array([math.log1p(value) for value in x.tolist()])
    found = log1p(x)
    assert (np.abs(found - exact) <= 4 * np.spacing(exact)).all()
    np.testing.assert_array_equal(found.astype(np.float32), exact.astype(np.float32))
    assert log1p(np.zeros(1, np.float32))[0] == 0


@pytest.mark.parametrize("count", [1, 7, 40])
def test_of_equal_values_the_first_are_the_largest(count: int) -> None:
    for values in (np.zeros(40), np.arange(40) % 3.0, np.random.default_rng(0).permutation(40) / 8 // 1):
        np.testing.assert_array_equal(largest(values, count), np.argsort(-values, kind="stable")[:count])
