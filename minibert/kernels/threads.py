"""A team of threads that share out the chunks of one op after another, without a system call between two ops.

An op is described as a *task*: a row of integers (addresses, sizes, options) and a number of chunks. Each chunk writes
its own part of the result and nothing else, so it does not matter who computes it, or in which order.

The helpers of a team wait inside compiled code, in `run_task`, watching one number: how many chunks of the present task
are still to be had. Whoever lowers it by one may take a chunk. The caller takes chunks like everybody else, so no op is
slower for a helper that comes late, is held up, or does not exist.

Which chunk? Each thread has a share of them, in order, and begins with its own; when that is used up it goes on with
the shares of the others. So as a rule the same thread computes the same rows in one op after another, and finds them in
its own cache; but nobody waits for a thread that is slow.

A helper that has waited in vain for about a millisecond goes to sleep (a Python event) and is woken by a later op. A
second caller that finds the team busy computes its op alone. A forked child inherits no helpers; it starts its own.
"""

from __future__ import annotations

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
from minibert.kernels.memory import atomic_add, atomic_load, atomic_store, relax
from minibert.kernels.rowwise import EMBED, embed_chunk, layer_norm_chunk

__all__ = ["Team", "run_task"]

# The shared state: integers that several threads write, each in a cache line of its own (8 of them); the task; and for
# each thread how many chunks of its share are taken.
_REMAINING, _ACTIVE, _CLOSED, _NUM_CHUNKS, _NUM_THREADS, _TASK, _SHARES, _LINE = 0, 8, 16, 24, 25, 32, 56, 8

# How often a helper looks before it goes to sleep: about a millisecond.
_PATIENCE = 20_000


@function
def _take_chunks(state, thread):
    """Compute chunks of the present task until there are none left."""
    task = state[_TASK:]
    while atomic_add(state, _REMAINING, -1) > 0:
        chunk = _next_chunk(state, thread)
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
    """The next chunk of this thread's share, or of the first share after it that has one; there is one."""
    num_chunks, num_threads = state[_NUM_CHUNKS], state[_NUM_THREADS]
    share = thread
    while True:
        chunk = share * num_chunks // num_threads + atomic_add(state, _SHARES + share * _LINE, 1)
        if chunk < (share + 1) * num_chunks // num_threads:
            return chunk
        share = (share + 1) % num_threads


@kernel
def run_task(state, num_chunks, thread, patience):
    """The caller's part (thread 0): compute the described task. A helper's (thread > 0): wait for tasks, and help.

    One kernel for both, so that everything is compiled once.
    """
    if thread == 0:
        state[_NUM_CHUNKS] = num_chunks
        for share in range(state[_NUM_THREADS]):
            state[_SHARES + share * _LINE] = 0
        atomic_store(state, _REMAINING, num_chunks)  # from now on helpers take part
        _take_chunks(state, 0)
        while atomic_load(state, _ACTIVE) != 0:
            relax()
        return
    idle = 0
    while idle < patience and atomic_load(state, _CLOSED) == 0:
        if atomic_load(state, _REMAINING) > 0:
            # Announced before a chunk is taken: the caller cannot leave while one is under way.
            atomic_add(state, _ACTIVE, 1)
            _take_chunks(state, thread)
            atomic_add(state, _ACTIVE, -1)
            idle = 0
        else:
            relax()
            idle += 1


def _new_state(num_threads: int) -> npt.NDArray[np.int64]:
    state = np.zeros(_SHARES + num_threads * _LINE, dtype=np.int64)
    state[_NUM_THREADS] = num_threads
    return state


class Team:
    """Computes ops on up to `num_threads` threads; safe to share between threads, and to use after a fork."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._turn = threading.Lock()
        self._crew: _Crew | None = None
        self._own = threading.local()

    def __reduce__(self) -> tuple[type[Team], tuple[int]]:
        return Team, (self.num_threads,)

    def run(self, describe: Callable[..., int], *arguments: Any) -> None:
        """Compute one op: `describe(task, *arguments)` fills in its task and returns how many chunks it has."""
        if self.num_threads == 1 or not self._turn.acquire(blocking=False):
            self._run_alone(describe, arguments)
            return
        try:
            if self._crew is None or self._crew.process != os.getpid():
                self._crew = _Crew(self.num_threads - 1)
                weakref.finalize(self, self._crew.close)
            num_chunks = describe(self._crew.state[_TASK:], *arguments)
            if num_chunks > 1:
                self._crew.wake()
            run_task(self._crew.state, num_chunks, 0, 0)
        finally:
            self._turn.release()

    def _run_alone(self, describe: Callable[..., int], arguments: tuple[Any, ...]) -> None:
        state = getattr(self._own, "state", None)
        if state is None:
            state = self._own.state = _new_state(1)
        run_task(state, describe(state[_TASK:], *arguments), 0, 0)


class _Crew:
    """The helpers of one team in one process, and the state they share with whoever calls."""

    def __init__(self, num_helpers: int) -> None:
        self.process = os.getpid()
        self.state = _new_state(num_helpers + 1)
        self._sleepers: list[_Sleeper] = []
        for number in range(1, num_helpers + 1):
            sleeper = _Sleeper()
            helper = threading.Thread(
                target=_help, args=(self.state, number, sleeper), name=f"minibert-{number}", daemon=True
            )
            try:
                helper.start()
            except RuntimeError:  # the interpreter is ending, or the system has no more threads: do without
                break
            self._sleepers.append(sleeper)

    def wake(self) -> None:
        """Wake the helpers that sleep."""
        for sleeper in self._sleepers:
            if sleeper.asleep:
                sleeper.alarm.set()

    def close(self) -> None:
        """Let the helpers end."""
        self.state[_CLOSED] = 1
        for sleeper in self._sleepers:
            sleeper.alarm.set()


class _Sleeper:
    """Whether one helper sleeps, and what wakes it."""

    def __init__(self) -> None:
        self.asleep = False
        self.alarm = threading.Event()


def _help(state: npt.NDArray[np.int64], thread: int, sleeper: _Sleeper) -> None:
    while not state[_CLOSED]:
        run_task(state, 0, thread, _PATIENCE)
        sleeper.asleep = True
        sleeper.alarm.wait()
        sleeper.alarm.clear()
        sleeper.asleep = False
