"""`app(engine)`: the protocols over HTTP, as an ASGI application that any server or framework can mount."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

import minibert
from minibert._utils.validation import brief
from minibert.serving.auth import ApiKeys
from minibert.serving.connections import current
from minibert.serving.engine import Engine
from minibert.serving.libraries import missing
from minibert.serving.observability import LOG, REQUESTS, Metrics
from minibert.serving.openapi import openapi
from minibert.serving.protocols import POSTS, base, errors_of, ollama, openai, tei
from minibert.serving.protocols.base import Post, Work
from minibert.serving.settings import GRACE, ServiceError
from minibert.tokenizer.texts import shown

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as error:
    raise missing(error) from error


_WITHOUT_KEY = {"/health", "/ping", "/livez", "/readyz", "/metrics"}
_FIRST, _NUMBERS = uuid.uuid4().hex[:20], itertools.count()  # a new uuid for each request is a system call
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def request_id_of(scope: Scope) -> str:
    """Return the id that the client gave its request, or a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else f"{_FIRST}{next(_NUMBERS):012x}"


def path_of(scope: Scope) -> str:
    """Return the path within this application, which may be mounted in another one."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


class KeyGate:
    """Answers 401 to requests without a key. It is before the routes, so that unknown ones cannot be told apart.

    Parameters
    ----------
    app : ASGIApp
    metrics : Metrics
    keys : ApiKeys
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, keys: ApiKeys) -> None:
        self._app, self._metrics, self._keys = app, metrics, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        path = path_of(scope)
        route = path if path in POSTS else "other"  # a label has a fixed set of values
        self._metrics.failures.labels(route, "key").inc()
        # Clients such as LiteLLM look for OpenAI's words.
        error = ServiceError("key", "Incorrect API key provided, or none; send the header Authorization: Bearer KEY.")
        response = _refusal(error, scope, {"www-authenticate": "Bearer", "connection": "close"})
        line = {"request_id": response.headers["x-request-id"], "route": route, "status": 401}
        REQUESTS.info("%s", line, extra={"request": line})
        await response(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = path_of(scope)
        if path in _WITHOUT_KEY or (path == "/" and scope["method"] in ("GET", "HEAD")):
            return True
        return self._keys.accept(dict(scope["headers"]).get(b"authorization", b""))


class LoadingGate:
    """The first to see a request. While the models are loaded: 200 to /livez, and 503 to others. Then `app` answers.

    Attributes
    ----------
    app : ASGIApp or None
    """

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        connection = current()
        if connection is None:
            await self._answer(scope, receive, send)
            return
        connection.begin()
        try:
            if connection.only_probes and scope["method"] not in ("GET", "HEAD"):
                error = ServiceError("unavailable", "the service has too many connections; send it again later.")
                await _refusal(error, scope, {"retry-after": "1", "connection": "close"})(scope, receive, send)
            else:
                await self._answer(scope, receive, send)
        finally:
            connection.end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
            return
        if path_of(scope) == "/livez" and scope["method"] in ("GET", "HEAD"):
            await Response(b"", 200, {"x-request-id": request_id_of(scope)})(scope, receive, send)
            return
        error = ServiceError("unavailable", "the model is being loaded; send the request again.", retry_after=1.0)
        await _refusal(error, scope, {"retry-after": "1"})(scope, receive, send)


def _refusal(error: ServiceError, scope: Scope, headers: dict[str, str]) -> Response:
    """Return the answer to a request whose body is not read, in the shape of its route."""
    path = path_of(scope)
    errors, field = errors_of(path), POSTS[path].field if path in POSTS else ""
    headers = {"x-request-id": request_id_of(scope), **headers}
    return Response(errors.body(error, field), errors.status(error), headers, "application/json")


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


_INLINE_BODY = 2**11  # bytes; reading it takes 0.1 ms, which is less than giving it to a thread and back
_SHORT_ANSWER = 16  # texts; the vectors of more are written in a thread
_WATCH_AFTER = 0.5  # seconds; most answers are there before, and watching for the client's leaving takes time
_DISCARD_SECONDS = 5.0
_PART_BYTES = 2**18  # of an answer: the next part is sent when the client has read most of the one before


class Service:
    """What the routes share: the engine, its numbers, the threads that read requests, the bytes in flight.

    Attributes
    ----------
    leaving : bool
        The process ends soon: /health and /readyz say so, and requests are still answered.
    """

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self.engine, self.metrics, self.leaving = engine, metrics, False
        self.metrics.inflight.set_function(lambda: self.inflight_bytes)
        self.inflight_bytes, self.completions = 0, Completions()
        self.writer = ThreadPoolExecutor(1, "minibert-write")

    def add_bytes(self, count: int, own: int, refuse: bool) -> None:
        """Count bytes of a request that has `own` already; if `refuse`, ServiceError if all requests have too many.

        A request is never refused because of its own bytes.
        """
        self.inflight_bytes += count
        too_many = self.inflight_bytes > max(self.engine.settings.max_inflight_bytes, own + count)
        if refuse and too_many:
            raise ServiceError(
                "overloaded", "the requests that wait take too much memory; send it again later.", retry_after=1.0
            )


class PostRoute:
    """A route that takes a body. It is an ASGI application of its own, because it watches for the client's leaving."""

    def __init__(self, service: Service, path: str, post: Post) -> None:
        self._service, self._path, self._post = service, path, post

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        service, post, started = self._service, self._post, time.monotonic()
        metrics = service.metrics
        metrics.requests.labels(self._path).inc()
        request_id = request_id_of(scope)
        headers = {"x-request-id": request_id}
        held, work = _Held(service), None
        try:
            given = dict(scope["headers"])
            body = await self._body(given, receive, held)
            deadline = time.monotonic() + service.engine.settings.request_timeout
            if post.computes:  # a token has a byte at least; what the body says may make it bulk
                service.engine.check_room(len(body), low=b"priority" in body[:_INLINE_BODY])
            accept = given.get(b"accept", b"").decode("latin-1")
            before = time.monotonic()
            if len(body) <= _INLINE_BODY:
                work = post.read(service.engine, body, accept)
            else:
                work = await self._read(body, accept, deadline, receive)
            short = len(body) <= _INLINE_BODY
            del body
            if work.report is not None:
                held.add(work.report.n_bytes)
            metrics.tokenization.observe(time.monotonic() - before)
            headers["x-tokenization-time"] = _milliseconds(time.monotonic() - before)
            content = await self._answer(work, short, deadline, receive)
            n_bytes = work.report.n_bytes if work.report is not None else 0
            held.add(len(content) - n_bytes, refuse=work.job is None)  # its numbers are not needed any more
            status, media_type = 200, work.media_type
            metrics.successes.labels(self._path).inc()
        except _DisconnectedError:
            metrics.disconnected.inc()
            held.release()
            return
        except ServiceError as error:
            status, content, media_type = self._failed(error, headers)
        except asyncio.CancelledError:
            held.release()
            raise
        except Exception:
            LOG.exception("request %s: an error of the service", request_id)
            problem = ServiceError("failed", f"an error of the service; its log has the details, see {request_id}.")
            status, content, media_type = self._failed(problem, headers)
        seconds = time.monotonic() - started
        metrics.duration.labels(self._path).observe(seconds)
        headers["x-total-time"] = _milliseconds(seconds)
        self._report(work, headers, request_id, status, seconds)
        try:
            del work
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

    async def _read(self, body: bytes, accept: str, deadline: float, receive: Receive) -> Work:
        """Read and tokenize a request in a thread; it is dropped if the client leaves."""
        engine = self._service.engine
        reading = engine.read(len(body), self._post.read, engine, body, accept)
        try:
            work: Work = await self._result(reading.future, deadline, receive)
            return work
        finally:
            reading.cancel()

    async def _answer(self, work: Work, short: bool, deadline: float, receive: Receive) -> bytes:
        """Wait for the engine and write the answer; a client that leaves cancels its job."""
        service, value, count = self._service, None, 0
        if work.job is not None and work.report is not None:
            job, report = work.job, work.report
            future = service.engine.submit(job)
            try:
                value = await self._result(future, deadline, receive)
            finally:
                future.cancel()  # without an effect if it has ended
            count = len(report.n_tokens)
            metrics = service.metrics
            metrics.queue.observe(job.queue_seconds)
            metrics.inference.observe(job.compute_seconds)
            for number in report.n_tokens:
                metrics.input_length.observe(number)
            metrics.texts.inc(count)
            metrics.tokens.inc(sum(report.n_tokens))
            if report.truncated:
                metrics.truncated.inc(len(report.truncated))
            if report.prompt_name is not None:
                metrics.prompts.inc(count)
        if short if work.job is None else count <= _SHORT_ANSWER and work.job.tokens <= 512:
            return work.write(value)
        return await asyncio.get_running_loop().run_in_executor(service.writer, work.write, value)

    async def _result(self, future: Future[Any], deadline: float, receive: Receive) -> Any:
        """Wait for a future until the time for a request is over, or the client leaves."""
        left = deadline - time.monotonic()
        first = min(left, _WATCH_AFTER)
        if await self._service.completions.wait(future, first) or await self._watched(future, left - first, receive):
            return future.result()
        limit = self._service.engine.settings.request_timeout
        raise ServiceError(
            "unavailable", f"the request took longer than {limit:g} seconds; send fewer texts.", retry_after=1.0
        )

    async def _watched(self, future: Future[Any], seconds: float, receive: Receive) -> bool:
        """Wait until a future has ended, and say if it has in time; _DisconnectedError if the client leaves."""
        waiter = self._service.completions.waiter(future)
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({waiter, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() and not future.done():
                raise _DisconnectedError
            return future.done()
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving

    def _failed(self, error: ServiceError, headers: dict[str, str]) -> tuple[int, bytes, str]:
        self._service.metrics.failures.labels(self._path, error.kind).inc()
        return _failed(error, self._post, headers)

    def _report(self, work: Work | None, headers: dict[str, str], request_id: str, status: int, seconds: float) -> None:
        """Say in the headers and in the log what was done to the texts."""
        line: dict[str, Any] = {"request_id": request_id, "route": self._path, "status": status}
        line["milliseconds"] = round(1000 * seconds, 1)
        if work is not None and work.ignored:
            self._service.metrics.ignored.inc(len(work.ignored))
            names = [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:40] for name in work.ignored[:10]]
            headers["x-minibert-ignored"] = line["ignored"] = ",".join(names)
        if work is not None and work.job is not None and work.report is not None:
            report = work.report
            line |= {"texts": len(report.n_tokens), "tokens": sum(report.n_tokens)}
            if report.truncated:
                headers["x-minibert-truncated"] = str(len(report.truncated))
                line["truncated"] = len(report.truncated)
            if report.prompt_name is not None:
                headers["x-minibert-prompt"] = quote(report.prompt_name)
                line["prompt"] = report.prompt_name
            if report.compute_type != "float32":
                headers["x-minibert-compute-type"] = line["compute_type"] = report.compute_type
            headers["x-compute-tokens"] = str(sum(report.n_tokens))
            headers["x-compute-characters"] = str(report.n_characters)
            headers["x-queue-time"] = _milliseconds(work.job.queue_seconds)
            headers["x-inference-time"] = _milliseconds(work.job.compute_seconds)
        if REQUESTS.isEnabledFor(logging.INFO if "truncated" in line else logging.DEBUG):
            REQUESTS.info("%s", json.dumps(line), extra={"request": line})


class _Held:
    """The bytes of one request and its answer, which are counted until the answer is sent."""

    def __init__(self, service: Service) -> None:
        self._service, self._count = service, 0

    def add(self, count: int, *, refuse: bool = True) -> None:
        """Count more bytes; if `refuse`, ServiceError if all requests have too many."""
        own = self._count
        self._count += count
        self._service.add_bytes(count, own, refuse)

    def release(self) -> None:
        """Count nothing more of this request."""
        self._service.inflight_bytes -= self._count
        self._count = 0


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


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _failed(error: ServiceError, post: Post, headers: dict[str, str]) -> tuple[int, bytes, str]:
    """Return the status, the body and the media type of an error, and add its headers."""
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.kind in ("too_large", "slow", "media_type"):  # the rest of the body is not read
        headers["connection"] = "close"
    return post.errors.status(error), post.errors.body(error, post.field), "application/json"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"


_CORS: dict[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["*"],
    "expose_headers": [
        *("retry-after", "x-request-id", "x-minibert-truncated", "x-minibert-ignored", "x-minibert-prompt"),
        "x-minibert-compute-type",
        *("x-compute-tokens", "x-compute-characters", "x-total-time", "x-queue-time", "x-inference-time"),
        "x-tokenization-time",
    ],
}


def app(
    engine: Engine,
    *,
    metrics_namespace: str = "minibert",
    keys: ApiKeys | None = None,
    allow_origins: Sequence[str] = (),
) -> Starlette:
    """Make the ASGI application that answers with what the engine computes.

    Parameters
    ----------
    engine : Engine
        It belongs to the caller, who closes it. Its thread starts with the first request.
    metrics_namespace : str
        The beginning of the names in /metrics.
    keys : ApiKeys, optional
        A request needs one of them, except for /health, /livez, /readyz, /ping, /metrics and "GET /".
    allow_origins : sequence of str
        Origins whose pages may ask the service (CORS), such as "https://example.org"; "*" means all.

    Raises
    ------
    TypeError, ValueError
        An argument has another type, or the namespace another character than letters, digits and "_".

    Returns
    -------
    Starlette
        ``app.state.service`` has the threads; they end with the process. Set its attribute `leaving` a while before the
        process ends, so that /readyz is answered with 503.
    """
    if not isinstance(engine, Engine):
        raise TypeError(f"engine is {shown(engine)}; expected an Engine, such as Engine(SentenceTransformer()).")
    if keys is not None and not isinstance(keys, ApiKeys):
        raise TypeError(f"keys is a {type(keys).__name__}; expected ApiKeys, such as ApiKeys([key]).")
    if isinstance(allow_origins, str) or not all(isinstance(origin, str) for origin in allow_origins):
        raise TypeError(f"allow_origins is {shown(allow_origins)}; expected a list of str.")
    if not isinstance(metrics_namespace, str) or not re.fullmatch(r"[a-zA-Z_]\w*", metrics_namespace, re.ASCII):
        raise ValueError(
            f"metrics_namespace={brief(metrics_namespace)}; expected letters, digits and _, and no digit at the start."
        )
    service = Service(engine, Metrics(engine, metrics_namespace))
    posts = {path: PostRoute(service, path, post) for path, post in POSTS.items()}
    routes = [Route(path, post, methods=["POST"]) for path, post in posts.items()]
    document = base.dump(openapi())

    def get(path: str, answer: Callable[[Request], Response]) -> None:
        async def endpoint(request: Request) -> Response:
            response = answer(request)
            response.headers["x-request-id"] = request_id_of(request.scope)
            return response

        routes.append(Route(path, endpoint, methods=["GET"]))

    for path in ("/", "/health", "/ping", "/readyz"):
        get(path, lambda request: _health(service, ready=True))
    get("/livez", lambda request: _health(service, ready=False))
    get("/metrics", lambda request: Response(service.metrics.text(), media_type="text/plain; version=0.0.4"))
    get("/info", lambda request: _json(tei.info(engine, minibert.__version__)))
    get("/openapi.json", lambda request: Response(document, media_type="application/json"))
    for path in ("/api/tags", "/api/ps"):
        get(path, lambda request: _json(ollama.model_list(engine)))
    get("/api/version", lambda request: _json({"version": minibert.__version__}))
    for prefix in ("", "/v1"):
        get(f"{prefix}/models", lambda request: _json(openai.model_list(engine)))
        get(f"{prefix}/models/{{name:path}}", lambda request: _model(engine, request))

    outside: list[Any] = []
    if allow_origins:
        outside.append(Middleware(CORSMiddleware, **_CORS, allow_origins=[*allow_origins]))
    if keys is not None:
        outside.append(Middleware(KeyGate, metrics=service.metrics, keys=keys))
    outside.append(Middleware(_Posts, posts=posts))
    made = Starlette(routes=routes, middleware=outside, exception_handlers={HTTPException: _http_error})
    made.router.redirect_slashes = False  # the place would be made from the Host header of the client
    made.state.service = service
    return made


class _Posts:
    """Passes requests with a body to their routes. Starlette's search for a route takes as long as the rest of HTTP."""

    def __init__(self, app: ASGIApp, posts: Mapping[str, PostRoute]) -> None:
        self._app, self._posts = app, posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        post = self._posts.get(path_of(scope)) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (post or self._app)(scope, receive, send)


def _health(service: Service, *, ready: bool) -> Response:
    load = service.engine.load()
    if load.alive and (not ready or (load.ready and not service.leaving)):
        return Response(b"", 200)
    error = ServiceError("unavailable", "the service is stopping." if load.alive else "the engine does not answer.")
    return Response(tei.ERRORS.body(error, ""), 503, {"retry-after": "1"}, "application/json")


def _model(engine: Engine, request: Request) -> Response:
    try:
        return _json(openai.model_object(engine.models.served(request.path_params["name"])))
    except ServiceError as error:
        return Response(openai.ERRORS.body(error, ""), 404, media_type="application/json")


def _json(value: Any) -> Response:
    return Response(base.dump(value), media_type="application/json")


def _http_error(request: Request, error: Exception) -> Response:
    """Answer requests for unknown routes and methods."""
    assert isinstance(error, HTTPException)
    path = path_of(request.scope)
    if error.status_code == 405:
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "POST").split(", ")))
        problem = ServiceError("method", f"{path[:200]} does not accept {request.method[:20]}; send {allowed}.")
    else:
        problem = ServiceError("not_found", f"{path[:200]} is not a route; expected one of {', '.join(POSTS)}, ...")
    headers = {**(error.headers or {}), "x-request-id": request_id_of(request.scope)}
    return Response(errors_of(path).body(problem, ""), error.status_code, headers, "application/json")
