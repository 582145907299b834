"""Operation of the service: loading, keys, CORS, the log, limits of what is in flight, options and variables."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from minibert import SentenceTransformer
from minibert.cli import serve as verb
from minibert.serving import observability
from minibert.serving.asgi import app
from minibert.serving.auth import ApiKeys
from minibert.serving.engine import Engine
from minibert.serving.protocols import POSTS
from minibert.serving.server import listen
from minibert.serving.settings import Settings
from tests.support.checkpoints import sentence_model
from tests.support.command_line import run
from tests.support.fake_kinds import PATIENCE_SECONDS, Gate, job
from tests.support.outcomes import PATIENCE
from tests.support.served import served

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals end processes at once there")
OPEN = ("/health", "/ping", "/readyz", "/livez", "/metrics", "/")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("operation") / "small")


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- loading ----------------------------------------------------------------------------------------------------------


@posix
def test_while_the_model_is_loaded_the_socket_listens(folder: Path, tmp_path: Path) -> None:
    errors: list[str] = []
    arguments = (str(folder), "load", str(tmp_path / "go"))
    with served(*arguments, program="-m tests.support.odd_service", until="listening ", errors=errors) as running:
        assert httpx.get(f"{running.url}/livez").status_code == 200
        for path in ("/readyz", "/health", "/ping", "/", "/info", "/v1/models", "/metrics", "/none"):
            response = httpx.get(f"{running.url}{path}")
            assert (response.status_code, response.headers["retry-after"]) == (503, "1"), path
            assert response.headers["x-request-id"]
        for path, post in POSTS.items():
            response = httpx.post(f"{running.url}{path}", json={}, headers={"x-request-id": "mine"})
            assert (response.status_code, response.headers["x-request-id"]) == (503, "mine"), path
            error = response.json()["error"]
            assert "is being loaded" in (error["message"] if post.errors.name == "openai" else error)
        (tmp_path / "go").touch()
        until(lambda: httpx.get(f"{running.url}/readyz").status_code == 200)
        assert httpx.post(f"{running.url}/embed", json={"inputs": "a"}).status_code == 200
        until(lambda: any("serving on" in line for line in errors))
        assert running.end(signal.SIGTERM) == 0


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_is_loaded_ends_the_service(folder: Path, tmp_path: Path, number: int) -> None:
    arguments = (str(folder), "load", str(tmp_path / "never"))
    with served(*arguments, program="-m tests.support.odd_service", until="listening ") as running:
        assert running.end(number) == 0


@posix
def test_a_model_that_cannot_be_loaded_ends_the_service(folder: Path) -> None:
    errors: list[str] = []
    with served(
        str(folder), "fail", program="-m tests.support.odd_service", until="listening ", errors=errors
    ) as running:
        assert running.process.wait(PATIENCE) == 1
        until(lambda: any("ValueError: the model cannot be loaded" in line for line in errors))


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(model: SentenceTransformer) -> Iterator[TestClient]:
    with Engine(model) as engine, TestClient(app(engine, keys=ApiKeys(["first", "second"]))) as client:
        yield client


def test_a_request_needs_one_of_the_keys(guarded: TestClient) -> None:
    for value in ("Bearer first", "bearer second", "Bearer  second ", "second"):
        assert guarded.post("/embed", json={"inputs": "a"}, headers={"authorization": value}).status_code == 200
    wrong: list[str | bytes | None] = ["Bearer third", "Bearer", "", "Bearer firs", "Bearer first second", None]
    for key in (*wrong, "Basic first", "Bearer \u00e9".encode("latin-1")):
        for path, post in POSTS.items():
            response = guarded.post(path, content=b"{", headers={} if key is None else {"authorization": key})
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
            error = response.json()["error"]
            assert "Incorrect API key provided" in (error["message"] if post.errors.name == "openai" else error)
            assert "first" not in response.text
    for path in ("/info", "/v1/models", "/openapi.json", "/none"):
        assert guarded.get(path).status_code == 401
    for path in OPEN:
        assert guarded.get(path).status_code == 200
    assert guarded.post("/v1/embeddings", json={}).json()["error"]["code"] == "invalid_api_key"
    assert 'minibert_request_failure_total{err="key",route="other"} 4.0' in guarded.get("/metrics").text


def test_keys_in_a_file_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\ufeff# ours\n\none\r\n two \n", encoding="utf-8")
    keys = ApiKeys(["three"], str(path))
    assert [keys.accept(key) for key in (b"one", b"two", b"three", b"four", b"# ours", b"")] == [True] * 3 + [False] * 3
    path.write_text("four\n")
    keys.reload()
    assert (keys.accept(b"one"), keys.accept(b"four"), len(keys)) == (False, True, 2)
    for content, message in ((b"\xff", "is not UTF-8"), (b"a b", "line 1 of"), (b"a" * 2**21, "more than 1048576")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            keys.reload()
        assert keys.accept(b"four")
    path.unlink()
    with pytest.raises(OSError, match="the file of keys"):
        keys.reload()
    assert keys.accept(b"four")


def test_keys_that_cannot_be_keys(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(ValueError, match="has no key"):
        ApiKeys(path=str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="no keys"):
        ApiKeys()
    for key in ("", "a b", "é", "a\n"):
        with pytest.raises(ValueError, match="a key is empty, or has") as caught:
            ApiKeys([key])
        assert "é" not in str(caught.value)
    for given in ("secret", b"secret"):  # each letter would be a key
        with pytest.raises(TypeError, match="expected a sequence of str"):
            ApiKeys(given)  # type: ignore[arg-type]


def test_variables_that_kubernetes_sets_are_not_the_service_s(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIBERT_SERVE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("MINIBERT_SERVE_PORT_8080_TCP", "tcp://10.0.0.1:8080")
    monkeypatch.setenv("MINIBERT_SERVE_API_KEY", "")
    assert "--api-key is empty" in run(capsys, "serve", "--port", "0")[2]  # so they were passed over


@posix
def test_sighup_reads_the_keys_again(folder: Path, tmp_path: Path) -> None:
    path, errors = tmp_path / "keys", list[str]()
    path.write_text("old\n")
    with served(str(folder), "--api-key-file", str(path), errors=errors, MINIBERT_SERVE_API_KEY="a, b") as running:

        def status(key: str) -> int:
            return httpx.get(f"{running.url}/info", headers={"authorization": f"Bearer {key}"}).status_code

        assert [status(key) for key in ("old", "a", "b", "new")] == [200, 200, 200, 401]
        path.write_text("new\n")
        running.process.send_signal(signal.SIGHUP)
        until(lambda: status("new") == 200)
        assert [status(key) for key in ("old", "a")] == [401, 200]
        path.unlink()
        running.process.send_signal(signal.SIGHUP)
        until(lambda: any("the keys stay as they were: the file of keys" in line for line in errors))
        assert status("new") == 200
        assert running.end(signal.SIGTERM) == 0


# --- pages of other origins -------------------------------------------------------------------------------------------


def test_pages_of_the_given_origins_may_ask(model: SentenceTransformer) -> None:
    origin = "https://example.org"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    made = Engine(model)
    with made as engine, TestClient(app(engine, keys=ApiKeys(["k"]), allow_origins=[origin])) as client:
        allowed = client.options("/embed", headers={"origin": origin, **asked})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, origin)
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        assert client.options("/embed", headers={"origin": "https://other.org", **asked}).status_code == 400
        for key, status in (("k", 200), ("x", 401)):
            headers = {"origin": origin, "authorization": key}
            response = client.post("/embed", json={"inputs": "a"}, headers=headers)
            assert (response.status_code, response.headers["access-control-allow-origin"]) == (status, origin)
            assert "x-minibert-truncated" in response.headers["access-control-expose-headers"]
    with made, TestClient(app(made)) as client:
        assert "access-control-allow-origin" not in client.get("/livez", headers={"origin": origin}).headers
    with pytest.raises(TypeError, match="allow_origins"):
        app(made, allow_origins=origin)
    for namespace in ("a b", "", "1a"):
        with pytest.raises(ValueError, match="metrics_namespace"):
            app(made, metrics_namespace=namespace)
    with TestClient(app(made, metrics_namespace="te")) as client:
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


# --- the log ----------------------------------------------------------------------------------------------------------


@posix
def test_the_log_has_a_line_per_request_and_no_text(folder: Path) -> None:
    errors: list[str] = []
    with served(str(folder), "--json-logs", errors=errors) as running:
        secret = "vergissmeinnicht"
        httpx.post(f"{running.url}/embed", json={"inputs": [f"{secret} " * 600, "a"], secret: 1})
        httpx.post(f"{running.url}/v1/embeddings", json={"input": secret, "dimensions": 10**6})
        httpx.post(f"{running.url}/embed", content=f'{{"inputs": "{secret}')
        assert running.end(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in errors if line.startswith("{")]
    assert [line["status"] for line in lines] == [200, 400, 400]
    first = lines[0]
    assert (first["route"], first["texts"], first["truncated"], first["ignored"]) == ("/embed", 2, 1, secret)
    assert {"time", "level", "request_id", "milliseconds", "tokens"} <= set(first)
    assert secret not in json.dumps([{**line, "ignored": ""} for line in lines])


def record(**request: Any) -> logging.LogRecord:
    made = logging.LogRecord("minibert.serving", logging.INFO, "", 0, "text", None, None)
    if request:
        made.request = request
    return made


def test_without_json_one_cut_text_per_minute_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    handlers, propagate, level = observability.LOG.handlers[:], observability.LOG.propagate, observability.LOG.level
    try:
        observability.log_requests(as_json=False)
        for _ in range(3):
            observability.LOG.handle(record(truncated=2, texts=5, request_id="r"))
            observability.LOG.handle(record(texts=5, request_id="s"))
        observability.LOG.error("an error")
        observability.LOG.handlers[0].flush()
    finally:
        observability.LOG.handlers[:], observability.LOG.propagate = handlers, propagate
        observability.LOG.setLevel(level)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "2 of 5 texts of a request were cut (request r)" in lines[0]
    assert lines[1] == "minibert: an error"


@posix
def test_a_log_that_nobody_reads_stops_nothing(folder: Path) -> None:
    """The pipe of the standard error is full after about 64 KiB; the test does not read it."""
    with served(str(folder), "--json-logs") as running, httpx.Client(base_url=running.url) as client:
        for i in range(600):
            response = client.post(
                "/decode", json={"ids": [5]}, headers={"x-request-id": f"{i:0128}"}, timeout=PATIENCE
            )
            assert response.status_code == 200
        assert running.end(signal.SIGTERM) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_nothing(folder: Path) -> None:
    command = (
        f'"{sys.executable}" -m minibert serve {folder} --json-logs --uds {folder}/s 2>/dev/full & echo $!; wait $!'
    )
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        try:
            with httpx.Client(transport=httpx.HTTPTransport(uds=f"{folder}/s"), base_url="http://x") as client:
                until(lambda: listens(f"{folder}/s"))
                until(lambda: client.get("/readyz").status_code == 200)
                for _ in range(3):
                    assert client.post("/embed", json={"inputs": "word " * 600}).status_code == 200
            os.kill(number, signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            if process.poll() is None:
                os.kill(number, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
def test_the_socket_of_the_next_service_stays(folder: Path, tmp_path: Path) -> None:
    """The first service closes its socket at SIGTERM, and ends later; the next one may listen there meanwhile."""
    path = str(tmp_path / "s")
    with served(str(folder), "--uds", path) as first:
        os.unlink(path)
        with listen("", 0, path) as bound:
            bound.listen()
            assert first.end(signal.SIGTERM) == 0
            assert listens(path)
    with served(str(folder), "--uds", path) as second:  # nobody listens on this one, so it is replaced
        assert second.end(signal.SIGTERM) == 0
    assert not os.path.exists(path)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
@pytest.mark.parametrize("error", [PermissionError, TimeoutError, BlockingIOError])
def test_a_socket_that_may_be_in_use_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """Such as that of another user, or of a process that is stopped."""

    class Other(socket.socket):
        def connect(self, address: Any) -> None:
            raise error

    path = str(tmp_path / "s")
    listen("", 0, path).close()  # nobody listens any more
    with monkeypatch.context() as patched:
        patched.setattr("minibert.serving.server.socket.socket", Other)
        with pytest.raises(OSError, match=r"cannot listen on .*s: Address already in use"):
            listen("", 0, path)
    listen("", 0, path).close()


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


# --- limits -----------------------------------------------------------------------------------------------------------


def test_bodies_and_answers_in_flight_are_limited_together(model: SentenceTransformer) -> None:
    settings = Settings(max_inflight_bytes=20_000)
    with Engine(model, settings=settings) as engine, TestClient(app(engine)) as client:
        service = client.app.state.service  # type: ignore[attr-defined]
        whole = client.post("/embed_all", json={"inputs": ["word " * 60] * 5})
        assert whole.status_code == 200  # alone, it may have more
        assert service.inflight_bytes == 0
        service.inflight_bytes = 15_000  # another request
        for body in ({"inputs": "a" * 6000}, {"inputs": ["word " * 60] * 5}):
            refused = client.post("/embed_all", json=body)
            assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
            assert refused.headers["retry-after"] == "1"
            assert service.inflight_bytes == 15_000
        assert client.post("/embed_all", json={"inputs": "a"}).status_code == 200
        service.inflight_bytes = 0


def test_nothing_is_in_flight_after_clients_that_get_errors(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(request_timeout=0.05)) as engine, TestClient(app(engine)) as client:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        for body in (b"{", b"{}", b'{"inputs": "a"}', b'{"inputs": "a", "dimensions": 0}'):
            assert client.post("/embed", content=body).status_code in (400, 422, 503)
        assert client.app.state.service.inflight_bytes == 0  # type: ignore[attr-defined]
        gate.opened.set()


def test_large_answers_are_sent_whole(model: SentenceTransformer) -> None:
    texts = [f"text {i}" for i in range(1500)]
    with Engine(model) as engine, TestClient(app(engine)) as client:
        raw = client.post("/embed_all", json={"inputs": texts})
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


# --- how the models compute -------------------------------------------------------------------------------------------


def test_threads_and_shared_weights_are_in_the_descriptions(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    options: dict[str, dict[str, Any]] = {
        "shared": {"shared_weights": True, "num_threads": 1},
        "own": {"shared_weights": False, "num_threads": 2},
        "numpy": {"backend": "numpy", "num_threads": 2},
    }
    models = {name: SentenceTransformer(folder, **given) for name, given in options.items()}
    expected = {"shared": (1, True), "own": (2, False), "numpy": (1, False)}
    with Engine(models) as engine, TestClient(app(engine)) as client:
        listed = client.get("/v1/models").json()["data"]
        assert {one["id"]: (one["num_threads"], one["shared_weights"]) for one in listed} == expected
        found = client.get("/info").json()
        assert (found["num_threads"], found["shared_weights"]) == expected["shared"]
        metrics = client.get("/metrics").text
        for name, (threads, shared) in expected.items():
            labels = f'model="{name}",num_threads="{threads}",shared_weights="{int(shared)}"'
            assert f'minibert_model_info{{compute_type="float32",{labels}}} 1.0' in metrics


def test_a_low_precision_is_named_in_every_place(folder: Path) -> None:
    """float32 and int8 beside each other: the first does not need a header, the second one has it everywhere."""
    models = {name: SentenceTransformer(folder, compute_type=name) for name in ("float32", "int8")}
    with Engine(models) as engine, TestClient(app(engine)) as client:
        listed = client.get("/v1/models").json()["data"]
        assert {one["id"]: one["compute_type"] for one in listed} == {"float32": "float32", "int8": "int8"}
        assert client.get("/v1/models/int8").json()["compute_type"] == "int8"
        assert client.get("/info").json()["model_dtype"] == "float32"
        line = 'minibert_model_info{compute_type="int8",model="int8",num_threads="%d",shared_weights="0"} 1.0'
        assert line % models["int8"].model.num_threads in client.get("/metrics").text
        for name, header in (("float32", None), ("int8", "int8")):
            answer = client.post("/v1/embeddings", json={"input": "a", "model": name})
            assert (answer.status_code, answer.headers.get("x-minibert-compute-type")) == (200, header)
    with Engine({"low": models["int8"]}) as engine, TestClient(app(engine)) as client:
        found = client.get("/info").json()
        assert (found["model_dtype"], found["compute_type"]) == ("int8", "int8")


# --- options ----------------------------------------------------------------------------------------------------------


def test_each_option_is_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "--host": "::1",
        "--hostname": "::1",
        "--port": "7",
        "--threads": "3",
        "--api-key": "a,b",
        "--cors-allow-origin": "x, y",
    }
    values |= {"--truncation": "error", "--backend": "numpy", "--compute-type": "int8"}
    for action in parser()._actions:
        for flag in action.option_strings:
            if flag in ("-h", "--help"):
                continue
            value = "1" if action.nargs == 0 else values.get(flag, "5")
            monkeypatch.setenv("MINIBERT_SERVE_" + flag[2:].replace("-", "_").upper(), value)
    arguments = vars(parser().parse_args([]))
    assert (arguments["host"], arguments["port"], arguments["threads"]) == ("::1", 7, 3)
    assert (arguments["api_key"], arguments["cors_allow_origin"]) == (["a", "b"], ["x", "y"])
    names = ("host", "port", "threads", "api_key", "cors_allow_origin", "truncation", "backend", "compute_type")
    for name, value in arguments.items():
        if name not in (*names, "models", "run", "parser"):
            assert value in (True, 5, 5.0, "5"), name
    assert parser().parse_args(["--port", "9"]).port == 9  # an option is stronger


def parser() -> argparse.ArgumentParser:
    verbs = argparse.ArgumentParser().add_subparsers()
    verb.add_verbs(verbs)
    return verbs.choices["serve"]


@posix
def test_models_may_come_from_a_variable(folder: Path, tmp_path: Path) -> None:
    sentence_model(tmp_path / "other")
    with served(MINIBERT_SERVE_MODELS=f"{folder}, {tmp_path / 'other'}", MINIBERT_SERVE_THREADS="1") as running:
        names = [one["id"] for one in httpx.get(f"{running.url}/v1/models").json()["data"]]
        assert names == ["small", "other"]
        assert running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "API_KEYS",
            "secret",
            "MINIBERT_SERVE_API_KEYS is set, but the service does not have it; did you mean",
        ),
        ("KEY_OF_MINE", "secret", "the service does not have it; "),
        ("API_KEY", "", "--api-key is empty"),
        ("API_KEY", " , ", "--api-key is empty"),
        ("API_KEY", "a b", "a key is empty, or has a space"),
        ("API_KEY_FILE", "/no/such/file", "the file of keys, /no/such/file, cannot be read"),
    ],
)
def test_keys_that_are_missing_do_not_open_the_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(f"MINIBERT_SERVE_{name}", value)
    code, _, err = run(capsys, "serve", "--port", "0")
    assert code == 1
    assert message in err
