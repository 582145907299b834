"""`serve`: run the application on a socket until a signal ends the process.

A `Connection` stands between the event loop and the server's own protocol, of which it uses what asyncio defines. It
limits clients that do not send or do not read; `Connections` limits their number.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, cast

import uvicorn

from minibert._utils.files import os_reason, printable
from minibert.serving.asgi import Receive, Reply, Scope, Send, Service, path_of, refusal, request_id_of
from minibert.serving.engine import Engine
from minibert.serving.observability import LOG
from minibert.serving.settings import ApiKeys, ServiceError, Settings

if sys.platform != "win32":
    import fcntl
    import resource
    import termios

DIED = 70
"""The exit code if the engine has stopped (EX_SOFTWARE of sysexits.h)."""

KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed. Clients close theirs earlier, so that they do not send into a
connection that is being closed."""

_BACKLOG = 2048
"""Connections that wait to be accepted."""

_M_ARENA_MAX = -8  # of glibc's malloc.h

_HEAD_BYTES = 2**16
_KEPT_FILES = 8  # for a connection more than there is room for, and for files that are read
_PROBE_SECONDS = 1.0
_LAST_SECONDS = 2  # to send answers to the requests that the end of the service cuts
_END_OF_HEAD = b"\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a wrong address raises an error before a model is loaded.

    Parameters
    ----------
    host : str
        A name or an address.
    port : int
        0 lets the system choose.

    Raises
    ------
    OSError
        The address is wrong or in use; the message names it.
    """
    if not 0 <= port <= 65535:  # some systems would take the rest of a division
        raise OSError(f"cannot listen on {printable(host)}, port {port}: a port is a number from 0 to 65535.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        # It listens at once, because a port can be bound twice until one of the sockets listens.
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise OSError(f"cannot listen on {printable(host)}, port {port}: {reason}.") from error


# --- connections ---


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
            _current.set(self)
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


_current: ContextVar[Connection | None] = ContextVar("connection", default=None)
"""The connection of the request that a task answers; None if another server runs the application."""


def _noting_ends(protocol_class: Any) -> Any:
    """Return a protocol of uvicorn that notes the end of a body also if its request was answered before."""

    class Protocol(protocol_class):  # type: ignore[misc]
        def on_message_complete(self) -> None:
            if self.cycle is not None:
                self.cycle.more_body = False
            super().on_message_complete()

    return Protocol


# --- the process ---


def serve(
    load: Callable[[], Engine],
    bound: socket.socket,
    settings: Settings | None = None,
    keys: ApiKeys | None = None,
    announce: Callable[[bool, str], object] = lambda ready, address: None,
) -> int:
    """Answer requests until SIGTERM or SIGINT; then finish requests that have begun, and close the engine.

    The socket listens before the models are loaded. Until then /livez is answered with 200, and all else with 503. A
    signal in that time ends the process at once, because a thread that loads cannot be stopped. A second signal does it
    later; SIGINT does not wait for the drain delay.

    Parameters
    ----------
    load : callable
        Returns the engine. It runs in a thread; its error ends the service and is raised here.
    bound : socket
        As `listen` returns it. It is closed at the end.
    settings : Settings
        Those of the engine.
    keys : ApiKeys, optional
        As for `app`. SIGHUP reads their file again.
    announce : callable
        Called with False and the address as soon as connections are accepted, and with True as soon as requests are
        answered.

    Returns
    -------
    int
        The exit code: 0 all requests were answered, 1 some were not, 70 the engine stopped by itself.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # the C library is not glibc
            # By default most threads have an arena of their own, and it keeps tens of megabytes that were freed.
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    host, port = bound.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    server = Server(load, settings or Settings(), keys, lambda ready: announce(ready, address))
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it logs the signals and the end of requests
    usual_interval = sys.getswitchinterval()
    sys.setswitchinterval(0.00005)  # the engine's thread gives the lock of Python away between two ops
    try:
        server.run(sockets=[bound])
    finally:
        sys.setswitchinterval(usual_interval)
        gc.unfreeze()
        bound.close()
    return server.exit_code()


class Server(uvicorn.Server):
    """uvicorn's server. It loads the engine, and ends with an exit code instead of the signal that it got.

    Parameters
    ----------
    load, settings, keys, announce
        As for `serve`; `announce` does not get the address.

    Attributes
    ----------
    service : Service or None
        None until the engine is loaded.
    """

    def __init__(
        self, load: Callable[[], Engine], settings: Settings, keys: ApiKeys | None, announce: Callable[[bool], object]
    ) -> None:
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            log_config=None,
            backlog=_BACKLOG,
            access_log=False,
            server_header=False,
            lifespan="off",
            proxy_headers=False,  # the address of a client is not used
            ws="none",
            timeout_keep_alive=KEEP_ALIVE,
            # The requests that still wait then have their answers, see `shutdown`.
            timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout) + _LAST_SECONDS,
        )
        config.load()
        inner = _noting_ends(config.http_protocol_class)
        connections = Connections(head_timeout=settings.body_timeout, send_timeout=settings.send_timeout)
        config.http_protocol_class = lambda **options: Connection(connections, inner(**options))  # type: ignore[assignment]
        super().__init__(config)
        self._load, self._settings, self._keys, self._announce = load, settings, keys, announce
        self.service: Service | None = None
        self._error: BaseException | None = None
        self._asked: float | None = None
        """The time (`time.monotonic`) at which the server stops taking requests; None before a signal."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. While the models are loaded, /livez gets 200, and others 503."""
        connection = _current.get()
        with contextlib.nullcontext() if connection is None else connection.request(receive):
            probe = scope["method"] in ("GET", "HEAD")
            if connection is not None and connection.only_probes and not probe:
                error = ServiceError("unavailable", "the service has too many connections; send it again later.")
                await refusal(error, scope, connection="close").send(send)
            elif self.service is not None:
                await self.service(scope, receive, send)
            elif probe and path_of(scope) == "/livez":
                await Reply(200, b"", {"x-request-id": request_id_of(scope)}).send(send)
            else:
                error = ServiceError("unavailable", "the model is being loaded; send the request again.")
                await refusal(error, scope).send(send)

    def _run_load(self) -> None:
        try:
            self.service = Service(self._load(), self._keys)
            gc.collect()
            gc.freeze()  # the search for garbage then leaves out what was loaded
        except BaseException as error:  # it is raised where the service was started
            self._error = error

    async def main_loop(self) -> None:
        """Load the engine in a thread, and run until a signal."""
        loader = threading.Thread(target=self._run_load, name="minibert-load", daemon=True)
        loader.start()
        self._announce(False)
        watch = asyncio.ensure_future(self._watch(loader))
        try:
            await super().main_loop()
        finally:
            watch.cancel()

    async def _watch(self, loader: threading.Thread) -> None:
        """Say when the engine is there; end the process if it has stopped, because nothing would be answered."""
        while loader.is_alive():
            await asyncio.sleep(0.02)
        if self.service is not None:
            self._announce(True)
            while not self.service.engine.has_died:
                await asyncio.sleep(0.2)
                if self._asked is not None and time.monotonic() >= self._asked:
                    self.should_exit = True
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A context in which signals end the service, and SIGHUP reads the keys again."""
        signals: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGTERM), self.handle_exit)
        if self._keys is not None and hasattr(signal, "SIGHUP"):
            signals[signal.SIGHUP] = self._read_keys
        usual_handlers = [signal.signal(number, handler) for number, handler in signals.items()]
        try:
            yield
        finally:
            for number, handler in zip(signals, usual_handlers, strict=True):
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the end of the service, after the drain delay; at the second signal at once."""
        self.force_exit = self._asked is not None
        delay = 0.0
        if self.service is not None:
            self.service.leaving = True
            if sig == signal.SIGTERM and not self.force_exit:
                delay = self._settings.drain_delay
        self._asked = time.monotonic() + delay
        self.should_exit = not delay

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests that have begun; those that are not computed in their time get 503."""
        tasks, seconds = self.server_state.tasks, self._settings.shutdown_timeout
        asyncio.get_running_loop().call_later(seconds, lambda: [task.cancel() for task in tasks])
        await super().shutdown(sockets)

    def _read_keys(self, sig: int, frame: FrameType | None) -> None:
        assert self._keys is not None
        try:
            self._keys.reload()
        except (OSError, ValueError) as error:
            LOG.error("the keys stay as they were: %s", error)
        else:
            LOG.info("the keys were read again; there are %d", len(self._keys))

    def exit_code(self) -> int:
        """Close the engine and return the exit code of the process; raise the error of loading."""
        if self._error is not None:
            raise self._error
        if self.service is None:  # it is still being loaded
            logging.shutdown()
            os._exit(1 if self.force_exit else 0)
        began = self._asked if self._asked is not None else time.monotonic()
        left = max(0.0, self._settings.shutdown_timeout - (time.monotonic() - began))
        finished = self.service.engine.close(0.0 if self.force_exit else max(left, 1.0))
        if self.service.engine.has_died:
            return DIED
        return 0 if finished and not self.force_exit and left > 0 else 1
