"""Runs over a corpus: made, stopped, and killed in processes of their own.

    python -m tests.support.corpus_runs MODEL SCRATCH STEP JOB

kills a run at every STEP-th of its renames, fsyncs and deletions, just before or after it, and resumes it each time.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet
import pytest

from minibert.cli import main
from minibert.corpus.run_folder import RunFolder, folder_of
from minibert.corpus.sources import Source
from tests.support.outcomes import PATIENCE, ROOT, python

PROGRAM = [sys.executable, "-W", "ignore", "-m", "minibert"]
WORDS = "the cat dog man river bank sat on mat with her long fishing hello world".split()  # noqa: SIM905

# The arguments of each job, and the name of its output.
JOBS = {
    "npy": (["embed"], "out.npy"),
    "jsonl": (["embed"], "out.jsonl"),
    "parquet": (["embed"], "out.parquet"),
    "folder": (["embed"], "out/"),
    "binary": (["extract", "--layers=-1,-2"], "out.npy"),
    "google": (["extract", "--layers=-1", "--format", "google"], "out.jsonl"),
    "words": (["extract", "--layers=-1"], "words.parquet"),
    "csv": (["extract", "--layers=-1"], "words.csv"),
}
UPDATES = {f"update {name}": name for name in ("npy", "jsonl", "parquet", "folder")}
"""Jobs that update an output of other texts."""


def texts_of(count: int, seed: int = 0) -> list[str]:
    """Make short texts, some of them equal, some empty, a few too long."""
    chance = random.Random(seed)
    lengths = [chance.choice((0, 1, 2, 3, 5, 8, 13, 40)) for _ in range(count)]
    return [" ".join(chance.choices(WORDS, k=length)) for length in lengths]


def text_file(path: Path, texts: list[str]) -> Source:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return Source(str(path), "text", "text", None, path.name)


def arguments_of(job: str, model: Path, texts: Path, folder: Path, shard_size: int) -> list[str]:
    """Return the arguments of a job whose output goes to this folder, which is made."""
    folder.mkdir(exist_ok=True)
    start, name = JOBS[UPDATES.get(job, job)]
    backend = "kernels" if job in UPDATES else "numpy"
    options = ["-m", str(model), "--backend", backend, "--shard-size", str(shard_size)]
    options += ["--update"] if job in UPDATES else []
    return [*start, *options, "-i", str(texts), "-o", f"{folder}/{name}"]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the name and the bytes of every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def output_of(job: str, folder: Path) -> Path:
    return folder / JOBS[UPDATES.get(job, job)][1]


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def manifest_of(output: Path | str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{output}.manifest.json").read_text(encoding="utf-8"))
    return found


def rows_of(output: Path | str) -> tuple[list[Any], list[Any]]:
    """Return the ids of an output of `minibert embed`, and the vectors of each row; None for a row without one."""
    path = Path(output)
    if path.suffix == ".npy":
        rows, array = lines_of(path.with_suffix(".ids.jsonl")), np.load(path)
        if any("vectors" in row for row in rows):
            array = np.split(array, np.cumsum([row["vectors"] for row in rows])[:-1])
        return [row["id"] for row in rows], [one if one.size and not np.isnan(one).all() else None for one in array]
    rows = lines_of(path) if path.suffix == ".jsonl" else pyarrow.parquet.read_table(path).to_pylist()
    return [row["id"] for row in rows], [row["embedding"] for row in rows]


def shards_done(output: Path) -> int:
    return len([*folder_of(output).glob("shard-*.json")])


# --- stopped ----------------------------------------------------------------------------------------------------------


class StoppedError(Exception):
    pass


@contextlib.contextmanager
def stopped_after(shards: int, error: Exception | None = None) -> Iterator[None]:
    """Let a run end by an error when this number of shards is saved, or, if there are no more, before they are joined.

    Without `error` it is a StoppedError, which the block must raise.
    """
    save, done = RunFolder.save, 0

    def save_or_stop(self: RunFolder, *arguments: Any) -> Any:
        nonlocal done
        if done == shards:
            raise error or StoppedError
        done += 1
        return save(self, *arguments)

    def stop(self: RunFolder, *_: Any) -> None:
        raise error or StoppedError

    raised = contextlib.nullcontext() if error else pytest.raises(StoppedError)
    with mock.patch.multiple(RunFolder, save=save_or_stop, finish=stop), raised:
        yield


# --- processes --------------------------------------------------------------------------------------------------------


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return python(*PROGRAM[1:], *arguments)


def start(arguments: list[str], program: list[str] = PROGRAM) -> subprocess.Popen[str]:
    return subprocess.Popen([*program, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


# The command line with a run that never ends by itself, so that a test can stop it at any time.
ENDLESS = """
import sys, time
from minibert.cli import main
from minibert.corpus.run_folder import RunFolder
def endless(*_):
    while True:  # short, because a signal just before a sleep does not end it
        time.sleep(0.01)
RunFolder.finish = endless
sys.exit(main(sys.argv[1:]))
"""


def start_endless(arguments: list[str]) -> subprocess.Popen[str]:
    return start(arguments, [sys.executable, "-W", "ignore", "-c", ENDLESS])


def wait_for(happened: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)


# --- killed at a given moment -----------------------------------------------------------------------------------------


def _in_a_process(arguments: list[str], moment: int = -1) -> int:
    """Run `minibert` in a process of its own, which kills itself at this moment; return its exit code."""
    if (child := os.fork()) == 0:
        warnings.simplefilter("ignore")
        count = 0

        def killing(call: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                for after in (False, True):
                    result = call(*arguments, **options) if after else None
                    if count == moment:
                        os.kill(os.getpid(), signal.SIGKILL)
                    count += 1
                return result

            return counted

        os.replace, os.fsync, os.unlink = killing(os.replace), killing(os.fsync), killing(os.unlink)
        os._exit(main(arguments))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_every_moment(model: Path, scratch: Path, step: int, job: str) -> int:
    """Kill one job at every step-th moment and resume it; each time the same files must be left, and no others."""
    texts = scratch / "texts.txt"
    for count, name in ((7, "older"), (50, "whole")):
        text_file(texts, texts_of(count))
        assert _in_a_process(arguments_of(job, model, texts, scratch / name, 20)) == 0
    older, expected = contents(scratch / "older"), contents(scratch / "whole")
    if job == "folder":  # it must be empty
        older = {}
    for moment in range(0, 10**6, step):
        folder = scratch / str(moment)
        arguments = arguments_of(job, model, texts, folder, 20)
        # An older output, of other texts, exists; a file of it must never be half replaced.
        for name, content in older.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        status = _in_a_process(arguments, moment)
        if status == 0:
            return moment // step
        assert status == -signal.SIGKILL, status
        now, output = contents(folder), JOBS[UPDATES.get(job, job)][1]
        if job in UPDATES:  # it is always there, as a whole: the old one or the new one
            assert part_of(now, output) in (part_of(older, output), part_of(expected, output)), moment
        for name, content in now.items():
            assert ".parts/" in name or content in (older.get(name), expected.get(name)), (moment, name)
        final = {name: content for name, content in contents(folder).items() if ".parts/" not in name}
        # A run that had not begun cannot be resumed, and the older output is of another run.
        begun = final == expected or [*folder.glob("*.parts/manifest.json")]
        resume = ["--resume"] if begun and job not in UPDATES else []
        assert _in_a_process([*arguments, *resume]) == 0, moment
        assert contents(folder) == expected, (moment, [*contents(folder)])
        assert not [*folder.glob("*.parts")], moment
    raise AssertionError("the run does not end")


def part_of(files: dict[str, bytes], output: str) -> dict[str, bytes]:
    """Return the output alone, a file or the files of a folder."""
    return {name: files[name] for name in files if name == output or (output.endswith("/") and name.startswith(output))}


if __name__ == "__main__":
    import minibert.corpus.embed  # imported once, and not in each of the processes
    import minibert.corpus.extract  # noqa: F401

    print(kill_at_every_moment(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
