"""Locks on files, which filelock keeps."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from minibert._utils.files import FileLock


def test_one_process_has_the_lock_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for delete in (True, False, True):
        lock = FileLock(path)
        for seconds in (0.0, 0.05):
            with pytest.raises(BlockingIOError, match="another process"):
                FileLock(path, seconds=seconds)
        lock.release(delete=delete)
        assert path.exists() != delete


def test_a_file_system_without_locks_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*arguments: Any, **options: Any) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    number = errno.ENOLCK
    with pytest.warns(UserWarning, match="does not support locks"):
        lock = FileLock(tmp_path / "lock")
    lock.release(delete=True)
    number = errno.EIO
    with pytest.raises(OSError, match="no locks"):
        FileLock(tmp_path / "lock")
