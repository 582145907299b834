"""The vector type: each operation and function alone, and the vector widths of other processors."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

import minibert
from minibert.kernels import gemm, simd
from minibert.kernels.compilation import function
from tests.support import oracle
from tests.support.outcomes import PATIENCE

WIDTH = simd.WIDTH


def lane_by_lane(vector_function):
    """Turn a function of vectors into a function of an array whose length is a multiple of WIDTH."""

    @function
    def run(x, y):
        for i in range(0, x.size, WIDTH):
            simd.store(y, i, vector_function(simd.load(x, i)))

    def call(x: np.ndarray) -> np.ndarray:
        padded = np.zeros(-(-x.size // WIDTH) * WIDTH, dtype=np.float32)
        padded[: x.size] = x
        y = np.full_like(padded, np.nan)
        run(padded, y)
        return y[: x.size]

    return call


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the error in units of the last place, which are at least those of the smallest normal number."""
    unit = np.spacing(np.maximum(np.abs(exact), np.finfo(np.float32).tiny).astype(np.float32))
    return np.abs(found.astype(np.float64) - exact) / unit


def test_exp2() -> None:
    x = np.linspace(-125.9, 127.0, 400_001, dtype=np.float32)
    assert ulps(lane_by_lane(simd.exp2)(x), np.exp2(x.astype(np.float64))).max() < 1
    whole = np.arange(-126, 128, dtype=np.float32)
    np.testing.assert_array_equal(lane_by_lane(simd.exp2)(whole), np.ldexp(1.0, whole.astype(int)))
    np.testing.assert_array_equal(lane_by_lane(simd.exp2)(np.array([-126.6, -127, -127.4], dtype=np.float32)), 0.0)


def test_maximum_and_minimum_keep_nan() -> None:
    @function
    def run(x, y, larger, smaller):
        simd.store(larger, 0, simd.maximum(simd.load(x, 0), simd.load(y, 0)))
        simd.store(smaller, 0, simd.minimum(simd.load(x, 0), simd.load(y, 0)))

    x, y = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
    x[0] = np.nan
    larger, smaller = np.empty((2, WIDTH), dtype=np.float32)
    run(x, y, larger, smaller)
    np.testing.assert_array_equal(larger, np.maximum(x, y))
    np.testing.assert_array_equal(smaller, np.minimum(x, y))


def test_nan_is_not_lost() -> None:
    strange = np.array([np.nan, np.inf], dtype=np.float32)
    for activation in (simd.gelu, simd.tanh):
        np.testing.assert_array_equal(np.isnan(lane_by_lane(activation)(strange)), [True, False])


def test_tanh() -> None:
    x = np.linspace(-12, 12, 400_001, dtype=np.float32)
    found = lane_by_lane(simd.tanh)(x)
    assert ulps(found, np.tanh(x.astype(np.float64))).max() < 6
    assert np.abs(found).max() == 1
    tiny = np.array([0.0, 1e-30, -1e-10], dtype=np.float32)
    np.testing.assert_allclose(lane_by_lane(simd.tanh)(tiny), tiny, rtol=2e-7)


def test_gelu_is_exact_to_float32_rounding() -> None:
    x = np.linspace(-20, 20, 800_001, dtype=np.float32)
    exact = x.astype(np.float64) * ndtr(x.astype(np.float64))
    found = lane_by_lane(simd.gelu)(x)
    assert ulps(found, exact)[x > -1].max() < 5
    # Small results are measured in units of x, from which they are computed.
    assert (np.abs(found - exact) / (oracle.EPSILON * np.maximum(np.abs(x), 1e-30))).max() < 1.2
    far = np.array([-1e17, -1e4, -20, 0.0, 20, 1e4, 1e17], dtype=np.float32)
    np.testing.assert_array_equal(lane_by_lane(simd.gelu)(far), np.maximum(far, 0))


def test_sums_and_largest() -> None:
    @function
    def run(x, results):
        results[0] = simd.sum_lanes(simd.load(x, 0))
        results[1] = simd.largest(simd.load(x, 0))

    x = np.random.default_rng(0).integers(-100, 100, WIDTH).astype(np.float32)
    results = np.empty(2, dtype=np.float32)
    run(x, results)
    np.testing.assert_array_equal(results, [x.sum(), x.max()])


@pytest.mark.parametrize("count", range(WIDTH + 1))
def test_partial_loads_and_stores_touch_nothing_beyond(count: int) -> None:
    @function
    def run(x, y, count):
        simd.store_first(y, 1, 2.0 * simd.load_first(x, x.size - count, count) + 1.0, count)

    x = np.arange(1, 2 * WIDTH + 1, dtype=np.float32)  # memory after its end may not be read
    y = np.full(WIDTH + 2, -1, dtype=np.float32)
    run(x, y, count)
    np.testing.assert_array_equal(y[1 : count + 1], 2 * x[x.size - count :] + 1)
    np.testing.assert_array_equal(np.delete(y, np.s_[1 : count + 1]), -1)


@pytest.mark.parametrize("count", range(WIDTH + 1))
def test_first_lanes(count: int) -> None:
    @function
    def run(x, others, y, count):
        simd.store(y, 0, simd.first_lanes(simd.load(x, 0), count, simd.load(others, 0)))

    x, others = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
    y = np.empty(WIDTH, dtype=np.float32)
    run(x, others, y, count)
    np.testing.assert_array_equal(y, [*x[:count], *others[count:]])


def test_transpose_block() -> None:
    @function
    def run(x, y):
        simd.transpose_block(x, 2, WIDTH + 3, y, 1, WIDTH + 5)

    x = np.random.default_rng(0).standard_normal((WIDTH + 1) * (WIDTH + 3)).astype(np.float32)
    y = np.zeros(WIDTH * (WIDTH + 5), dtype=np.float32)
    run(x, y)
    block = x[2 : 2 + WIDTH * (WIDTH + 3)].reshape(WIDTH, WIDTH + 3)[:, :WIDTH]
    np.testing.assert_array_equal(np.append(y[1:], np.zeros(1)).reshape(WIDTH, WIDTH + 5)[:, :WIDTH], block.T)


@pytest.mark.parametrize("rows", range(1, gemm.MR + 1))
@pytest.mark.parametrize("depth", [1, 127, 128, 129, 300])
def test_multiply_tile(rows: int, depth: int) -> None:
    generator = np.random.default_rng(rows)
    a = generator.standard_normal((rows, depth + 2)).astype(np.float32)
    b = generator.standard_normal((depth, gemm.NR)).astype(np.float32)
    c = np.full((rows + 1, gemm.NR + 3), np.nan, dtype=np.float32)
    a_first, c_first = a[:, 1:].ctypes.data, c[:, 2:].ctypes.data
    gemm.multiply_tile(rows, a_first, depth + 2, b.ctypes.data, depth, c_first, gemm.NR + 3)
    exact = a[:, 1:-1].astype(np.float64) @ b
    scale = np.abs(a[:, 1:-1]).astype(np.float64) @ np.abs(b)
    assert (np.abs(c[:rows, 2:-1] - exact) <= 4 * oracle.EPSILON * scale).all()
    assert np.isnan(c[:rows, [0, 1, -1]]).all()
    assert np.isnan(c[rows]).all()


SCRIPT = """
import numpy as np
from minibert.kernels import make_ops, simd
from tests.support import oracle
from tests.support.cases import OP_CASES

ops, worst = make_ops(2), 0.0
for case in OP_CASES[::4]:
    arguments = case.arguments()
    result, exact = case.run(ops, arguments), case.run(oracle.OPS, arguments)
    worst = max(worst, *oracle.rounding_errors(case.op, result, exact, arguments), 0.0)
print(simd.WIDTH, worst)
"""


# lanes: (the processor, its features)
PROCESSORS = [(8, "haswell", "+avx,+avx2,+fma"), (4, "nehalem", "+sse4.2")]


@pytest.fixture(scope="module")
def running() -> Iterator[dict[int, subprocess.Popen[str]]]:
    """Start a process for each processor, all at the same time, because one process compiles on one core."""
    processes = {}
    for width, name, features in PROCESSORS:
        environment = {
            **os.environ,
            "NUMBA_CPU_NAME": name,
            "NUMBA_CPU_FEATURES": features,
            "PYTHONPATH": str(Path(minibert.__file__).parent.parent),
        }
        processes[width] = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    yield processes
    for process in processes.values():
        process.kill()
        process.communicate()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the processors named here are x86-64")
@pytest.mark.parametrize("width", [width for width, _, _ in PROCESSORS])
def test_other_widths(width: int, running: dict[int, subprocess.Popen[str]]) -> None:
    """AVX2 has 8 lanes and 16 registers; without it there are 4, and fma is a function of a library."""
    printed, errors = running[width].communicate(timeout=PATIENCE)
    assert running[width].returncode == 0, errors
    found, worst = printed.split()
    assert int(found) == width
    assert float(worst) < 6
