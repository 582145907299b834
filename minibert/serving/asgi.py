"""`app(engine)`: all protocols as one ASGI application. Any server or framework can mount it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import re
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import minibert
from minibert.serving.engine import Engine
from minibert.serving.observability import LOG, REQUESTS, Metrics
from minibert.serving.protocols import PROTOCOLS, common
from minibert.serving.settings import GRACE, ApiKeys, ServiceError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]

POSTS = {path: post for protocol in PROTOCOLS for path, post in protocol.posts.items()}
_ERRORS = {path: post.errors or protocol.errors for protocol in PROTOCOLS for path, post in protocol.posts.items()}
"""The routes that take a body."""

_GETS = {path: get for protocol in reversed(PROTOCOLS) for path, get in protocol.gets.items()}
_NAMED = {start: get for protocol in PROTOCOLS for start, get in protocol.named.items()}
_WITHOUT_KEY = {"/health", "/ping", "/livez", "/readyz", "/metrics"}
_FIRST, _NUMBERS = uuid.uuid4().hex[:20], itertools.count()  # a new uuid for each request is a system call
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_INLINE_BODY = 2**11  # bytes; to read it takes 0.1 ms, less than to give it to a thread and back
_SHORT_ANSWER = 16  # texts; the vectors of more are written in a thread
_WATCH_AFTER = 0.5  # seconds; most answers are there before, and watching for the client's leaving takes time
_DISCARD_SECONDS = 5.0
_TOKEN_BYTES = 128  # that the tokenizer's library keeps for each token until a request is computed
_PART_BYTES = 2**18  # a long answer is sent in parts; each waits until the client has read most of the part before
_MOST_AT_ONCE = 2**22  # bytes of an answer; a longer one is written while it is sent


def request_id_of(scope: Scope) -> str:
    """Return the client's id of a request, or a new id."""
    if "minibert.request_id" not in scope:
        sent = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        scope["minibert.request_id"] = sent if _REQUEST_ID.fullmatch(sent) else f"{_FIRST}{next(_NUMBERS):012x}"
    return str(scope["minibert.request_id"])


def path_of(scope: Scope) -> str:
    """Return the path within this application, which another application may have mounted."""
    return scope["path"].removeprefix(scope.get("root_path", "")) or "/"


@dataclasses.dataclass
class Reply:
    """An answer to a request: its content, and, if it is long, the parts that come after it."""

    status: int
    content: bytes
    headers: dict[str, str]
    rest: AsyncIterator[bytes] | None = None

    async def send(self, send: Send) -> None:
        """Send it in parts, so that the bytes of a slow client are not all copied into its connection at once."""
        if self.rest is None:
            self.headers["content-length"] = str(len(self.content))
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": raw})
        for first in range(0, len(self.content), _PART_BYTES):
            part = self.content[first : first + _PART_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if self.rest is not None:
            async for part in self.rest:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def as_service_error(error: BaseException, scope: Scope) -> ServiceError:
    """Return the error that a client gets for an exception; what only the service may know is in the log."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return ServiceError("unavailable", "the service is stopping; send the request again.")
    name = request_id_of(scope)
    LOG.error("request %s: an error of the service", name, exc_info=error)
    return ServiceError("failed", f"an error of the service; its log has the details, see {name}.")


def refusal(error: ServiceError, scope: Scope, **headers: str) -> Reply:
    """Return the answer for an error, in the JSON shape of the request's route."""
    path = path_of(scope)
    owners = (protocol for protocol in PROTOCOLS if path in protocol.gets or path.startswith(protocol.prefixes))
    errors, field = (_ERRORS[path], POSTS[path].field) if path in POSTS else (next(owners, PROTOCOLS[0]).errors, "")
    headers |= {"x-request-id": request_id_of(scope), "content-type": "application/json"}
    if error.kind in ("overloaded", "unavailable"):
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.kind in ("too_large", "slow", "media_type", "key"):  # the rest of the body is not read
        headers["connection"] = "close"
    if error.kind == "key":
        headers["www-authenticate"] = "Bearer"
    return Reply(errors.statuses[error.kind], errors.body(error, field), headers)


class Service:
    """The ASGI application that answers requests with results of the engine.

    If the task of a request is cancelled, as servers do at their end, the answer is 503.

    Parameters
    ----------
    engine : Engine
        It belongs to the caller, who closes it. Its thread starts with the first request.
    keys : ApiKeys, optional
        A request needs one of them, except for /health, /livez, /readyz, /ping, /metrics and "GET /".

    Attributes
    ----------
    leaving : bool
        Set it a while before the process ends: /health and /readyz then say so, and requests are still answered.
    """

    def __init__(self, engine: Engine, keys: ApiKeys | None = None) -> None:
        self.engine, self.metrics, self._keys = engine, Metrics(engine), keys
        self.leaving, self.inflight_bytes = False, 0
        self.metrics.inflight.set_function(lambda: self.inflight_bytes)
        self.writer = ThreadPoolExecutor(1, "minibert-write")
        self._events = 0  # since the event loop began to be busy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; ASGI's other kinds of connection do nothing here."""
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            path, method = path_of(scope), scope["method"]
            try:
                self._check_key(scope, path)
                is_post = method == "POST" and path in POSTS
                answer = _Request(self, scope, receive).answer if is_post else self._looked_up(path, method, scope).send
            except Exception as error:
                answer = refusal(as_service_error(error, scope), scope).send
            await answer(send)  # an error of it is one of the connection

    def busy(self) -> None:
        """Note that the event loop works, so requests may come together; the engine waits for them until it is idle."""
        self._events += 1
        if self._events == 1:
            self.engine.hold(True)
            asyncio.get_running_loop().call_soon(self._end_hold_when_idle, 0, False)

    def _end_hold_when_idle(self, events: int, quiet: bool) -> None:
        """Let the engine go on if nothing has happened in two rounds of the event loop."""
        if quiet and events == self._events:
            self._events = 0
            self.engine.hold(False)
        else:
            asyncio.get_running_loop().call_soon(self._end_hold_when_idle, self._events, events == self._events)

    def _check_key(self, scope: Scope, path: str) -> None:
        """Refuse a request without a key before its route is looked up, so that unknown ones cannot be told apart."""
        is_open = path in _WITHOUT_KEY or (path == "/" and scope["method"] in ("GET", "HEAD"))
        if self._keys is None or is_open or self._keys.accept(dict(scope["headers"]).get(b"authorization", b"")):
            return
        route = path if path in POSTS else "other"  # a label has a fixed set of values
        self.metrics.failures.labels(route, "key").inc()
        line = {"request_id": request_id_of(scope), "route": route, "status": 401}
        REQUESTS.info("%s", line, extra={"request": line})
        # Clients such as LiteLLM look for OpenAI's words.
        raise ServiceError("key", "Incorrect API key provided, or none; send the header Authorization: Bearer KEY.")

    def _looked_up(self, path: str, method: str, scope: Scope) -> Reply:
        """Answer a request without a body."""
        named = (
            functools.partial(get, name=path[len(start) :]) for start, get in _NAMED.items() if path.startswith(start)
        )
        get = _GETS.get(path) or next(named, None)
        allowed = [*(["GET", "HEAD"] if get else ()), *(["POST"] if path in POSTS else ())]
        if not allowed:
            raise ServiceError("not_found", f"{path[:200]} is not a route; expected one of {', '.join(POSTS)}, ...")
        if get is None or method not in allowed:
            expected = ", ".join(allowed)
            error = ServiceError("method", f"{path[:200]} does not accept {method[:20]}; send {expected}.")
            return refusal(error, scope, allow=expected)
        answer = get(self)
        content_type = "text/plain; version=0.0.4; charset=utf-8" if isinstance(answer, bytes) else "application/json"
        content = answer if isinstance(answer, bytes) else common.dump(answer)
        return Reply(200, content, {"x-request-id": request_id_of(scope), "content-type": content_type})

    def health(self, *, ready: bool) -> bytes:
        """Return the empty answer of a probe; ServiceError if the engine does not work, or must not get requests."""
        load = self.engine.load()
        if load.alive and (not ready or (load.ready and not self.leaving)):
            return b""
        raise ServiceError("unavailable", "the service is stopping." if load.alive else "the engine does not answer.")

    def front_page(self) -> bytes:
        """Say what runs here if requests are accepted; without a key, the models are not for everybody to see."""
        self.health(ready=True)
        models = [] if self._keys else [f"{name}: {served.gives}" for name, served in self.engine.models.items()]
        routes = [f"GET {path}" for path in _GETS] + [f"POST {path}" for path in POSTS]
        return "\n".join([f"minibert {minibert.__version__}", *models, "", *routes, ""]).encode()


app = Service
"""`app(engine)` is the application."""


class _Request:
    """A request with a body. The bytes of both it and its answer are counted until the answer is sent."""

    def __init__(self, service: Service, scope: Scope, receive: Receive) -> None:
        self._service, self._scope, self._receive = service, scope, receive
        self._settings, self._path, self._n_bytes = service.engine.settings, path_of(scope), 0
        self._work: common.Work | None = None
        self._request_headers: dict[bytes, bytes] = dict(scope["headers"])
        self._reply_headers = {"x-request-id": request_id_of(scope), "content-type": "application/json"}

    async def answer(self, send: Send) -> None:
        """Read the request, wait for its result, and send the answer."""
        metrics, started = self._service.metrics, time.monotonic()
        self._service.busy()
        metrics.requests.labels(self._path).inc()
        try:
            try:
                content, rest = await self._content()
                reply = Reply(200, content, self._reply_headers, rest)
                metrics.successes.labels(self._path).inc()
            except _DisconnectedError:
                metrics.disconnected.inc()
                return
            except (Exception, asyncio.CancelledError) as error:
                failure = as_service_error(error, self._scope)
                metrics.failures.labels(self._path, failure.kind).inc()
                reply = refusal(failure, self._scope, **self._reply_headers)
            seconds = time.monotonic() - started
            metrics.duration.labels(self._path).observe(seconds)
            reply.headers["x-total-time"] = _milliseconds(seconds)
            line = {"request_id": request_id_of(self._scope), "route": self._path, "status": reply.status}
            line |= {"milliseconds": round(1000 * seconds, 1), **self._say(reply.headers)}
            if REQUESTS.isEnabledFor(logging.INFO):
                REQUESTS.info("%s", json.dumps(line), extra={"request": line})
            self._work = None
            await reply.send(send)
        finally:
            self._service.inflight_bytes -= self._n_bytes

    def _count_bytes(self, count: int, *, refuse: bool = True) -> None:
        """Count more bytes of this request; if `refuse`, raise a ServiceError if all requests have too many.

        A request is never refused because of its own bytes.
        """
        self._service.inflight_bytes += count
        self._n_bytes += count
        if refuse and self._service.inflight_bytes > max(self._settings.max_inflight_bytes, self._n_bytes):
            raise ServiceError("overloaded", "the requests that wait take too much memory; send it again later.")

    async def _content(self) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """Return the body of the answer: its first part, and the rest if it is long."""
        service, engine, post = self._service, self._service.engine, POSTS[self._path]
        body = await self._body()
        deadline = time.monotonic() + self._settings.request_timeout
        if post.computes:
            engine.check_room(len(body))  # a token has a byte at least
        started, read_inline = time.monotonic(), len(body) <= _INLINE_BODY
        work = post.read(engine, body) if read_inline else await self._read_in_thread(post, body, deadline)
        del body
        self._work, write, value, n_bytes, write_inline = work, work.write, None, 0, read_inline
        seconds = time.monotonic() - started
        service.metrics.tokenization.observe(seconds)
        self._reply_headers["x-tokenization-time"] = _milliseconds(seconds)
        if work.write_bytes is not None and b"application/octet-stream" in self._request_headers.get(b"accept", b""):
            write, self._reply_headers["content-type"] = work.write_bytes, "application/octet-stream"
        if work.prepared is not None:
            job, usage, _ = work.prepared
            self._count_bytes(n_bytes := usage.n_bytes + _TOKEN_BYTES * job.tokens)
            value = await self._result(engine.submit(job), deadline)
            service.metrics.add(job, usage)
            write_inline = len(usage.n_tokens) <= _SHORT_ANSWER and not job.bulk
        at_once = _MOST_AT_ONCE if self._scope.get("http_version") != "1.0" else sys.maxsize  # it has no parts
        write_part = functools.partial(next, common.grouped(write(value), at_once, _PART_BYTES), b"")
        in_thread = functools.partial(asyncio.get_running_loop().run_in_executor, service.writer, write_part)
        content = write_part() if write_inline else await in_thread()
        if len(content) >= at_once:
            return content, self._rest(in_thread)
        self._count_bytes(len(content) - n_bytes, refuse=work.prepared is None)  # its numbers are not needed any more
        return content, None

    async def _read_in_thread(self, post: common.Post, body: bytes, deadline: float) -> Any:
        """Read a long body beside the short ones."""
        engine = self._service.engine
        reading = engine.read(len(body), post.read, engine, body)
        try:
            return await self._result(reading.future, deadline)
        finally:
            reading.cancel()

    async def _rest(self, write_part: Callable[[], Awaitable[bytes]]) -> AsyncIterator[bytes]:
        """Yield the parts of an answer that are not written yet, until the client leaves."""
        left = asyncio.create_task(self._disconnected())
        try:
            while not left.done() and (part := await write_part()):
                yield part
        except Exception:
            LOG.exception("request %s: the answer ends within its body", request_id_of(self._scope))
            raise
        finally:
            left.cancel()

    async def _body(self) -> bytes:
        """Read the body, up to its limit and within its time."""
        most, seconds = self._settings.max_body_bytes, self._settings.body_timeout
        encoding = self._request_headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
        if encoding != "identity":
            raise ServiceError("media_type", f"the body has Content-Encoding {encoding[:50]!r}; send it uncompressed.")
        length, parts, size = self._request_headers.get(b"content-length", b"0"), list[bytes](), 0
        if length.isdigit() and int(length) > most:
            # A client that sends "Expect" waits for an answer before it sends the body.
            raise await self._too_large(discard=b"expect" not in self._request_headers)
        for limit in (seconds, GRACE):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    while True:
                        message = await self._receive()
                        if message["type"] == "http.disconnect":
                            raise _DisconnectedError
                        parts.append(message.get("body", b""))
                        size += len(parts[-1])
                        self._count_bytes(len(parts[-1]))
                        if size > most:
                            parts.clear()
                            raise await self._too_large(discard=message.get("more_body", False))
                        if not message.get("more_body", False):
                            return b"".join(parts)
        raise ServiceError("slow", f"the body did not arrive within {seconds:g} seconds; send it again.")

    async def _too_large(self, *, discard: bool) -> ServiceError:
        """Return the error, after the rest of the body: many clients read the answer only after they sent it."""
        size, most = 0, self._settings.max_body_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while discard and size <= most:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    discard = message.get("more_body", False)
        return ServiceError("too_large", f"the body is larger than {most} bytes; send fewer texts.")

    async def _result(self, future: Future[Any], deadline: float) -> Any:
        """Wait for a future until the time for a request is over, or the client leaves; then it is cancelled."""
        engine = self._service.engine
        future.add_done_callback(lambda _: engine.hold(True))  # its client may send the next request at once
        result = asyncio.wrap_future(future)  # when it is cancelled, so is the other one
        waiting: set[asyncio.Future[Any]] = {result}
        try:
            await asyncio.wait(waiting, timeout=min(deadline - time.monotonic(), _WATCH_AFTER))
            if not result.done():
                waiting.add(asyncio.create_task(self._disconnected()))
                left = deadline - time.monotonic()
                await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            if any(task.done() for task in waiting):
                raise _DisconnectedError
            message = f"the request took longer than {self._settings.request_timeout:g} seconds; send fewer texts."
            raise ServiceError("unavailable", message)
        finally:
            self._service.busy()
            if not result.done() or len(waiting) > 1:
                for task in waiting:
                    task.cancel()  # without an effect if it has ended
                await asyncio.wait(waiting)

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _say(self, headers: dict[str, str]) -> dict[str, Any]:
        """Say in the headers what was done to the texts; return the same for the log."""
        work, line, said = self._work, dict[str, Any](), dict[str, Any]()
        if work is not None:
            self._service.metrics.ignored.inc(len(work.ignored))
            names = [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:40] for name in work.ignored[:10]]
            said["ignored"] = ",".join(names)
        if work is not None and work.prepared is not None:
            job, usage, _ = work.prepared
            line = {"texts": len(usage.n_tokens), "tokens": sum(usage.n_tokens)}
            said |= {"truncated": len(usage.truncated), "prompt": usage.prompt_name}
            said["compute_type"] = usage.compute_type if usage.compute_type != "float32" else None
            headers["x-minibert-fingerprint"] = usage.fingerprint
            headers["x-compute-tokens"] = str(line["tokens"])
            headers["x-compute-characters"] = str(usage.n_characters)
            headers["x-queue-time"] = _milliseconds(job.queue_seconds)
            headers["x-inference-time"] = _milliseconds(job.compute_seconds)
        said = {name: value for name, value in said.items() if value}
        for name, value in said.items():
            headers[f"x-minibert-{name.replace('_', '-')}"] = quote(str(value), safe="/,?")
        return line | said


class _DisconnectedError(Exception):
    """The client has closed its connection."""


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"
