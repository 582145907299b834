"""bert-as-service's client against a service of minibert, and against servers that are something else."""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.compat.bert_serving import BertClient
from tests.support.served import Served, served

TEXTS = ["A cat sleeps.", "the bank"]


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    with served(str(folder)) as running:
        yield running


@pytest.mark.parametrize(
    "options", [{}, {"pooling_layer": [0, -1], "pooling_strategy": "CLS_TOKEN"}, {"output_fmt": "list"}]
)
def test_the_vectors_are_those_of_this_process(service: Served, folder: Path, options: dict[str, object]) -> None:
    local = BertClient(model=SentenceTransformer(folder), **options)  # type: ignore[arg-type]
    with BertClient(ip=service.url, **options) as client:  # type: ignore[arg-type]
        expected, tokens = local.encode(TEXTS, show_tokens=True)
        found, shown = client.encode(TEXTS, show_tokens=True)
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, expected)
        assert shown == tokens
        split = [row[1:-1] for row in tokens]
        np.testing.assert_array_equal(client.encode(split, is_tokenized=True), expected)
        assert [answer.id for answer in client.encode_async([TEXTS, TEXTS])] == [0, 1]


def test_a_service_on_another_machine_is_named_by_its_port(service: Served, folder: Path) -> None:
    with BertClient(ip="127.0.0.2", port=service.port, timeout=60_000) as client:
        if service.url.startswith("http://127.0.0.1"):  # the service listens there only
            with pytest.raises(ConnectionError, match=f"http://127.0.0.2:{service.port} does not answer"):
                client.encode(TEXTS)
    with pytest.raises(ValueError, match="a service has its own model"):
        BertClient(ip="10.0.0.1", model=str(folder))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_without_a_model_and_a_machine_this_process_computes(minilm_folder: Path) -> None:
    expected = BertClient(model=str(minilm_folder)).encode(TEXTS)
    np.testing.assert_array_equal(BertClient().encode(TEXTS), expected)
    with BertClient(port=free_port()) as client, pytest.raises(ConnectionError, match="Is `minibert serve` running"):
        client.encode(TEXTS)


@pytest.mark.parametrize("ip", ["localhost", "127.0.0.1", "0.0.0.0"])
def test_without_a_model_the_service_of_this_machine_is_asked(service: Served, folder: Path, ip: str) -> None:
    expected = BertClient(model=str(folder), port=service.port).encode(TEXTS)
    with BertClient(ip, service.port, service.port + 1) as client:
        np.testing.assert_array_equal(client.encode(TEXTS), expected)
        split = [row[1:-1] for row in client.encode(TEXTS, show_tokens=True)[1]]
        np.testing.assert_array_equal(client.encode(split, is_tokenized=True), expected)  # only a service takes these


@pytest.mark.parametrize("where", ["url", "port"])
def test_a_service_is_not_asked_for_the_vectors_of_tokens(service: Served, where: str) -> None:
    at: dict[str, Any] = {"ip": service.url} if where == "url" else {"ip": "127.0.0.1", "port": service.port}
    for pooling in ("NONE", "none", ["NONE"]):
        with pytest.raises(ValueError, match=r"pooling_strategy=.*per token.*Give model="):
            BertClient(**at, pooling_strategy=pooling)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pooling_layer": "-2"}, TypeError, "^pooling_layer='-2'; expected an int"),
        ({"pooling_layer": [0, 1.5]}, TypeError, "^pooling_layer=1.5; expected an int"),
        ({"pooling_layer": True}, TypeError, "^pooling_layer=True; expected an int"),
        ({"pooling_layer": []}, ValueError, r"^pooling_layer=\[\]; expected an int or several"),
        ({"pooling_layer": 10**5000}, ValueError, "^pooling_layer=<an integer of 16610 bits>; expected an int"),
        ({"pooling_strategy": "median"}, ValueError, "^pooling_strategy='median' is not a pooling mode"),
        ({"pooling_strategy": None}, TypeError, "^pooling_strategy=None; expected the name"),
        ({"pooling_strategy": ["NONE", "cls"]}, ValueError, "^pooling_strategy 'none' cannot be combined"),
        ({"pooling_strategy": "pooler"}, ValueError, "^pooling_strategy='pooler' fixes the layers"),
        ({"pooling_strategy": "first_last"}, ValueError, "^pooling_strategy='first_last' fixes the layers"),
    ],
)
def test_layers_and_poolings_are_checked_before_a_service_is_asked(
    folder: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BertClient(ip="10.0.0.1", **options)
    with pytest.raises(error, match=message):
        BertClient(model=str(folder), **options)


@pytest.mark.parametrize("layer", [np.int64(-2), np.array(-2), np.array([-2, -1]), (np.int8(0), 1), range(2)])
def test_layers_of_numpy_are_accepted_by_a_service(service: Served, folder: Path, layer: Any) -> None:
    with BertClient(ip=service.url, pooling_layer=layer) as client:
        expected = BertClient(model=str(folder), pooling_layer=layer).encode(TEXTS)
        np.testing.assert_array_equal(client.encode(TEXTS, show_tokens=np.True_)[0], expected)  # type: ignore[arg-type]


def test_calls_that_cannot_be_answered_say_why(service: Served, folder: Path) -> None:
    with BertClient(ip=service.url) as client:
        for texts, tokenized, message in (
            ([np.int64(1)], False, r"texts\[0\] is int64 .*1.*; expected a str"),
            (["a", ["b"]], False, r"texts\[1\] is list \['b'\]; expected a str"),
            (["a"], True, r"texts is list \['a'\]; expected a list of lists of str"),
            ([["a"], [np.int64(1)]], True, r"texts\[1\]\[0\] is int64 .*; expected a str"),
        ):
            with pytest.raises(TypeError, match=message):
                client.encode(texts, is_tokenized=tokenized)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"texts\[1\] is blank"):
            client.encode([["a"], []], is_tokenized=True)  # type: ignore[list-item]
        with pytest.raises(ValueError, match=r"blocking=False: encode waits .*use encode_async"):
            client.encode(TEXTS, blocking=False)
    with pytest.raises(ValueError, match=r"is_tokenized=True: a service takes tokens.*ip="):
        BertClient(model=str(folder)).encode([["a"]], is_tokenized=True)  # type: ignore[list-item]


def test_a_service_with_keys_is_said_to_be_out_of_reach(folder: Path) -> None:
    with served(str(folder), MINIBERT_SERVE_API_KEY="k" * 40) as running:
        for options in ({"ip": running.url}, {"ip": "127.0.0.1", "port": running.port}):
            with (
                BertClient(**options) as client,
                pytest.raises(ValueError, match="401: it wants an API key, which BertClient cannot send"),
            ):
                client.encode(TEXTS)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ip": "localhost:5555"}, ValueError, "^ip='localhost:5555'; expected a machine, whose port goes into port="),
        ({"ip": ""}, ValueError, "^ip=''; expected a machine, .*or a URL"),
        ({"ip": " localhost"}, ValueError, "^ip=' localhost'; expected a machine, .*or a URL"),
        ({"ip": "a/b"}, ValueError, "^ip='a/b'; expected a machine, .*or a URL"),
        ({"ip": "a..b"}, ValueError, "a..b"),
        ({"ip": 5555}, TypeError, "ip is int 5555"),
        ({"model": 3}, TypeError, "a str .hub id or folder. or a Path, got int"),
        ({"model": ""}, ValueError, "''"),
        ({"ip": "10.0.0.1", "model": "all-MiniLM-L6-v2"}, ValueError, "a service has its own model"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BertClient(**options)


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    with (
        BertClient(ip="::ffff:127.0.0.1", port=free_port(), timeout=10_000) as client,
        pytest.raises(ConnectionError, match=r"http://\[::ffff:127.0.0.1\]:\d+ does not answer"),
    ):
        client.encode(TEXTS)


def test_refusals_and_cut_texts_are_said(service: Served) -> None:
    with BertClient(ip=service.url) as client:
        with pytest.raises(ValueError, match=r"texts\[1\] is blank"):
            client.encode(["a", " "])
        with pytest.warns(UserWarning, match="1 of 2 texts are longer than the limit"):
            client.encode(["a", "word " * 600])
    with (
        BertClient(ip=service.url, pooling_layer=99) as client,
        pytest.raises(ValueError, match=r"400: pooling_layer=99; this model has \d+ layers"),
    ):
        client.encode(TEXTS)
    for url in ("ftp://x", "http://", "http://x:y", "http://[::1", "http://a b", "http://a..b/"):
        with pytest.raises(ValueError, match="URL"):
            BertClient(ip=url)


@pytest.fixture
def other_server() -> Iterator[Callable[[int, bytes], str]]:
    """Return a function that starts a server with one answer, and gives its URL."""
    servers = []

    def start(status: int, content: bytes) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "content", "error", "message"),
    [
        (200, b"<html>", ConnectionError, "is not a service"),
        (200, b"{}", ConnectionError, "is not a service"),
        (200, b'{"result": "x"}', ConnectionError, "is not a service"),
        (503, b'{"error": "the service is stopping"}', RuntimeError, "503: the service is stopping"),
        (429, b'{"error": "wait"}', RuntimeError, "429: wait"),
        (404, b'{"detail": 1}', ValueError, "404: "),
        (404, b"[]", ValueError, "404: "),
    ],
)
def test_other_servers(
    other_server: Callable[[int, bytes], str], status: int, content: bytes, error: type[Exception], message: str
) -> None:
    with BertClient(ip=other_server(status, content)) as client, pytest.raises(error, match=message):
        client.encode(TEXTS)
