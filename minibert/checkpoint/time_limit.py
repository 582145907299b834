"""A time limit for calls of the hub's client.

The client limits the wait for the next byte, not for the whole answer, and it tries again several times. So a server
that accepts a connection and never answers holds it for minutes, and one that sends a byte from time to time holds it
without end. Here the call runs in a thread of its own, and the caller stops waiting at the end of the limit.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["SlowAnswerError", "expect_bytes", "within_limit"]

SECONDS = 60.0  # for a call, without the time for the bytes of a file
BYTES_PER_SECOND = 20_000  # the slowest download that is accepted

Result = TypeVar("Result")


class SlowAnswerError(Exception):
    """The call has not returned within its limit."""


class _Call(Generic[Result]):
    """A call in its thread: its end, its result or its exception, and the moment at which its limit is over."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._started = time.monotonic()
        self.deadline = self._started + SECONDS
        self._call = call
        self._done = threading.Event()
        self._result: list[Result] = []
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        context.run(_current.set, self)
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="minibert-hub", daemon=True)

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:  # raised again by `result`, in the thread of the caller
            self._error = error
        finally:
            self._done.set()

    def result(self) -> Result:
        """Start the thread and wait for the result, at most until the deadline, which the call may move."""
        self._thread.start()
        try:
            while not self._done.wait(max(0.0, self.deadline - time.monotonic())):
                if time.monotonic() >= self.deadline:
                    raise SlowAnswerError(
                        f"no complete answer after {time.monotonic() - self._started:.0f} seconds. The limit is "
                        f"{SECONDS:.0f} seconds, and one more for each {BYTES_PER_SECOND:,} bytes of a file"
                    )
        except BaseException:  # also a Ctrl-C
            self._stop()
            raise
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _stop(self) -> None:
        """Ask the thread to end; it does so when the client runs Python code again, and releases its locks."""
        if self._thread.ident is not None:
            with contextlib.suppress(AttributeError):  # other implementations of Python do not have it
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit)
                )


_current: contextvars.ContextVar[_Call[Any] | None] = contextvars.ContextVar("_current", default=None)


def within_limit(call: Callable[[], Result]) -> Result:
    """Return the result of a call, or raise its exception; wait SECONDS, and more if the call expects bytes.

    Raises
    ------
    SlowAnswerError
        The call has not returned in time. It is asked to end, and goes on in the background until it does.
    """
    return _Call(call).result()


def expect_bytes(size: int | None) -> None:
    """Give the call that runs in this thread the time for this number of bytes, from now on."""
    current = _current.get()
    if current is not None and size:
        current.deadline = max(current.deadline, time.monotonic() + SECONDS + size / BYTES_PER_SECOND)
