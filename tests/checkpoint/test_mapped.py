"""Arrays in mapped files: one writer, checks before a file is used, damage, other users, unused files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minibert._utils.validation import FloatArray
from minibert.models import shared_weights
from minibert.models.shared_weights import FILE_NAMES, list_files, shared_arrays

needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files do not have owners on this system")


class Maker:
    """Makes two arrays, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, FloatArray]:
        self.calls += 1
        numbers = np.arange(3 * 5_000, dtype=np.float32)
        return {
            "a": numbers.reshape(3, 5_000),
            "b": np.full((), 7, np.float32),
            "nothing": np.empty((0, 4), np.float32),
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "weights"


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("*.weights")
    return path


def check(arrays: dict[str, FloatArray]) -> None:
    expected = Maker()()
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == np.float32
        assert array.ctypes.data % 64 == 0


def test_the_arrays_are_made_once_and_then_mapped(folder: Path) -> None:
    make = Maker()
    first = shared_arrays(folder, "key", make)
    inode = the_file(folder).stat().st_ino
    second = shared_arrays(folder, "key", make)
    check(first)
    check(second)
    assert make.calls == 1
    assert the_file(folder).stat().st_ino == inode
    assert not any(array.flags.writeable for array in second.values())
    assert re.fullmatch(r"[0-9a-f]{32}\.weights", the_file(folder).name)  # it does not show its key
    assert [path.suffix for path in folder.iterdir()] == [".weights"]  # without a lock, without parts
    for key in ("a key with a / and a \N{SNOWMAN}", "key"):
        check(shared_arrays(folder, key, make))
    assert make.calls == 2
    assert len(list(folder.glob("*.weights"))) == 2


def flip(content: bytes, place: int) -> bytes:
    place %= len(content)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def with_header(content: bytes, **changes: object) -> bytes:
    """Change the header of a file, and make its checksum right."""
    line, _, rest = content[4:].partition(b"\n")
    changed = json.dumps({**json.loads(line), **changes}).encode()
    body = changed + b" " * (len(line) - len(changed)) + b"\n" + rest
    return zlib.crc32(body).to_bytes(4, "little") + body


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "three bytes": lambda content: content[:3],
    "zeros": lambda content: bytes(len(content)),
    "cut in half": lambda content: content[: len(content) // 2],
    "one byte more": lambda content: content + b"\0",
    **{f"bit of byte {place}": partial(flip, place=place) for place in (0, 3, 4, 40, 300, -20_000, -1)},
    "a newer format": lambda content: with_header(content, format=99),
    "the file of another key": lambda content: with_header(content, key="other"),
    "not a header": lambda content: zlib.crc32(b"[]\n").to_bytes(4, "little") + b"[]\n",
    "a header without arrays": lambda content: with_header(content, arrays=None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_written_again_and_never_used(damage: str, folder: Path) -> None:
    make = Maker()
    shared_arrays(folder, "key", make)
    path = the_file(folder)
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(DAMAGES[damage](good))
    check(shared_arrays(folder, "key", make))
    assert make.calls == 2
    assert path.read_bytes() == good


def test_a_file_is_compared_with_its_checksum_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    check(shared_arrays(folder, "key", make))
    with monkeypatch.context() as patched:
        patched.setattr(zlib, "crc32", None)
        check(shared_arrays(folder, "key", make))
        assert make.calls == 1
    os.utime(the_file(folder))
    check(shared_arrays(folder, "key", make))
    assert make.calls == 1


@needs_owners
def test_a_file_is_the_owners_alone_and_a_file_or_folder_of_others_is_not_used(folder: Path, tmp_path: Path) -> None:
    make = Maker()
    check(shared_arrays(folder, "key", make))
    path = the_file(folder)
    assert path.stat().st_mode & 0o777 == 0o400
    for mode in (0o666, 0o664, 0o646):
        path.chmod(mode)
        check(shared_arrays(folder, "key", make))
        assert path.stat().st_mode & 0o777 == 0o400
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    check(shared_arrays(folder, "key", make))
    assert (make.calls, path.is_symlink()) == (5, False)
    before = path.read_bytes()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write to it"):
        shared_arrays(folder, "key", make)
    assert (make.calls, path.read_bytes()) == (5, before)


def test_many_threads_make_the_arrays_once(folder: Path) -> None:
    """A lock of the system excludes threads as it excludes processes, because each opens the file itself."""
    make = Maker()

    def slowly() -> dict[str, FloatArray]:
        time.sleep(0.2)
        return make()

    with ThreadPoolExecutor(6) as pool:
        for arrays in pool.map(lambda _: shared_arrays(folder, "key", slowly), range(6)):
            check(arrays)
    assert make.calls == 1


def test_a_maker_that_fails_leaves_nothing_and_the_next_one_succeeds(folder: Path) -> None:
    def fail() -> dict[str, FloatArray]:
        raise ValueError("a damaged checkpoint")

    with pytest.raises(ValueError, match="a damaged checkpoint"):
        shared_arrays(folder, "key", fail)
    assert list(folder.iterdir()) == []
    check(shared_arrays(folder, "key", Maker()))


def test_a_lock_that_is_held_too_long_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_weights, "_PATIENCE_SECONDS", 0.1)
    begun, done = threading.Event(), threading.Event()

    def wait() -> dict[str, FloatArray]:
        begun.set()
        done.wait(60)
        return Maker()()

    thread = threading.Thread(target=shared_arrays, args=(folder, "key", wait))
    thread.start()
    begun.wait(60)
    try:
        with pytest.raises(TimeoutError, match="another process"):
            shared_arrays(folder, "key", Maker())
    finally:
        done.set()
        thread.join()
    check(shared_arrays(folder, "key", Maker()))


@needs_owners
def test_what_was_not_used_for_a_month_is_deleted_when_another_file_is_written(folder: Path) -> None:
    for key in ("old", "used", "new"):
        shared_arrays(folder, key, Maker(), title=key)
    old, used = (Path(one.path) for one in list_files(folder) if one.title in ("old", "used"))
    left = folder / f".{'0' * 16}.partial"  # of a writer that was killed
    mine = folder / "mine.txt"
    for path in (left, mine):
        path.write_text("")
    for path in (old, used, left, mine):
        os.utime(path, (time.time() - 31 * 24 * 3600,) * 2)
    shared_arrays(folder, "used", Maker())  # reading it counts
    (folder / f"{'0' * 32}.weights").write_bytes(b"damaged")  # it is not listed
    shared_arrays(folder, "newer", Maker(), title="newer")
    assert [one.title for one in list_files(folder)] == ["new", "newer", "used"]
    assert (left.exists(), mine.exists()) == (False, True)


def test_what_killed_writers_left_is_deleted_by_the_next_one(folder: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from minibert._utils import files\nfrom minibert.models.shared_weights import shared_arrays\n"
        "files.os.fsync = lambda file: os._exit(9)\n"
        "shared_arrays(Path(sys.argv[1]), 'key', lambda: {'a': np.zeros(1000, np.float32)})\n"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", program, str(folder)]).returncode == 9
        assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".partial"]
        assert all(FILE_NAMES.fullmatch(path.name) for path in folder.iterdir())
    check(shared_arrays(folder, "key", Maker()))
    assert [path.suffix for path in folder.iterdir()] == [".weights"]


def test_a_writer_that_is_killed_is_followed_by_another(folder: Path) -> None:
    """Its lock ends with it; the file of the lock stays, and is no obstacle."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom minibert.models.shared_weights import shared_arrays\n"
        "def make():\n    print('making', flush=True)\n    sys.stdin.read()\n"
        "shared_arrays(Path(sys.argv[1]), 'key', make)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "making\n"
    writer.kill()
    writer.communicate()
    assert [path.suffix for path in folder.iterdir()] == [".lock"]
    check(shared_arrays(folder, "key", Maker()))
    assert [path.suffix for path in folder.iterdir()] == [".weights"]
