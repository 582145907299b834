"""Clients and machines that misbehave: nothing is lost, nothing is doubled, nothing stays open; counts at the end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest

from minibert import CrossEncoder, SentenceTransformer
from minibert.serving.server import Server
from minibert.serving.settings import Settings
from tests.support.outcomes import PATIENCE
from tests.support.sentence_heads import model_folder
from tests.support.served import Served, request, served, until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what is open in /proc")

TEXTS = [f"text number {i} " * (1 + i % 12) for i in range(60)]
DISCONNECTED = "minibert_request_disconnected_total"


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    return SentenceTransformer(folder).encode(TEXTS, normalize_embeddings=True)


@contextlib.contextmanager
def nothing_is_left(running: Served) -> Iterator[Served]:
    before = running.open_files()
    yield running
    until(lambda: running.numbers()["minibert_queue_tokens"] == running.numbers()["minibert_inflight_bytes"] == 0)
    until(lambda: running.open_files() <= before + 1)  # + 1: the connection that just asked


@contextlib.contextmanager
def checked_service(folder: Path, seconds: str) -> Iterator[Served]:
    """A service that must end with 0; `seconds` is the time that clients get."""
    limits = ("--body-timeout", seconds, "--send-timeout", seconds)
    with served(str(folder), "--json-logs", *limits, errors=[]) as running:
        with nothing_is_left(running):
            yield running
        assert running.end(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def hasty(folder: Path) -> Iterator[Served]:
    with checked_service(folder, "1") as running:
        yield running


@pytest.fixture
def service(hasty: Served, expected: np.ndarray) -> Iterator[Served]:
    """A service that gives its clients a second. After each test it answers as before, and nothing is left."""
    with nothing_is_left(hasty):
        yield hasty
        answers_as_before(hasty, expected)


def embed(client: httpx.Client, rows: list[int]) -> np.ndarray:
    answer = client.post("/embed", json={"inputs": [TEXTS[i] for i in rows]})
    assert answer.status_code == 200
    return np.array(answer.json(), dtype=np.float32)


def answers_as_before(service: Served, expected: np.ndarray) -> None:
    with service.client() as client:
        np.testing.assert_array_equal(embed(client, [0, 3, 9]), expected[[0, 3, 9]])


# --- heads, bodies and answers ----------------------------------------------------------------------------------------


def test_a_head_that_does_not_arrive_ends_its_connection(service: Served, expected: np.ndarray) -> None:
    """Before the first request, and after an answer on the same connection."""
    whole = request(b'{"inputs": "a"}')
    with service.connect() as silent, service.connect(b"POST /embed HT") as slow, service.connect(whole) as second:
        answer = b""
        while not answer.endswith(b"]]"):  # the head may come before the body
            part = second.recv(65536)
            assert part
            answer += part
        assert answer.startswith(b"HTTP/1.1 200 ")
        second.sendall(b"GET /livez HTTP/1.1\r\nx: ")
        answers_as_before(service, expected)
        for connection in (silent, slow, second):
            assert connection.recv(100) == b""


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"POST /embed HTTP/1.1\r\nhost: x\r\na: " + b"b" * 70_000, (b"HTTP/1.1 431",)),
        (request(json.dumps({"inputs": ["a" * 200_000]}).encode()), (b"HTTP/1.1 200",)),  # its head is small
        (b'POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"inputs":', (b"HTTP/1.1 408",)),
        *(
            (sent, (b"", b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405"))
            for sent in (b"\0" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00" * 20, b"CONNECT x:1 HTTP/1.1\r\n\r\n")
        ),
    ],
    ids=["large head", "large body", "half a body", "zeros", "no path", "TLS", "CONNECT"],
)
def test_odd_requests(service: Served, sent: bytes, answers: tuple[bytes, ...]) -> None:
    with service.connect(sent) as connection:
        assert connection.recv(100)[:12] in answers


async def answer_to(
    parts: list[bytes], service: Callable[..., Any] | None = None, later: tuple[bytes, ...] = ()
) -> bytes:
    """Give parts to the server's own protocol at once, as uvloop may, and then others; return what the client gets.

    The end of a socket pair is the client. Without a service the answer says that the model is being loaded.
    """
    server = Server(Mock(), Settings(body_timeout=PATIENCE), None, Mock())
    server.service = service  # type: ignore[assignment]
    make: Any = server.config.http_protocol_class
    ours, client = socket.socketpair()
    client.settimeout(PATIENCE)
    with client:
        transport, connection = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: make(config=server.config, server_state=server.server_state, app_state={}), ours
        )
        for some in (parts, later):
            for part in some:
                connection.data_received(part)
            await asyncio.sleep(0.02)
        while not transport.is_closing() and transport.get_write_buffer_size():
            await asyncio.sleep(0.01)
        transport.close()
        await asyncio.sleep(0.01)
        found = b""
        while part := client.recv(2**16):
            found += part
        return found


BODY = b"POST /embed HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (10 * 2**18)


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([BODY + b"x" * 2**18, *[b"x" * 2**18] * 9], b"503"),
        ([BODY[:-1], b"\n" + b"x" * 2**18, *[b"x" * 2**18] * 9], b"503"),
        ([b"POST / HTTP/1.1\r\na: ", *[b"b" * 2**14] * 9], b"431"),
        ([b"POST / HTTP/1.1\r\na: " + b"b" * 2**17 + b"\r\n\r\n"], b"431"),
    ],
    ids=["large body", "head in two parts", "large head", "large head at once"],
)
def test_a_large_body_that_comes_before_its_request_begins_is_not_a_large_head(
    parts: list[bytes], status: bytes
) -> None:
    answer = asyncio.run(answer_to(parts))
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1") == 1


def test_a_large_head_behind_a_request_that_is_computed_ends_the_connection() -> None:
    """Nothing is written, because the client would take it for the answer to the first request."""
    began = list[str]()

    async def never(scope: Any, receive: Any, send: Any) -> None:
        began.append(scope["path"])
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    head = b"GET /health HTTP/1.1\r\n\r\n"
    large = (b"GET / HTTP/1.1\r\na: ", *[b"a" * 2**14] * 9)
    assert asyncio.run(answer_to([head], never, large)) == b""
    assert began == ["/health"]


def test_the_request_that_is_computed_hears_that_its_client_has_left_and_the_ones_behind_it_do_not_begin() -> None:
    began, heard = list[str](), list[str]()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        began.append(scope["path"])
        await receive()
        heard.append((await receive())["type"])

    several = [b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % i for i in range(3)]
    for parts in (several[:1], several, [b"".join(several)]):
        assert asyncio.run(answer_to(parts, wait)) == b""
        assert (began, heard) == (["/0"], ["http.disconnect"])
        began.clear()
        heard.clear()


def test_clients_that_send_several_requests_and_leave_are_no_errors_of_the_service(folder: Path) -> None:
    errors = list[str]()
    with served(str(folder), errors=errors) as running:
        with nothing_is_left(running):
            for i in range(30):
                connection = running.connect(request(b'{"inputs": ["a cat"]}') * 10)
                if i % 2:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
        assert running.end(signal.SIGTERM) == 0
    assert errors == []


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/metrics", 405)])
def test_a_request_that_is_refused_before_its_body_came(service: Served, path: str, status: int) -> None:
    with service.connect(request(b"x" * 2**20, path)) as connection:
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        rest = answer
        while b"HTTP/1.1 200" not in rest:
            part = connection.recv(65536)
            assert part, rest
            rest += part
        connection.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * 2**17)  # the limit of heads counts again
        assert b"HTTP/1.1 431" in connection.recv(65536)


def test_requests_on_one_connection_are_answered_in_order(service: Served) -> None:
    with service.connect(b"".join(request(b'{"ids": [%d]}' % i, "/decode") for i in range(10, 15))) as connection:
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 5 or not answers.endswith(b"]"):
            answers += connection.recv(65536)
    assert answers.count(b"HTTP/1.1 200 OK") == 5


def test_a_body_that_is_too_large_is_413_for_clients_that_send_it_whole(service: Served) -> None:
    with service.client() as client:
        assert client.post("/embed", content=b"a" * (32 * 2**20 + 1)).status_code == 413


@pytest.mark.parametrize(("path", "texts"), [("/embed_all", 60), ("/embed", 1850)])
def test_a_client_that_stops_reading_is_disconnected(
    service: Served, expected: np.ndarray, path: str, texts: int
) -> None:
    """As with SIGSTOP: its connection is open and takes nothing.

    One answer is larger than all buffers between; the other one is smaller than those of the service, and larger than
    that of the client.
    """
    body = json.dumps({"inputs": [f"{i} " + "word " * (500 if texts == 60 else 1) for i in range(texts)]})
    stopped = []
    for _ in range(3):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", service.port))
        connection.sendall(request(body.encode(), path, "accept: application/octet-stream\r\n"))
        stopped.append(connection)
    answers_as_before(service, expected)
    # Not before the last one is disconnected: a client that reads again may stay until the end of the keep-alive.
    until(lambda: service.open_sockets() <= 3 and service.numbers()["minibert_inflight_bytes"] == 0)
    for connection in stopped:
        whole = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(2**20):
                whole += part
        connection.close()
        assert texts != 60 or not whole.endswith(b"]]]")  # the system sends the rest of the other one


def test_a_client_that_closes_its_side_has_left(service: Served) -> None:
    before = service.numbers()[DISCONNECTED]
    body = json.dumps({"inputs": [f"{i} " + "word " * 500 for i in range(2000)]}).encode()
    for sent in (request(body)[:-1], request(body[:-2] + b', "a"]}')):
        with service.connect(sent) as connection:
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
    until(lambda: service.numbers()[DISCONNECTED] == before + 2)


def test_slow_bodies_delay_nobody(service: Served, expected: np.ndarray) -> None:
    """Bodies that come byte by byte end after --body-timeout with 408; meanwhile others are answered."""
    stop = threading.Event()

    def drip(connection: socket.socket) -> bytes:
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b" ")
                if stop.wait(0.05):
                    break
        with contextlib.suppress(ConnectionError):
            return connection.recv(100)
        return b""

    slow_errors = 'minibert_request_failure_total{err="slow",route="/embed"}'
    before = service.numbers().get(slow_errors, 0)
    with ThreadPoolExecutor(30) as pool, contextlib.ExitStack() as stack:
        head = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        dripping = [pool.submit(drip, stack.enter_context(service.connect(head))) for _ in range(30)]
        answers_as_before(service, expected)
        until(lambda: service.numbers().get(slow_errors, 0) == before + 30)
        stop.set()
        assert {one.result()[:12] for one in dripping} <= {b"HTTP/1.1 408", b""}


# --- clients that leave, and many of them -----------------------------------------------------------------------------


def leave(service: Served, seed: int) -> None:
    """Send a part of a request, or a whole one, and close the connection, at times with a reset."""
    chance = random.Random(seed)
    whole = request(json.dumps({"inputs": [f"{seed} {i} " * 40 for i in range(chance.choice((1, 30, 300)))]}).encode())
    sent = whole[: chance.choice((5, len(whole) // 2, len(whole) - 1, len(whole), len(whole)))]
    with service.connect(sent) as connection:
        if chance.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if chance.random() < 0.2:
            time.sleep(chance.random() / 20)


def clients_that_leave(service: Served, expected: np.ndarray, number: int) -> None:
    """Good clients and others at once: each good one gets its own vectors, once."""
    wanted = [[i % 60, (7 * i) % 60] for i in range(number)]
    before = Counter(service.numbers())

    def good(part: list[list[int]]) -> None:
        with service.client() as client:
            for rows in part:
                np.testing.assert_array_equal(embed(client, rows), expected[rows])

    with ThreadPoolExecutor(16) as pool:
        kept = [pool.submit(good, wanted[i::4]) for i in range(4)]
        for _ in pool.map(lambda seed: leave(service, seed), range(number)):
            pass
        for one in kept:
            one.result()
    until(lambda: service.numbers()["minibert_queue_tokens"] == service.numbers()["minibert_inflight_bytes"] == 0)
    found = Counter(service.numbers())
    found.subtract(before)
    requests = found['minibert_request_count_total{route="/embed"}']
    successes = found['minibert_request_success_total{route="/embed"}']
    assert sum(count for name, count in found.items() if name.startswith("minibert_request_failure_total{")) == 0
    assert requests == successes + found[DISCONNECTED]
    assert successes >= number
    print(f"{number} good clients, {number} that left: {requests:.0f} requests, {successes:.0f} answers")


def test_clients_that_leave_cost_the_others_nothing(service: Served, expected: np.ndarray) -> None:
    clients_that_leave(service, expected, 150)


@pytest.mark.slow
def test_ten_thousand_clients_that_leave(folder: Path, expected: np.ndarray) -> None:
    with checked_service(folder, "60") as patient:  # a busy machine must not end a good client
        clients_that_leave(patient, expected, 10_000)


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_idle_connections(service: Served, expected: np.ndarray, number: int) -> None:
    import resource

    number = min(number, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    probe = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(service.connect(probe)) for _ in range(number)]  # a head must arrive in a second
        for connection in idle:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert service.open_sockets() >= number
        answers_as_before(service, expected)
        assert idle[-1].send(probe)
        assert idle[-1].recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "began",
    [
        b"",
        b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n ",
    ],
    ids=["silent", "after an answer", "within a body"],
)
def test_clients_that_hold_connections_leave_room_for_others(folder: Path, expected: np.ndarray, began: bytes) -> None:
    import resource

    with served(str(folder), errors=[]) as running, contextlib.ExitStack() as stack:
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (64, 64))  # type: ignore[attr-defined]
        for _ in range(100):
            connection = stack.enter_context(running.connect())
            with contextlib.suppress(OSError):
                connection.sendall(began)

        def is_healthy() -> bool:  # the connections that were refused must be closed first
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{running.url}/health", timeout=PATIENCE).status_code == 200
            return False

        started = time.monotonic()
        until(is_healthy)
        assert time.monotonic() - started < PATIENCE / 2
        if not began.startswith(b"POST"):
            answers_as_before(running, expected)
        stack.close()
        answers_as_before(running, expected)
        assert running.end(signal.SIGTERM) == 0


# --- signals, and the same bytes --------------------------------------------------------------------------------------


def test_a_service_that_was_killed_starts_again_at_the_same_place(folder: Path, expected: np.ndarray) -> None:
    with served(str(folder)) as running:
        long = request(json.dumps({"inputs": ["word " * 500] * 500}).encode())
        with running.connect(long) as connection:  # it is waiting for its answer
            assert running.end(signal.SIGKILL) == -signal.SIGKILL
            with contextlib.suppress(ConnectionError):
                assert connection.recv(100) == b""
    with served(str(folder), "--port", str(running.port)) as again:
        answers_as_before(again, expected)
        assert again.end(signal.SIGTERM) == 0


def test_what_has_arrived_while_the_service_was_stopped_is_in_time(folder: Path) -> None:
    """A body, and the head of another request; the service was stopped for longer than the time that they get."""
    whole = request(b'{"inputs": "a"}')
    with checked_service(folder, "2") as service, service.connect(whole[:-5]) as first:
        until(lambda: service.numbers()['minibert_request_count_total{route="/embed"}'] == 1)
        with service.connect(whole[:20]) as second:
            service.process.send_signal(signal.SIGSTOP)
            first.sendall(whole[-5:])
            second.sendall(whole[20:])
            time.sleep(2.5)
            service.process.send_signal(signal.SIGCONT)
            for connection in (first, second):
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        first.close()


CLIENTS, BUSY = 50, 10
WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "banks", "raised", "their", "interest", "rates", "中文", "!"]


class Models:
    """An embedder and a ranker in this process, and their folders; `ask` compares a random answer of a service."""

    def __init__(self, embedder: Path, folder: Path) -> None:
        ranker = model_folder(folder / "ranker", "BertForSequenceClassification", num_labels=1, scale=5)
        self.arguments = (str(embedder), str(ranker), "--max-wait", "100000", "--request-timeout", "100000")
        self.embedder, self.ranker = SentenceTransformer(embedder), CrossEncoder(ranker)

    def ask(self, client: httpx.Client, chance: random.Random) -> int:
        """Send a random request to a random route, compare its answer if there is one, and return the status."""
        number = chance.choice((1, 1, 1, 2, 5, 40))
        texts = [" ".join(chance.choices(WORDS, k=chance.choice((0, 1, 5, 30, 90, 300)))) for _ in range(number)]
        kind = chance.choice(("float", "base64", "/embed", "bytes", "/rerank"))
        body: dict[str, Any] = {"input": texts, "inputs": texts}
        path, headers = kind if kind.startswith("/") else "/v1/embeddings", {}
        if kind == "base64":
            body["encoding_format"] = kind
        if kind == "bytes":
            path, headers = "/embed", {"accept": "application/octet-stream"}
        if kind == "/rerank":
            body = {"query": "a cat", "texts": texts, "raw_scores": True}
        answer = client.post(path, json=body, headers=headers)
        if answer.status_code != 200:
            return answer.status_code
        if kind == "/rerank":
            found: Any = [row["score"] for row in sorted(answer.json(), key=lambda row: row["index"])]
            pairs = [("a cat", text) for text in texts]
            expected = self.ranker.predict(pairs, truncation="silent", activation_fn="identity")
        else:
            expected = self.embedder.encode(texts, truncation="silent", normalize_embeddings=path == "/embed")
            if kind == "bytes":
                found = np.frombuffer(answer.content, "<f4").reshape(expected.shape)
            else:
                found = answer.json() if path == "/embed" else [row["embedding"] for row in answer.json()["data"]]
            if kind == "base64":
                found = [np.frombuffer(base64.b64decode(row), "<f4") for row in found]
        np.testing.assert_array_equal(np.float32(found), expected)
        return answer.status_code


@pytest.fixture(scope="module")
def models(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(folder, tmp_path_factory.mktemp("mixed"))


def at_once(
    service: Served, clients: int, work: Callable[[httpx.Client, random.Random], Counter[Any]]
) -> tuple[ThreadPoolExecutor, list[Future[Counter[Any]]]]:
    """Do the work of all clients in threads, each with a connection, and return the pool and the futures."""

    def one(number: int) -> Counter[Any]:
        with service.client() as client:
            return work(client, random.Random(number))

    pool = ThreadPoolExecutor(clients)
    return pool, [pool.submit(one, number) for number in range(clients)]


@pytest.mark.parametrize(("each", "runs"), [(2, [3]), pytest.param(100, [0, 3], marks=pytest.mark.slow)])
def test_clients_get_their_own_answers_also_while_the_service_is_stopped(
    models: Models, each: int, runs: list[int]
) -> None:
    """Each answer has the bytes of `encode` and `predict`, in a process of its own for each run."""
    for stops in runs:
        with served(*models.arguments, errors=[]) as service:
            pool, futures = at_once(service, CLIENTS, lambda *who: Counter(models.ask(*who) for _ in range(each)))
            with pool:
                for _ in range(stops):
                    time.sleep(0.1)
                    service.process.send_signal(signal.SIGSTOP)
                    time.sleep(0.3)
                    service.process.send_signal(signal.SIGCONT)
                assert sum((one.result() for one in futures), Counter()) == {200: CLIENTS * each}
            assert service.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_busy_service_in_order(models: Models, number: signal.Signals) -> None:
    """Each request is answered or refused; a connection may end only between two requests."""
    ready = threading.Barrier(BUSY + 1)

    def work(client: httpx.Client, chance: random.Random) -> Counter[Any]:
        found = Counter[Any]([models.ask(client, chance)])
        ready.wait(PATIENCE)
        while True:
            try:
                found[models.ask(client, chance)] += 1
            except httpx.TransportError as error:
                found["a part" if "complete" in str(error) else "ended"] += 1  # httpx: incomplete, or without complete
                return found

    with served(*models.arguments, "--shutdown-timeout", "20", errors=[]) as service:
        pool, futures = at_once(service, BUSY, work)
        with pool:
            ready.wait(PATIENCE)
            time.sleep(0.5)
            began = time.monotonic()
            assert service.end(number) == 0
            assert time.monotonic() - began < 20
            found = sum((one.result() for one in futures), Counter[Any]())
    assert found.keys() <= {200, 429, 503, "ended"}
    assert found[200] >= BUSY
