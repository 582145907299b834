"""`minibert serve` in a process of its own: real connections, signals, exit codes, clients that misbehave."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.serving.server import listen
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.command_line import run
from tests.support.outcomes import PATIENCE, ROOT
from tests.support.served import Served, served

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals end processes at once there")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("serve") / "small")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    with served(str(folder), "--json-logs", "--body-timeout", "1", "--max-body-bytes", "1000000") as running:
        yield running


def ask(service: Served, body: bytes, path: str = "/embed", method: str = "POST", headers: str = "") -> socket.socket:
    """Send a request over a connection of its own, and return the connection."""
    connection = socket.create_connection(("127.0.0.1", service.port), PATIENCE)
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    connection.sendall(head.encode() + body)
    return connection


def numbers(service: Served) -> dict[str, float]:
    lines = [line for line in httpx.get(f"{service.url}/metrics").text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_many_clients_get_the_bytes_of_encode(service: Served, folder: Path) -> None:
    model = SentenceTransformer(folder)
    texts = [f"text {i} " * (1 + i % 30) for i in range(80)]
    expected = model.encode(texts, normalize_embeddings=True)  # this protocol scales, the model does not

    def embed(rows: list[int]) -> np.ndarray:
        answer = httpx.post(f"{service.url}/embed", json={"inputs": [texts[i] for i in rows]}, timeout=PATIENCE)
        return np.array(answer.json(), dtype=np.float32)

    requests = [[i] for i in range(80)] + [[*range(80)]] * 4
    with ThreadPoolExecutor(12) as pool:
        for rows, found in zip(requests, pool.map(embed, requests), strict=True):
            np.testing.assert_array_equal(found, expected[rows])
    assert httpx.get(f"{service.url}/v1/models").json()["data"][0]["id"] == "small"


def test_a_body_that_does_not_arrive_is_408(service: Served) -> None:
    with socket.create_connection(("127.0.0.1", service.port), PATIENCE) as connection:
        connection.sendall(b'POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"inputs":')
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_is_too_large_is_413_for_clients_that_send_it_whole(service: Served) -> None:
    response = httpx.post(f"{service.url}/embed", content=b"a" * 1_500_000, timeout=PATIENCE)
    assert response.status_code == 413
    with ask(service, b"", headers="") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_clients_that_leave_are_dropped_from_the_queue(service: Served) -> None:
    body = json.dumps({"inputs": [f"text number {i} of a client that leaves " * 20 for i in range(1000)]}).encode()
    before = numbers(service)["minibert_request_disconnected_total"]
    for _ in range(6):
        ask(service, body).close()
    for _ in range(6):  # in the middle of the body
        connection = socket.create_connection(("127.0.0.1", service.port), PATIENCE)
        connection.sendall(b'POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"inputs":')
        connection.close()
    until(lambda: numbers(service)["minibert_request_disconnected_total"] >= before + 12)
    until(lambda: numbers(service)["minibert_queue_tokens"] == 0)
    assert httpx.post(f"{service.url}/embed", json={"inputs": "a"}, timeout=PATIENCE).status_code == 200


def test_requests_on_one_connection_are_answered_in_order(service: Served) -> None:
    bodies = [json.dumps({"ids": [i + 10]}).encode() for i in range(5)]
    with socket.create_connection(("127.0.0.1", service.port), PATIENCE) as connection:
        for body in bodies:
            head = f"POST /decode HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 5 or not answers.endswith(b"]"):
            answers += connection.recv(65536)
    assert answers.count(b"HTTP/1.1 200 OK") == 5


def test_sigterm_finishes_what_has_begun_and_exits_with_0(folder: Path) -> None:
    texts = [f"text number {i} " * 30 for i in range(600)]
    with served(str(folder)) as running, ThreadPoolExecutor(4) as pool:
        answers = [
            pool.submit(httpx.post, f"{running.url}/embed", json={"inputs": texts}, timeout=PATIENCE) for _ in range(4)
        ]
        until(lambda: numbers(running)["minibert_queue_tokens"] > 0 or all(one.done() for one in answers))
        assert running.end(signal.SIGTERM) == 0
        for answer in answers:
            assert (answer.result().status_code, len(answer.result().json())) == (200, 600)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/health")


def test_sigint_and_idle_connections_do_not_delay_the_end(folder: Path) -> None:
    with served(str(folder)) as running, httpx.Client() as client:
        assert client.get(f"{running.url}/health").status_code == 200
        assert running.end(signal.SIGINT) == 0


def test_a_second_signal_ends_a_service_that_does_not_finish(folder: Path) -> None:
    with served(str(folder), "sleep", program="-m tests.support.odd_service") as running:
        body = b'{"inputs":"a"}'
        with ask(running, body) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        with ask(running, body) as connection:  # the engine does not come to this one
            until(lambda: numbers(running)["minibert_queue_tokens"] > 0)
            running.process.send_signal(signal.SIGTERM)
            until(lambda: not listens(running))
            assert running.process.poll() is None
            assert running.end(signal.SIGTERM) == 1


def test_an_engine_that_stops_ends_the_service_with_70(folder: Path) -> None:
    with served(str(folder), "die", program="-m tests.support.odd_service") as running:
        with ask(running, b'{"inputs":"a"}') as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert running.process.wait(PATIENCE) == 70


def listens(service: Served) -> bool:
    try:
        socket.create_connection(("127.0.0.1", service.port), 1).close()
    except OSError:
        return False
    return True


def test_a_unix_socket(folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with served(str(folder), "--uds", path) as running:
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport) as client:
            assert client.post("http://x/embed", json={"inputs": "a"}).status_code == 200
        assert running.end(signal.SIGTERM) == 0
        assert not Path(path).exists()


def test_the_socket_of_another_process_is_not_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with contextlib.ExitStack() as opened:
        other = opened.enter_context(socket.socket(socket.AF_UNIX))
        other.bind(path)
        other.listen(0)
        for _ in range(3):  # nobody accepts them, so that the queue is full
            waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(path)
        with pytest.raises(OSError, match="cannot listen on"):
            listen("", 0, path)
        assert Path(path).exists()
    listen("", 0, path).close()  # the process has ended: its file is replaced


def test_options_are_environment_variables_too(folder: Path) -> None:
    settings = {"TRUNCATION": "error", "SERVED_MODEL_NAME": "mine", "ANY_MODEL_NAME": "1", "MAX_CLIENT_BATCH_SIZE": "7"}
    with served(str(folder), **{f"MINIBERT_SERVE_{name}": value for name, value in settings.items()}) as running:
        found = httpx.get(f"{running.url}/info").json()
        assert (found["model_id"], found["auto_truncate"], found["max_client_batch_size"]) == ("mine", False, 7)
        body = {"input": "a", "model": "other"}
        assert httpx.post(f"{running.url}/v1/embeddings", json=body).json()["model"] == "mine"


def test_an_address_in_use_is_an_error_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = run(capsys, "serve", "no/such-model", "--port", port)
    assert code == 1
    assert f"cannot listen on 127.0.0.1, port {port}: " in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "cannot listen on"),
        (["--host", "256.0.0.1"], "cannot listen on 256.0.0.1"),
        (["a", "b", "--served-model-name", "c"], "--served-model-name is for one model"),
        (["a", "a"], "two models have the name a"),
    ],
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, _, err = run(capsys, "serve", *arguments)
    assert code == 1
    assert message in err


@pytest.mark.parametrize(("name", "code"), [("TRUNCATION", 2), ("JSON_LOGS", 1), ("PORT", 2)])
def test_wrong_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    monkeypatch.setenv(f"MINIBERT_SERVE_{name}", "x")
    found, _, err = run(capsys, "serve")
    assert found == code
    assert name in err.upper().replace("-", "_")


def test_a_prompt_that_the_model_does_not_have(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    random_checkpoint(tmp_path / "plain")
    code, _, err = run(capsys, "serve", str(tmp_path / "plain"), "--port", "0", "--default-prompt-name", "x")
    assert code == 1
    assert "default_prompt_name='x'; the model plain has" in err


@pytest.mark.parametrize("library", ["starlette", "uvicorn", "msgspec", "orjson", "prometheus_client"])
def test_a_missing_library_is_named(library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None\nfrom minibert.cli import main\nsys.exit(main(['serve']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert f"the service needs {library}, which is not installed: pip install uvicorn" in done.stderr
    assert "Traceback" not in done.stderr
