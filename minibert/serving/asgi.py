"""`app(engine)`: the protocols over HTTP, as an ASGI application that any server or framework can mount.

The event loop never computes. It reads bodies, waits, and sends. Threads read JSON, tokenize, and write vectors.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import minibert
from minibert.serving import answers
from minibert.serving.engine import Engine
from minibert.serving.errors import ServiceError
from minibert.serving.gates import KeyGate, path_of, request_id_of
from minibert.serving.keys import ApiKeys
from minibert.serving.libraries import missing
from minibert.serving.logs import LOG
from minibert.serving.metrics import Metrics
from minibert.serving.openapi import openapi
from minibert.serving.protocols import POSTS, Post, Work, info, model_list, model_object, ollama_models

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ImportError as error:
    raise missing(error) from error

__all__ = ["app"]

_SHORT_BODY = 2**16  # a longer one is read and tokenized in another thread, so that short ones do not wait for it
_SHORT_ANSWER = 16  # texts; the vectors of more are written in a thread
_DISCARD_SECONDS = 5.0
_PART_BYTES = 2**18  # of an answer: the next part is sent when the client has read most of the one before
_CORS: dict[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["*"],
    "expose_headers": [
        *("retry-after", "x-request-id", "x-minibert-truncated", "x-minibert-ignored", "x-minibert-prompt"),
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

    Returns
    -------
    Starlette
        ``app.state.service`` has the threads; they end with the process.
    """
    service = _Service(engine, Metrics(engine, metrics_namespace))
    routes: list[Route] = [
        Route(path, _PostRoute(service, path, post), methods=["POST"]) for path, post in POSTS.items() if path != "/"
    ]
    routes.append(Route("/", _Root(service, POSTS["/"]), methods=["GET", "POST"]))
    document = answers.dump(openapi())

    def get(path: str, answer: Callable[[Request], Response]) -> None:
        async def endpoint(request: Request) -> Response:
            response = answer(request)
            response.headers["x-request-id"] = request_id_of(request.scope)
            return response

        routes.append(Route(path, endpoint, methods=["GET"]))

    for path in ("/health", "/ping", "/readyz"):
        get(path, lambda request: _health(service, ready=True))
    get("/livez", lambda request: _health(service, ready=False))
    get("/metrics", lambda request: Response(service.metrics.text(), media_type="text/plain; version=0.0.4"))
    get("/info", lambda request: _json(info(engine, minibert.__version__)))
    get("/openapi.json", lambda request: Response(document, media_type="application/json"))
    get("/api/tags", lambda request: _json(ollama_models(engine)))
    get("/api/version", lambda request: _json({"version": minibert.__version__}))
    for prefix in ("", "/v1"):
        get(f"{prefix}/models", lambda request: _json(model_list(engine)))
        get(f"{prefix}/models/{{name:path}}", lambda request: _model(engine, request))

    outside: list[Any] = []
    if allow_origins:
        outside.append(Middleware(CORSMiddleware, **_CORS, allow_origins=[*allow_origins]))
    if keys is not None:
        outside.append(Middleware(KeyGate, metrics=service.metrics, keys=keys))
    made = Starlette(routes=routes, middleware=outside, exception_handlers={HTTPException: _http_error})
    made.state.service = service
    return made


class _Service:
    """What the routes share: the engine, its numbers, the threads that read requests, the bytes in flight."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self.engine, self.metrics, self.inflight_bytes = engine, metrics, 0
        metrics.inflight.set_function(lambda: self.inflight_bytes)
        self._short = ThreadPoolExecutor(1, "minibert-read")
        self._long = ThreadPoolExecutor(1, "minibert-read-long")

    def add_bytes(self, count: int, own: int) -> None:
        """Count bytes of a request that has `own` already; ServiceError if all requests have too many.

        A request is never refused because of its own bytes.
        """
        self.inflight_bytes += count
        if self.inflight_bytes > self.engine.settings.max_inflight_bytes and self.inflight_bytes > own + count:
            raise ServiceError(
                "overloaded", "the requests that wait take too much memory; send it again later.", retry_after=1.0
            )

    async def run(self, function: Callable[..., Any], *arguments: Any, long: bool) -> Any:
        """Run a function in a thread: the one for short requests, or that for long ones."""
        return await asyncio.get_running_loop().run_in_executor(
            self._long if long else self._short, function, *arguments
        )


class _PostRoute:
    """A route that takes a body. It is an ASGI application of its own, because it watches for the client's leaving."""

    def __init__(self, service: _Service, path: str, post: Post) -> None:
        self._service, self._path, self._post = service, path, post

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, post, started = self._service, self._post, time.monotonic()
        metrics = service.metrics
        metrics.requests.labels(self._path).inc()
        request_id = request_id_of(scope)
        headers = {"x-request-id": request_id}
        held, work = _Held(service), None
        try:
            body = await self._body(scope, receive, held)
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            before = time.monotonic()
            work = await service.run(post.read, service.engine, body, accept, long=len(body) > _SHORT_BODY)
            del body
            if work.report is not None:
                held.add(work.report.n_bytes)
            metrics.tokenization.observe(time.monotonic() - before)
            headers["x-tokenization-time"] = _milliseconds(time.monotonic() - before)
            content = await self._answer(work, receive)
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
            await _send(Response(content, status, headers, media_type), send)
        finally:
            held.release()

    async def _body(self, scope: Scope, receive: Receive, held: _Held) -> bytes:
        """Read the body, up to its limit and within its time."""
        settings = self._service.engine.settings
        headers = dict(scope["headers"])
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
        if encoding != "identity":
            raise ServiceError("media_type", f"the body has Content-Encoding {encoding[:50]!r}; send it uncompressed.")
        too_large = ServiceError(
            "too_large", f"the body is larger than {settings.max_body_bytes} bytes; send fewer texts."
        )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > settings.max_body_bytes:
            if b"expect" not in headers:  # a client that asks before it sends does not send it
                await _discard(receive, settings.max_body_bytes)
            raise too_large
        parts, size = list[bytes](), 0
        try:
            async with asyncio.timeout(settings.body_timeout):
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
                        raise too_large
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ServiceError(
                "slow", f"the body did not arrive within {settings.body_timeout:g} seconds; send it again."
            ) from None

    async def _answer(self, work: Work, receive: Receive) -> bytes:
        """Wait for the engine and write the answer; a client that leaves cancels its job."""
        service, value, count = self._service, None, 0
        if work.job is not None and work.report is not None:
            job, report = work.job, work.report
            value = await self._computed(job, receive)
            count = len(report.n_tokens)
            metrics = service.metrics
            metrics.queue.observe(job.queue_seconds)
            metrics.inference.observe(job.compute_seconds)
            for number in report.n_tokens:
                metrics.input_length.observe(number)
            metrics.texts.inc(count)
            metrics.tokens.inc(sum(report.n_tokens))
            metrics.truncated.inc(len(report.truncated))
            metrics.prompts.inc(count if report.prompt_name is not None else 0)
        if count <= _SHORT_ANSWER and (work.job is None or work.job.tokens <= 512):
            return work.write(value)
        written: bytes = await service.run(work.write, value, long=True)
        return written

    async def _computed(self, job: Any, receive: Receive) -> Any:
        settings = self._service.engine.settings
        future = asyncio.wrap_future(self._service.engine.submit(job))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({future, leaving}, timeout=settings.request_timeout, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if leaving.done():
                raise _DisconnectedError
            raise ServiceError(
                "unavailable",
                f"the request took longer than {settings.request_timeout:g} seconds; send fewer texts.",
                retry_after=1.0,
            )
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
            if not future.done():
                future.cancel()

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
            headers["x-compute-tokens"] = str(sum(report.n_tokens))
            headers["x-compute-characters"] = str(report.n_characters)
            headers["x-queue-time"] = _milliseconds(work.job.queue_seconds)
            headers["x-inference-time"] = _milliseconds(work.job.compute_seconds)
        if LOG.isEnabledFor(logging.INFO):
            LOG.info("%s", json.dumps(line), extra={"request": line})


class _Held:
    """The bytes of one request and its answer, which are counted until the answer is sent."""

    def __init__(self, service: _Service) -> None:
        self._service, self._count = service, 0

    def add(self, count: int) -> None:
        """Count more bytes; ServiceError if all requests have too many."""
        own = self._count
        self._count += count
        self._service.add_bytes(count, own)

    def release(self) -> None:
        """Count nothing more of this request."""
        self._service.inflight_bytes -= self._count
        self._count = 0


class _Root:
    """The route "/": GET says that the service is there, POST is text-embeddings-inference's."""

    def __init__(self, service: _Service, post: Post) -> None:
        self._service, self._post = service, _PostRoute(service, "/", post)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._post(scope, receive, send)
            return
        response = _health(self._service, ready=True)
        response.headers["x-request-id"] = request_id_of(scope)
        await response(scope, receive, send)


class _DisconnectedError(Exception):
    """The client has closed its connection."""


async def _discard(receive: Receive, most: int) -> None:
    """Read the rest of a body that is too large, because many clients read the answer only after they sent it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            size, more = 0, True
            while more and size <= most:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)


async def _send(response: Response, send: Send) -> None:
    """Send a response in parts, so that the bytes of a slow client are not all copied into its connection at once."""
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    content, first = response.body, 0
    while len(content) - first > _PART_BYTES:
        part = bytes(content[first : first + _PART_BYTES])
        await send({"type": "http.response.body", "body": part, "more_body": True})
        first += _PART_BYTES
    await send({"type": "http.response.body", "body": bytes(content[first:])})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _failed(error: ServiceError, post: Post, headers: dict[str, str]) -> tuple[int, bytes, str]:
    """Return the status, the body and the media type of an error, and add its headers."""
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.kind in ("too_large", "slow", "media_type"):  # the rest of the body is not read
        headers["connection"] = "close"
    return answers.status_of(error, post.family), answers.error_body(error, post.family, post.field), "application/json"


def _health(service: _Service, *, ready: bool) -> Response:
    load = service.engine.load()
    if load.alive and (load.ready or not ready):
        return Response(b"", 200)
    error = ServiceError("unavailable", "the service is stopping." if load.alive else "the engine does not answer.")
    return Response(answers.error_body(error, "tei", ""), 503, {"retry-after": "1"}, "application/json")


def _model(engine: Engine, request: Request) -> Response:
    try:
        return _json(model_object(engine.served(request.path_params["name"])))
    except ServiceError as error:
        return Response(answers.error_body(error, "openai", ""), 404, media_type="application/json")


def _json(value: Any) -> Response:
    return Response(answers.dump(value), media_type="application/json")


def _http_error(request: Request, error: Exception) -> Response:
    """Answer requests for unknown routes and methods."""
    assert isinstance(error, HTTPException)
    path = path_of(request.scope)
    post = POSTS.get(path)
    if error.status_code == 405:
        problem = ServiceError("method", f"{path[:200]} does not accept {request.method[:20]}.")
    else:
        problem = ServiceError("not_found", f"{path[:200]} is not a route; expected one of {', '.join(POSTS)}, ...")
    family = "openai" if post is None else post.family
    headers = {**(error.headers or {}), "x-request-id": request_id_of(request.scope)}
    return Response(answers.error_body(problem, family, ""), error.status_code, headers, "application/json")


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"
