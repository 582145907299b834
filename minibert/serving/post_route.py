"""The way of a request with a body: read it, give its job to the engine, wait, write the answer; limits and numbers.

The event loop never computes. It reads short bodies, waits, and sends. Threads read and tokenize long ones, and write
long answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from minibert.serving import answers
from minibert.serving.completions import Completions
from minibert.serving.engine import Engine
from minibert.serving.errors import ServiceError
from minibert.serving.forks import watch_forks
from minibert.serving.gates import request_id_of
from minibert.serving.libraries import missing
from minibert.serving.logs import LOG, REQUESTS
from minibert.serving.metrics import Metrics
from minibert.serving.settings import GRACE
from minibert.serving.work import Post, Work

try:
    from starlette.types import Receive, Scope, Send
except ImportError as error:
    raise missing(error) from error

__all__ = ["PostRoute", "Service"]

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
        self._start()
        watch_forks(self)

    def lock_of_fork(self) -> contextlib.AbstractContextManager[None]:
        """See `Forkable`."""
        return contextlib.nullcontext()

    def start_again(self) -> None:
        """Make new threads and numbers in a process that is forked; it does not have the requests of the other one."""
        self.metrics.start_again()
        self._start()

    def _start(self) -> None:
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
                service.engine.check_room(len(body), low=b"priority" in body)
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
    return answers.status_of(error, post.family), answers.error_body(error, post.family, post.field), "application/json"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"
