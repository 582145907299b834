"""Futures of the engine's thread -> futures of event loops, with one call into a loop for all requests of a step."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Completions"]


class _Loop:
    """What has ended and was not told to a loop yet; `called` if the loop will look."""

    def __init__(self) -> None:
        self.ended = deque[asyncio.Future[None]]()
        self.called = False

    def end(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], _: object) -> None:
        """Note that a waiter need not wait any more; any thread may call this."""
        self.ended.append(waiter)
        if not self.called:
            self.called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self.called = False  # before the loop below, so that nothing is added and not told
        while self.ended:
            end(self.ended.popleft())


class Completions:
    """Wakes those that wait for futures of another thread.

    Waking a loop is a system call, so it is done once for all futures that end at about the same time, as those of one
    step do.
    """

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = WeakKeyDictionary()

    def waiter(self, future: Future[Any]) -> asyncio.Future[None]:
        """Return a future of the running loop that ends, without a value, when `future` has ended or is cancelled."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        state = self._loops.get(loop) or self._loops.setdefault(loop, _Loop())
        future.add_done_callback(functools.partial(state.end, loop, waiter))
        return waiter

    async def wait(self, future: Future[Any], seconds: float) -> bool:
        """Wait until `future` has ended, for so many seconds at most, and say if it has."""
        waiter = self.waiter(future)
        timer = asyncio.get_running_loop().call_later(seconds, end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
        return future.done()


def end(waiter: asyncio.Future[None]) -> None:
    """Let those go on that wait for a future."""
    if not waiter.done():
        waiter.set_result(None)
