"""Locks on files: the message names the process that has the lock, also if it has not yet written its name."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from minibert._utils import locks
from minibert._utils.locks import FileLock

pytest.importorskip("fcntl", reason="a lock of Windows belongs to the process, so one process cannot test two")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A file that is locked. Its text is empty, as just after the lock was taken."""
    lock = FileLock(tmp_path / "lock")
    os.truncate(tmp_path / "lock", 0)
    yield tmp_path / "lock"
    lock.release(delete=True)


def act_while_waiting(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Let the process that has the lock do these things, one each time another process waits."""
    left = iter(actions)
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds
        next(left, lambda: None)()

    monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))


def test_a_refusal_names_the_process_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act_while_waiting(monkeypatch, pytest.fail)
    path.write_text(f"process {os.getpid()} on here")
    with pytest.raises(BlockingIOError, match=f"^process {os.getpid()} on here$"):
        FileLock(path)


def test_a_name_that_is_written_late_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act_while_waiting(monkeypatch, *[lambda: None] * 20, lambda: path.write_text("process 12 on here"))
    with pytest.raises(BlockingIOError, match=r"^process 12 on here$"):
        FileLock(path, waits=True)


def test_the_name_of_the_process_before_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("process 11 on here")  # it was killed
    act_while_waiting(monkeypatch, lambda: None, lambda: path.write_text("process 12 on here"))
    with pytest.raises(BlockingIOError, match=r"^process 12 on here$"):
        FileLock(path, waits=True)


@pytest.mark.parametrize("text", ["", "process", "written by hand"])
def test_a_process_without_a_name_is_another_process(path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path.write_text(text)
    act_while_waiting(monkeypatch)
    with pytest.raises(BlockingIOError, match=r"^another process$"):
        FileLock(path, waits=True)
    assert path.read_text() == text


def test_a_lock_that_becomes_free_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, found = FileLock(tmp_path / "lock"), []
    act_while_waiting(monkeypatch, lambda: first.release(delete=False))
    second = FileLock(tmp_path / "lock", found.append, waits=True)
    assert found == [f"process {os.getpid()} on {socket.gethostname()}"]
    second.release(delete=True)


def test_a_lock_that_is_deleted_meanwhile_must_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = FileLock(tmp_path / "lock")
    act_while_waiting(monkeypatch, lambda: first.release(delete=True))
    with pytest.raises(FileNotFoundError, match="deleted meanwhile"):
        FileLock(tmp_path / "lock", waits=True)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in the way of Linux")
def test_an_interrupt_leaves_no_open_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    act_while_waiting(monkeypatch, interrupt)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        FileLock(path, waits=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_lock_is_free_after_its_end(tmp_path: Path) -> None:
    for _ in range(2):
        lock = FileLock(tmp_path / "lock")
        assert re.fullmatch(rf"process {os.getpid()} on .+", (tmp_path / "lock").read_text())
        lock.release(delete=False)
