"""A team of threads that share the chunks of each op, without a system call between two ops.

An op is described as a *task*: an array of integers (addresses, sizes, options) and a number of chunks. A chunk is a
part of the work of one op. It writes its own part of the result and nothing else, so any thread may compute it, in any
order.

How an op runs
--------------
`Team.run` writes the task into a new array, then calls `run_task`. This is compiled code, which Python does not
interrupt:

1. The calling thread adds one to `_CALLERS`. If no other caller is inside, it is the *leader*: it copies its task into
   the shared state and sets `_REMAINING`, the number of chunks that nobody has taken yet. A caller that is not the
   leader computes its op alone, on its own array, because with many callers all cores are busy anyway.
2. The leader and the helpers take chunks. A thread takes one by lowering `_REMAINING` by one, until none are left. The
   helpers wait in `run_task` too, and read `_REMAINING` again and again. The leader takes chunks like a helper, so an
   op is not slower if a helper comes late, loses its core, or does not exist.
3. Each thread has a share of the chunks, in order, and begins with its own share. When that share is used up, it
   continues with the shares of the others. So usually the same thread computes the same rows in one op after another
   and finds them in its own cache, but no thread waits for a slow one.
4. The leader waits until no helper is inside a chunk (`_ACTIVE` is 0), subtracts one from `_CALLERS`, and returns.

A helper adds one to `_ACTIVE` *before* it tries to take a chunk. So the leader does not leave while a chunk is being
computed, and nothing is written into a result after the op has returned. A helper that comes too late finds
`_REMAINING` at or below zero, or it gets a chunk of the next op, whose task was complete before `_REMAINING` was set.
All of these are sequentially consistent atomics.

What can go wrong
-----------------
Ctrl-C     Python raises KeyboardInterrupt between two of its instructions. All changes of the counters happen within
           one call of `run_task`, so they are complete; the exception comes after the current op.
Fork       A child process inherits the memory, as it was in the middle of the parent's op, but not the helper threads.
           So each process has its own `_ProcessHelpers` (state and helpers), and a child that computes starts new ones.
           No lock is involved.
Memory     A chunk that cannot allocate its scratch memory sets `_FAILED`, and the op raises MemoryError at its end.
Busy core  A helper may lose its core in the middle of a chunk. The leader that waits for it soon sleeps for short
           times, so that the system can run the helper on the leader's core.
Idleness   A helper that has waited for about a millisecond without work sleeps (on a lock) until a later op.
The end    When a team is deleted, or the interpreter ends, its helpers return.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.kernels.attention import ATTENTION, attention_chunk
from minibert.kernels.compilation import function, kernel
from minibert.kernels.gemm import EPILOGUE, LINEAR, epilogue_chunk, linear_chunk
from minibert.kernels.memory import atomic_add, atomic_load, atomic_store, nap, relax
from minibert.kernels.rowwise import EMBED, embed_chunk, layer_norm_chunk

__all__ = ["Team", "run_task"]

# The state is an array of int64. These are its indices:
#
#     0 ... 21       the fields of the task
#     22, 23         its number of chunks, its number of shares
#     24, 32, ... 56 counters that several threads write, each in a cache line (8 integers) of its own
#     64, 72, ...    for each share, the number of its chunks that are taken
_FIELDS, _NUM_CHUNKS, _NUM_SHARES = 22, 22, 23
_REMAINING, _ACTIVE, _CALLERS, _FAILED, _CLOSED, _SHARES, _LINE = 24, 32, 40, 48, 56, 64, 8

# A helper looks for work this number of times before it sleeps (about a millisecond). A leader looks this number of
# times whether the helpers have finished before it naps (about a hundred microseconds).
_PATIENCE = 20_000
_SHORT_PATIENCE = 2_000


@function
def _compute_chunk(task, chunk):
    if task[0] == LINEAR:
        linear_chunk(task, chunk)
    elif task[0] == ATTENTION:
        attention_chunk(task, chunk)
    elif task[0] == EPILOGUE:
        epilogue_chunk(task, chunk)
    elif task[0] == EMBED:
        embed_chunk(task, chunk)
    else:
        layer_norm_chunk(task, chunk)


@function
def _next_chunk(state, thread):
    """Return the next chunk of this thread's share, or of the first share after it that has one; there is one."""
    num_chunks, num_shares = state[_NUM_CHUNKS], state[_NUM_SHARES]
    share = thread
    while True:
        chunk = share * num_chunks // num_shares + atomic_add(state, _SHARES + share * _LINE, 1)
        if chunk < (share + 1) * num_chunks // num_shares:
            return chunk
        share = (share + 1) % num_shares


@function
def _take_chunks(state, thread):
    """Compute chunks of the current task until none are left."""
    while atomic_add(state, _REMAINING, -1) > 0:
        try:
            _compute_chunk(state, _next_chunk(state, thread))
        except Exception:  # compiled code raises only MemoryError here
            atomic_store(state, _FAILED, 1)


@kernel
def run_task(shared, own, num_chunks, thread, patience):
    """Compute the task in `own` (a caller, thread 0); or look `patience` times for tasks, and help (a helper).

    Callers and helpers use one kernel, so that all code is compiled once.
    """
    if thread != 0:
        idle = 0
        while idle < patience and atomic_load(shared, _CLOSED) == 0:
            if atomic_load(shared, _REMAINING) > 0:
                atomic_add(shared, _ACTIVE, 1)
                _take_chunks(shared, thread)
                atomic_add(shared, _ACTIVE, -1)
                idle = 0
            else:
                relax()
                idle += 1
        return

    leads = atomic_add(shared, _CALLERS, 1) == 0
    state = own
    own[_NUM_SHARES] = 1
    if leads:
        state = shared
        for i in range(_FIELDS):
            shared[i] = own[i]
    state[_NUM_CHUNKS] = num_chunks
    for share in range(state[_NUM_SHARES]):
        state[_SHARES + share * _LINE] = 0
    atomic_store(state, _FAILED, 0)
    atomic_store(state, _REMAINING, num_chunks)  # from now on, helpers take chunks
    _take_chunks(state, 0)
    if leads:
        looks = 0
        while atomic_load(shared, _ACTIVE) != 0:
            if looks < _SHORT_PATIENCE:
                relax()
                looks += 1
            else:
                nap()
    failed = atomic_load(state, _FAILED)
    atomic_add(shared, _CALLERS, -1)
    if failed != 0:
        raise MemoryError("A kernel could not allocate its scratch memory. Give fewer or shorter texts at once.")


class Team:
    """Up to `num_threads` threads that compute ops; safe to share between threads, to interrupt and to fork."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        # By process id. A forked child also finds the helpers of its parent here, and does not use them.
        self._helpers_by_process: dict[int, _ProcessHelpers] = {}

    def __reduce__(self) -> tuple[type[Team], tuple[int]]:
        return Team, (self.num_threads,)

    def run(self, describe: Callable[..., int], *arguments: Any) -> None:
        """Compute one op: `describe(task, *arguments)` fills in the task and returns its number of chunks.

        Raises
        ------
        MemoryError
            A kernel could not allocate its scratch memory.
        """
        # A new array for each op, because a signal handler or finalizer may compute another op in between.
        own = np.empty(_SHARES + _LINE, dtype=np.int64)
        num_chunks = describe(own, *arguments)
        helpers = self._helpers_by_process.get(os.getpid()) or self._start_helpers()
        if num_chunks > 1:
            helpers.wake()
        run_task(helpers.state, own, num_chunks, 0, 0)

    def _start_helpers(self) -> _ProcessHelpers:
        """Return the helpers of this process: new ones, or those that another thread has started in the meantime."""
        new = _ProcessHelpers(self, self.num_threads - 1)
        helpers = self._helpers_by_process.setdefault(os.getpid(), new)
        if helpers is not new:
            new.close()
        return helpers


class _ProcessHelpers:
    """The helper threads of one team in one process, and the state that they share with the leader."""

    def __init__(self, team: Team, num_helpers: int) -> None:
        self.process = os.getpid()
        self.state = np.zeros(_SHARES + (num_helpers + 1) * _LINE, dtype=np.int64)
        self.state[_NUM_SHARES] = num_helpers + 1
        self._helpers = [_Helper(number, self.state) for number in range(1, num_helpers + 1)]
        weakref.finalize(team, self.close)
        for helper in self._helpers:
            try:
                helper.thread.start()
            except RuntimeError:  # the interpreter is ending, or the system cannot start more threads
                break

    def wake(self) -> None:
        """Wake the helpers that sleep; not while another caller is inside, because they could not help this one."""
        for helper in self._helpers:
            if helper.asleep and not self.state[_CALLERS]:
                helper.wake()

    def close(self) -> None:
        """Make the helpers return."""
        if self.process == os.getpid():  # a forked child does not have these threads
            self.state[_CLOSED] = 1
            for helper in self._helpers:
                helper.wake()


class _Helper:
    """One helper thread: whether it sleeps, and the lock that it sleeps on."""

    def __init__(self, number: int, state: npt.NDArray[np.int64]) -> None:
        self.asleep = False
        # Not an Event: it has a lock inside, and a thread that is interrupted within set() may hold that lock for ever.
        self._sleep_lock = threading.Lock()
        self._sleep_lock.acquire()
        self.thread = threading.Thread(target=self._help, args=(state, number), name=f"minibert-{number}", daemon=True)

    def _help(self, state: npt.NDArray[np.int64], number: int) -> None:
        while not state[_CLOSED]:
            run_task(state, state, 0, number, _PATIENCE)
            self.asleep = True
            self._sleep_lock.acquire()
            self.asleep = False

    def wake(self) -> None:
        """Let the helper continue, or not fall asleep; one step, so a signal handler may call it again inside it."""
        with contextlib.suppress(RuntimeError):  # another thread has just released it
            self._sleep_lock.release()
