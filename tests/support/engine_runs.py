"""`minibert embed --on ray:local` in a process of its own, which is killed, or its workers; and programs of a page."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.support.corpus_runs import PROGRAM, shards_done, wait_for
from tests.support.outcomes import PATIENCE, ROOT, python
from tests.support.text_data import udhr_lines

_MARK = "MINIBERT_TEST_ENGINE_RUN"  # a variable that tells the processes of one run from all others


def short_texts(count: int, characters: int = 40) -> list[str]:
    """Return different short texts, made from the real ones: a number, and the beginning of a line of udhr.tsv."""
    lines = [" ".join(text.split()) for text in udhr_lines()]
    return [f"{index} {lines[index % len(lines)]}"[:characters].strip() for index in range(count)]


class RayRun:
    """One `minibert embed`; `arguments` as on the command line."""

    def __init__(self, arguments: list[str]) -> None:
        self._mark = uuid.uuid4().hex
        environment = {**os.environ, _MARK: self._mark, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": ""}
        self.process = subprocess.Popen(
            [*PROGRAM, "embed", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def pids(self, name: str = "") -> list[int]:
        """Return the processes of this run whose command line begins with this."""
        processes = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                mine = f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes()
                if mine and (folder / "cmdline").read_bytes().decode(errors="replace").startswith(name):
                    processes.append(int(folder.name))
            except OSError:  # it has ended, or is not ours
                continue
        return processes

    def kill_workers(self, output: Path, times: int, chance: random.Random, shards_between: int) -> int:
        """Kill a worker at random moments, each some shards after the one before; return how often that was done."""
        killed = 0
        while killed < times and self.process.poll() is None:
            wait_for(lambda wanted=killed * shards_between: shards_done(output) >= wanted, self.process)
            time.sleep(chance.random())
            if workers := self.pids("ray::_Worker"):
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed += 1
        return killed

    def kill_driver(self, output: Path, after: int, chance: random.Random) -> None:
        """Kill the driver a moment after this number of shards; return when all processes of the run have ended."""
        wait_for(lambda: shards_done(output) >= after, self.process)
        time.sleep(chance.random())
        self.process.kill()
        self.end()
        deadline = time.monotonic() + PATIENCE
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not self.pids(), "Ray outlives its driver"

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was said."""
        said, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


def run_program(code: str, folder: Path) -> str:
    """Run a program, and return what it prints, without the lines of Ray's own processes."""
    path = folder / "program.py"
    path.write_text(code, encoding="utf-8")
    done = python("-W", "ignore", str(path), folder=folder, PYSPARK_PYTHON=sys.executable, RAY_ADDRESS="")
    assert done.returncode == 0, done.stderr[-4000:]
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not re.search(r"\((raylet|pid=)", line))


def python_blocks(page: str) -> Callable[[str], tuple[str, str]]:
    """Return a function: a heading of a page -> the first Python block below it, and the output that is shown."""

    def block(heading: str) -> tuple[str, str]:
        below = page.partition(f"\n## {heading}\n")[2]
        code = re.search(r"^```python\n(.*?)^```$\n\n```text\n(.*?)^```$", below, re.MULTILINE | re.DOTALL)
        assert code is not None, heading
        return code[1], code[2]

    return block
