"""The vector type: each operation and function alone, and the vector widths of other processors."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr

from minibert.bert import low_precision
from minibert.bert.low_precision import fma
from minibert.kernels import gemm, simd
from minibert.kernels.activations import exp2, exp2_short, gelu, tanh
from minibert.kernels.processor import MR, NR, WIDTH
from minibert.kernels.run_task import microseconds
from minibert.kernels.simd import floats_at, longs_at
from minibert.kernels.threads import CLOCK, NAP, _system_calls
from tests.support import oracle
from tests.support.native import native


@functools.cache  # each is compiled once
def lane_by_lane(vector_function):
    """Turn a function of vectors into a function of an array whose length is a multiple of WIDTH."""

    @native
    def run(x, y, size):
        for i in range(0, size, WIDTH):
            simd.store(floats_at(y), i, vector_function(simd.load(floats_at(x), i)))

    def call(x: np.ndarray) -> np.ndarray:
        padded = np.zeros(-(-x.size // WIDTH) * WIDTH, dtype=np.float32)
        padded[: x.size] = x
        y = np.full_like(padded, np.nan)
        run(padded, y, padded.size)
        return y[: x.size]

    return call


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the error in units of the last place, which are at least those of the smallest normal number."""
    unit = np.spacing(np.maximum(np.abs(exact), np.finfo(np.float32).tiny).astype(np.float32))
    return np.abs(found.astype(np.float64) - exact) / unit


def test_exp2() -> None:
    x = np.linspace(-125.9, 127.0, 400_001, dtype=np.float32)
    assert ulps(lane_by_lane(exp2)(x), np.exp2(x.astype(np.float64))).max() < 1
    whole = np.arange(-126, 128, dtype=np.float32)
    np.testing.assert_array_equal(lane_by_lane(exp2)(whole), np.ldexp(1.0, whole.astype(int)))
    np.testing.assert_array_equal(lane_by_lane(exp2)(np.array([-126.6, -127, -127.4], dtype=np.float32)), 0.0)


def test_exp2_short_has_the_bits_of_its_twin() -> None:
    x = np.append(np.linspace(-125, 0, 400_001, dtype=np.float32), np.float32(np.nan))
    found = lane_by_lane(exp2_short)(x)
    np.testing.assert_array_equal(found, low_precision.exp2_short(x))
    np.testing.assert_allclose(found, np.exp2(x.astype(np.float64)), rtol=2.8e-6)
    assert found[-2] <= 1


def test_maximum_and_minimum_keep_nan() -> None:
    @native
    def run(x, y, larger, smaller):
        a, b = simd.load(floats_at(x), 0), simd.load(floats_at(y), 0)
        simd.store(floats_at(larger), 0, simd.maximum(a, b))
        simd.store(floats_at(smaller), 0, simd.minimum(a, b))

    x, y = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
    x[0] = np.nan
    larger, smaller = np.empty((2, WIDTH), dtype=np.float32)
    run(x, y, larger, smaller)
    np.testing.assert_array_equal(larger, np.maximum(x, y))
    np.testing.assert_array_equal(smaller, np.minimum(x, y))


def test_nan_is_not_lost() -> None:
    strange = np.array([np.nan, np.inf], dtype=np.float32)
    for activation in (gelu, tanh):
        np.testing.assert_array_equal(np.isnan(lane_by_lane(activation)(strange)), [True, False])


def test_tanh() -> None:
    x = np.linspace(-12, 12, 400_001, dtype=np.float32)
    found = lane_by_lane(tanh)(x)
    assert ulps(found, np.tanh(x.astype(np.float64))).max() < 6
    assert np.abs(found).max() == 1
    tiny = np.array([0.0, 1e-30, -1e-10], dtype=np.float32)
    np.testing.assert_allclose(lane_by_lane(tanh)(tiny), tiny, rtol=2e-7)


def test_gelu_is_exact_to_float32_rounding() -> None:
    x = np.linspace(-20, 20, 800_001, dtype=np.float32)
    exact = x.astype(np.float64) * ndtr(x.astype(np.float64))
    found = lane_by_lane(gelu)(x)
    assert ulps(found, exact)[x > -1].max() < 5
    # Small results are measured in units of x, from which they are computed.
    assert (np.abs(found - exact) / (oracle.EPSILON * np.maximum(np.abs(x), 1e-30))).max() < 1.2
    far = np.array([-1e17, -1e4, -20, 0.0, 20, 1e4, 1e17], dtype=np.float32)
    np.testing.assert_array_equal(lane_by_lane(gelu)(far), np.maximum(far, 0))


def test_sums_and_largest() -> None:
    @native
    def run(x, results):
        floats_at(results)[0] = simd.sum_lanes(simd.load(floats_at(x), 0))
        floats_at(results)[1] = simd.largest(simd.load(floats_at(x), 0))

    x = np.random.default_rng(0).integers(-100, 100, WIDTH).astype(np.float32)
    results = np.empty(2, dtype=np.float32)
    run(x, results)
    np.testing.assert_array_equal(results, [x.sum(), x.max()])


@pytest.fixture(scope="module")
def partial() -> Callable[..., None]:
    @native
    def run(x, size, y, count):
        simd.store_first(floats_at(y), 1, 2.0 * simd.load_first(floats_at(x), size - count, count) + 1.0, count)

    return run


@pytest.mark.parametrize("count", range(WIDTH + 1))
def test_partial_loads_and_stores_touch_nothing_beyond(count: int, partial: Callable[..., None]) -> None:
    x = np.arange(1, 2 * WIDTH + 1, dtype=np.float32)  # memory after its end may not be read
    y = np.full(WIDTH + 2, -1, dtype=np.float32)
    partial(x, x.size, y, count)
    np.testing.assert_array_equal(y[1 : count + 1], 2 * x[x.size - count :] + 1)
    np.testing.assert_array_equal(np.delete(y, np.s_[1 : count + 1]), -1)


def test_first_lanes() -> None:
    @native
    def run(x, others, y, count):
        simd.store(
            floats_at(y), 0, simd.first_lanes(simd.load(floats_at(x), 0), count, simd.load(floats_at(others), 0))
        )

    x, others = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
    y = np.empty(WIDTH, dtype=np.float32)
    for count in range(WIDTH + 1):
        run(x, others, y, count)
        np.testing.assert_array_equal(y, [*x[:count], *others[count:]])


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not have the call")
def test_the_clock_of_the_kernels_runs() -> None:
    @native
    def run(times, state):
        longs_at(times)[0] = microseconds(longs_at(state))

    times, state = np.zeros(1, dtype=np.int64), np.zeros(64, dtype=np.int64)
    run(times, state)
    assert times[0] == 0, "the system does not have a clock"
    state[CLOCK : NAP + 1] = _system_calls()
    seen = []
    for _ in range(2):
        run(times, state)
        seen.append(int(times[0]))
        time.sleep(0.01)
    assert 10_000 <= seen[1] - seen[0] < 60_000_000


@pytest.mark.parametrize("count", [WIDTH, WIDTH + 9, WIDTH - 1, 1])
def test_transpose_block(count: int) -> None:
    """With fewer rows, the last one is repeated, and no other row is read."""

    @native
    def run(x, y):
        simd.transpose_block(floats_at(x), 2, WIDTH + 3, count, floats_at(y), 1, WIDTH + 5)

    x = np.random.default_rng(0).standard_normal((WIDTH + 1) * (WIDTH + 3)).astype(np.float32)
    y = np.zeros(WIDTH * (WIDTH + 5), dtype=np.float32)
    run(x, y)
    block = x[2 : 2 + WIDTH * (WIDTH + 3)].reshape(WIDTH, WIDTH + 3)[np.minimum(range(WIDTH), count - 1), :WIDTH]
    np.testing.assert_array_equal(np.append(y[1:], np.zeros(1)).reshape(WIDTH, WIDTH + 5)[:, :WIDTH], block.T)


@pytest.fixture(scope="module")
def multiply_tile() -> Callable[..., None]:
    @native
    def run(rows, a, lda, b, depth, c, ldc):
        zero = np.int64(0)
        gemm.multiply_floats(rows, a, lda, b, depth, gemm.block_length(depth), c, ldc, zero, b, b, b, zero)

    return run


def micro_kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What gemm.py says at its top."""
    totals = np.zeros((len(a), NR), np.float32)
    length = gemm.KC if len(b) > gemm.SHORT else gemm.SHORT_KC
    for start in range(0, len(b), length):
        sums = np.zeros((len(a), NR), np.float32)
        for k in range(start, min(start + length, len(b))):
            sums = fma(a[:, k, None], b[k], sums)
        totals += sums
    return totals


@pytest.mark.parametrize("rows", range(1, MR + 1))
@pytest.mark.parametrize("depth", [1, 15, 16, 17, 127, 128, 129, 160, 300])
def test_multiply_tile(rows: int, depth: int, multiply_tile: Callable[..., None]) -> None:
    """Bit for bit the lines of Python at the top of gemm.py."""
    generator = np.random.default_rng(rows)
    a = generator.standard_normal((rows, depth + 2)).astype(np.float32)
    b = generator.standard_normal((depth, NR)).astype(np.float32)
    c = np.full((rows + 1, NR + 3), np.nan, dtype=np.float32)
    multiply_tile(rows, a[:, 1:], depth + 2, b, depth, c[:, 2:], NR + 3)
    np.testing.assert_array_equal(c[:rows, 2:-1], micro_kernel(a[:, 1:-1], b))
    exact = a[:, 1:-1].astype(np.float64) @ b
    scale = np.abs(a[:, 1:-1]).astype(np.float64) @ np.abs(b)
    assert (np.abs(c[:rows, 2:-1] - exact) <= 4 * oracle.EPSILON * scale).all()
    assert np.isnan(c[:rows, [0, 1, -1]]).all()
    assert np.isnan(c[rows]).all()
