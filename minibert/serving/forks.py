"""Queues and threads after a fork: the new process has a copy of all memory, and none of the other threads."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol
from weakref import WeakSet

__all__ = ["Forkable", "watch_forks"]


class Forkable(Protocol):
    """What has a queue or a thread."""

    def lock_of_fork(self) -> AbstractContextManager[Any]:
        """Return the lock that is taken while the process is forked, so that the copy is whole."""

    def start_again(self) -> None:
        """Make new threads and locks, in the new process."""


_watched: WeakSet[Forkable] = WeakSet()
_lock = threading.RLock()  # of `_watched`; it is held during a fork, too
_taken = ExitStack()


def watch_forks(one: Forkable) -> None:
    """Call `start_again` in each process that is forked from this one."""
    with _lock:
        _watched.add(one)


def _before() -> None:
    _lock.acquire()
    for one in [*_watched]:
        _taken.enter_context(one.lock_of_fork())


def _in_parent() -> None:
    _taken.close()
    _lock.release()


def _in_child() -> None:
    _taken.pop_all()  # without releasing them, because `start_again` makes new ones
    for one in [*_watched]:
        one.start_again()
    _lock.release()


if hasattr(os, "register_at_fork"):  # Windows does not have it
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
