"""Files and folders of machine code that others could change are not used."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minibert._utils.private_files import read_trusted, why_untrusted, write_trusted
from minibert.kernels import cache as kernel_cache
from minibert.kernels.cache import ObjectCode

needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files do not have owners on this system")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
STRANGER = 65534


class Trap:
    """A cache folder, `base/kernels-...`, with a file of machine code that others may have changed."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.above = root / "above"
        self.base = self.above / "base"
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(self.base))
        (self.folder,) = kernel_cache.cache_folders()
        self.folder.mkdir(parents=True)
        for place in (self.above, self.base, self.folder):
            place.chmod(0o755)
        kernel_cache._save(ObjectCode("run_task", b"machine code"))
        (self.file,) = self.folder.iterdir()
        self.poison = self.file.read_bytes()
        self.file.chmod(0o644)
        self.used = False
        self.theirs = root / "theirs"  # a folder that everybody can write to, with the same file

    def load(self) -> bool:
        """Look for the machine code; return whether the file is used."""
        found = kernel_cache._read_code() is not None
        self.used |= found
        return found

    def make_theirs(self, content: bytes | None) -> None:
        inner = self.theirs / self.folder.name
        inner.mkdir(parents=True)
        if content is not None:
            (inner / self.file.name).write_bytes(content)
        for place in (self.theirs, inner):
            place.chmod(0o777)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    return Trap(tmp_path, monkeypatch)


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def become_a_link(path: Path) -> None:
    target = path.rename(path.with_name("target"))
    path.symlink_to(target)


def give_sticky_away(path: Path) -> None:
    path.chmod(0o1777)
    give_away(path)


def mode(number: int) -> Callable[[Path], object]:
    return lambda path: path.chmod(number)


# name: (the file, the folder or the folder above NUMBA_CACHE_DIR, its change, the message about the folder)
PRIVATE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "an ordinary folder": ("file", lambda path: None),
    "a file for the user alone": ("file", mode(0o600)),
    "a folder for the user alone": ("folder", mode(0o700)),
    "a link to a folder of one's own": ("folder", become_a_link),
    "a link above": ("above", become_a_link),
    "a sticky folder above": ("above", mode(0o1777)),
}

OPEN: dict[str, tuple[str, Callable[[Path], object], str | None]] = {
    "a file open to all": ("file", mode(0o666), None),
    "a file open to a group": ("file", mode(0o664), None),
    "a file of another user": ("file", give_away, None),
    "a link to a file": ("file", become_a_link, None),
    "a folder open to all": ("folder", mode(0o777), "others can write to it"),
    "a folder open to a group": ("folder", mode(0o775), "others can write to it"),
    "a sticky folder": ("folder", mode(0o1777), "others can write to it"),
    "a folder of another user": ("folder", give_away, "it belongs to another user"),
    "a folder above open to all": ("above", mode(0o777), "others can write to {above}"),
    "a folder above of another user": ("above", give_away, "{above} belongs to another user"),
    "a sticky one of another user": ("above", give_sticky_away, "{above} belongs to another user"),
}


class Accounts:
    """The users and groups of a system on which the user of the test has a group of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import grp
        import pwd

        self.user = pwd.struct_passwd(("jan", "x", os.geteuid(), os.getegid(), "", "/", ""))
        self.group = ("jan", "x", os.getegid(), [])
        self.others: list[Any] = []
        self.lists: list[str] = []
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: self.user)
        monkeypatch.setattr(pwd, "getpwall", lambda: [self.user, *self.others])
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(self.group))
        monkeypatch.setattr(os, "listxattr", lambda path, **_: self.lists, raising=False)


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> Accounts:
    return Accounts(monkeypatch)


@needs_owners
def test_a_folder_above_that_is_open_to_the_group_of_one_user_is_trusted(trap: Trap, accounts: Accounts) -> None:
    """So is ~/.cache with the umask 002. The folder of the machine code itself is closed in any case."""
    trap.above.chmod(0o775)
    trap.base.chmod(0o775)
    assert why_untrusted(trap.folder) is None
    assert trap.load()
    trap.folder.chmod(0o775)
    assert why_untrusted(trap.folder) == "others can write to it"
    trap.folder.chmod(0o755)
    trap.above.chmod(0o777)
    assert not trap.load()


@needs_owners
@pytest.mark.parametrize("change", ["member", "first group", "name", "other first group", "access list", "unknown"])
def test_a_group_that_others_may_be_in_is_not_trusted(
    change: str, trap: Trap, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pwd

    trap.above.chmod(0o775)
    name, password, gid, _ = accounts.group
    if change == "member":
        accounts.group = (name, password, gid, ["jan", "eve"])
    elif change == "first group":
        accounts.others = [pwd.struct_passwd(("eve", "x", os.geteuid() + 1, gid, "", "/", ""))]
    elif change == "name":
        accounts.group = ("staff", password, gid, [])
    elif change == "other first group":
        accounts.user = pwd.struct_passwd(("jan", "x", os.geteuid(), gid + 1, "", "/", ""))
    elif change == "access list":
        accounts.lists = ["system.posix_acl_access"]
    else:
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert why_untrusted(trap.folder) == f"others can write to {trap.above}"
    assert not trap.load()


@needs_owners
@pytest.mark.parametrize("case", PRIVATE)
def test_a_private_folder_is_used(case: str, trap: Trap) -> None:
    """The code is executed here; without this test, the next ones would not prove anything."""
    place, change = PRIVATE[case]
    change(getattr(trap, place))
    assert why_untrusted(trap.folder) is None
    assert trap.load()
    write_trusted(trap.folder, "a.bin", [b"machine code"])
    assert read_trusted(trap.folder, "a.bin") == b"machine code"


@needs_owners
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=needs_root if "another user" in case else ()) for case in OPEN]
)
def test_files_that_others_could_have_written_are_not_used(case: str, trap: Trap) -> None:
    place, change, reason = OPEN[case]
    change(getattr(trap, place))
    assert not trap.load()
    if reason is None:  # the folder is safe, so the file is replaced by a good one
        assert why_untrusted(trap.folder) is None
        write_trusted(trap.folder, trap.file.name, [b"machine code"])
        assert read_trusted(trap.folder, trap.file.name) == b"machine code"
        assert not trap.file.is_symlink()
    else:
        reason = reason.format(above=trap.above)
        assert why_untrusted(trap.folder) == reason
        with pytest.raises(PermissionError, match=f"^{re.escape(str(PermissionError(0, reason)))}$"):
            write_trusted(trap.folder, "a.bin", [b"machine code"])
        assert os.listdir(trap.folder) == [trap.file.name]


@needs_owners
def test_a_fifo_is_neither_waited_for_nor_used(trap: Trap) -> None:
    trap.file.unlink()
    os.mkfifo(trap.file, 0o644)
    held = os.open(trap.file, os.O_RDWR)  # a writer that stays open
    os.write(held, trap.poison)
    loader = threading.Thread(target=trap.load, daemon=True)
    loader.start()
    loader.join(60)
    waits = loader.is_alive()
    os.close(held)
    loader.join()
    assert (waits, trap.used) == (False, False)


@needs_owners
def test_missing_folders_are_made_for_the_user_alone_to_write_to(trap: Trap) -> None:
    """This holds for any umask. Nothing is made below a folder that others can write to."""
    shutil.rmtree(trap.base)
    before = os.umask(0o002)
    try:
        write_trusted(trap.folder, "a.bin", [b"machine code"])
    finally:
        os.umask(before)
    places = (trap.base, trap.folder, trap.folder / "a.bin")
    assert [path.stat().st_mode & 0o777 for path in places] == [0o755, 0o755, 0o644]
    shutil.rmtree(trap.base)
    trap.above.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write to"):
        write_trusted(trap.folder, "a.bin", [b"machine code"])
    assert not trap.base.exists()


class Swap:
    """Replaces one of the user's folders by a link to another user's folder, and undoes it."""

    def __init__(self, path: Path, theirs: Path) -> None:
        self._path, self._theirs, self._aside = path, theirs, path.with_name("aside")

    def do(self) -> None:
        self._path.rename(self._aside)
        self._path.symlink_to(self._theirs)

    def undo(self) -> None:
        self._path.unlink()
        self._aside.rename(self._path)


CALLS = ("lstat", "stat", "open", "fstat", "mkdir")


@contextlib.contextmanager
def after_call(number: int, action: Callable[[], None]) -> Iterator[list[str]]:
    """Run an action after the n-th of `CALLS`; yield a list that gets the names of all calls."""
    calls: list[str] = []

    def wrap(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            try:
                return original(*arguments, **options)
            finally:
                calls.append(name)
                if len(calls) == number:
                    action()

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name, function in [(name, wrap(name)) for name in CALLS]:
            patch.setattr(os, name, function)
        yield calls


@needs_owners
@pytest.mark.parametrize("place", ["folder", "base"])
def test_a_folder_that_is_swapped_while_it_is_checked(place: str, trap: Trap) -> None:
    """The swap comes after each system call in turn; the other user's file is never used or written."""
    trap.make_theirs(trap.poison)
    inner = trap.theirs / trap.folder.name
    swap = Swap(getattr(trap, place), inner if place == "folder" else trap.theirs)
    trap.file.write_bytes(b"no machine code")
    number, calls = 0, [""]
    while number <= len(calls):  # the last turn is beyond all calls, so nothing is swapped
        number += 1
        for write in (False, True):
            with after_call(number, swap.do) as calls, contextlib.suppress(OSError):
                if write:
                    write_trusted(trap.folder, "a.bin", [b"machine code"])
                else:
                    trap.load()
            if len(calls) >= number:
                swap.undo()
            assert not trap.used, f"used after {calls[:number]}"
            assert os.listdir(inner) == [trap.file.name], f"written after {calls[:number]}"
    assert {"lstat", "open", "fstat"} <= set(calls)
    assert number > 8


@needs_owners
def test_a_folder_below_one_that_is_open_to_others_is_warned_of_once(trap: Trap) -> None:
    trap.above.chmod(0o777)
    kernel_cache._warn_not_saved.cache_clear()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for symbol in ("twice", "thrice"):
            kernel_cache._save(ObjectCode(symbol, b"machine code"))
    kernel_cache._warn_not_saved.cache_clear()
    (warning,) = caught
    assert (warning.category, str(trap.above) in str(warning.message)) == (RuntimeWarning, True)
    assert os.listdir(trap.folder) == [trap.file.name]
