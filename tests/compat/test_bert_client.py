"""bert-as-service's client against a service of minibert, and against servers that are something else."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.compat.bert_serving import BertClient
from tests.support.checkpoints import sentence_model
from tests.support.served import Served, served

TEXTS = ["A cat sleeps.", "the bank"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("client") / "model")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    with served(str(folder)) as running:
        yield running


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling_layer": [0, -1], "pooling_strategy": "CLS_TOKEN"},
        {"output_fmt": "list"},
        *({"pooling_layer": layer} for layer in (np.int64(-2), np.array([-2, -1]), (np.int8(0), 1), range(2))),
    ],
)
@pytest.mark.parametrize("where", ["url", "localhost", "0.0.0.0"])
def test_the_vectors_are_those_of_this_process(
    service: Served, folder: Path, where: str, options: dict[str, Any]
) -> None:
    local = BertClient(model=SentenceTransformer(folder), **options)
    at: dict[str, Any] = {"ip": service.url} if where == "url" else {"ip": where, "port": service.port}
    with BertClient(**at, **options) as client:
        expected, tokens = local.encode(TEXTS, show_tokens=True)
        found, shown = client.encode(TEXTS, show_tokens=True)
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, expected)
        assert shown == tokens
        split = [row[1:-1] for row in tokens]
        np.testing.assert_array_equal(client.encode(split, is_tokenized=True), expected)  # only a service takes these
        assert [answer.id for answer in client.encode_async([TEXTS, TEXTS])] == [0, 1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("ip", ["localhost", "127.0.0.2", "::ffff:127.0.0.1"])
def test_a_service_that_does_not_answer_is_named(ip: str) -> None:
    host = f"[{ip}]" if ":" in ip else ip
    with BertClient(ip=ip, port=free_port(), timeout=60_000) as client, pytest.raises(ConnectionError) as caught:
        client.encode(TEXTS)
    assert f"http://{host}:" in str(caught.value)
    assert "Is `minibert serve` running" in str(caught.value)


def test_without_a_model_and_a_machine_this_process_computes(minilm_folder: Path) -> None:
    expected = BertClient(model=str(minilm_folder)).encode(TEXTS)
    np.testing.assert_array_equal(BertClient().encode(TEXTS), expected)


SERVICE = {"ip": "10.0.0.1"}
LOCAL = {"model": "the folder"}
WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        ({**where, "pooling_layer": layer}, "^pooling_layer=")
        for layer in ("-2", [0, 1.5], True, [], 10**5000)
        for where in (SERVICE, LOCAL)
    ),
    *(
        ({**where, "pooling_strategy": pooling}, "^pooling_strategy")
        for pooling in ("median", None, ["NONE", "cls"])
        for where in (SERVICE, LOCAL)
    ),
    *(({**SERVICE, "pooling_strategy": pooling}, "^pooling_strategy=.*per token") for pooling in ("NONE", ["none"])),
    *(({"ip": ip}, "^ip=") for ip in ("localhost:5555", "", " localhost")),
    ({"ip": "a..b"}, "a..b"),
    *(
        ({"ip": url}, "URL")
        for url in ("ftp://x", "http://", "http://x:y", "http://[::1", "http://a b", "http://a..b/")
    ),
    ({"model": 3}, "got int"),
    ({"model": ""}, "''"),
    ({**SERVICE, "model": "all-MiniLM-L6-v2"}, "a service has its own model"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_arguments(folder: Path, options: dict[str, Any], message: str) -> None:
    """Also layers and poolings are checked before a service is asked."""
    if options.get("model") == LOCAL["model"]:
        options = {**options, "model": str(folder)}
    with pytest.raises((TypeError, ValueError), match=message):
        BertClient(**options)


def test_calls_that_cannot_be_answered_say_why(service: Served, folder: Path) -> None:
    calls: list[tuple[Any, bool, str]] = [
        ([np.int64(1)], False, r"texts\[0\]"),
        (["a", ["b"]], False, r"texts\[1\]"),
        (["a"], True, "texts"),
        ([["a"], [np.int64(1)]], True, r"texts\[1\]\[0\]"),
        ([["a"], []], True, r"texts\[1\] is blank"),
        (["a", " "], False, r"texts\[1\] is blank"),
    ]
    with BertClient(ip=service.url) as client:
        for texts, tokenized, message in calls:
            with pytest.raises((TypeError, ValueError), match=message):
                client.encode(texts, is_tokenized=tokenized)
        with pytest.raises(ValueError, match=r"blocking=False.*encode_async"):
            client.encode(TEXTS, blocking=False)
        with pytest.warns(UserWarning, match="1 of 2 texts"):
            client.encode(["a", "word " * 600])
    with pytest.raises(ValueError, match=r"is_tokenized=True.*ip="):
        BertClient(model=str(folder)).encode([["a"]], is_tokenized=True)  # type: ignore[list-item]
    with (
        BertClient(ip=service.url, pooling_layer=99) as client,
        pytest.raises(ValueError, match="400: pooling_layer=99"),
    ):
        client.encode(TEXTS)


@pytest.mark.parametrize(
    ("status", "content", "error", "message"),
    [
        (200, b"<html>", ConnectionError, "is not a service"),
        (200, b"{}", ConnectionError, "is not a service"),
        (200, b'{"result": "x"}', ConnectionError, "is not a service"),
        (503, b'{"error": "the service is stopping"}', RuntimeError, "503: the service is stopping"),
        (429, b'{"error": "wait"}', RuntimeError, "429: wait"),
        (401, b'{"error": "no key"}', ValueError, "401: .*API key"),
        (404, b'{"detail": 1}', ValueError, "404: "),
        (404, b"[]", ValueError, "404: "),
    ],
)
def test_other_servers(status: int, content: bytes, error: type[Exception], message: str) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            with BertClient(ip=url) as client, pytest.raises(error, match=message):
                client.encode(TEXTS)
        finally:
            server.shutdown()
