"""A team of threads that share out the chunks of one op after another, without a system call between two ops.

An op is described as a *task*: a row of integers (addresses, sizes, options) and a number of chunks. Each chunk writes
its own part of the result and nothing else, so it does not matter who computes it, or in which order.

How an op runs
--------------
`Team.run` has the task written into a row of its own, then calls `run_task`, compiled code, which Python never
interrupts:

1. The caller counts itself in (`_CALLERS`). Whoever finds nobody else inside *leads*: it copies its task into the
   shared state and sets `_REMAINING`, the number of chunks still to be had. Anybody else computes its op alone, on its
   own row: with as many callers as cores there is nothing that helpers could add.
2. Everybody takes chunks: who lowers `_REMAINING` by one may have one, until there are none left. The helpers wait in
   `run_task` as well, watching `_REMAINING`. The leader takes chunks like everybody else, so no op is slower for a
   helper that comes late, is held up, or does not exist.
3. Which chunk? Each thread has a share of them, in order, and begins with its own; when that is used up it goes on with
   the others'. So as a rule the same thread computes the same rows in one op after another, and finds them in its own
   cache; but nobody waits for a thread that is slow.
4. The leader waits until no helper is inside a chunk (`_ACTIVE` is 0), counts itself out, and returns.

A helper adds itself to `_ACTIVE` *before* it tries for a chunk, so the leader never leaves while a chunk is under way,
and nothing is written into a result after the op has returned. A helper that comes too late finds `_REMAINING` at or
below zero, or gets a chunk of the next op, whose task was complete before `_REMAINING` said so (all of these are
sequentially consistent atomics).

What can go wrong
-----------------
Ctrl-C     Python raises KeyboardInterrupt between two of its instructions. Counting in, sharing, waiting and counting
           out all happen within one call, so nothing is ever left held; the exception comes after the present op.
Fork       A child inherits memory but no helpers, and that memory as it was in the middle of the parent's op. So a crew
           (state and helpers) belongs to one process, and a child that computes starts its own. No lock is involved.
Memory     A chunk that finds no memory for its scratch is marked (`_FAILED`), and the op raises MemoryError at its end.
Busy core  A helper may lose its core in the middle of a chunk. The leader that waits for it soon takes short naps: then
           the system may let the helper go on where the leader was.
Idleness   A helper that has waited in vain for about a millisecond goes to sleep (on a lock) until a later op.
The end    When a team is dropped, or the interpreter ends, its helpers are told to return.
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

# A row of state: the fields of the task; its numbers of chunks and of shares; then what several threads write, each
# integer in a cache line of its own; last, for each share, how many of its chunks are taken.
_FIELDS, _NUM_CHUNKS, _NUM_SHARES = 22, 22, 23
_REMAINING, _ACTIVE, _CALLERS, _FAILED, _CLOSED, _SHARES, _LINE = 24, 32, 40, 48, 56, 64, 8

# How often a helper looks for work before it goes to sleep, and a leader for the end before it naps: about a
# millisecond, and about a hundred microseconds.
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
    """The next chunk of this thread's share, or of the first share after it that has one, as there is."""
    num_chunks, num_shares = state[_NUM_CHUNKS], state[_NUM_SHARES]
    share = thread
    while True:
        chunk = share * num_chunks // num_shares + atomic_add(state, _SHARES + share * _LINE, 1)
        if chunk < (share + 1) * num_chunks // num_shares:
            return chunk
        share = (share + 1) % num_shares


@function
def _take_chunks(state, thread):
    """Compute chunks of the present task until there are none left."""
    while atomic_add(state, _REMAINING, -1) > 0:
        try:
            _compute_chunk(state, _next_chunk(state, thread))
        except Exception:  # the one thing that compiled code raises here: no memory
            atomic_store(state, _FAILED, 1)


@kernel
def run_task(shared, own, num_chunks, thread, patience):
    """The caller's part (thread 0): compute the task in `own`. A helper's: wait `patience` looks for tasks, and help.

    One kernel for both, so that everything is compiled once.
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
    atomic_store(state, _REMAINING, num_chunks)  # from here on helpers take part
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
        raise MemoryError("no memory for the scratch of a kernel")


class Team:
    """Computes ops on up to `num_threads` threads; safe to share between threads, to interrupt, to use after a fork."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._crews: dict[int, _Crew] = {}  # by process: a forked child finds its parent's here, and leaves it alone

    def __reduce__(self) -> tuple[type[Team], tuple[int]]:
        return Team, (self.num_threads,)

    def run(self, describe: Callable[..., int], *arguments: Any) -> None:
        """Compute one op: `describe(task, *arguments)` fills in its task and returns how many chunks it has.

        Raises
        ------
        MemoryError
            There is no memory for a kernel's scratch.
        """
        own = np.empty(
            _SHARES + _LINE, dtype=np.int64
        )  # new each time: a signal handler or finalizer may compute in between
        num_chunks = describe(own, *arguments)
        crew = self._crews.get(os.getpid()) or self._hire()
        if num_chunks > 1:
            crew.wake()
        run_task(crew.state, own, num_chunks, 0, 0)

    def _hire(self) -> _Crew:
        """Return the crew of this process: the one made here, or by another thread in the meantime."""
        made = _Crew(self, self.num_threads - 1)
        crew = self._crews.setdefault(os.getpid(), made)
        if crew is not made:
            made.close()
        return crew


class _Crew:
    """The helpers of one team in one process, and the state they share with whoever leads."""

    def __init__(self, team: Team, num_helpers: int) -> None:
        self.process = os.getpid()
        self.state = np.zeros(_SHARES + (num_helpers + 1) * _LINE, dtype=np.int64)
        self.state[_NUM_SHARES] = num_helpers + 1
        self._helpers = [_Helper(number, self.state) for number in range(1, num_helpers + 1)]
        weakref.finalize(team, self.close)
        for helper in self._helpers:
            try:
                helper.thread.start()
            except RuntimeError:  # the interpreter is ending, or the system has no more threads: do without
                break

    def wake(self) -> None:
        """Wake the helpers that sleep, unless somebody else is inside: then there will be nothing for them to do."""
        for helper in self._helpers:
            if helper.asleep and not self.state[_CALLERS]:
                helper.wake()

    def close(self) -> None:
        """Let the helpers end."""
        if self.process == os.getpid():  # in a child there are none
            self.state[_CLOSED] = 1
            for helper in self._helpers:
                helper.wake()


class _Helper:
    """One thread of a crew: whether it sleeps, and what wakes it."""

    def __init__(self, number: int, state: npt.NDArray[np.int64]) -> None:
        self.asleep = False
        # Not an Event: that has a lock of its own, which whoever is interrupted within set() holds, perhaps for ever.
        self._bed = threading.Lock()
        self._bed.acquire()
        self.thread = threading.Thread(target=self._help, args=(state, number), name=f"minibert-{number}", daemon=True)

    def _help(self, state: npt.NDArray[np.int64], number: int) -> None:
        while not state[_CLOSED]:
            run_task(state, state, 0, number, _PATIENCE)
            self.asleep = True
            self._bed.acquire()
            self.asleep = False

    def wake(self) -> None:
        """Let the helper go on, or not fall asleep: one step, so that it may be called in the middle of itself."""
        with contextlib.suppress(RuntimeError):  # somebody else has just done so
            self._bed.release()
