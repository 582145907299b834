"""Clients that want much: nobody else waits for them, and what they take is counted."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from minibert import CrossEncoder, SentenceTransformer
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.serving.reading import LONG_BODY, Readers, in_turns
from minibert.serving.scheduler import Scheduler
from minibert.serving.server import listen
from minibert.serving.settings import ServiceError, Settings
from tests.support.checkpoints import sentence_model
from tests.support.outcomes import PATIENCE
from tests.support.sentence_heads import model_folder
from tests.support.served import Served, served

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets and limits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("attacks") / "small")


@pytest.fixture(scope="module")
def client(model: SentenceTransformer) -> Iterator[TestClient]:
    with Engine(model) as engine, TestClient(app(engine), raise_server_exceptions=False) as made:
        yield made


def post(client: Any, path: str, body: Any) -> Any:
    return client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())


# --- what one request may cost ----------------------------------------------------------------------------------------


def test_repeated_types_are_computed_once(client: TestClient) -> None:
    body = {"texts": ["a b c"] * 16, "embedding_types": ["ubinary", "binary"] * 50_000}
    started = time.monotonic()
    found = post(client, "/v2/embed", body).json()
    assert [*found["embeddings"]] == ["ubinary", "binary"]
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [' + b"[]," * 100_000 + b"[]]}",
        b'{"inputs": "a"' + b"".join(b',"%d":0' % i for i in range(100_000)) + b"}",
        b'{"inputs": [' + b"9," * 3_000_000 + b"9]}",
        b'{"inputs": [' + b'"ab",' * 1_100_000 + b'"ab"]}',
        b'{"inputs": "\\\\", "x": [' + b'"\\"",[],' * 100_000 + b"0]}",
    ],
    ids=["lists", "keys", "numbers", "texts", "quotes"],
)
def test_json_of_very_many_values_is_refused_unread(client: TestClient, body: bytes) -> None:
    assert post(client, "/embed", body).status_code == 413


@pytest.mark.parametrize("text", ["[[[[" * 50_000, '{"a": [1, 2]}, ' * 30_000, "\\" * 100_001, 'say "a", ' * 50_000])
def test_texts_of_brackets_and_quotes_are_not_values(client: TestClient, model: SentenceTransformer, text: str) -> None:
    found = post(client, "/embed", {"inputs": text})
    np.testing.assert_array_equal(np.float32(found.json()), model.encode([text], truncation="silent"))


TEXTS = [
    "word " * 3000,
    "a" * 5000,
    " " * 9000 + "the end",
    "!" * 9000,
    "中" * 3000,
    "e\u0301" * 4000,
    "cat",
    "x" * 700,
]


@pytest.mark.parametrize("side", ["Right", "Left"])
@pytest.mark.parametrize("prompt", [None, "query"])
def test_long_texts_have_the_vectors_of_their_first_tokens(
    client: TestClient, model: SentenceTransformer, side: str, prompt: str | None
) -> None:
    """Though only a part of them is tokenized."""
    body = {"inputs": TEXTS, "truncation_direction": side, "prompt_name": prompt}
    response = post(client, "/embed", body)
    model.tokenizer.truncation_side = side.lower()
    try:
        expected = model.encode(TEXTS, truncation="silent", prompt_name=prompt)
    finally:
        model.tokenizer.truncation_side = "right"
    np.testing.assert_array_equal(np.float32(response.json()), expected)
    cut = [i for i, number in enumerate(model.num_tokens(TEXTS)) if number > 64]
    assert int(response.headers["x-minibert-truncated"]) >= len(cut)


def test_long_pairs_have_the_scores_of_their_first_tokens(tmp_path: Path) -> None:
    ranker = CrossEncoder(model_folder(tmp_path / "ranker", "BertForSequenceClassification", num_labels=1, scale=5))
    pairs = [(query, text) for query in ("a cat", "word " * 20, "word " * 400, "!" * 9000) for text in TEXTS]
    with Engine(ranker) as engine:
        found = engine.score(pairs, scores="rank").value[:, 0]
        np.testing.assert_array_equal(found, ranker.predict(pairs, truncation="silent"))
        with pytest.raises(ServiceError, match="characters"):
            engine.score([("a " * 200_000, "b")])
        assert engine.score([("a", "b " * 400_000)]).report.truncated == (0,)


# --- requests that are read -------------------------------------------------------------------------------------------


def test_long_requests_take_turns_and_those_that_are_cancelled_stop() -> None:
    ended, order, started = list[tuple[int, bool]](), list[str](), threading.Event()
    readers = Readers(lambda reading, whole: ended.append((reading.size, whole)))
    hold = threading.Event()

    def read(name: str, parts: int) -> str:
        for part in in_turns(range(parts)):
            if name == "long" and part == 0:
                started.set()
                assert hold.wait(PATIENCE)
            order.append(name)
        return name

    long = readers.submit(LONG_BODY + 1, read, "long", 10**7)
    assert started.wait(PATIENCE)
    left = readers.submit(LONG_BODY + 2, read, "left", 50)
    other = readers.submit(LONG_BODY + 3, read, "other", 2)
    left.cancel()
    hold.set()
    assert other.future.result(PATIENCE) == "other"
    long.cancel()
    with pytest.raises(CancelledError):
        long.future.result(PATIENCE)
    assert order.count("other") == 2
    assert order.count("left") <= 1
    assert order.count("long") < 10**7
    assert (LONG_BODY + 3, True) in ended


def test_what_waits_to_be_tokenized_is_in_the_estimated_wait() -> None:
    scheduler = Scheduler(max_wait=10)
    scheduler.waits(10**6, True)
    scheduler.was_read(10**6, True, 1.0)
    assert scheduler.estimated_wait(True) == 0
    scheduler.waits(12 * 10**6, True)
    assert scheduler.estimated_wait(True) == pytest.approx(12)
    assert scheduler.estimated_wait(False) == 0
    scheduler.check_room(12 * 10**6, False, None)
    scheduler.check_room(10**5, True, None)  # it waits for as many bytes of the other one as it has
    with pytest.raises(ServiceError, match="12 seconds") as caught:
        scheduler.check_room(12 * 10**6, True, None)
    assert caught.value.kind == "overloaded"
    scheduler.was_read(12 * 10**6, True, None)
    scheduler.check_room(12 * 10**6, True, None)


def test_a_request_that_is_read_for_too_long_is_503(model: SentenceTransformer) -> None:
    with (
        Engine(model, settings=Settings(request_timeout=0.05)) as engine,
        TestClient(app(engine)) as client,
    ):
        body = {"inputs": [f"{i} " + "! ? " * 4000 for i in range(1500)], "truncate": "split"}
        response = post(client, "/embed", body)
        assert response.status_code == 503
        assert "0.05 seconds" in response.text


def leavers_are_dropped(service: Served, number: int, bodies: list[tuple[str, bytes]]) -> None:
    """An honest request waits at most 2 seconds longer than alone, and /livez half a second."""
    honest = {"inputs": [f"honest text {i} " * 8 for i in range(600)]}
    with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:

        def seconds(path: str) -> float:
            started = time.monotonic()
            assert (client.get(path) if path == "/livez" else client.post(path, json=honest)).status_code == 200
            return time.monotonic() - started

        alone = min(seconds("/embed") for _ in range(2))
        for path, body in bodies * number:
            with socket.create_connection(("127.0.0.1", service.port), PATIENCE) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode())
                connection.sendall(body)
        livez, beside = seconds("/livez"), seconds("/embed")
        print(f"alone {alone:.2f} s, beside clients that left {beside:.2f} s, /livez {livez:.2f} s")
        end = time.monotonic() + PATIENCE
        while "minibert_inflight_bytes 0.0" not in client.get("/metrics").text:
            assert time.monotonic() < end
            time.sleep(0.05)
        text = client.get("/metrics").text
        assert f"minibert_request_disconnected_total {len(bodies) * number:.1f}" in text


def large(number: int, characters: int) -> bytes:
    texts = [(f"{i} word, {7 * i} other! " * characters)[:characters] for i in range(number)]
    return json.dumps({"inputs": texts}).encode()


def test_requests_of_clients_that_left_are_not_read(folder: Path) -> None:
    with served(str(folder), errors=[]) as service:
        leavers_are_dropped(service, 3, [("/embed", large(1000, 3000))])
        assert service.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_large_requests_of_clients_that_left_are_not_read(folder: Path) -> None:
    with served(str(folder), errors=[]) as service:
        bodies = [("/embed", large(2000, 3000)), ("/tokenize", json.dumps({"inputs": "!" * 200_000}).encode())]
        leavers_are_dropped(service, 12, [*bodies, ("/embed", large(1900, 16_000))])
        assert service.end(signal.SIGTERM) == 0


def test_answers_of_all_routes_are_counted(model: SentenceTransformer) -> None:
    """/tokenize is refused while other answers fill the memory; alone it is never refused."""
    with Engine(model, settings=Settings(max_inflight_bytes=2**16)) as engine:
        application = app(engine)
        service = application.state.service
        with TestClient(application) as client:
            assert len(post(client, "/tokenize", {"inputs": "!" * 2000}).content) > 2**16
            assert service.inflight_bytes == 0
            service.inflight_bytes = 2**15
            assert post(client, "/tokenize", {"inputs": "!" * 2000}).status_code == 429
            assert post(client, "/tokenize", {"inputs": "!"}).status_code == 200
            assert service.inflight_bytes == 2**15


# --- connections ------------------------------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize("how", ["silent", "after an answer", "within a body"])
def test_clients_that_hold_connections_leave_room_for_others(folder: Path, how: str) -> None:
    import resource

    began = {
        "silent": b"",
        "after an answer": b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        "within a body": b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n ",
    }[how]
    with served(str(folder), errors=[]) as running, contextlib.ExitStack() as stack:
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), PATIENCE))
            with contextlib.suppress(OSError):
                connection.sendall(began)
        for _ in range(20):  # the connections that were refused must be closed first
            with contextlib.suppress(httpx.TransportError):
                started = time.monotonic()
                assert httpx.get(f"{running.url}/health", timeout=PATIENCE).status_code == 200
                assert time.monotonic() - started < PATIENCE
                break
            time.sleep(0.1)
        else:
            pytest.fail("/health is not answered")
        if how != "within a body":
            assert httpx.post(f"{running.url}/embed", json={"inputs": "a"}, timeout=PATIENCE).status_code == 200
        stack.close()
        assert running.end(signal.SIGTERM) == 0


@POSIX
def test_an_answer_that_nobody_reads_ends_its_connection(folder: Path, tmp_path: Path) -> None:
    """Its end is smaller than the buffer of the connection, and larger than that of the socket."""
    path = str(tmp_path / "socket")
    body = json.dumps({"inputs": [f"t {i}" for i in range(1850)]}).encode()
    head = f"POST /embed HTTP/1.1\r\nhost: x\r\naccept: application/octet-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    with (
        served(str(folder), "--uds", path, "--send-timeout", "1", errors=[]) as running,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(4)]
        for one in clients:
            one.connect(path)
            one.sendall(head.encode() + body)
        files = Path(f"/proc/{running.process.pid}/fd")
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://x", timeout=PATIENCE) as client:
            end = time.monotonic() + PATIENCE
            while "minibert_inflight_bytes 0.0" not in client.get("/metrics").text or sockets(files) > 4:
                assert time.monotonic() < end
                time.sleep(0.05)
        assert running.end(signal.SIGTERM) == 0


def sockets(files: Path) -> int:
    """Count the open sockets of a process: the one that listens, the loop's two, and connections."""
    found = 0
    for one in files.iterdir():
        with contextlib.suppress(OSError):
            found += one.readlink().name.startswith("socket:")
    return found


def test_a_port_or_path_that_is_listened_on_is_refused(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", first.getsockname()[1])
    if hasattr(socket, "AF_UNIX"):
        path = str(tmp_path / "socket")
        with listen("", 0, path), pytest.raises(OSError, match="in use"):
            listen("", 0, path)


def test_of_two_services_on_one_port_one_ends(folder: Path) -> None:
    with listen("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "minibert", "serve", str(folder), "--port", port]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        end = time.monotonic() + PATIENCE
        while all(one.poll() is None for one in both):
            assert time.monotonic() < end
            time.sleep(0.05)
        refused = next(one for one in both if one.poll() is not None)
        assert refused.returncode == 1
        assert refused.stderr is not None
        assert "in use" in refused.stderr.read()
    finally:
        for one in both:
            one.kill()
            one.communicate()


def test_a_path_with_a_slash_is_not_a_redirect_to_the_host_of_the_client(client: TestClient) -> None:
    response = client.post("/embed/", json={"inputs": "a"}, headers={"host": "evil.example"}, follow_redirects=False)
    assert response.status_code == 404
    assert "location" not in response.headers
    assert response.headers["x-request-id"]


# --- what "/" does ----------------------------------------------------------------------------------------------------


def test_the_root_does_what_the_model_is_for(model: SentenceTransformer, tmp_path: Path) -> None:
    kinds = {"labels": 3, "ranker": 1}
    heads = {
        name: CrossEncoder(model_folder(tmp_path / name, "BertForSequenceClassification", num_labels=number))
        for name, number in kinds.items()
    }
    models = {"labels": heads["labels"], "vectors": model, "ranker": heads["ranker"]}
    with Engine(models) as engine, TestClient(app(engine)) as client:
        for path in ("/", "/invocations"):
            assert post(client, path, {"inputs": "a"}).json() == post(client, "/predict", {"inputs": "a"}).json()
        ranked = {"query": "a", "texts": ["b", "c d"], "model": "ranker"}
        assert post(client, "/", ranked).json() == post(client, "/rerank", ranked).json()
        vectors = {"inputs": ["a"], "model": "vectors"}
        assert post(client, "/", vectors).json() == post(client, "/embed", vectors).json()


def test_ollama_describes_a_model(client: TestClient) -> None:
    shown = post(client, "/api/show", {"model": "default"}).json()
    assert shown["capabilities"] == ["embedding"]
    assert shown["model_info"]["bert.embedding_length"] == 24
    assert client.get("/api/ps").json() == client.get("/api/tags").json()
    assert post(client, "/api/show", {"model": "other"}).status_code == 404
