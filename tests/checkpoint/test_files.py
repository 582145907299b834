"""Reading JSON files, and locks on files."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import pytest

from minibert._utils.files import FileLock, read_json, read_json_object
from minibert.errors import ModelFormatError
from tests.support.fake_hub import write

# --- JSON ---


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": [1, 2.5, null, true, "x"]}', {"a": [1, 2.5, None, True, "x"]}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ('{"日": "é"}'.encode(), {"日": "é"}),
        (b'{"model_max_length": 1000000000000000019884624838656}', {"model_max_length": int(1e30)}),
    ],
)
def test_json_is_read(tmp_path: Path, content: bytes, expected: Any) -> None:
    write(tmp_path, {"x.json": content})
    assert read_json(tmp_path / "x.json") == expected


@pytest.mark.parametrize(
    ("content", "found"),
    [
        *((content, "empty") for content in (b"", b"  \n ")),
        (b'{"a": 1,\n "b": }', "line 2, column 7"),
        (b"<!DOCTYPE html><html>", "line 1, column 1"),
        (b'{"a": "\xff"}', "UTF-8.* byte 7"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        *((content, "not valid JSON") for content in (b'{"a": "x\0"}', b"\0" * 100, b'{"a": ' + b"9" * 5000 + b"}")),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1e999}', "1e999"),
        *((content, "'a'") for content in (b'{"a": 1, "a": 2}', b'[{"x": {"a": 1, "b": 1, "a": 1}}]')),
        *((content * 100_000, "nested") for content in (b"[", b'{"a":')),
        (b" " * (16 * 2**20 + 1), "16777216"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer .*`git lfs pull`"),
    ],
)
def test_invalid_json_is_refused_with_the_reason(tmp_path: Path, content: bytes, found: str) -> None:
    path = write(tmp_path, {"x.json": content}) / "x.json"
    with pytest.raises(ModelFormatError, match=found) as caught:
        read_json(path)
    assert str(path) in str(caught.value)


def test_json_that_must_be_an_object(tmp_path: Path) -> None:
    for content in (b"[]", b'"x"', b"null"):
        path = write(tmp_path, {"x.json": content}) / "x.json"
        with pytest.raises(ModelFormatError, match=r"x\.json"):
            read_json_object(path)
    assert read_json_object(write(tmp_path, {"y.json": b'{"a": 1}'}) / "y.json") == {"a": 1}


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "x.json", tmp_path):
        with pytest.raises(ModelFormatError, match=re.escape(str(path))):
            read_json(path)


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
