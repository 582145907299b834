"""`app(engine)`: all protocols as one ASGI application, which any server or framework can mount."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import itertools
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import minibert
from minibert._utils.files import os_reason, printable
from minibert._utils.validation import brief
from minibert.serving import protocols as base
from minibert.serving.engine import Engine
from minibert.serving.observability import LOG, REQUESTS, Metrics
from minibert.serving.protocols import bert, cohere, ollama, openai, tei
from minibert.serving.settings import GRACE, ServiceError

POSTS: Mapping[str, base.Post] = {**openai.POSTS, **cohere.POSTS, **ollama.POSTS, **tei.POSTS, **bert.POSTS}
"""The routes that take a body."""

_MOST_KEY_BYTES = 2**20  # of the file of keys
_WITHOUT_KEY = {"/health", "/ping", "/livez", "/readyz", "/metrics"}
_FIRST, _NUMBERS = uuid.uuid4().hex[:20], itertools.count()  # a new uuid for each request is a system call
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_INLINE_BODY = 2**11  # bytes; reading it takes 0.1 ms, which is less than giving it to a thread and back
_SHORT_ANSWER = 16  # texts; the vectors of more are written in a thread
_WATCH_AFTER = 0.5  # seconds; most answers are there before, and watching for the client's leaving takes time
_DISCARD_SECONDS = 5.0
_PART_BYTES = 2**18  # of an answer: the next part is sent when the client has read most of the one before


def request_id_of(scope: Scope) -> str:
    """Return the client's id of a request, or a new id."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else f"{_FIRST}{next(_NUMBERS):012x}"


def path_of(scope: Scope) -> str:
    """Return the path within this application, which another application may have mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _errors_of(path: str) -> base.Errors:
    """Return the shape of errors for a path, also for a path whose route does not take a body."""
    if path in POSTS:
        return POSTS[path].errors
    return ollama.ERRORS if path.startswith("/api/") else tei.ERRORS if path == "/info" else openai.ERRORS


def refusal(error: ServiceError, scope: Scope, **headers: str) -> Response:
    """Return the response for an error, in the JSON shape of the request's route."""
    path = path_of(scope)
    errors, field = _errors_of(path), POSTS[path].field if path in POSTS else ""
    headers.setdefault("x-request-id", request_id_of(scope))
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.kind in ("too_large", "slow", "media_type", "key"):  # the rest of the body is not read
        headers["connection"] = "close"
    if error.kind == "key":
        headers["www-authenticate"] = "Bearer"
    return Response(errors.body(error, field), errors.statuses[error.kind], headers, "application/json")


class Service:
    """The state that the routes share: the engine, its metrics, the threads that read requests, the bytes in flight.

    Attributes
    ----------
    leaving : bool
        The process ends soon: /health and /readyz say so, and requests are still answered.
    """

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self.engine, self.metrics, self.leaving, self.inflight_bytes = engine, metrics, False, 0
        self.metrics.inflight.set_function(lambda: self.inflight_bytes)
        self.writer = ThreadPoolExecutor(1, "minibert-write")


class _Held:
    """The bytes of one request and its answer, which are counted until the answer is sent."""

    def __init__(self, service: Service) -> None:
        self._service, self._count = service, 0

    def add(self, count: int, *, refuse: bool = True) -> None:
        """Count more bytes of this request; if `refuse`, raise a ServiceError if all requests have too many.

        A request is never refused because of its own bytes.
        """
        service = self._service
        service.inflight_bytes += count
        self._count += count
        if refuse and service.inflight_bytes > max(service.engine.settings.max_inflight_bytes, self._count):
            raise ServiceError(
                "overloaded", "the requests that wait take too much memory; send it again later.", retry_after=1.0
            )

    def release(self) -> None:
        """Stop counting the bytes of this request."""
        self._service.inflight_bytes -= self._count
        self._count = 0


class _PostRoute:
    """A route that takes a body. It is an ASGI application of its own, because it watches for the client's leaving."""

    def __init__(self, service: Service, path: str, post: base.Post) -> None:
        self._service, self._path, self._post = service, path, post

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, started = self._service, time.monotonic()
        metrics = service.metrics
        metrics.requests.labels(self._path).inc()
        request_id, held, work, value = request_id_of(scope), _Held(service), None, None
        headers = {"x-request-id": request_id}
        try:
            given = dict(scope["headers"])
            body = await self._body(given, receive, held)
            deadline = time.monotonic() + service.engine.settings.request_timeout
            if self._post.computes:
                service.engine.check_room(len(body))  # a token has a byte at least
            before, short = time.monotonic(), len(body) <= _INLINE_BODY
            if short:
                work = self._post.read(service.engine, body)
            else:  # in a thread
                reading = service.engine.read(len(body), self._post.read, service.engine, body)
                try:
                    work = await self._result(reading.future, deadline, receive)
                finally:
                    reading.cancel()
            del body
            n_bytes = work.prepared.report.n_bytes if work.prepared is not None else 0
            held.add(n_bytes)
            metrics.tokenization.observe(time.monotonic() - before)
            headers["x-tokenization-time"] = _milliseconds(time.monotonic() - before)
            write, media_type = work.write, "application/json"
            if work.write_bytes is not None and b"application/octet-stream" in given.get(b"accept", b""):
                write, media_type = work.write_bytes, "application/octet-stream"
            if work.prepared is not None:
                job, report = work.prepared
                value = await self._result(service.engine.submit(job), deadline, receive)
                metrics.add(job, report)
                short = len(report.n_tokens) <= _SHORT_ANSWER and job.tokens <= 512
            if short:
                content = write(value)
            else:
                content = await asyncio.get_running_loop().run_in_executor(service.writer, write, value)
            status = 200
            held.add(len(content) - n_bytes, refuse=work.prepared is None)  # its numbers are not needed any more
            metrics.successes.labels(self._path).inc()
        except _DisconnectedError:
            metrics.disconnected.inc()
            held.release()
            return
        except asyncio.CancelledError:
            held.release()
            raise
        except Exception as problem:
            error = problem
            if not isinstance(error, ServiceError):
                LOG.exception("request %s: an error of the service", request_id)
                error = ServiceError("failed", f"an error of the service; its log has the details, see {request_id}.")
            metrics.failures.labels(self._path, error.kind).inc()
            response = refusal(error, scope, **headers)
            status, content, media_type = response.status_code, bytes(response.body), "application/json"
            headers = dict(response.headers)
        seconds = time.monotonic() - started
        metrics.duration.labels(self._path).observe(seconds)
        headers["x-total-time"] = _milliseconds(seconds)
        self._report(work, headers, request_id, status, seconds)
        try:
            del work, value
            headers |= {"content-type": media_type, "content-length": str(len(content))}
            await _send(status, headers, content, send)
        finally:
            held.release()

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, held: _Held) -> bytes:
        """Read the body, up to its limit and within its time."""
        settings = self._service.engine.settings
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
        if encoding != "identity":
            raise ServiceError("media_type", f"the body has Content-Encoding {encoding[:50]!r}; send it uncompressed.")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > settings.max_body_bytes:
            if b"expect" not in headers:  # a client that asks before it sends does not send it
                await _discard(receive, settings.max_body_bytes)
            raise _too_large(settings.max_body_bytes)
        parts, size = list[bytes](), 0
        for seconds in (settings.body_timeout, GRACE):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while True:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise _DisconnectedError
                        part: bytes = message.get("body", b"")
                        size += len(part)
                        held.add(len(part))
                        if size > settings.max_body_bytes:
                            parts.clear()
                            await _discard(receive, settings.max_body_bytes)
                            raise _too_large(settings.max_body_bytes)
                        parts.append(part)
                        if not message.get("more_body", False):
                            return b"".join(parts)
        raise ServiceError("slow", f"the body did not arrive within {settings.body_timeout:g} seconds; send it again.")

    async def _result(self, future: Future[Any], deadline: float, receive: Receive) -> Any:
        """Wait for a future until the time for a request is over, or the client leaves; then it is cancelled."""
        leaving: asyncio.Future[None] | None = None
        try:
            await _ended(future, min(deadline - time.monotonic(), _WATCH_AFTER))
            left = deadline - time.monotonic()
            if not future.done() and left > 0:
                leaving = asyncio.ensure_future(_disconnected(receive))
                await _ended(future, left, leaving)
            if future.done():
                return future.result()
            if leaving is not None and leaving.done():
                raise _DisconnectedError
            limit = self._service.engine.settings.request_timeout
            raise ServiceError(
                "unavailable", f"the request took longer than {limit:g} seconds; send fewer texts.", retry_after=1.0
            )
        finally:
            future.cancel()  # without an effect if it has ended
            if leaving is not None:
                leaving.cancel()
                await asyncio.wait({leaving})

    def _report(
        self, work: base.Work | None, headers: dict[str, str], request_id: str, status: int, seconds: float
    ) -> None:
        """Say in the headers and in the log what was done to the texts."""
        line: dict[str, Any] = {"request_id": request_id, "route": self._path, "status": status}
        line["milliseconds"] = round(1000 * seconds, 1)
        if work is not None and work.ignored:
            self._service.metrics.ignored.inc(len(work.ignored))
            names = [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:40] for name in work.ignored[:10]]
            headers["x-minibert-ignored"] = line["ignored"] = ",".join(names)
        if work is not None and work.prepared is not None:
            job, report = work.prepared
            line |= {"texts": len(report.n_tokens), "tokens": sum(report.n_tokens)}
            if report.truncated:
                line["truncated"] = len(report.truncated)
                headers["x-minibert-truncated"] = str(len(report.truncated))
            if report.prompt_name is not None:
                line["prompt"] = report.prompt_name
                headers["x-minibert-prompt"] = quote(report.prompt_name)
            if report.compute_type != "float32":
                headers["x-minibert-compute-type"] = line["compute_type"] = report.compute_type
            headers["x-compute-tokens"] = str(sum(report.n_tokens))
            headers["x-compute-characters"] = str(report.n_characters)
            headers["x-queue-time"] = _milliseconds(job.queue_seconds)
            headers["x-inference-time"] = _milliseconds(job.compute_seconds)
        if REQUESTS.isEnabledFor(logging.INFO):
            REQUESTS.info("%s", json.dumps(line), extra={"request": line})


class _DisconnectedError(Exception):
    """The client has closed its connection."""


def _too_large(limit: int) -> ServiceError:
    return ServiceError("too_large", f"the body is larger than {limit} bytes; send fewer texts.")


async def _discard(receive: Receive, most: int) -> None:
    """Read the rest of a body that is too large, because many clients read the answer only after they sent it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            size, more = 0, True
            while more and size <= most:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)


async def _send(status: int, headers: dict[str, str], content: bytes, send: Send) -> None:
    """Send an answer in parts, so that the bytes of a slow client are not all copied into its connection at once."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    first = 0
    while len(content) - first > _PART_BYTES:
        part = content[first : first + _PART_BYTES]
        await send({"type": "http.response.body", "body": part, "more_body": True})
        first += _PART_BYTES
    await send({"type": "http.response.body", "body": content[first:]})


async def _ended(future: Future[Any], seconds: float, *others: asyncio.Future[Any]) -> None:
    """Wait until a thread has ended a future, or another one has ended, for so many seconds at most.

    `asyncio.wrap_future` and `asyncio.wait` do the same in three times the time.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_end, waiter)

    future.add_done_callback(wake)
    for other in others:
        other.add_done_callback(functools.partial(_end, waiter))
    timer = loop.call_later(seconds, _end, waiter)
    try:
        await waiter
    finally:
        timer.cancel()


def _end(waiter: asyncio.Future[None], *_: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"


# Routes without a body -> (service, request) -> the answer, or what its JSON is made of.
_GETS: Mapping[str, Callable[[Service, Request], Any]] = {
    **dict.fromkeys(("/", "/health", "/ping", "/readyz"), lambda service, _: _health(service, ready=True)),
    "/livez": lambda service, _: _health(service, ready=False),
    "/metrics": lambda service, _: Response(service.metrics.text(), media_type="text/plain; version=0.0.4"),
    "/info": lambda service, _: tei.info(service.engine, minibert.__version__),
    **dict.fromkeys(("/api/tags", "/api/ps"), lambda service, _: ollama.model_list(service.engine)),
    "/api/version": lambda *_: {"version": minibert.__version__},
    **dict.fromkeys(("/models", "/v1/models"), lambda service, _: openai.model_list(service.engine)),
    **dict.fromkeys(
        ("/models/{name:path}", "/v1/models/{name:path}"),
        lambda service, request: openai.model_object(service.engine.models.served(request.path_params["name"])),
    ),
}


def app(
    engine: Engine,
    *,
    metrics_namespace: str = "minibert",
    keys: ApiKeys | None = None,
) -> Starlette:
    """Make the ASGI application that answers requests with results of the engine.

    Parameters
    ----------
    engine : Engine
        It belongs to the caller, who closes it. Its thread starts with the first request.
    metrics_namespace : str
        The beginning of the names in /metrics.
    keys : ApiKeys, optional
        A request needs one of them, except for /health, /livez, /readyz, /ping, /metrics and "GET /".

    Raises
    ------
    ValueError
        The namespace has another character than letters, digits and "_".

    Returns
    -------
    Starlette
        ``app.state.service`` has the threads; they end with the process. Set its attribute `leaving` a while before the
        process ends, so that /readyz is answered with 503.
    """
    if not re.fullmatch(r"[a-zA-Z_]\w*", metrics_namespace, re.ASCII):
        raise ValueError(
            f"metrics_namespace={brief(metrics_namespace)}; expected letters, digits and _, and no digit at the start."
        )
    service = Service(engine, Metrics(engine, metrics_namespace))
    routes = [Route(path, _not_reached, methods=["POST"]) for path in POSTS]
    routes += [Route(path, _endpoint(service, answer), methods=["GET"]) for path, answer in _GETS.items()]
    outside = [Middleware(_Gate, service=service, keys=keys)]
    made = Starlette(routes=routes, middleware=outside, exception_handlers={HTTPException: _http_error})
    made.router.redirect_slashes = False  # the place would be made from the Host header of the client
    made.state.service = service
    return made


def _endpoint(service: Service, answer: Callable[[Service, Request], Any]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            found = answer(service, request)
        except ServiceError as error:
            return refusal(error, request.scope)
        response = found if isinstance(found, Response) else Response(base.dump(found), media_type="application/json")
        response.headers["x-request-id"] = request_id_of(request.scope)
        return response

    return endpoint


class ApiKeys:
    """Keys from the command line and from a file; a request must have one of them.

    Parameters
    ----------
    keys : sequence of str
    path : str, optional
        A file with a key per line. Blank lines, and lines that begin with "#", are not keys.

    Raises
    ------
    TypeError
        `keys` is a str, or bytes.
    ValueError
        A key is empty, or has a space or a control character; there is no key; or the file is not text.
    OSError
        The file cannot be read.
    """

    def __init__(self, keys: Sequence[str] = (), path: str | None = None) -> None:
        if isinstance(keys, str | bytes):  # each of its letters would open the service
            raise TypeError(f"keys is a {type(keys).__name__}; expected a sequence of str, such as [key].")
        self._given, self._path = [_digest(key, "a key") for key in keys], path
        self.reload()

    def __len__(self) -> int:
        return len(self._digests)

    def reload(self) -> None:
        """Read the file again. If that fails, the keys stay as they were, and the error is raised."""
        digests = self._given + ([] if self._path is None else _keys_in(self._path))
        if not digests:
            raise ValueError(f"{printable(self._path)} has no key; write a key per line." if self._path else "no keys.")
        self._digests = digests

    def accept(self, authorization: bytes) -> bool:
        """Return whether the header Authorization has a valid key, as ``Bearer KEY`` or as the key alone.

        All keys are compared, by their digests and in constant time, so that the time tells nothing about them.
        """
        scheme, _, rest = authorization.strip().partition(b" ")
        given = hashlib.sha256(rest.strip() if scheme.lower() == b"bearer" else authorization.strip()).digest()
        return sum(hmac.compare_digest(given, digest) for digest in self._digests) > 0


def _digest(key: str, where: str) -> bytes:
    """Return the digest of a key that a header can hold. The message of the error does not show the key."""
    if not key or not all("!" <= character <= "~" for character in key):
        raise ValueError(f"{where} is empty, or has a space or another character that a key cannot have.")
    return hashlib.sha256(key.encode()).digest()


def _keys_in(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise OSError(f"the file of keys, {printable(path)}, cannot be read: {os_reason(error)}.") from error
    if len(content) > _MOST_KEY_BYTES:
        raise ValueError(f"{printable(path)} has more than {_MOST_KEY_BYTES} bytes; expected a key per line.")
    try:
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{printable(path)} is not UTF-8; expected a key per line.") from None
    return [
        _digest(line, f"line {number} of {printable(path)}")
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    ]


class _Gate:
    """Answers 401 to requests without a key, and passes those with a body to their routes.

    It is before Starlette's routes, so that unknown ones cannot be told apart; their search takes as long as the rest
    of HTTP.
    """

    def __init__(self, app: ASGIApp, service: Service, keys: ApiKeys | None) -> None:
        self._app, self._service, self._keys = app, service, keys
        self._posts = {path: _PostRoute(service, path, post) for path, post in POSTS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._app
        if scope["type"] == "http":
            path = path_of(scope)
            if not self._is_open(scope, path):
                app = self._refused(scope, path if path in POSTS else "other")  # a label has a fixed set of values
            elif scope["method"] == "POST":
                app = self._posts.get(path, app)
        await app(scope, receive, send)

    def _is_open(self, scope: Scope, path: str) -> bool:
        if self._keys is None or path in _WITHOUT_KEY or (path == "/" and scope["method"] in ("GET", "HEAD")):
            return True
        return self._keys.accept(dict(scope["headers"]).get(b"authorization", b""))

    def _refused(self, scope: Scope, route: str) -> Response:
        self._service.metrics.failures.labels(route, "key").inc()
        # Clients such as LiteLLM look for OpenAI's words.
        message = "Incorrect API key provided, or none; send the header Authorization: Bearer KEY."
        response = refusal(ServiceError("key", message), scope)
        line = {"request_id": response.headers["x-request-id"], "route": route, "status": 401}
        REQUESTS.info("%s", line, extra={"request": line})
        return response


def _health(service: Service, *, ready: bool) -> Response:
    load = service.engine.load()
    if load.alive and (not ready or (load.ready and not service.leaving)):
        return Response(b"", 200)
    message = "the service is stopping." if load.alive else "the engine does not answer."
    error = ServiceError("unavailable", message)
    return Response(tei.ERRORS.body(error, ""), 503, {"retry-after": "1"}, "application/json")


async def _not_reached(request: Request) -> Response:
    """A route whose requests the gate answers; it is there for the methods of its path."""
    raise NotImplementedError


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer requests for unknown routes and methods."""
    assert isinstance(error, HTTPException)
    path, headers = path_of(request.scope)[:200], dict(error.headers or {})
    if error.status_code == 405:
        allowed = ", ".join(sorted(headers.get("Allow", "POST").split(", ")))
        problem = ServiceError("method", f"{path} does not accept {request.method[:20]}; send {allowed}.")
    else:
        problem = ServiceError("not_found", f"{path} is not a route; expected one of {', '.join(POSTS)}, ...")
    return refusal(problem, request.scope, **headers)
