"""Locks on files: the message names the process that has the lock, also if it has not yet written its name."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from minibert.base import locks
from minibert.base.locks import FileLock

pytest.importorskip("fcntl", reason="a lock of Windows belongs to the process, so one process cannot test two")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A file that is locked. Its text is empty, as just after the lock was taken."""
    lock = FileLock(tmp_path / "lock")
    os.truncate(tmp_path / "lock", 0)
    yield tmp_path / "lock"
    lock.release(delete=True)


def write_while_waiting(monkeypatch: pytest.MonkeyPatch, path: Path, texts: list[str]) -> None:
    """Let the process that has the lock write these texts, one each time another one waits for its name."""
    left = iter(texts)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: path.write_text(next(left)))
    monkeypatch.setattr(locks, "time", clock)


def test_the_message_names_the_process(path: Path) -> None:
    path.write_text(f"process {os.getpid()} on here")
    with pytest.raises(BlockingIOError, match=f"^process {os.getpid()} on here$"):
        FileLock(path)


def test_a_name_that_is_written_late_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_while_waiting(monkeypatch, path, ["", "", "process 12 on here"])
    with pytest.raises(BlockingIOError, match=r"^process 12 on here$"):
        FileLock(path)


def test_the_name_of_the_process_before_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("process 11 on here")  # it was killed
    write_while_waiting(monkeypatch, path, ["process 12 on here"])
    with pytest.raises(BlockingIOError, match=r"^process 12 on here$"):
        FileLock(path)


@pytest.mark.parametrize("text", ["", "process", "written by hand"])
def test_a_process_without_a_name_is_another_process(path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path.write_text(text)
    monkeypatch.setattr(locks, "_WHILE_SECONDS", 0.1)
    with pytest.raises(BlockingIOError, match=r"^another process$"):
        FileLock(path)
    assert path.read_text() == text


def test_the_lock_is_free_after_its_end(tmp_path: Path) -> None:
    for _ in range(2):
        lock = FileLock(tmp_path / "lock")
        assert re.fullmatch(rf"process {os.getpid()} on .+", (tmp_path / "lock").read_text())
        lock.release(delete=False)
