"""The way of a request: what it leaves behind, what is refused unread, how its end is told."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from minibert import SentenceTransformer
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.serving.settings import ServiceError, Settings
from tests.support.checkpoints import sentence_model
from tests.support.fake_kinds import PATIENCE_SECONDS, Gate, job
from tests.support.outcomes import PATIENCE
from tests.support.served import served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("requests") / "small")


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


# --- while the engine computes ----------------------------------------------------------------------------------------


def numbers(client: TestClient) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_health_and_metrics_answer_while_the_engine_computes(model: SentenceTransformer) -> None:
    engine = Engine(model)
    with TestClient(app(engine)) as client:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        engine.submit(job([5000] * 3))
        for path in ("/health", "/ping", "/readyz", "/livez", "/"):
            response = client.get(path)
            assert (response.status_code, response.content) == (200, b"")
        found = numbers(client)
        assert (found["minibert_queue_tokens"], found["minibert_queue_size"]) == (15000, 1)
        assert found['minibert_estimated_wait_seconds{class="bulk"}'] > 0
        gate.opened.set()
        engine.close()
        assert client.get("/livez").status_code == 200
        for path in ("/health", "/readyz"):
            assert client.get(path).status_code == 503
        for path in ("/embed", "/v1/embeddings"):
            refused = client.post(path, json={"inputs": "a", "input": "a"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_a_wait_that_is_too_long_is_429(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(max_wait=0.5)) as engine, TestClient(app(engine)) as client:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        bulk = engine.submit(job([1000] * 50))
        texts = ["a " * number for number in range(1, 50)]
        refused = client.post("/v1/embeddings", json={"input": texts, "priority": "low"})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert client.post("/embed", json={"inputs": texts, "priority": "low"}).json()["error_type"] == "Overloaded"
        gate.opened.set()
        assert len(bulk.result(PATIENCE_SECONDS)) == 50
        assert numbers(client)["minibert_shed_total"] == 2


def test_a_request_that_takes_too_long_is_503_and_leaves_the_queue(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(request_timeout=0.05)) as engine, TestClient(app(engine)) as client:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        assert client.post("/embed", json={"inputs": ["a"]}).status_code == 503
        assert engine.load().queued_jobs == 0
        gate.opened.set()


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
