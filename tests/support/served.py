"""The service in a process of its own, as `minibert serve` starts it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.support.outcomes import PATIENCE, ROOT

__all__ = ["Served", "message_of", "numbers", "request", "served", "until"]


def until(condition: Callable[[], Any]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def request(body: bytes, path: str = "/embed", headers: str = "") -> bytes:
    """Return the bytes of a request."""
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def numbers(client: httpx.Client) -> dict[str, float]:
    """Return what /metrics says."""
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def message_of(response: Any) -> str:
    """Return the message of an error of any protocol."""
    error = response.json()["error"]
    return str(error["message"] if isinstance(error, dict) else error)


class Served:
    """A running service: `url`, `process`, and `end` for a signal and the exit code."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.port = int(url.rpartition(":")[2])

    def end(self, number: int) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def client(self) -> httpx.Client:
        """Return a client."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE)

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection, and send bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        connection.sendall(sent)
        return connection

    def numbers(self) -> dict[str, float]:
        """Return what /metrics says."""
        with self.client() as client:
            return numbers(client)

    def open_files(self) -> int:
        """Count the open files of the process."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def open_sockets(self) -> int:
        """Count its open sockets: the one that listens, the loop's two, and connections."""
        sockets = 0
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets += link.readlink().name.startswith("socket:")
        return sockets


@contextlib.contextmanager
def served(
    *arguments: str, program: str = "-m minibert serve", until: str = "serving ", errors: Any = None, **environment: str
) -> Iterator[Served]:
    """Start ``minibert serve`` (or another program with its arguments) and wait until it answers.

    Parameters
    ----------
    *arguments : str
    program : str
    until : str
        What the line with the address says.
    errors : list, optional
        Gets the lines of the standard error, which are then read to the end.
    **environment : str
        Variables.
    """
    command = [sys.executable, *program.split(), *arguments]
    if "--port" not in arguments and program.endswith(" serve"):
        command += ["--port", "0"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, **options) as process:
        try:
            assert process.stderr is not None
            lines = []
            while until not in (line := process.stderr.readline()):
                assert line, f"the service has ended: {lines}"
                lines.append(line)
            if errors is not None:
                threading.Thread(target=errors.extend, args=[process.stderr], daemon=True).start()
            yield Served(process, line.split()[-1])
        finally:
            process.kill()
