"""A program that runs `minibert` with closed standard streams: it imports once and forks a child for each command.

A request is a line of JSON on the standard input: {"arguments": [...], "closed": [descriptors], "noisy": bool}. The
answer is a line of JSON: {"code": ..., "stdout": ..., "stderr": ...}. A child begins as Python does when a shell has
closed streams: the descriptors are free, so that the next file that is opened gets them, and sys has None for them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from minibert.cli import main
from tests.support.outcomes import PATIENCE, ROOT

DESCRIPTORS = {"<&-": 0, ">&-": 1, "2>&-": 2}
"""What a shell writes to close a stream, and the stream's descriptor."""

_NAMES = ("stdin", "stdout", "stderr")
# Most verbs import these when they run.
_IMPORTED = ("numpy", "minibert.corpus.embed", "minibert.models.heads", "minibert.sentence", "minibert.tasks")


# --- in the test's process --------------------------------------------------------------------------------------------


class ClosedStreams:
    """Runs commands in children of one process, with some of their standard streams closed."""

    def __init__(self) -> None:
        variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a thread would not be there after a fork
        command = [sys.executable, "-m", "tests.support.closed_streams"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=variables, cwd=ROOT, **pipes)

    def run(self, arguments: list[str], closed: str = "", *, noisy: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command; `closed` as in a shell, such as ">&- 2>&-". `noisy`: write into 1 and 2 at each fsync."""
        request = {"arguments": arguments, "closed": [DESCRIPTORS[one] for one in closed.split()], "noisy": noisy}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        answer = json.loads(self._process.stdout.readline())
        timer.cancel()
        return subprocess.CompletedProcess(arguments, answer["code"], answer["stdout"], answer["stderr"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=PATIENCE)


# --- in the program ---------------------------------------------------------------------------------------------------


def _serve() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_answer(**json.loads(line))), flush=True)


def _answer(arguments: list[str], closed: list[int], noisy: bool) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _be_the_child(arguments, closed, noisy, (out.fileno(), err.fileno()))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed = {}
        for name, file in (("stdout", out), ("stderr", err)):
            file.seek(0)
            printed[name] = file.read().decode(errors="replace")
    return {"code": code, **printed}


def _be_the_child(arguments: list[str], closed: list[int], noisy: bool, files: tuple[int, int]) -> None:
    code = 99
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, target in enumerate((nothing, *files)):
            stream = None
            if descriptor in closed:
                os.close(descriptor)
            else:
                os.dup2(target, descriptor)
                stream = open(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, _NAMES[descriptor], stream)
        if noisy:
            os.replace, os.fsync = _noisy(os.replace), _noisy(os.fsync)
        try:
            code = main(arguments)
        except SystemExit as exit_:  # argparse
            code = exit_.code if isinstance(exit_.code, int) else 1
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit(code)


def _noisy(call: Callable[..., Any]) -> Callable[..., Any]:
    """Write into descriptors 1 and 2 before each call, as a library in C or Rust would print."""

    def printing(*given: Any) -> Any:
        os.write(1, b"noise")
        os.write(2, b"noise")
        return call(*given)

    return printing


if __name__ == "__main__":
    _serve()
