"""uvicorn's connection, with limits for clients that do not send or do not read, because they would fill the memory."""

from __future__ import annotations

import asyncio
from typing import Any

from minibert.serving.libraries import missing
from minibert.serving.settings import GRACE

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:
    raise missing(error) from error

__all__ = ["Connection"]

_HEAD_BYTES = 2**16
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with two limits that uvicorn does not have.

    Parameters
    ----------
    *arguments, **options
        Those of uvicorn.
    head_timeout : float
        Seconds in which the head of a request must arrive: from the connection, then from the request's first byte.
    send_timeout : float
        Seconds in which the client must read some of the answer.
    """

    def __init__(self, *arguments: Any, head_timeout: float, send_timeout: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timeout, self._send_timeout = head_timeout, send_timeout
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._head_bytes = self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        _stop(self._head_timer, self._send_timer)
        self._head_timer = self._send_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; refuse a head that is too large."""
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Start the request."""
        _stop(self._head_timer)
        self._head_timer, self._head_bytes = None, 0
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Begin to look whether the client reads."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Stop to look whether the client reads."""
        _stop(self._send_timer)
        super().resume_writing()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_timeout, self._end_head)

    def _end_head(self) -> None:
        """End the connection soon: the loop calls timers before it reads what has arrived."""
        self._head_timer = self.loop.call_later(GRACE, self.transport.abort)

    def _await_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self._send_timeout, self._check_reader)

    def _check_reader(self) -> None:
        if self.transport.get_write_buffer_size() >= self._unsent:
            self.transport.abort()
        else:
            self._await_reader()


def _stop(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
