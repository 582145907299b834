"""`serve`: run the application on a socket until a signal ends the process."""

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
from types import FrameType
from typing import Any

import uvicorn

from minibert._utils.files import os_reason, printable
from minibert.serving.asgi import Receive, Reply, Scope, Send, Service, path_of, refusal, request_id_of
from minibert.serving.connections import Connection, Connections, current, noting_ends
from minibert.serving.engine import Engine
from minibert.serving.observability import LOG
from minibert.serving.settings import ApiKeys, ServiceError, Settings

DIED = 70
"""The exit code if the engine has stopped (EX_SOFTWARE of sysexits.h)."""

KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed. Clients close theirs earlier, so that they do not send into a
connection that is being closed."""

_BACKLOG = 2048
"""Connections that wait to be accepted."""

_M_ARENA_MAX = -8  # of glibc's malloc.h

_LAST_SECONDS = 2  # to send answers to the requests that the end of the service cuts


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
        inner = noting_ends(config.http_protocol_class)
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
        connection = current.get()
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
