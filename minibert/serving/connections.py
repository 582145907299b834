"""Connections of the service: limits for clients that do not send or do not read, and for their number.

A `Connection` stands between the event loop and the server's own protocol, of which it uses what asyncio defines.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, cast

if sys.platform != "win32":
    import fcntl
    import resource
    import termios

_HEAD_BYTES = 2**16
_KEPT_FILES = 8  # for a connection more than there is room for, and for files that are read
_PROBE_SECONDS = 1.0
_END_OF_HEAD = b"\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connections:
    """All open connections; they are checked several times per second.

    Parameters
    ----------
    head_timeout : float
        Seconds in which the head of a request must arrive: from the connection, then from the request's first byte.
    send_timeout : float
        Seconds in which a client must read some of its answer.
    """

    def __init__(self, *, head_timeout: float, send_timeout: float) -> None:
        self._interval = min(head_timeout, send_timeout, _PROBE_SECONDS) / 2
        # Looks are counted, not seconds: while the process was stopped, nobody could look.
        self.head_looks = head_timeout / self._interval
        self.send_looks = send_timeout / self._interval
        self.probe_looks = _PROBE_SECONDS / self._interval
        self.open: dict[Connection, None] = {}  # those that wait for a request the longest are first
        self._timer: asyncio.TimerHandle | None = None
        self._files = 0

    def add(self, connection: Connection) -> None:
        """Note a new connection; if there is hardly room for it, close one that does not wait for an answer."""
        self.open[connection] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
        if sys.platform == "win32":
            return
        if len(self.open) == 1:
            self._files = connection.transport.get_extra_info("socket").fileno()  # the lowest one that was free
        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._files - len(self.open)
        if room > _KEPT_FILES:
            return
        idle = next((c for c in self.open if not c.working and not c.ended and c is not connection), None)
        if idle is not None:
            idle.abort()
        elif room > _KEPT_FILES // 2:
            connection.only_probes = True
        else:
            connection.abort()

    def _look(self) -> None:
        self._timer = None
        for connection in [*self.open]:
            connection.look()
        if self.open:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)


class Connection(asyncio.Protocol):
    """A connection that passes bytes to and from the server's own protocol.

    Parameters
    ----------
    connections : Connections
    inner : asyncio.Protocol

    Attributes
    ----------
    working : int
        Requests that have begun and are not answered.
    only_probes : bool
        Only GET is answered, because there is room for few connections.
    ended : bool
    """

    transport: asyncio.Transport

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self._connections, self._inner = connections, inner
        self.working, self.only_probes, self.ended = 0, False, False
        self._awaits_head, self._looks, self._head_bytes, self._last = True, 0, 0, b""
        self._unsent = self._sent_looks = 0
        self._cycle: Any = None  # the server's object of the last request that has begun
        self.eof_received, self.pause_writing = inner.eof_received, inner.pause_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection, and begin to wait for the head of its first request."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not asyncio's
        self._inner.connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connections.open.pop(self, None)
        self._inner.connection_lost(exc)
        self._tell_cycle()

    def data_received(self, data: bytes) -> None:
        """Give bytes to the server; refuse a head that is too large."""
        if not self.working and not self._awaits_head:
            self._awaits_head, self._looks, self._head_bytes, self._last = True, 0, 0, b""
        # A body is not a head: the body of a refused request may still arrive. While a request is computed, the
        # next head may arrive. uvloop may give several parts before `request` begins.
        in_body = getattr(getattr(self._inner, "cycle", None), "more_body", False)
        if not in_body and _END_OF_HEAD not in self._last:
            known = self._last + data
            place = known.find(_END_OF_HEAD)
            self._head_bytes += len(data) if place < 0 else place
            self._last = known[-3:] if place < 0 else _END_OF_HEAD
            if self._head_bytes > _HEAD_BYTES:
                if not self.working:  # it would be read as the answer to the request that is computed
                    self.transport.write(_TOO_LARGE)
                self.transport.close()
        if not self.transport.is_closing():
            current.set(self)
            self._inner.data_received(data)

    def resume_writing(self) -> None:
        """Tell the server that the client has read."""
        self._unsent = self._sent_looks = 0
        self._inner.resume_writing()

    def look(self) -> None:
        """Measure how long nothing has happened, and end the connection after its time limit."""
        limits, transport = self._connections, self.transport
        unsent = transport.get_write_buffer_size() + _in_socket(transport)
        self._sent_looks = self._sent_looks + 1 if unsent and unsent >= self._unsent else 0
        self._unsent = unsent
        most = limits.head_looks if not self.only_probes else limits.probe_looks
        if self._awaits_head and not self.working:
            self._looks += 1
        if self._looks > most or self._sent_looks > limits.send_looks:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once; its file descriptor is released a little later."""
        self.ended = True
        self.transport.abort()

    def _tell_cycle(self) -> None:
        """Tell the request that is answered of the loss; the server tells the one that came last."""
        if self._cycle is not None and self not in self._connections.open:
            self._cycle.disconnected = True
            self._cycle.message_event.set()

    @contextlib.contextmanager
    def request(self, receive: Any) -> Iterator[None]:
        """A context for the time from the end of a request's head to the end of its answer."""
        self.working += 1
        self._cycle = receive.__self__
        self._tell_cycle()
        self._awaits_head, self._looks, self._head_bytes, self._last = False, 0, 0, b""
        try:
            yield
        finally:
            self.working -= 1
            if self in self._connections.open:  # it is now the last one that waits for a request
                self._connections.open[self] = self._connections.open.pop(self)
            if self.only_probes:
                self.transport.close()


def _in_socket(transport: asyncio.Transport) -> int:
    """Return how many bytes the system keeps for a client that has not taken them."""
    if sys.platform != "linux":
        return 0
    number = transport.get_extra_info("socket").fileno()
    try:
        return int.from_bytes(fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:  # it is closed
        return 0


current: ContextVar[Connection | None] = ContextVar("connection", default=None)
"""The connection of the request that a task answers; None if another server runs the application."""


def noting_ends(protocol_class: Any) -> Any:
    """Return a protocol of uvicorn that notes the end of a body also if its request was answered before."""

    class Protocol(protocol_class):  # type: ignore[misc]
        def on_message_complete(self) -> None:
            if self.cycle is not None:
                self.cycle.more_body = False
            super().on_message_complete()

    return Protocol
