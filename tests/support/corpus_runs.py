"""Runs over a corpus in a process of their own: complete, killed, or stopped after some shards."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minibert.corpus.journal import Journal
from minibert.corpus.readers import Source
from minibert.corpus.run_folder import folder_of
from tests.support.crash_program import JOBS
from tests.support.outcomes import PATIENCE

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-W", "ignore", "-m", "minibert"]


def text_file(path: Path, texts: list[str]) -> Source:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return Source(str(path), "text", "text", None, path.name)


def output_of(job: str, folder: Path) -> Path:
    return folder / JOBS[job][1]


def shards_done(output: Path) -> int:
    journal = folder_of(output) / "shards.jsonl"
    return journal.read_bytes().count(b'"shard": ') if journal.exists() else 0


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT
    )


def start(arguments: list[str], program: list[str] = PROGRAM) -> subprocess.Popen[str]:
    return subprocess.Popen([*program, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


# The command line with a run that never ends by itself, so that a test can stop it at any time.
ENDLESS = """
import sys, time
from minibert.cli import main
from minibert.corpus.shards import Shards
Shards.finish = lambda *_: time.sleep(1e6)
sys.exit(main(sys.argv[1:]))
"""


def start_endless(arguments: list[str]) -> subprocess.Popen[str]:
    return start(arguments, [sys.executable, "-W", "ignore", "-c", ENDLESS])


def wait_for(happened: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)


def crash(mode: str, folder: Path, scratch: Path, step: int, job: str, *before: str) -> dict[str, Any]:
    command = [
        *before,
        sys.executable,
        "-m",
        "tests.support.crash_program",
        mode,
        str(folder),
        str(scratch),
        str(step),
        job,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    counted: dict[str, Any] = json.loads(done.stdout)[job]
    return counted


class StoppedError(Exception):
    pass


def stop_after(shards: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    commit = Journal.commit

    def commit_or_stop(self: Journal, counts: Any) -> None:
        if self.n_shards == shards:
            raise error
        commit(self, counts)

    monkeypatch.setattr(Journal, "commit", commit_or_stop)
