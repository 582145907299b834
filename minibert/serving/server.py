"""`serve`: run the application on a socket until a signal ends the process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import logging
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from minibert._utils.files import os_reason, printable
from minibert.serving.asgi import app, path_of, refusal, request_id_of
from minibert.serving.auth import ApiKeys
from minibert.serving.connections import Connection, Connections, current
from minibert.serving.engine import Engine
from minibert.serving.observability import LOG
from minibert.serving.settings import ServiceError

DIED = 70
"""The exit code if the engine has stopped (EX_SOFTWARE of sysexits.h)."""

KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed. Clients close theirs earlier, so that they do not send into a
connection that is being closed."""

_BACKLOG = 2048
"""Connections that wait to be accepted."""

_M_ARENA_MAX = -8  # of glibc's malloc.h


def listen(host: str, port: int, uds: str | None = None) -> socket.socket:
    """Return a listening socket, so that a wrong address raises an error before a model is loaded.

    Parameters
    ----------
    host : str
        A name or an address.
    port : int
        0 lets the system choose.
    uds : str, optional
        The path of a Unix socket instead. A socket file that no process listens on is replaced.

    Raises
    ------
    OSError
        The address is wrong or in use; the message names it.
    """
    if uds is not None:
        return _listen_on_path(uds)
    if not 0 <= port <= 65535:  # some systems would take the rest of a division
        raise OSError(f"cannot listen on {printable(host)}, port {port}: a port is a number from 0 to 65535.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = found[0]
        bound = socket.socket(family, kind)
        try:
            if os.name == "posix":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)  # a port can be bound twice until one of the sockets listens
        except OSError:
            bound.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise OSError(f"cannot listen on {printable(host)}, port {port}: {reason}.") from error
    return bound


def _listen_on_path(path: str) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise OSError("this system does not have Unix sockets; give a host and a port.")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) and not _is_listening(path):
            os.unlink(path)
        bound.bind(path)
        bound.listen(_BACKLOG)
    except (OSError, ValueError) as error:
        bound.close()
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise OSError(f"cannot listen on {printable(path)}: {reason}.") from error
    return bound


def _is_listening(path: str) -> bool:
    """Say if a process listens on a Unix socket; True if that cannot be told, so that no other's socket is removed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)  # the queue of a process that is stopped may be full
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


class _Gate:
    """The first to see a request. While the models are loaded: 200 to /livez, and 503 to others. Then `app` answers."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = current()
        if connection is None:
            await self._answer(scope, receive, send)
            return
        with connection.request():
            if connection.only_probes and scope["method"] not in ("GET", "HEAD"):
                message = "the service has too many connections; send it again later."
                error = ServiceError("unavailable", message, retry_after=1.0)
                await refusal(error, scope, connection="close")(scope, receive, send)
            else:
                await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif path_of(scope) == "/livez" and scope["method"] in ("GET", "HEAD"):
            await Response(b"", 200, {"x-request-id": request_id_of(scope)})(scope, receive, send)
        else:
            error = ServiceError("unavailable", "the model is being loaded; send the request again.", retry_after=1.0)
            await refusal(error, scope)(scope, receive, send)


def serve(
    load: Callable[[], Engine],
    bound: socket.socket,
    *,
    listening: Callable[[str], object] = lambda address: None,
    started: Callable[[str], object] = lambda address: None,
    shutdown_timeout: float = 30.0,
    drain_delay: float = 0.0,
    head_timeout: float = 30.0,
    send_timeout: float = 60.0,
    metrics_namespace: str = "minibert",
    keys: ApiKeys | None = None,
    allow_origins: Sequence[str] = (),
) -> int:
    """Answer requests until SIGTERM or SIGINT; then finish requests that have begun, and close the engine.

    The socket listens before the models are loaded. Until then /livez is answered with 200, and all else with 503. A
    signal in that time ends the process at once, because a thread that loads cannot be stopped.

    Parameters
    ----------
    load : callable
        Returns the engine. It runs in a thread; its error ends the service and is raised here.
    bound : socket
        As `listen` returns it. It is closed at the end.
    listening, started : callable
        Called with the address as soon as connections are accepted, and as soon as requests are answered.
    shutdown_timeout : float
        Seconds for the requests that have begun. A second signal ends the process at once.
    drain_delay : float
        Seconds after SIGTERM in which /readyz is answered with 503, and new requests as before, so that a balancer has
        the time to send them elsewhere. SIGINT ends the process without it.
    head_timeout, send_timeout : float
        As for `Connections`.
    metrics_namespace, keys, allow_origins
        As for `app`. SIGHUP reads the file of the keys again.

    Returns
    -------
    int
        The exit code: 0 all requests were answered, 1 some were not, 70 the engine stopped by itself.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # the C library is not glibc
            # By default most threads have an arena of their own, which keeps tens of megabytes that were freed.
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    name, gate = bound.getsockname(), _Gate()
    path = name if bound.family == getattr(socket, "AF_UNIX", None) else None
    made = None if path is None else _file_of(path)
    config = uvicorn.Config(
        gate,
        log_config=None,
        backlog=_BACKLOG,
        access_log=False,
        server_header=False,
        lifespan="off",
        proxy_headers=False,  # the address of a client is not used
        ws="none",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(shutdown_timeout)),
    )
    config.load()
    inner, connections = config.http_protocol_class, Connections(head_timeout=head_timeout, send_timeout=send_timeout)
    config.http_protocol_class = lambda **options: Connection(connections, inner(**options))  # type: ignore[assignment]

    def load_app() -> Engine:
        engine = load()
        gate.app = app(engine, metrics_namespace=metrics_namespace, keys=keys, allow_origins=allow_origins)
        gc.collect()
        gc.freeze()  # the search for garbage then leaves out what was loaded
        return engine

    def leave() -> None:
        if isinstance(gate.app, Starlette):
            gate.app.state.service.leaving = True

    server = _Server(config)
    server.load, server.leave, server.keys, server.drain_delay = load_app, leave, keys, drain_delay
    server.when_listening = functools.partial(listening, _address(name))
    server.when_started = functools.partial(started, _address(name))
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it logs the signals and the end of requests
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)  # the engine's thread gives the lock of Python away between two ops
    try:
        server.run(sockets=[bound])
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
        bound.close()
        if path is not None and made is not None and _file_of(path) == made:  # not that of the next service
            with contextlib.suppress(OSError):
                os.unlink(path)
    if server.engine is None and server.error is None:  # it is still being loaded
        logging.shutdown()
        os._exit(1 if server.force_exit else 0)
    if server.error is not None:
        raise server.error
    assert server.engine is not None
    began = server.asked if server.asked is not None else time.monotonic()
    left = max(0.0, shutdown_timeout - (time.monotonic() - began))
    finished = server.engine.close(0.0 if server.force_exit else max(left, 1.0))
    if server.died:
        return DIED
    return 0 if finished and not server.force_exit and left > 0 else 1


def _file_of(path: str) -> tuple[int, int, int] | None:
    """Return what tells a file from another one that was made at its path later."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _address(name: Any) -> str:
    if not isinstance(name, tuple):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"


class _Server(uvicorn.Server):
    """uvicorn's server, which loads the engine, and ends with an exit code instead of the signal that it got."""

    when_listening: Callable[[], object]
    when_started: Callable[[], object]
    load: Callable[[], Engine]
    leave: Callable[[], object]
    keys: ApiKeys | None
    drain_delay: float
    engine: Engine | None = None
    error: BaseException | None = None
    died = False
    asked: float | None = None
    """When the requests that have begun began to be the last ones; None before a signal."""

    def _run_load(self) -> None:
        try:
            self.engine = self.load()
        except BaseException as error:  # it is raised where the service was started
            self.error = error

    async def main_loop(self) -> None:
        loader = threading.Thread(target=self._run_load, name="minibert-load", daemon=True)
        loader.start()
        self.when_listening()
        watch = asyncio.ensure_future(self._watch(loader))
        try:
            await super().main_loop()
        finally:
            watch.cancel()

    async def _watch(self, loader: threading.Thread) -> None:
        """Say when the engine is there; end the process if it has stopped, because nothing would be answered."""
        while loader.is_alive():
            await asyncio.sleep(0.02)
        if self.engine is not None:
            self.when_started()
            while not self.engine.has_died:
                await asyncio.sleep(0.2)
                if self.asked is not None and time.monotonic() >= self.asked:
                    self.should_exit = True
            self.died = True
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        signals: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGTERM), self.handle_exit)
        if self.keys is not None and hasattr(signal, "SIGHUP"):
            signals[signal.SIGHUP] = self._read_keys
        before = [signal.signal(number, handler) for number, handler in signals.items()]
        try:
            yield
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.asked is not None
        self.leave()
        at_once = self.force_exit or sig != signal.SIGTERM or self.engine is None
        delay = 0.0 if at_once else self.drain_delay
        self.asked = time.monotonic() + delay
        self.should_exit = not delay

    def _read_keys(self, sig: int, frame: FrameType | None) -> None:
        assert self.keys is not None
        try:
            self.keys.reload()
        except (OSError, ValueError) as error:
            LOG.error("the keys stay as they were: %s", error)
        else:
            LOG.info("the keys were read again; there are %d", len(self.keys))
