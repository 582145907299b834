"""Memory that is used again: never while somebody looks into it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

from minibert.kernels.buffers import Buffers

SIZE = 1 << 17


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_what_is_free_is_used_again() -> None:
    buffers = Buffers()
    first = buffers.empty(SIZE)
    where = address(first)
    del first
    assert address(buffers.empty(2, SIZE // 2)) == where
    assert address(buffers.empty(SIZE - 1000)) == where


def test_what_an_array_looks_into_is_not() -> None:
    buffers = Buffers()
    whole = buffers.empty(SIZE)
    whole[:] = 1.0
    holder = whole.reshape(2, -1)[1, 5:9]  # a view of a view: its `base` is all that is left
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
    arrays = [buffers.empty(SIZE + number) for number in range(held)]
    for number, array in enumerate(arrays):
        array[:] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()


def test_a_large_block_is_not_pinned_by_a_small_array() -> None:
    buffers = Buffers()
    del_me = buffers.empty(2 * SIZE)
    where = address(del_me)
    del del_me
    assert address(buffers.empty(SIZE)) != where


def test_what_is_larger_than_a_step_of_a_forward_is_not_kept() -> None:
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
    frame.f_locals  # as debuggers and pure-Python coverage do; until Python 3.12 it leaves references behind
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


def test_a_debugger_that_holds_on_to_variables_does_no_harm() -> None:
    """An expected reference count, learned under its eyes, would call a block free that is in use."""
    program = f"SIZE = {SIZE}\n{TRACED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1.0", "2.0"]


def test_threads_never_get_the_same_memory() -> None:
    buffers, wrong = Buffers(), []

    def work(number: int) -> None:
        for _ in range(300):
            array = buffers.empty(SIZE)
            array[::4096] = number
            array[1::4096] = number
            if not (array[::4096] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_they_can_be_pickled_without_what_they_hold() -> None:
    buffers = Buffers()
    buffers.empty(SIZE)
    assert len(pickle.dumps(buffers)) < 200
