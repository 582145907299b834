"""`minibert serve` in a process of its own: options, loading, signals and exit codes, sockets, the log."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from minibert.cli import serve as verb
from minibert.cli.notation import Parser
from minibert.serving.asgi import POSTS
from minibert.serving.server import listen
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.command_line import run
from tests.support.outcomes import PATIENCE, ROOT
from tests.support.served import Served, message_of, request, served, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals end processes at once there")
ODD = "-m tests.support.odd_service"
EMBED = request(b'{"inputs":"a"}')


# --- options ----------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    verbs = Parser().add_subparsers()
    verb.add_verbs(verbs)
    found: argparse.ArgumentParser = verbs.choices["serve"]
    return found


def test_each_option_is_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"--port": "7", "--api-key": "a,b", "--truncation": "error"}
    values |= {"--backend": "numpy", "--compute-type": "int8"}
    for action in parser()._actions:
        for flag in action.option_strings[:1]:  # two spellings of one option are refused, as on the command line
            if flag not in ("-h", "--help"):
                value = "1" if action.nargs == 0 else values.get(flag, "5")
                monkeypatch.setenv("MINIBERT_SERVE_" + flag[2:].replace("-", "_").upper(), value)
    arguments = vars(parser().parse_args([]))
    assert (arguments["port"], arguments["api_key"]) == (7, ["a", "b"])
    for name, value in arguments.items():
        if f"--{name.replace('_', '-')}" not in values and name not in ("models", "run", "parser"):
            assert value in (True, 5, 5.0, "5", 0.005), name
    assert parser().parse_args(["--port", "9"]).port == 9  # an option is stronger


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "message"),
    [
        ("--port 99999", {}, 1, "cannot listen on"),
        ("--host 256.0.0.1", {}, 1, "cannot listen on 256.0.0.1"),
        ("a b --served-model-name c", {}, 1, "--served-model-name"),
        ("a a", {}, 1, "two models have the name a"),
        ("", {"TRUNCATION": "x"}, 2, "--truncation"),
        ("", {"PORT": "x"}, 2, "--port"),
        ("", {"JSON_LOGS": "x"}, 1, "MINIBERT_SERVE_JSON_LOGS=x"),
        # keys that are missing do not open the service
        ("", {"API_KEYS": "secret"}, 1, "MINIBERT_SERVE_API_KEYS is set, but the service does not have it; did you"),
        ("", {"KEY_OF_MINE": "secret"}, 1, "the service does not have it; "),
        ("", {"HELP": "1"}, 1, "MINIBERT_SERVE_HELP is set, but the service does not have it; "),
        ("", {"API_KEY": "a b"}, 1, "a key is empty, or has a space"),
        ("", {"API_KEY_FILE": "/no/such/file"}, 1, "the file of keys, /no/such/file, cannot be read"),
        ("", {"API_KEY": " , "}, 1, "--api-key is empty"),
        # Kubernetes sets these
        ("", {"SERVICE_HOST": "10.0.0.1", "PORT_8080_TCP": "tcp://10.0.0.1:8080", "API_KEY": ""}, 1, "--api-key is"),
        ("--port 99999", {"PORT": "tcp://10.0.0.1:8080"}, 1, "cannot listen on"),
        ("--port=99999", {"PORT": "tcp://10.0.0.1:8080"}, 1, "cannot listen on"),
    ],
)
def test_wrong_options_and_variables(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    variables: dict[str, str],
    code: int,
    message: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"MINIBERT_SERVE_{name}", value)
    port = () if "--port" in arguments or "PORT" in variables else ("--port", "0")
    found, _, err = run(capsys, "serve", *arguments.split(), *port)
    assert (found, "secret" in err) == (code, False)
    assert message in err


def test_an_address_in_use_is_an_error_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = run(capsys, "serve", "no/such-model", "--port", port)
    assert code == 1
    assert f"cannot listen on 127.0.0.1, port {port}: " in err


def test_a_prompt_that_the_model_does_not_have(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    random_checkpoint(tmp_path / "plain")
    code, _, err = run(capsys, "serve", str(tmp_path / "plain"), "--port", "0", "--default-prompt-name", "x")
    assert code == 1
    assert "--default-prompt-name x; the model plain has" in err


@pytest.mark.parametrize("library", ["uvicorn", "msgspec"])
def test_a_missing_library_is_named(library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None\nfrom minibert.cli import main\nsys.exit(main(['serve']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert f"the service needs {library}, which is not installed: pip install uvicorn" in done.stderr
    assert "Traceback" not in done.stderr


# --- loading ----------------------------------------------------------------------------------------------------------


def test_while_the_model_is_loaded_the_socket_listens(folder: Path, tmp_path: Path) -> None:
    errors: list[str] = []
    with served(str(folder), "load", str(tmp_path / "go"), program=ODD, until="listening ", errors=errors) as running:
        with running.client() as client:
            assert client.get("/livez").status_code == 200
            for path in ("/readyz", "/health", "/ping", "/", "/info", "/v1/models", "/metrics", "/none"):
                response = client.get(path)
                assert (response.status_code, response.headers["retry-after"]) == (503, "1"), path
                assert response.headers["x-request-id"]
            for path in POSTS:
                response = client.post(path, json={}, headers={"x-request-id": "mine"})
                assert (response.status_code, response.headers["x-request-id"]) == (503, "mine"), path
                assert "is being loaded" in message_of(response)
            (tmp_path / "go").touch()
            until(lambda: client.get("/readyz").status_code == 200)
            assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        until(lambda: any("serving on" in line for line in errors))
        assert running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_is_loaded_ends_the_service(folder: Path, tmp_path: Path, number: int) -> None:
    with served(str(folder), "load", str(tmp_path / "never"), program=ODD, until="listening ") as running:
        assert running.end(number) == 0


def test_a_model_that_cannot_be_loaded_ends_the_service(folder: Path) -> None:
    errors: list[str] = []
    with served(str(folder), "fail", program=ODD, until="listening ", errors=errors) as running:
        assert running.process.wait(PATIENCE) == 1
        until(lambda: any("ValueError: the model cannot be loaded" in line for line in errors))


# --- signals, and exit codes ------------------------------------------------------------------------------------------


BODIES = {
    "/v1/embeddings": {"input": "a"},
    "/embed": {"inputs": "a"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/v2/embed": {"texts": ["a"]},
    "/api/embed": {"input": "a"},
    "/encode": {"texts": ["a"]},
}


@pytest.mark.parametrize("signals", [1, 2], ids=["time limit", "second signal"])
def test_requests_that_the_end_of_the_service_cuts_get_an_answer(folder: Path, signals: int) -> None:
    """It comes in the protocol's form: to those that wait for the engine, and to one whose body has not arrived."""
    with served(str(folder), "sleep", "1" if signals == 1 else "60", program=ODD) as running:
        with running.connect(EMBED) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        with ThreadPoolExecutor(len(BODIES)) as pool, running.client() as client, running.connect(EMBED[:-3]) as half:

            def post(path: str) -> httpx.Response:
                return client.post(path, json=BODIES[path], headers={"x-request-id": path})

            cut = [pool.submit(post, path) for path in BODIES]  # the engine does not come to these
            until(lambda: sum(n for name, n in running.numbers().items() if "_count_total" in name) == len(cut) + 2)
            running.process.send_signal(signal.SIGTERM)
            until(lambda: not listens(running.port))
            if signals == 2:
                assert running.process.poll() is None
                running.process.send_signal(signal.SIGTERM)
            for answer, path in zip([one.result() for one in cut], BODIES, strict=True):
                assert (answer.status_code, answer.headers["x-request-id"]) == (503, path)
                assert answer.headers["retry-after"] == "1"
                assert "stopping" in message_of(answer)
                assert ("error_type" in answer.json()) == (path in ("/embed", "/similarity"))
            head, _, content = half.recv(65536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(content or half.recv(65536))["error_type"] == "Unhealthy"
            assert running.process.wait(PATIENCE) == 1


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_engine_that_stops_ends_the_service_with_70(folder: Path) -> None:
    with served(str(folder), "die", program=ODD) as running:
        with running.connect(EMBED) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert running.process.wait(PATIENCE) == 70


def test_a_balancer_has_time_before_the_service_ends(folder: Path) -> None:
    with served(str(folder), "--drain-delay", "2") as running, running.client() as client:
        assert client.get("/readyz").status_code == 200
        running.process.send_signal(signal.SIGTERM)
        until(lambda: client.get("/readyz").status_code == 503)
        assert (client.get("/health").status_code, client.get("/livez").status_code) == (503, 200)
        with running.client() as late:
            assert late.post("/embed", json={"inputs": "a"}).status_code == 200
        assert running.process.poll() is None
        assert running.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_and_a_second_signal_do_not_wait_for_the_delay(folder: Path, number: int) -> None:
    with served(str(folder), "--drain-delay", "100000") as running, running.client() as client:
        running.process.send_signal(number)
        if number == signal.SIGTERM:
            until(lambda: client.get("/readyz").status_code == 503)
        while number == signal.SIGTERM and running.process.poll() is None:
            running.process.send_signal(number)  # again, because a system may deliver two signals as one
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(5)
        assert running.process.wait(PATIENCE) == (number == signal.SIGTERM)


def test_options_keys_and_the_log_of_a_service(folder: Path, tmp_path: Path) -> None:
    """Options from variables; SIGHUP reads the keys again; the log has a line per request and no text."""
    path, errors, secret = tmp_path / "keys", list[str](), "vergissmeinnicht"
    path.write_text("old\n")
    variables = {"MODELS": f"{folder}, {sentence_model(tmp_path / 'other')}", "MAX_CLIENT_BATCH_SIZE": "7"}
    variables |= {"ANY_MODEL_NAME": "1", "JSON_LOGS": "true", "API_KEY": "a, b", "API_KEY_FILE": str(path)}
    with served(errors=errors, **{f"MINIBERT_SERVE_{name}": value for name, value in variables.items()}) as running:
        with running.client() as client:

            def status(key: str) -> int:
                return client.get("/info", headers={"authorization": f"Bearer {key}"}).status_code

            assert [status(key) for key in ("old", "a", "b", "new")] == [200, 200, 200, 401]
            path.write_text("new\n")
            running.process.send_signal(signal.SIGHUP)
            until(lambda: status("new") == 200)
            assert [status(key) for key in ("old", "a")] == [401, 200]
            path.unlink()
            running.process.send_signal(signal.SIGHUP)
            until(lambda: any("the keys stay as they were: the file of keys" in line for line in errors))
            assert status("new") == 200
            client.headers["authorization"] = "Bearer a"
            assert client.get("/info").json()["max_client_batch_size"] == 7
            assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["small", "other"]
            body: dict[str, Any] = {"input": secret, "model": "unknown"}
            assert client.post("/v1/embeddings", json=body).json()["model"] == "small"
            client.post("/embed", json={"inputs": [f"{secret} " * 600, "a"], secret: 1})
            client.post("/v1/embeddings", json={"input": secret, "dimensions": 10**6})
            client.post("/embed", content=f'{{"inputs": "{secret}')
        assert running.end(signal.SIGTERM) == 0
    lines = [line for line in map(json.loads, filter(lambda line: line.startswith("{"), errors)) if "route" in line]
    lines = [line for line in lines if line["status"] != 401]
    assert [line["status"] for line in lines] == [200, 200, 400, 400]
    cut = lines[1]
    assert (cut["route"], cut["texts"], cut["truncated"], cut["ignored"]) == ("/embed", 2, 1, secret)
    assert {"time", "level", "request_id", "milliseconds", "tokens"} <= set(cut)
    assert secret not in json.dumps([{**line, "ignored": ""} for line in lines])


def test_a_log_that_nobody_reads_stops_nothing_and_the_model_has_the_id_that_was_given(folder: Path) -> None:
    """The pipe of the standard error is full after about 64 KiB; the test does not read it."""
    with served(str(folder), "--json-logs") as running, running.client() as client:
        found = client.get("/info").json()
        assert (found["model_id"], found["served_model_name"]) == (str(folder), folder.name)
        for i in range(600):
            response = client.post("/decode", json={"ids": [5]}, headers={"x-request-id": f"{i:0128}"})
            assert response.status_code == 200
        assert running.end(signal.SIGTERM) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_nothing(folder: Path) -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "minibert", "serve", str(folder), "--json-logs", "--port", str(port)]
    with open("/dev/full", "wb") as full, subprocess.Popen(command, stderr=full, cwd=ROOT) as process:
        try:
            with Served(process, f"http://127.0.0.1:{port}").client() as client:

                def is_ready() -> bool:
                    with contextlib.suppress(httpx.TransportError):
                        return client.get("/readyz").status_code == 200
                    return False

                until(is_ready)
                for _ in range(3):
                    assert client.post("/embed", json={"inputs": "word " * 600}).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


# --- sockets ----------------------------------------------------------------------------------------------------------


def test_of_two_services_on_one_port_one_ends(folder: Path) -> None:
    with listen("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "minibert", "serve", str(folder), "--port", port]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        until(lambda: any(one.poll() is not None for one in both))
        refused = next(one for one in both if one.poll() is not None)
        assert refused.returncode == 1
        assert refused.stderr is not None
        assert "in use" in refused.stderr.read()
    finally:
        for one in both:
            one.kill()
            one.communicate()
