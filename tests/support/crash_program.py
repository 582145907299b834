"""Crash runs over a corpus on purpose and resume them; fail if the results differ, print the counts as JSON.

    python -m tests.support.crash_program kill MODEL SCRATCH STEP JOB...
    python -m tests.support.crash_program full MODEL SCRATCH STEP JOB...

"kill": every run is a process that kills itself by SIGKILL just before or after a rename, an fsync or the deletion of a
file, at every STEP-th of these moments. Then it is resumed. "full": the runs write to file systems of 4 KB, of STEP
times 4 KB more, and so on until the output fits. Each file system is then made larger, and the run resumed. The program
mounts them itself, so it must run in a namespace of its own: unshare --map-root-user --mount.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minibert.cli import main

WORDS = "the cat dog man river bank sat on mat with her long fishing hello world".split()  # noqa: SIM905

# The arguments of each job, and the name of its output.
JOBS = {
    "npy": (["embed"], "out.npy"),
    "jsonl": (["embed"], "out.jsonl"),
    "parquet": (["embed"], "out.parquet"),
    "folder": (["embed", "--file-size", "2KB"], "out"),
    "binary": (["extract", "--layers=-1,-2"], "out.npy"),
    "google": (["extract", "--layers=-1", "--format", "google"], "out.jsonl"),
}


def texts_of(count: int, seed: int = 0) -> list[str]:
    """Make short texts, some of them equal, some empty, a few too long."""
    chance = random.Random(seed)
    lengths = [chance.choice((0, 1, 2, 3, 5, 8, 13, 40)) for _ in range(count)]
    return [" ".join(chance.choices(WORDS, k=length)) for length in lengths]


def arguments_of(job: str, model: Path, texts: Path, folder: Path, shard_size: int) -> list[str]:
    """Return the arguments of a job whose output goes to this folder."""
    start, name = JOBS[job]
    options = ["-m", str(model), "--backend", "numpy", "--shard-size", str(shard_size)]
    return [*start, *options, "-i", str(texts), "-o", str(folder / name)]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the name and the bytes of every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def in_a_process(arguments: list[str], prepare: Callable[[], None] = lambda: None) -> tuple[int, str]:
    """Run `minibert` in a process of its own; return its exit code, as subprocess does, and what it printed."""
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        os.close(ours)
        os.dup2(theirs, 2)
        os.dup2(theirs, 1)
        sys.stderr, sys.stdout = open(2, "w", closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        warnings.simplefilter("ignore")
        prepare()
        code = main(arguments)
        sys.stderr.flush()
        os._exit(code)
    os.close(theirs)
    with open(ours, encoding="utf-8") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _killed_at(moment: int) -> Callable[[], None]:
    """Make the process kill itself just before, or after (odd moments), one of the calls that write finally."""
    count = 0

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            for after in (False, True):
                result = call(*arguments, **options) if after else None
                if count == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
            return result

        return counted

    def prepare() -> None:
        os.replace, os.fsync, os.ftruncate = wrap(os.replace), wrap(os.fsync), wrap(os.ftruncate)
        Path.unlink = wrap(Path.unlink)  # type: ignore[method-assign]

    return prepare


def kill_at_every_moment(model: Path, scratch: Path, job: str, step: int) -> dict[str, Any]:
    """Crash one job at every step-th moment and resume it; each time the same files must be left, and no others."""
    texts = scratch / "texts.txt"
    for count, name in ((7, "older"), (50, "whole")):
        texts.write_text("".join(f"{text}\n" for text in texts_of(count)), encoding="utf-8")
        (scratch / f"{job}-{name}").mkdir()
        assert in_a_process(arguments_of(job, model, texts, scratch / f"{job}-{name}", 20))[0] == 0
    older, expected = contents(scratch / f"{job}-older"), contents(scratch / f"{job}-whole")
    if job == "folder":  # it must be empty
        older = {}
    moment, killed, unfinished = 0, 0, 0
    while True:
        folder = scratch / f"{job}-{moment}"
        folder.mkdir()
        # An older output, of other texts, exists; a file of it must never be half replaced.
        for name, content in older.items():
            (folder / name).write_bytes(content)
        arguments = arguments_of(job, model, texts, folder, 20)
        status, said = in_a_process(arguments, _killed_at(moment))
        if status == 0:
            break
        assert status == -signal.SIGKILL, (status, said)
        for name, content in contents(folder).items():
            assert ".parts/" in name or content in (older.get(name), expected.get(name)), (moment, name)
        manifest = next(folder.glob("*.parts/manifest.json"), None)
        unfinished += manifest is not None
        # A run that had not begun cannot be resumed, and the older output is of another run.
        ended = contents(folder) == expected or (folder / JOBS["folder"][1]).exists()
        resume = ["--resume"] if manifest or ended else []
        status, said = in_a_process([*arguments, *resume])
        assert status == 0, (moment, said)
        assert contents(folder) == expected, (moment, [*contents(folder)])
        assert not [*folder.glob("*.parts")], moment
        moment += step
        killed += 1
    return {"moments": killed, "resumed": unfinished}


def fill_at_every_size(model: Path, scratch: Path, job: str, step: int) -> dict[str, Any]:
    """Run one job on growing file systems until it fits; check the errors, that no final file exists, and resume it."""
    texts, whole, mounted = scratch / "texts.txt", scratch / f"{job}-whole", scratch / "mounted"
    texts.write_text("".join(f"{text}\n" for text in texts_of(300)), encoding="utf-8")
    for folder in (whole, mounted):
        folder.mkdir(exist_ok=True)
    assert in_a_process(arguments_of(job, model, texts, whole, 100))[0] == 0
    # The manifest does not name the output's folder, so the files are the same in both folders.
    expected, full, unfinished, files, pages = contents(whole), 0, 0, set(), 1
    while True:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4096 * pages}", "none", mounted], check=True)
        arguments = arguments_of(job, model, texts, mounted, 100)
        status, said = in_a_process(arguments)
        if status == 1:
            full += 1
            assert "No space left on device" in said, said
            assert "Traceback" not in said, said
            named = re.search(r"(\S+) cannot be (written|made): ", said)
            assert named, said
            files.add(Path(named[1]).name)
            for name, content in contents(mounted).items():
                assert ".parts/" in name or (job == "folder" and content == expected[name]), said
            manifest = next(mounted.glob("*.parts/manifest.json"), None)
            assert ("continue with --resume" in said) == (manifest is not None), said
            unfinished += manifest is not None
            subprocess.run(["mount", "-o", "remount,size=100m", mounted], check=True)
            assert in_a_process([*arguments, "--resume"])[0] == 0
        assert contents(mounted) == expected, pages
        subprocess.run(["umount", mounted], check=True)
        if status == 0:
            return {"sizes": full, "resumed": unfinished, "files": sorted(files)}
        pages += max(step, pages // 8)


if __name__ == "__main__":
    mode, model, scratch, step, *jobs = sys.argv[1:]
    # Imported once, and not in each of the processes. pyarrow imports pandas if there is one.
    import tokenizers  # noqa: F401

    import minibert.corpus.embed
    import minibert.corpus.extract  # noqa: F401

    for package in ("pyarrow.parquet", "pandas"):
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    run = {"kill": kill_at_every_moment, "full": fill_at_every_size}[mode]
    print(json.dumps({job: run(Path(model), Path(scratch), job, int(step)) for job in jobs}))
