"""A team of threads that share the chunks of each op. Between two ops, the leader does not make a system call.

What        `Team.run` computes an op, described as a *task*: a kind, named fields, and a number of chunks.
            `Team.start` computes many of them by one call, one after the other (recordings.py).
            Python writes a task with `TaskKind.write`. A kernel reads the same fields by name, as a record with the
            dtype of its kind (`task_at` in simd.py). So each name is written down once, in ops.py
Layout      The threads share one row of int64 numbers, the *state*; run_task.py reads and writes it::

                0            SHARED      address of the shared state       (in the states of callers and helpers only)
                1, 2         THREAD      its number (a caller is 0)
                             PATIENCE    how often a helper looks for work before it sleeps
                3            NUM_CHUNKS  of the task
                             ASLEEP      of a helper: 1 if it sleeps, or is about to
                4, 5         SCRATCH     memory for intermediate results
                             SCRATCH_SIZE, the bytes of it that each thread has
                6            NUM_ARRAYS  how many fields of the task are arrays. Python writes the address of the array
                                         object, because that is faster; the caller's run_task replaces it by the
                                         address of the array's first number
                7 ... 30     TASK        its kind, then arrays, sizes and options as int64; only `eps` is a float64
                31           NUM_SHARES
                32           REMAINING   chunks that nobody has taken yet  (set by the leader, lowered by every thread)
                40           ACTIVE      helpers that may be inside a chunk  (raised and lowered by helpers)
                48           CALLERS     threads that compute an op          (raised and lowered by callers)
                56           CLOSED      1 when the helpers must return      (set when the team is deleted)
                57, 58       CLOCK       the address of the system's function for the time, and its number of a clock
                59, 60       YIELD, NAP  the addresses of its functions to offer a core and to sleep; 0 if there is none
                61           DATA        the offset of that address in an array object, in bytes
                62           NONE        the address of None, which Python writes for no array; it becomes 0
                63           NEXT        the address of the caller's next state, with its next task; 0: none
                64, 72, ...  SHARES      for each share, the number of its chunks that are taken

            Each counter that several threads write has a cache line (8 numbers) of its own
Order       `Team.write` writes each task into a new state of the same layout, then calls `run_task`. This is
            compiled code, which Python does not interrupt::

                time --->
                leader  CALLERS + 1 | task -> state | REMAINING = n | chunk chunk | ACTIVE = 0 ? | CALLERS - 1 | returns
                helper  REMAINING > 0 ?  no, no, no, no, no, yes | ACTIVE + 1 | chunk chunk | ACTIVE - 1 | ...

            1. The calling thread replaces the array objects of its task (NUM_ARRAYS) and adds one to CALLERS. If no
               other caller is inside, it is the *leader*: it copies its task into the shared state and sets REMAINING.
               A caller that is not the leader computes its op alone, in its own state, because with many callers all
               cores are busy anyway.
            2. The leader and the helpers take chunks. A thread takes one by lowering REMAINING by one, until none are
               left. The helpers wait in `run_task` too, and read REMAINING again and again. The leader takes chunks
               like a helper, so an op is not slower if a helper comes late, loses its core, or does not exist.
            3. Each thread has a share of the chunks, in order, and begins with its own share. When that share is used
               up, it continues with the shares of the others. So usually the same thread computes the same rows in one
               op after another and finds them in its own cache, but no thread waits for a slow one.
            4. The leader waits until no helper is inside a chunk (ACTIVE is 0), subtracts one from CALLERS, and returns
Contract    A helper adds one to ACTIVE *before* it tries to take a chunk. So the leader does not leave while a chunk is
            being computed, and nothing is written into a result after the op has returned. A helper that comes too late
            finds REMAINING at or below zero, or it gets a chunk of the next op, whose task was complete before
            REMAINING was set. All of these are sequentially consistent atomics. This file does not import numba
Ctrl-C      Python raises KeyboardInterrupt between two of its instructions. All changes of the counters happen within
            one call of `run_task`, so they are complete; the exception comes after the current op
Fork        A child process inherits the memory, as it was in the middle of the parent's op, but not the helper threads.
            So each process has its own `_ProcessHelpers` (state and helpers), and a child that computes starts new
            ones. No lock is involved
Memory      Scratch memory is allocated before the op begins, so a MemoryError comes from Python and no chunk can fail
Busy core   If another process uses the same core as a helper, the system takes the core away from time to time. In the
            middle of a chunk, this would stop the leader too. So a helper offers its core (`yield_core`) twice in a
            millisecond, between two chunks, when no leader waits for it. If it still loses its core in a chunk, the
            leader soon sleeps for short times, so that the system can run the helper on the leader's core. On Windows
            there are no such calls here: threads only wait actively, and the system takes cores away by itself
Idleness    A helper that has waited for about a millisecond without work, or that got `Team.rest`, sleeps (on a
            lock) until a later op. With `idle_release`, one more thread begins with the helpers. It sleeps for that
            time, and after a time without an op it calls `Team.release` and returns
The end     When a team is released or deleted, or the interpreter ends, its helpers return. An op that runs meanwhile
            is computed to its end by its leader; a later one starts new helpers
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.kernels.buffers import CACHE_LINE, aligned_empty
from minibert.kernels.libraries import Kernel

# --- tasks -----------------------------------------------------------------------------------------------------------

FLOAT = 4  # bytes of a float32
MOST_FIELDS = 24  # of any task, with its kind

# The indices of the state, as the picture above shows; its first numbers and a task are written together.
SHARED, THREAD, PATIENCE, NUM_CHUNKS, SCRATCH, SCRATCH_SIZE, NUM_ARRAYS, TASK = range(8)
ASLEEP = NUM_CHUNKS
NUM_SHARES = TASK + MOST_FIELDS
REMAINING, ACTIVE, CALLERS, CLOSED, SHARES, LINE_WORDS = 32, 40, 48, 56, 64, 8
CLOCK, CLOCK_ID, YIELD, NAP, DATA, NONE, NEXT = range(CLOSED + 1, CLOSED + 8)

# In memory an array is Python's object header, then the pointer to its data. This is part of NumPy's binary interface,
# which compiled extensions rely on. Source: PyArrayObject_fields in numpy/ndarraytypes.h.
_DATA = object.__basicsize__
_pointer_at = ctypes.c_size_t.from_address
_IN_OBJECTS = sys.implementation.name == "cpython" and all(
    _pointer_at(id(x) + _DATA).value == x.ctypes.data for x in (np.zeros(3), np.zeros((2, 5))[:, 2:])
)


def address(array: np.ndarray[Any, Any] | None) -> int:
    """Return the address of the first number of an array; 0 for None."""
    if array is None:
        return 0
    # array.ctypes.data takes eight times as long.
    return _pointer_at(id(array) + _DATA).value if _IN_OBJECTS else array.ctypes.data


_HANDLE: Callable[[np.ndarray[Any, Any] | None], int] = id if _IN_OBJECTS else address


class TaskKind:
    """A kind of task: its number, and the names of its fields. Arrays come first, then numbers."""

    def __init__(self, number: int, arrays: str, numbers: str) -> None:
        self.number = number
        types = {name: "f8" if name == "eps" else "i8" for name in f"{arrays} {numbers}".split()}
        if len(types) >= MOST_FIELDS:
            raise ValueError(f"a task has {len(types)} fields; there is room for {MOST_FIELDS - 1}")
        self.dtype = np.dtype([("kind", "i8"), *types.items()])
        codes = {"i8": "q", "f8": "d"}
        numbers_before, kind_and_fields = "q" * TASK, "q" + "".join(codes[name] for name in types.values())
        self.num_arrays = len(arrays.split()) if _IN_OBJECTS else 0
        self.write = struct.Struct(f"={numbers_before}{kind_and_fields}").pack_into


class Task(NamedTuple):
    """An op with its arguments: a kind and its fields, the chunks, and the floats of scratch memory of each thread.

    `kept` is memory that the fields refer to by an address.
    """

    kind: TaskKind
    arrays: tuple[np.ndarray[Any, Any] | None, ...]
    numbers: tuple[float, ...]
    num_chunks: int
    scratch: int = 0
    kept: FloatArray | None = None


# --- the team --------------------------------------------------------------------------------------------------------

_OwnState = ctypes.c_int64 * (SHARES + LINE_WORDS)
_STATE_BYTES = ctypes.sizeof(_OwnState)

# A helper looks for work this number of times before it sleeps (about a millisecond). That is longer than the Python
# between two ops (5 to 70 microseconds); not measured with other values.
_PATIENCE = 20_000

_generation = 0  # forks between this process and the first one that imported this file


def _process() -> tuple[int, int]:
    """Return what tells this process from its ancestors: an id alone may be used again."""
    # The id is needed too, because a program in C, such as uWSGI, may fork without a call of _count_fork.
    return os.getpid(), _generation


def _count_fork() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def _system_calls() -> tuple[int, ...]:
    """Return the numbers CLOCK to NAP of a state."""
    if os.name != "posix":
        return 0, 0, 0, 0
    system = ctypes.CDLL(None)
    calls = system.clock_gettime, system.sched_yield, system.usleep
    clock, yield_core, nap = (ctypes.cast(call, ctypes.c_void_p).value or 0 for call in calls)
    return clock, time.CLOCK_MONOTONIC, yield_core, nap


class Team:
    """Up to `num_threads` threads that compute ops; safe to share between threads, to interrupt and to fork.

    `idle_release` is the number of seconds without an op after which it is released, or None. What `release` calls
    beside, `also`, must not refer to the team.
    """

    def __init__(
        self, num_threads: int, run_task: Kernel, idle_release: float | None = None, *also: Callable[[], object]
    ) -> None:
        self.num_threads, self.idle_release = num_threads, idle_release
        self._run_task = run_task
        self._scratch: deque[FloatArray] = deque()  # memory for intermediate results of ops
        self._also = also
        # A forked child also finds the helpers of its parent here, and does not use them.
        self._helpers_by_process: dict[tuple[int, int], _ProcessHelpers] = {}

    def run(self, task: Task) -> None:
        """Compute one op."""
        self.compute((task,))

    def compute(self, tasks: Sequence[Task]) -> None:
        """Compute tasks one after the other; at least one.

        Raises
        ------
        MemoryError
            The scratch memory cannot be allocated.
        """
        self.start(*self.write(tasks))

    def write(self, tasks: Sequence[Task], *, once: bool = True) -> tuple[_ProcessHelpers, Any, int]:
        """Return the helpers of this process, the states of tasks, and the bytes of scratch memory of each thread.

        `once`: they are started once, so the addresses of array objects are written, which takes less time.
        """
        helpers = self.helpers()
        size = -(-max(task.scratch for task in tasks) * FLOAT // CACHE_LINE) * CACHE_LINE
        # New states for each call, because a signal handler or finalizer may compute another op in between.
        states = (_OwnState * len(tasks))()
        first, last = ctypes.addressof(states), len(tasks) - 1
        handle = _HANDLE if once else address
        for i, (kind, arrays, numbers, num_chunks, _, _) in enumerate(tasks):
            num_arrays = kind.num_arrays if once else 0
            header = (helpers.address, 0, 0, num_chunks, 0, size, num_arrays, kind.number)
            kind.write(states, i * _STATE_BYTES, *header, *map(handle, arrays), *numbers)
            if i < last:
                states[i][NEXT] = first + (i + 1) * _STATE_BYTES
        return helpers, states, size

    def start(self, helpers: _ProcessHelpers, states: Any, size: int) -> None:
        """Compute the tasks in these states."""
        memory = self._take_scratch(self.num_threads * size) if size else None
        if (scratch := address(memory)) != states[0][SCRATCH]:
            for state in states:
                state[SCRATCH] = scratch
        if len(states) > 1 or states[0][NUM_CHUNKS] > 1:
            helpers.wake()
        self._run_task(ctypes.addressof(states))
        helpers.used = time.monotonic()
        if memory is not None:
            self._scratch.append(memory)

    def helpers(self) -> _ProcessHelpers:
        """Return the helpers of this process; they start if there are none."""
        return self._helpers_by_process.get(_process()) or self._start_helpers()

    def release(self, *, join: bool = True) -> None:
        """End the helpers of this process, and free the memory that ops keep; `join`: wait until the helpers ended."""
        if helpers := self._helpers_by_process.pop(_process(), None):
            helpers.close()
            if join:
                helpers.join()
        for free in (self._scratch.clear, *self._also):
            free()

    def rest(self) -> None:
        """Let the helpers sleep until the next op at once, because the caller has nothing to compute."""
        if helpers := self._helpers_by_process.get(_process()):
            for helper in helpers._helpers:
                helper.own[PATIENCE] = 0

    def _take_scratch(self, size: int) -> FloatArray:
        """Take out memory of at least this number of bytes, or make it; a caller that is interrupted loses it."""
        with contextlib.suppress(IndexError):  # other callers have it
            if (memory := self._scratch.popleft()).nbytes >= size:
                return memory
        try:
            return aligned_empty(size // FLOAT)
        except MemoryError:
            raise MemoryError(
                f"{size:,} bytes of scratch memory for the kernels could not be allocated. Give fewer or shorter texts "
                "at once, or fewer threads."
            ) from None

    def _start_helpers(self) -> _ProcessHelpers:
        """Return the helpers of this process: new ones, or those that another thread has started in the meantime."""
        new = _ProcessHelpers(self, self.num_threads - 1)
        helpers = self._helpers_by_process.setdefault(_process(), new)
        if helpers is not new:
            new.close()
        return helpers


class _ProcessHelpers:
    """The helper threads of one team in one process, and the state that they share with the leader."""

    def __init__(self, team: Team, num_helpers: int) -> None:
        self.process = _process()
        # With room to begin at a cache line.
        self._memory = (ctypes.c_int64 * (SHARES + (num_helpers + 2) * LINE_WORDS))()
        start = -ctypes.addressof(self._memory) % CACHE_LINE
        self.state = (ctypes.c_int64 * (SHARES + (num_helpers + 1) * LINE_WORDS)).from_buffer(self._memory, start)
        self.address = ctypes.addressof(self.state)
        self.state[NUM_SHARES] = num_helpers + 1
        self.state[CLOCK : NONE + 1] = [*_system_calls(), _DATA, id(None)]
        self._helpers = [_Helper(number, self.state, team._run_task) for number in range(1, num_helpers + 1)]
        self._finalizer = weakref.finalize(team, self.close)
        self.used = time.monotonic()  # the end of the last op
        self._closed = threading.Lock()  # until it is closed, as for the sleep of a helper
        self._closed.acquire()
        self._threads = [helper.thread for helper in self._helpers]
        if (seconds := team.idle_release) is not None:
            watch = threading.Thread(target=self._watch, args=(weakref.ref(team), seconds), name="minibert-idle")
            watch.daemon = True
            self._threads.append(watch)
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:  # the interpreter is ending, or the system cannot start more threads
            pass
        except BaseException:  # a Ctrl-C: these helpers will not be used
            self.close()
            raise

    def wake(self) -> None:
        """Wake the helpers that sleep, unless another caller computes, because then they could not help this one."""
        for helper in self._helpers:
            if helper.own[ASLEEP] and not self.state[CALLERS]:
                helper.wake()

    def _watch(self, team_ref: weakref.ref[Team], seconds: float) -> None:
        """Release the team when no op has run for some seconds; the team may be deleted meanwhile."""
        rest = seconds
        while not self._closed.acquire(timeout=rest):
            if self.state[CALLERS]:  # in a long op
                self.used = time.monotonic()
            rest = self.used + seconds - time.monotonic()
            if rest <= 0:
                if team := team_ref():
                    team.release(join=False)  # the helpers may meanwhile be others, whose watch waits for this one
                return

    def close(self) -> None:
        """Make the threads return."""
        self._finalizer.detach()
        if self.process == _process():  # a forked child does not have these threads
            self.state[CLOSED] = 1
            for helper in self._helpers:
                helper.wake()
            with contextlib.suppress(RuntimeError):  # it was closed before
                self._closed.release()

    def join(self) -> None:
        """Wait until the threads have returned, which takes the time of a chunk."""
        for thread in () if sys.is_finalizing() else self._threads:  # at the end they may not return
            with contextlib.suppress(RuntimeError):  # it is this thread, or was never started
                thread.join()


class _Helper:
    """One helper thread, and the lock that it sleeps on."""

    def __init__(self, number: int, state: Any, run_task: Kernel) -> None:
        # Not an Event: it has a lock inside, and a thread that is interrupted within set() may hold that lock for ever.
        self._sleep_lock = threading.Lock()
        self._sleep_lock.acquire()
        self.own = _OwnState(ctypes.addressof(state), number)
        work = (state, number, run_task)
        self.thread = threading.Thread(target=self._help, args=work, name=f"minibert-{number}", daemon=True)

    def _help(self, state: Any, number: int, run_task: Kernel) -> None:
        while not state[CLOSED]:
            self.own[PATIENCE] = _PATIENCE
            run_task(ctypes.addressof(self.own))
            self._sleep_lock.acquire()
            self.own[ASLEEP] = 0

    def wake(self) -> None:
        """Wake the helper, or keep it awake; this is one step, so a signal handler may call it again inside it."""
        with contextlib.suppress(RuntimeError):  # another thread has just released it
            self._sleep_lock.release()
