"""The service in a process of its own, as `minibert serve` starts it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tests.support.outcomes import PATIENCE, ROOT

__all__ = ["Served", "served"]


class Served:
    """A running service: `url`, `process`, and `end` for a signal and the exit code."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.port = int(url.rpartition(":")[2]) if url.startswith("http") else 0

    def end(self, number: int) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


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
    if "--uds" not in arguments and program.endswith(" serve"):
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
