"""The way of a request: what it leaves behind, what is refused unread, how its end is told."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from minibert import SentenceTransformer
from minibert.serving.asgi import Completions, app
from minibert.serving.engine import Engine
from minibert.serving.settings import ServiceError, Settings
from tests.support.checkpoints import sentence_model
from tests.support.fake_kinds import PATIENCE_SECONDS, Gate, job
from tests.support.outcomes import PATIENCE
from tests.support.served import served

LONG = "word " * 60
HTML = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("requests") / "small")


# --- what a request leaves behind -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"truncate_prompt_tokens": 5},
        {"truncate_prompt_tokens": 5, "truncation_direction": "left"},
        {"truncation_direction": "left"},
        {"dimensions": 3, "normalize": False},
        {"layers": [0, 1], "pooling": ["max", "cls"]},
        {"prompt_name": "query"},
        {"truncate": "split"},
    ],
)
def test_the_fields_of_a_request_do_not_change_the_next_one(model: SentenceTransformer, fields: dict[str, Any]) -> None:
    with Engine(model) as engine, TestClient(app(engine)) as client:
        expected = client.post("/embed", json={"inputs": LONG}).content
        first = client.post("/embed", json={"inputs": LONG, **fields})
        assert first.status_code == 200
        assert first.content != expected
        assert client.post("/embed", json={"inputs": LONG, **fields}).content == first.content
        assert client.post("/embed", json={"inputs": LONG}).content == expected
        assert client.get("/info").json()["max_input_length"] == 64
    assert model.max_seq_length == 64


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"input": [2, 5, 3], "prompt_name": "query", "input_type": "query"}, ["prompt_name", "input_type"]),
        ({"input": [2, 5, 3], "add_special_tokens": False}, None),
        ({"input": "a", "add_special_tokens": False}, ["add_special_tokens"]),
        ({"input": "a", "add_special_tokens": True}, None),
        ({"input": "a", "truncate": "split", "truncation_direction": "left", "x": 1}, ["x", "truncation_direction"]),
        ({"input": "a", "prompt_name": "query", "truncation_direction": "left"}, None),
    ],
)
def test_fields_without_an_effect_are_named(
    model: SentenceTransformer, fields: dict[str, Any], ignored: list[str] | None
) -> None:
    special = {2: model.tokenizer.cls_token_id, 3: model.tokenizer.sep_token_id}
    if isinstance(fields["input"], list):
        fields = {**fields, "input": [special.get(one, one) for one in fields["input"]]}
    with Engine(model) as engine, TestClient(app(engine)) as client:
        answer = client.post("/v1/embeddings", json=fields)
        assert answer.status_code == 200
        assert answer.json().get("ignored") == ignored
        fields["inputs"] = fields.pop("input")
        for path in ("/embed", "/embed_all")[: 1 if "truncate" in fields else 2]:  # /embed_all refuses "split"
            answer = client.post(path, json=fields)
            assert answer.status_code == 200
            assert answer.headers.get("x-minibert-ignored") == (None if ignored is None else ",".join(ignored))


def test_a_default_of_the_service_takes_the_effect_of_a_field(model: SentenceTransformer) -> None:
    body = {"inputs": LONG, "truncation_direction": "left"}
    with Engine(model, settings=Settings(truncation="split")) as engine, TestClient(app(engine)) as client:
        assert client.post("/embed", json=body).headers["x-minibert-ignored"] == "truncation_direction"
        cut = client.post("/embed_all", json=body)
        assert "x-minibert-ignored" not in cut.headers
        assert cut.content != client.post("/embed_all", json={"inputs": LONG}).content
        marked = client.post("/embed", json={**body, "truncate": True})
        assert "x-minibert-ignored" not in marked.headers


def test_a_prompt_that_is_changed_is_used(folder: Path) -> None:
    model = SentenceTransformer(folder, prompts={"query": "find "})
    with Engine(model) as engine:
        before = engine.embed(["a"], prompt_name="query").value
        model.prompts = {"query": "look for "}
        after = engine.embed(["a"], prompt_name="query").value
    np.testing.assert_array_equal(after[0], model.encode("a", prompt_name="query"))
    assert not np.array_equal(before, after)


# --- what is refused unread -------------------------------------------------------------------------------------------


def test_a_request_that_would_wait_too_long_is_refused_before_it_is_read(folder: Path) -> None:
    model = SentenceTransformer(folder)
    with Engine(model, settings=Settings(max_wait=0.6)) as engine, TestClient(app(engine)) as client:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        waiting = [engine.submit(job([100] * 5)) for _ in range(3)]
        with pytest.raises(ServiceError, match="estimated wait"):
            engine.submit(job([100] * 5))
        for body in (b"{" + b" " * 500, b'{"inputs": "%s"}' % (b"a " * 200)):
            refused = client.post("/embed", content=body)
            assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert engine.load().refused_jobs == 3
        assert client.post("/embed", content=b'{"priority": "low"').status_code == 400  # bulk may have room: it is read
        assert client.post("/embed", content=b"{" + b" " * 600).status_code == 400
        assert client.post("/tokenize", json={"inputs": "a"}).status_code == 200  # the engine is not needed
        engine.check_room(100, low=True)
        engine.check_room(513)
        gate.opened.set()
        for future in waiting:
            assert future.result(PATIENCE_SECONDS) == [*range(5)]
        assert client.post("/embed", content=b'{"inputs": "a"}').status_code == 200


def test_a_model_with_a_prompt_may_make_a_short_body_long(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(max_wait=0.6)) as engine:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        for _ in range(3):
            engine.submit(job([100] * 5))
        with pytest.raises(ServiceError, match="estimated wait"):
            engine.submit(job([100] * 5))
        engine.check_room(100)  # with its prompts it may be bulk, which has room
        gate.opened.set()


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("GET", "/embed", b"", "/embed does not accept GET; send POST."),
        ("POST", "/embed", b"", "the body is not JSON: it is empty; expected an object."),
        ("PUT", "/info", b"", "/info does not accept PUT; send GET, HEAD."),
        ("POST", "/v1/embeddings", b'{"input": "a", "encoding_format": "int8"}', "'int8', expected float or base64."),
        ("POST", "/embed", b'{"inputs": "a", "priority": "high"}', "priority: Invalid enum value 'high', expected low"),
        ("POST", "/v2/embed", b'{"texts": ["a"], "truncate": "MID"}', "'MID', expected NONE, START or END."),
    ],
)
def test_a_refusal_says_what_was_expected(
    model: SentenceTransformer, method: str, path: str, body: bytes, message: str
) -> None:
    with Engine(model) as engine, TestClient(app(engine)) as client:
        answer = client.request(method, path, content=body)
    assert answer.status_code in (400, 405, 422)
    assert message in answer.text


# --- how its end is told ----------------------------------------------------------------------------------------------


def test_a_loop_is_called_once_for_the_futures_that_end_together() -> None:
    calls = 0

    async def run() -> None:
        nonlocal calls
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return call(*arguments, **options)

        completions, futures = Completions(), [Future[int]() for _ in range(100)]
        waiters = [completions.waiter(future) for future in futures]
        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        thread = threading.Thread(target=lambda: [future.set_result(1) for future in futures])
        thread.start()
        thread.join()  # the loop does not run meanwhile
        loop.call_soon_threadsafe = call  # type: ignore[method-assign]
        assert not any(waiter.done() for waiter in waiters)
        await asyncio.wait_for(asyncio.gather(*waiters), PATIENCE_SECONDS)

    asyncio.run(run())
    assert calls == 1


def test_waiting_ends_with_the_future_or_with_the_time() -> None:
    async def run() -> None:
        completions = Completions()
        never, cancelled, failed, done = (Future[int]() for _ in range(4))
        assert not await completions.wait(never, 0.01)
        cancelled.cancel()
        failed.set_exception(ValueError())
        done.set_result(1)
        for future in (cancelled, failed, done):
            assert await completions.wait(future, PATIENCE_SECONDS)
        late = Future[int]()
        threading.Timer(0.05, late.set_result, [1]).start()
        assert await completions.wait(late, PATIENCE_SECONDS)
        given_up = asyncio.ensure_future(completions.wait(never, PATIENCE_SECONDS))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        never.set_result(1)  # nobody waits

    asyncio.run(run())


def test_a_loop_that_is_closed_does_not_disturb_the_engine() -> None:
    completions, future = Completions(), Future[int]()

    async def run() -> None:
        completions.waiter(future)

    asyncio.run(run())
    future.set_result(1)
    assert future.result() == 1


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes at once there")
def test_a_balancer_has_time_before_the_service_ends(folder: Path) -> None:
    with served(str(folder), "--drain-delay", "2") as running, httpx.Client(base_url=running.url) as client:
        assert client.get("/readyz").status_code == 200
        running.process.send_signal(signal.SIGTERM)
        while client.get("/readyz").status_code == 200:
            pass
        assert client.get("/health").status_code == 503
        assert client.get("/livez").status_code == 200
        with httpx.Client(base_url=running.url) as late:
            assert late.post("/embed", json={"inputs": "a"}).status_code == 200
        assert running.process.poll() is None
        assert running.process.wait(PATIENCE) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes at once there")
def test_an_interrupt_does_not_wait_for_the_delay(folder: Path) -> None:
    with served(str(folder), "--drain-delay", "100000") as running:
        assert running.end(signal.SIGINT) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes at once there")
def test_a_second_signal_does_not_wait_for_the_delay(folder: Path) -> None:
    with served(str(folder), "--drain-delay", "100000") as running, httpx.Client(base_url=running.url) as client:
        running.process.send_signal(signal.SIGTERM)
        while client.get("/readyz").status_code == 200:
            pass
        while running.process.poll() is None:  # sent again, because a system may deliver two signals as one
            running.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(5)
        assert running.process.returncode == 1
