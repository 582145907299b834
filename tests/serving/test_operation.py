"""Operation of the service over ASGI: keys, the queue, limits, metrics, the log, how the models compute."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from minibert import SentenceTransformer
from minibert.serving.asgi import POSTS, app
from minibert.serving.engine import Engine
from minibert.serving.settings import ApiKeys, ServiceError, Settings
from tests.support.fake_kinds import PATIENCE_SECONDS, Clock, Gate, job
from tests.support.served import message_of, numbers

OPEN = ("/health", "/ping", "/readyz", "/livez", "/metrics", "/")


@contextlib.contextmanager
def busy(engine: Engine) -> Iterator[TestClient]:
    """A client of an engine that computes until the end of the block."""
    gate = Gate()
    with TestClient(app(engine)) as client:
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        yield client
        gate.opened.set()


# --- keys -------------------------------------------------------------------------------------------------


def test_a_request_needs_one_of_the_keys(model: SentenceTransformer) -> None:
    with Engine(model) as engine, TestClient(app(engine, keys=ApiKeys(["first", "second"]))) as guarded:
        for value in ("Bearer first", "bearer second", "Bearer  second ", "second"):
            assert guarded.post("/embed", json={"inputs": "a"}, headers={"authorization": value}).status_code == 200
        wrong: list[str | bytes | None] = ["Bearer third", "Bearer", "", "Bearer firs", "Bearer first second", None]
        for key in (*wrong, "Basic first", "Bearer \u00e9".encode("latin-1")):
            for path in POSTS:
                response = guarded.post(path, content=b"{", headers={} if key is None else {"authorization": key})
                assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
                assert "Incorrect API key provided" in message_of(response)
                assert "first" not in response.text
        for path in ("/info", "/v1/models", "/v1/none", "/none"):
            assert guarded.get(path).status_code == 401
        for path in OPEN:
            assert guarded.get(path).status_code == 200
        assert guarded.post("/v1/embeddings", json={}).json()["error"]["code"] == "invalid_api_key"
        assert numbers(guarded)['minibert_request_failure_total{err="key",route="other"}'] == 4


def test_keys_in_a_file_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\ufeff# ours\n\none\r\n two \n", encoding="utf-8")
    keys = ApiKeys(["three"], str(path))
    assert [keys.accept(key) for key in (b"one", b"two", b"three", b"four", b"# ours", b"")] == [True] * 3 + [False] * 3
    path.write_text("four\n")
    keys.reload()
    assert (keys.accept(b"one"), keys.accept(b"four"), len(keys)) == (False, True, 2)
    for content in (b"\xff", b"a b", b"a" * 2**21):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="keys"):
            keys.reload()
        assert keys.accept(b"four")
    path.unlink()
    with pytest.raises(OSError, match="the file of keys"):
        keys.reload()
    assert keys.accept(b"four")
    path.write_text("# nothing\n")
    with pytest.raises(ValueError, match="has no key"):
        ApiKeys(path=str(path))
    for given in ((), [""], ["a b"], ["é"], ["a\n"], "secret", b"secret"):  # each letter would be a key
        with pytest.raises((TypeError, ValueError)) as caught:
            ApiKeys(given)  # type: ignore[arg-type]
        assert "é" not in str(caught.value)
        assert "secret" not in str(caught.value)


def test_the_names_of_the_metrics_can_be_chosen(model: SentenceTransformer) -> None:
    for namespace in ("a b", "", "1a"):
        with pytest.raises(ValueError, match="metrics_namespace"):
            Settings(metrics_namespace=namespace)
    with TestClient(app(Engine(model, settings=Settings(metrics_namespace="te")))) as client:
        assert b"te_queue_size 0.0" in client.get("/metrics").content


def test_the_application_can_be_mounted(model: SentenceTransformer) -> None:
    with Engine(model) as engine:
        outer = Starlette(routes=[Mount("/vectors", app(engine, keys=ApiKeys(["k"])))])
        with TestClient(outer) as client:
            key = {"authorization": "k"}
            assert client.get("/vectors/health").status_code == 200
            assert client.post("/vectors/embed", json={"inputs": "a"}, headers=key).status_code == 200
            assert client.post("/vectors/embed", json={"inputs": "a"}).json()["error_type"] == "Validation"
            assert client.get("/vectors/embed", headers=key).json()["error_type"] == "Validation"
            assert "/none is not a route" in client.get("/vectors/none", headers=key).text


def test_the_front_page_says_what_runs_here(model: SentenceTransformer) -> None:
    with Engine({"org/small": model}) as engine:
        for keys in (None, ApiKeys(["key"])):
            with TestClient(app(engine, keys)) as client:
                page = client.get("/")
                assert page.headers["content-type"].startswith("text/plain")
                assert {f"POST {path}" for path in POSTS} | {"GET /info", "GET /metrics"} <= {*page.text.splitlines()}
                assert ("org/small: vectors" in page.text) == (keys is None)
                assert client.head("/").status_code == 200


# --- the queue --------------------------------------------------------------------------------------------------------


def test_health_and_metrics_answer_while_the_engine_computes(model: SentenceTransformer) -> None:
    engine = Engine(model)
    with busy(engine) as client:
        engine.submit(job([5000] * 3))
        for path in ("/health", "/ping", "/readyz", "/livez"):
            response = client.get(path)
            assert (response.status_code, response.content) == (200, b"")
        assert client.get("/").status_code == 200
        found = numbers(client)
        assert (found["minibert_queue_tokens"], found["minibert_queue_size"]) == (15000, 1)
        assert found['minibert_estimated_wait_seconds{class="bulk"}'] > 0
    engine.close()
    with TestClient(app(engine)) as client:
        assert client.get("/livez").status_code == 200
        for path in ("/health", "/readyz", "/"):
            assert client.get(path).status_code == 503
        for path in ("/embed", "/v1/embeddings"):
            refused = client.post(path, json={"inputs": "a", "input": "a"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_requests_that_come_together_are_computed_together_and_one_that_leaves_changes_no_other(
    model: SentenceTransformer,
) -> None:
    texts, steps = [f"a cat and {i} dogs" for i in range(8)], list[int]()
    expected = model.encode(texts, normalize_embeddings=True)

    async def ask(service: Any, text: str) -> Any:
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": json.dumps({"inputs": text}).encode()}]
        sent = list[dict[str, Any]]()

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else await asyncio.Future()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await service({"type": "http", "method": "POST", "path": "/embed", "headers": []}, receive, send)
        assert [message.get("more_body") for message in sent[1:]] == [*[True] * (len(sent) - 2), False]
        return sent[0]["status"], json.loads(b"".join(message["body"] for message in sent[1:]))

    async def rounds(service: Any) -> None:
        for leaver in (None, 3, None):
            tasks = [asyncio.create_task(ask(service, text)) for text in texts]
            await asyncio.sleep(0)
            if leaver is not None:
                tasks[leaver].cancel()
            for i, task in enumerate(tasks):
                status, found = await task
                assert status == (503 if i == leaver else 200)
                assert i == leaver or np.float32(found[0]).tobytes() == expected[i].tobytes()

    with Engine(model, clock=Clock()) as engine:
        service = app(engine)
        engine.observers.append(lambda number, tokens, seconds: steps.append(number))
        asyncio.run(rounds(service))
        assert (steps, engine.load().queued_jobs, service.inflight_bytes) == ([8, 7, 8], 0, 0)


def test_a_request_that_takes_too_long_is_503_and_leaves_the_queue(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(request_timeout=0.05)) as engine, busy(engine) as client:
        for body in (b"{", b"{}", b'{"inputs": "a"}', b'{"inputs": "a", "dimensions": 0}'):
            status = client.post("/embed", content=body).status_code
            assert status == {b"{": 400, b'{"inputs": "a"}': 503}.get(body, 422)
        assert engine.load().queued_jobs == 0
        assert client.app.inflight_bytes == 0  # type: ignore[attr-defined]


def test_a_request_that_would_wait_too_long_is_refused_before_it_is_read(folder: Path) -> None:
    engine = Engine(SentenceTransformer(folder), settings=Settings(max_wait=0.6))
    with engine, busy(engine) as client:
        waiting = [engine.submit(job([100] * 5)) for _ in range(3)]
        with pytest.raises(ServiceError, match="estimated wait"):
            engine.submit(job([100] * 5))
        for body in (b"{" + b" " * 500, b'{"inputs": "%s"}' % (b"a " * 200)):
            refused = client.post("/embed", content=body)
            assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        refused = client.post("/v1/embeddings", content=b"{" + b" " * 500)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert numbers(client)["minibert_shed_total"] == 4
        assert client.post("/embed", content=b"{" + b" " * 600).status_code == 400  # bulk has room: it is read
        assert client.post("/tokenize", json={"inputs": "a"}).status_code == 200  # the engine is not needed
        engine.check_room(513)
    for future in waiting:
        assert future.result(PATIENCE_SECONDS) == [*range(5)]


def test_a_model_with_a_prompt_may_make_a_short_body_long(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(max_wait=0.6)) as engine, busy(engine):
        for _ in range(3):
            engine.submit(job([100] * 5))
        with pytest.raises(ServiceError, match="estimated wait"):
            engine.submit(job([100] * 5))
        engine.check_room(100)  # with its prompts it may be bulk, which has room


# --- limits, metrics and the log --------------------------------------------------------------------------------------


def test_bodies_and_answers_in_flight_are_limited_together(model: SentenceTransformer) -> None:
    settings = Settings(max_inflight_bytes=20_000)
    with Engine(model, settings=settings) as engine, TestClient(app(engine)) as client:
        service: Any = client.app
        large = {"/embed_all": {"inputs": ["word " * 60] * 5}, "/tokenize": {"inputs": "!" * 2000}}
        for path, body in large.items():
            assert client.post(path, json=body).status_code == 200  # alone, it may have more
            assert service.inflight_bytes == 0
        service.inflight_bytes = 15_000  # another request
        for path, body in ({**large, "/embed": {"inputs": "a" * 6000}}).items():
            refused = client.post(path, json=body)
            assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
            assert refused.headers["retry-after"] == "1"
            assert service.inflight_bytes == 15_000
            assert client.post(path, json={"inputs": "a"}).status_code == 200
        service.inflight_bytes = 0


def test_large_answers_are_sent_whole(model: SentenceTransformer) -> None:
    with Engine(model) as engine, TestClient(app(engine)) as client:
        raw = client.post("/embed_all", json={"inputs": [f"text {i}" for i in range(1500)]})
        assert len(raw.content) > 2**20
        assert len(raw.json()) == 1500
        assert int(raw.headers["content-length"]) == len(raw.content)


def test_labels_of_the_metrics_have_fixed_sets(model: SentenceTransformer) -> None:
    with Engine(model) as engine, TestClient(app(engine)) as client:
        for i in range(40):
            client.post(f"/none{i}", content=b"{}")
            client.post("/embed", json={"inputs": "a", f"field{i}": 1}, headers={"x-request-id": f"id{i}"})
            client.post("/v1/embeddings", json={"input": "a", "model": f"model{i}"})
        text = client.get("/metrics").text
    for word in ("none1", "field1", "id1", "model1"):
        assert word not in text


def test_how_the_models_compute_is_said_in_every_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 and int8 beside each other: the first does not need a header, the second one has it everywhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MINIBERT_CACHE_DIR", raising=False)
    options: dict[str, dict[str, Any]] = {
        "shared": {"shared_weights": True, "num_threads": 1},
        "int8": {"compute_type": "int8", "num_threads": 2},
        "numpy": {"backend": "numpy", "num_threads": 2},
    }
    models = {name: SentenceTransformer(folder, **given) for name, given in options.items()}
    expected = {"shared": ("float32", 1, True), "int8": ("int8", 2, False), "numpy": ("float32", 1, False)}
    names = ("compute_type", "num_threads", "shared_weights")
    with Engine(models) as engine, TestClient(app(engine)) as client:
        for one in client.get("/v1/models").json()["data"]:
            assert tuple(one[name] for name in names) == expected[one["id"]]
            assert client.get(f"/v1/models/{one['id']}").json() == one
            assert one["fingerprint"] == models[one["id"]].fingerprint()
        found = client.get("/info").json()
        assert found["fingerprint"] == models["shared"].fingerprint()
        assert (found["model_dtype"], *(found[name] for name in names)) == ("float32", *expected["shared"])
        metrics = client.get("/metrics").text
        for name, (kind, threads, shared) in expected.items():
            labels = f'compute_type="{kind}",model="{name}",num_threads="{threads}",shared_weights="{int(shared)}"'
            assert f"minibert_model_info{{{labels}}} 1.0" in metrics
            answer = client.post("/v1/embeddings", json={"input": "a", "model": name})
            header = None if kind == "float32" else kind
            assert (answer.status_code, answer.headers.get("x-minibert-compute-type")) == (200, header)
            assert answer.headers["x-minibert-fingerprint"] == models[name].fingerprint()
    with Engine(models["int8"]) as engine, TestClient(app(engine)) as client:
        assert client.get("/info").json()["model_dtype"] == "int8"
