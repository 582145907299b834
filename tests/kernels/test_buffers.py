"""Memory for arrays: its alignment, its sharing, and when it is freed."""

from __future__ import annotations

import copy
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from minibert.bert.ops import Linear
from minibert.kernels import make_ops
from minibert.kernels.buffers import Buffers, Slabs, aligned_empty
from tests.support.outcomes import python

LINE = 64  # bytes
SIZE = 1 << 17


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def assert_apart(arrays: list[np.ndarray]) -> None:
    """Check that no write into one of these arrays changes another one."""
    for number, array in enumerate(arrays):
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()


def test_free_memory_is_used_again() -> None:
    buffers = Buffers()
    first = buffers.empty(SIZE)
    where = address(first)
    del first
    assert address(buffers.empty(2, SIZE // 2)) == where
    assert address(buffers.empty(SIZE - 1000)) == where


def test_memory_that_an_array_uses_is_not_used_again() -> None:
    buffers = Buffers()
    whole = buffers.empty(SIZE)
    whole[:] = 1.0
    holder = whole.reshape(2, -1)[1, 5:9]  # a view of a view; only its `base` keeps the memory
    del whole
    for _ in range(20):
        other = buffers.empty(SIZE)
        assert not np.shares_memory(other, holder)
        other[:] = 2.0
    np.testing.assert_array_equal(holder, 1.0)
    where = address(holder)
    del holder, other
    taken = [buffers.empty(SIZE) for _ in range(12)]
    assert any(address(array) <= where < address(array) + array.nbytes for array in taken)


@pytest.mark.parametrize("held", [1, 12, 40])
def test_arrays_held_at_once_never_overlap(held: int) -> None:
    buffers = Buffers()
    assert_apart([buffers.empty(SIZE + number) for number in range(held)])


def test_a_large_block_is_not_pinned_by_a_small_array() -> None:
    buffers = Buffers()
    del_me = buffers.empty(2 * SIZE)
    where = address(del_me)
    del del_me
    assert address(buffers.empty(SIZE)) != where


def test_blocks_larger_than_a_step_of_a_forward_are_not_kept() -> None:
    buffers = Buffers()
    assert buffers.empty(1 << 24).base is None
    assert len(buffers._blocks) == 0
    for _ in range(40):
        buffers.empty(SIZE)
        buffers.empty(2 * SIZE)
    assert len(buffers._blocks) == 2


TRACED = """
import sys

def trace(frame, event, argument):
    frame.f_locals  # as debuggers and pure-Python coverage do; up to Python 3.12 this keeps references
    return trace

sys.settrace(trace)
from minibert.kernels.buffers import Buffers
sys.settrace(None)
buffers = Buffers()
first = buffers.empty(SIZE)
first[:] = 1.0
second = buffers.empty(SIZE)
second[:] = 2.0
print(float(first.max()), float(second.min()))
"""


def test_a_debugger_that_keeps_variables_does_no_harm() -> None:
    """A reference count measured under a debugger would be wrong, so that a used block would count as free."""
    program = f"SIZE = {SIZE}\n{TRACED}"
    assert python("-c", program).stdout.split() == ["1.0", "2.0"]


@pytest.mark.parametrize("memory", [Buffers, Slabs])
def test_threads_never_get_the_same_memory(memory: type[Buffers] | type[Slabs]) -> None:
    shared = memory()

    def work(number: int) -> bool:
        arrays = []
        for _ in range(100):
            arrays = [*arrays[-3:], shared.empty(SIZE)]
            arrays[-1][::4096] = number
        return all((array[::4096] == number).all() for array in arrays)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


# --- the alignment of memory -----------------------------------------------------------------------------------------


def root(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (7, 0), (1000, 3), (2, 3, 4)])
def test_aligned_arrays_begin_with_a_cache_line(shape: tuple[int, ...]) -> None:
    arrays = [aligned_empty(*shape) for _ in range(20)]
    for array in arrays:
        assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, np.float32, True)
        assert array.size == 0 or address(array) % LINE == 0
    assert_apart(arrays)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_weights_are_contiguous_and_never_overlap() -> None:
    slabs = Slabs()
    shapes = [(1, 1), (3, 7, 32), (0, 5), (5,), (1000, 3000), (3000, 1000), (1, 1), (4000, 3000), (2, 2)]
    arrays = [slabs.empty(*shape) for shape in shapes]
    assert [array.shape for array in arrays] == shapes
    assert all(array.dtype == np.float32 and (array.size == 0 or address(array) % LINE == 0) for array in arrays)
    assert_apart(arrays)
    assert address(arrays[1]) == address(arrays[0]) + LINE


def test_slabs_can_be_pickled_without_their_memory() -> None:
    slabs = Slabs()
    array = slabs.empty(SIZE)
    assert len(pickle.dumps(slabs)) < 200
    assert not np.shares_memory(root(array), copy.deepcopy(slabs).empty(SIZE))


def prepared(num_maps: int) -> tuple[Any, list[Any]]:
    """Make ops, and some small linear maps that they prepared."""
    weight, bias = np.ones((64, 32), dtype=np.float32), np.zeros(64, dtype=np.float32)
    ops = make_ops(1)
    return ops, [ops.prepare(Linear((f"{number}",), weight, bias)) for number in range(num_maps)]


def test_the_memory_of_weights_goes_with_the_last_of_them() -> None:
    ops, maps = prepared(3)
    slab = weakref.ref(root(maps[0].panels))
    assert slab() is root(maps[2].panels)
    del ops, maps[1:]
    assert slab() is not None
    np.testing.assert_array_equal(maps[0].weight, 1.0)
    maps.clear()
    assert slab() is None


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_weight_has_memory_of_its_own(duplicate: Any) -> None:
    _, [linear] = prepared(1)
    other = duplicate(linear)
    assert len(pickle.dumps(linear)) < 2 * linear.panels.nbytes  # not the whole slab
    assert not np.shares_memory(other.panels, root(linear.panels))
    np.testing.assert_array_equal(other.weight, linear.weight)
