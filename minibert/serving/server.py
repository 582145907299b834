"""`serve`: the application on a socket, until the process is asked to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from minibert.base.files import os_reason, printable
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.serving.libraries import missing

try:
    import uvicorn
except ImportError as error:
    raise missing(error) from error

__all__ = ["listen", "log_requests", "serve"]

_LOG = logging.getLogger("minibert.serving")

DIED = 70
"""The exit code if the engine has stopped (EX_SOFTWARE of sysexits.h)."""


def listen(host: str, port: int, uds: str | None = None) -> socket.socket:
    """Return a socket that is bound, so that a wrong address is an error before a model is loaded.

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
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        bound = socket.socket(family, kind)
        try:
            if os.name == "posix":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
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
    except (OSError, ValueError) as error:
        bound.close()
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise OSError(f"cannot listen on {printable(path)}: {reason}.") from error
    return bound


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def serve(
    engine: Engine,
    bound: socket.socket,
    *,
    started: Callable[[str], object] = lambda address: None,
    shutdown_timeout: float = 30.0,
    metrics_namespace: str = "minibert",
) -> int:
    """Answer requests until SIGTERM or SIGINT; requests that have begun are then finished, and the engine is closed.

    Parameters
    ----------
    engine : Engine
    bound : socket
        As `listen` returns it. It is closed at the end.
    started : callable
        Called with the address as soon as requests are answered.
    shutdown_timeout : float
        Seconds for the requests that have begun. A second signal ends the process at once.
    metrics_namespace : str
        As for `app`.

    Returns
    -------
    int
        The exit code: 0 all requests were answered, 1 some were not, 70 the engine stopped by itself.
    """
    config = uvicorn.Config(
        app(engine, metrics_namespace=metrics_namespace),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=max(1, round(shutdown_timeout)),
    )
    address, path = _address(bound), None
    if bound.family == getattr(socket, "AF_UNIX", None):
        path = bound.getsockname()
    server = _Server(config, engine, lambda: started(address))
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it logs the signals and the end of requests
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)  # the engine's thread gives the lock of Python away between two ops
    try:
        server.run(sockets=[bound])
    finally:
        sys.setswitchinterval(before)
        bound.close()
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)
    began = server.asked if server.asked is not None else time.monotonic()
    left = max(0.0, shutdown_timeout - (time.monotonic() - began))
    finished = engine.close(0.0 if server.force_exit else max(left, 1.0))
    if server.died:
        return DIED
    return 0 if finished and not server.force_exit and left > 0 else 1


def _address(bound: socket.socket) -> str:
    name = bound.getsockname()
    if not isinstance(name, tuple):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"


class _Server(uvicorn.Server):
    """uvicorn's server, which ends with an exit code instead of the signal that it got."""

    def __init__(self, config: uvicorn.Config, engine: Engine, started: Callable[[], object]) -> None:
        super().__init__(config)
        self._engine, self._call_started = engine, started
        self.asked: float | None = None
        self.died = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._call_started()

    async def main_loop(self) -> None:
        watch = asyncio.ensure_future(self._watch())
        try:
            await super().main_loop()
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        """End the process if the engine has stopped, because nothing would be answered any more."""
        while not self._engine.has_died:
            await asyncio.sleep(0.2)
        self.died = self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        signals = [signal.SIGINT, signal.SIGTERM]
        before = [signal.signal(number, self.handle_exit) for number in signals]
        try:
            yield
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self.asked = self.asked or time.monotonic()


class _Lines(logging.Formatter):
    """A line per record: JSON, or a sentence."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = getattr(record, "request", {}) or {"message": super().format(record)}
        if self._as_json:
            return json.dumps({"time": round(record.created, 3), "level": record.levelname.lower(), **line})
        if "message" in line:
            return f"minibert: {line['message']}"
        return (
            f"minibert: {line['truncated']} of {line['texts']} texts of a request were cut (request "
            f"{line['request_id']}); further requests of this minute are not shown"
        )


class _OncePerMinute(logging.Filter):
    """Lets warnings and errors pass, and of requests one per minute whose texts were cut."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            return True
        if "truncated" not in getattr(record, "request", {}) or record.created < self._next:
            return False
        self._next = record.created + 60
        return True


def log_requests(*, as_json: bool) -> None:
    """Write the log of the service to the standard error.

    Parameters
    ----------
    as_json : bool
        True: a JSON object per request, without its texts. False: errors, and once per minute that texts were cut.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(as_json))
    if not as_json:
        handler.addFilter(_OncePerMinute())
    _LOG.handlers[:] = [handler]
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
