"""Reading requests: threads that read short requests one after the other, and long ones a part at a time.

A long request is tokenized in parts, and waits for its turn before each part. The request with the fewest bytes (read
so far, plus its next part) goes first, so that a request does not wait for longer ones. The first part counts as the
whole body, because its JSON is read at once. A request whose client has left is dropped before its next part.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

LONG_BODY = 2**16
"""Bytes. A longer request is read beside the short ones, so that they do not wait for it."""

PATIENCE = 16
"""A request waits until so many times its bytes were read of smaller ones that came after it."""

_PART_BYTES = 2**16

READERS = 64
"""Threads for long requests; one of them works at a time."""

_Part = TypeVar("_Part")
_current = threading.local()


class Reading:
    """A request that waits to be read, or is being read.

    Attributes
    ----------
    future : Future
        Gets what the function returns. `cancel` ends it: a request that waits is dropped, one that is read stops before
        its next part.
    size : int
        Bytes of its body.
    seconds : float
        The time that it was read.
    """

    def __init__(self, size: int, turns: _Turns | None) -> None:
        self.size, self.seconds = size, 0.0
        self.future: Future[Any]
        self._turns, self._cancelled = turns, False
        self._next, self._bytes, self._came = size, 0, 0 if turns is None else turns.bytes_read

    def cancel(self) -> None:
        """Drop the request; this has no effect if the request was already read."""
        self._cancelled = True
        self.future.cancel()

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call the function in this thread; the function calls `pause` between parts."""
        _current.reading = self
        try:
            self._begin()
            return function(*arguments)
        finally:
            self._end()
            _current.reading = None

    def pause(self) -> None:
        """Let other requests have their turn; raise a CancelledError if nobody waits for this request."""
        self._end()
        self._begin()

    def _begin(self) -> None:
        if self._turns is not None:
            self._bytes += self._next
            self._turns.take(PATIENCE * self._bytes + self._came, self._next)
            self._next = _PART_BYTES
        self._began = time.perf_counter()
        if self._cancelled:
            raise CancelledError

    def _end(self) -> None:
        self.seconds += time.perf_counter() - self._began
        if self._turns is not None:
            self._turns.give()


class _Turns:
    """A lock that is given to the request with the lowest number, and of these to the first.

    Attributes
    ----------
    bytes_read : int
        Of all requests that had it.
    """

    def __init__(self) -> None:
        self._changed, self._taken, self.bytes_read = threading.Condition(), False, 0
        self._waiting, self._arrivals = list[tuple[int, int]](), itertools.count()

    def take(self, number: int, size: int) -> None:
        with self._changed:
            own = (number, next(self._arrivals))
            heapq.heappush(self._waiting, own)
            while self._taken or self._waiting[0] != own:
                self._changed.wait()
            heapq.heappop(self._waiting)
            self._taken = True
            self.bytes_read += size

    def give(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()


class Readers:
    """The threads, and the requests that wait for them.

    Parameters
    ----------
    ended : callable
        Called with each `Reading` that has ended, and whether it was read to its end.
    """

    def __init__(self, ended: Callable[[Reading, bool], object]) -> None:
        self._ended, self._turns = ended, _Turns()
        self._short = ThreadPoolExecutor(1, "minibert-read")
        self._long = ThreadPoolExecutor(READERS, "minibert-read-long")

    def submit(self, size: int, function: Callable[..., Any], *arguments: Any) -> Reading:
        """Call a function in a thread; `size` is the size of the request's body."""
        long = size > LONG_BODY
        reading = Reading(size, self._turns if long else None)
        reading.future = (self._long if long else self._short).submit(reading.run, function, arguments)
        reading.future.add_done_callback(
            lambda future: self._ended(reading, not future.cancelled() and future.exception() is None)
        )
        return reading


def in_turns(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Yield the parts of a request's work; after each part, other requests have their turn.

    After the last part of a list it goes on at once, so that requests do not all hold what they have read at a time.
    """
    reading: Reading | None = getattr(_current, "reading", None)
    last = len(parts) if isinstance(parts, list) else 0
    for number, part in enumerate(parts, 1):
        yield part
        if reading is not None and number != last:
            reading.pause()
