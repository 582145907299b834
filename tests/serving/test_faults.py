"""Clients and machines that misbehave: nothing is lost, nothing is doubled, nothing stays open; counts at the end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from minibert import SentenceTransformer
from tests.support.checkpoints import sentence_model
from tests.support.outcomes import PATIENCE, ROOT
from tests.support.served import Served, served

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what is open in /proc")

TEXTS = [f"text number {i} " * (1 + i % 12) for i in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("faults") / "small")


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    return SentenceTransformer(folder).encode(TEXTS, normalize_embeddings=True)


@contextlib.contextmanager
def checked_service(folder: Path, seconds: str) -> Iterator[Served]:
    """A service that must end with 0 and have nothing left in its queue; `seconds` is the time that clients get."""
    limits = ("--body-timeout", seconds, "--send-timeout", seconds)
    with served(str(folder), "--json-logs", *limits, errors=[]) as running:
        before = open_files(running)
        yield running
        until(lambda: numbers(running)["minibert_queue_tokens"] == numbers(running)["minibert_inflight_bytes"] == 0)
        until(lambda: open_files(running) <= before + 1)  # + 1: the connection that just asked
        assert running.end(signal.SIGTERM) == 0


@pytest.fixture
def service(folder: Path) -> Iterator[Served]:
    with checked_service(folder, "1") as running:
        yield running


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def numbers(service: Served) -> dict[str, float]:
    lines = [line for line in httpx.get(f"{service.url}/metrics").text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def open_files(service: Served) -> int:
    return len(os.listdir(f"/proc/{service.process.pid}/fd"))


def request(body: bytes, path: str = "/embed") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def connect(service: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), PATIENCE)


def embed(client: httpx.Client, rows: list[int]) -> np.ndarray:
    answer = client.post("/embed", json={"inputs": [TEXTS[i] for i in rows]})
    assert answer.status_code == 200
    return np.array(answer.json(), dtype=np.float32)


def answers_as_before(service: Served, expected: np.ndarray) -> None:
    with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
        np.testing.assert_array_equal(embed(client, [0, 3, 9]), expected[[0, 3, 9]])


def test_a_head_that_does_not_arrive_ends_its_connection(service: Served, expected: np.ndarray) -> None:
    """Before the first request, and after an answer on the same connection."""
    with connect(service) as silent, connect(service) as slow, connect(service) as second:
        slow.sendall(b"POST /embed HT")
        second.sendall(request(b'{"inputs": "a"}'))
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


def test_a_head_that_is_too_large_is_431(service: Served, expected: np.ndarray) -> None:
    with connect(service) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\n" + b"a: " + b"b" * 70_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
    with connect(service) as connection:  # a large body after a small head is not a large head
        connection.sendall(request(json.dumps({"inputs": ["a" * 200_000]}).encode()))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    answers_as_before(service, expected)


def test_a_client_that_stops_reading_is_disconnected(service: Served, expected: np.ndarray) -> None:
    """As with SIGSTOP: its connection is open and takes nothing. Its answer is larger than all buffers between."""
    body = json.dumps({"inputs": [f"{i} " + "word " * 500 for i in range(60)]})
    stopped = []
    for _ in range(3):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", service.port))
        connection.sendall(request(body.encode(), "/embed_all"))
        stopped.append(connection)
    answers_as_before(service, expected)
    until(lambda: numbers(service)["minibert_inflight_bytes"] == 0)
    whole_answers = 0
    for connection in stopped:
        whole = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(2**20):
                whole += part
        connection.close()
        whole_answers += whole.endswith(b"]]]")
    assert whole_answers == 0


def test_a_client_that_closes_its_side_has_left(service: Served, expected: np.ndarray) -> None:
    body = json.dumps({"inputs": [f"{i} " + "word " * 500 for i in range(2000)]}).encode()
    for sent in (request(body)[:-1], request(body[:-2] + b', "a"]}')):
        with connect(service) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
    until(lambda: numbers(service)["minibert_request_disconnected_total"] == 2)
    answers_as_before(service, expected)


def test_bytes_that_are_not_http(service: Served, expected: np.ndarray) -> None:
    for sent in (b"\0" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00" * 20, b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"x" * 99):
        with connect(service) as connection:
            connection.sendall(sent)
            assert connection.recv(100)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405")
    answers_as_before(service, expected)


def leave(service: Served, seed: int) -> None:
    """Send a part of a request, or a whole one, and close the connection, at times with a reset."""
    chance = random.Random(seed)
    whole = request(json.dumps({"inputs": [f"{seed} {i} " * 40 for i in range(chance.choice((1, 30, 300)))]}).encode())
    with connect(service) as connection:
        connection.sendall(whole[: chance.choice((5, len(whole) // 2, len(whole) - 1, len(whole), len(whole)))])
        if chance.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if chance.random() < 0.2:
            time.sleep(chance.random() / 20)


def clients_that_leave(service: Served, expected: np.ndarray, number: int) -> None:
    """Good clients and others at once: each good one gets its own vectors, once."""
    wanted = [[i % 60, (7 * i) % 60] for i in range(number)]

    def good(part: list[list[int]]) -> None:
        with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
            for rows in part:
                np.testing.assert_array_equal(embed(client, rows), expected[rows])

    with ThreadPoolExecutor(16) as pool:
        kept = [pool.submit(good, wanted[i::4]) for i in range(4)]
        for _ in pool.map(lambda seed: leave(service, seed), range(number)):
            pass
        for one in kept:
            one.result()
    until(lambda: numbers(service)["minibert_queue_tokens"] == 0)
    found = numbers(service)
    requests = found['minibert_request_count_total{route="/embed"}']
    successes = found.get('minibert_request_success_total{route="/embed"}', 0)
    failures = sum(count for name, count in found.items() if name.startswith("minibert_request_failure_total{"))
    assert requests == successes + failures + found["minibert_request_disconnected_total"]
    assert successes >= number
    assert failures == 0
    print(f"{number} good clients, {number} that left: {requests:.0f} requests, {successes:.0f} answers")


def test_clients_that_leave_cost_the_others_nothing(service: Served, expected: np.ndarray) -> None:
    clients_that_leave(service, expected, 150)


@pytest.mark.slow
def test_ten_thousand_clients_that_leave(folder: Path, expected: np.ndarray) -> None:
    with checked_service(folder, "60") as patient:  # a busy machine must not end a good client
        clients_that_leave(patient, expected, 10_000)


def many_connections(service: Served, expected: np.ndarray, number: int) -> None:
    before = open_files(service)
    with contextlib.ExitStack() as stack:
        idle = []
        for _ in range(number):
            connection = stack.enter_context(connect(service))
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")  # at once: a head must arrive within a second
            idle.append(connection)
        for connection in idle:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert open_files(service) >= before + number
        answers_as_before(service, expected)
        assert idle[-1].send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle[-1].recv(1000).startswith(b"HTTP/1.1 200 ")


def test_idle_connections(service: Served, expected: np.ndarray) -> None:
    many_connections(service, expected, 300)


@pytest.mark.slow
def test_ten_thousand_idle_connections(service: Served, expected: np.ndarray) -> None:
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200
    number = min(10_000, most)
    print(f"{number} connections of 10000; this machine allows {most}")
    many_connections(service, expected, number)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_a_process_that_may_not_open_more_files_goes_on_afterwards(folder: Path, expected: np.ndarray) -> None:
    import resource

    with served(str(folder), errors=[]) as running:
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        answers_as_before(running, expected)
        connections = [connect(running) for _ in range(150)]  # the system accepts them for the process
        assert running.process.poll() is None
        for connection in connections:
            connection.close()
        answers_as_before(running, expected)
        assert running.end(signal.SIGTERM) == 0


def test_a_service_that_was_killed_starts_again_at_the_same_place(
    folder: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    path = str(tmp_path / "socket")
    transport = httpx.HTTPTransport(uds=path)
    with httpx.Client(transport=transport, base_url="http://x", timeout=PATIENCE) as client:
        for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
            with served(str(folder), "--uds", path) as running:
                np.testing.assert_array_equal(embed(client, [1, 2]), expected[[1, 2]])
                assert running.end(number) == (0 if number == signal.SIGTERM else -number)
    with served(str(folder)) as running:
        port, long = running.port, json.dumps({"inputs": ["word " * 500] * 500}).encode()
        with connect(running) as connection:  # it is waiting for its answer
            connection.sendall(request(long))
            assert running.end(signal.SIGKILL) == -signal.SIGKILL
            with contextlib.suppress(ConnectionError):
                assert connection.recv(100) == b""
    command = [sys.executable, "-m", "minibert", "serve", str(folder), "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: is_ready(port))
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
                np.testing.assert_array_equal(embed(client, [1, 2]), expected[[1, 2]])
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_service_that_is_stopped_for_a_while_answers_all(service: Served, expected: np.ndarray) -> None:
    def good(i: int) -> None:
        with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
            for _ in range(5):
                np.testing.assert_array_equal(embed(client, [i, i + 1]), expected[[i, i + 1]])

    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(good, i) for i in range(8)]
        for _ in range(3):
            service.process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            service.process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        for one in waiting:
            one.result()
    found = numbers(service)
    assert found['minibert_request_success_total{route="/embed"}'] == 40
    assert found["minibert_request_disconnected_total"] == 0


def test_what_has_arrived_while_the_service_was_stopped_is_in_time(folder: Path) -> None:
    """A body, and the head of another request; the service was stopped for longer than the time that they get."""
    whole = request(b'{"inputs": "a"}')
    with checked_service(folder, "2") as service, connect(service) as first:
        first.sendall(whole[:-5])
        until(lambda: numbers(service)['minibert_request_count_total{route="/embed"}'] == 1)
        with connect(service) as second:
            second.sendall(whole[:20])
            service.process.send_signal(signal.SIGSTOP)
            first.sendall(whole[-5:])
            second.sendall(whole[20:])
            time.sleep(2.5)
            service.process.send_signal(signal.SIGCONT)
            for connection in (first, second):
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        first.close()


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

    with ThreadPoolExecutor(30) as pool, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(service)) for _ in range(30)]
        for connection in slow:
            connection.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        dripping = [pool.submit(drip, connection) for connection in slow]
        answers_as_before(service, expected)
        until(lambda: numbers(service).get('minibert_request_failure_total{err="slow",route="/embed"}', 0) == 30)
        stop.set()
        assert {one.result()[:12] for one in dripping} <= {b"HTTP/1.1 408", b""}
