"""Files that only trusted users can write: packed weights. They are used without further checks.

The user and the owner of the package are trusted. For the folders above, root is trusted too. Other users must not have
write access to any of these folders. A folder above may be sticky, as /tmp is, because there other users cannot rename
files that are not theirs. It may be open to a group whose only user is its owner (`has_private_group`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from minibert._utils.files import replace_file

# Python on Windows does not give owners or descriptors of folders. There, only the access list protects a folder.
_HAS_OWNERS = hasattr(os, "geteuid")
HAS_FOLDER_DESCRIPTORS = {os.open, os.rename, os.unlink} <= os.supports_dir_fd
FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# With O_NONBLOCK, opening a fifo does not wait for a writer. It is refused afterwards, because it is not a file.
_FILE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def why_untrusted(folder: Path) -> str | None:
    """Return the reason why the files in a folder are not used; None if only trusted users can write there."""
    try:
        _check_folder(folder)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _check_folder(folder: Path, *, make: bool = False) -> Path:
    """Return a folder's path without links; raise PermissionError if others could put files there.

    Each folder is checked after the one above it, in which others then cannot rename anything. So they cannot change
    the meaning of the path afterwards. With `make`, missing folders are made; without it, the check ends at the first
    missing folder.
    """
    if not _HAS_OWNERS:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        return folder
    resolved = Path(os.path.realpath(folder))
    for path in (*reversed(resolved.parents), resolved):
        try:
            state = os.lstat(path)
        except FileNotFoundError:
            if not make:
                break
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o755)
            state = os.lstat(path)
        _check_state(state, stat.S_IFDIR, "" if path == resolved else str(path))
    return resolved


def _check_state(state: os.stat_result, kind: int, above: str = "") -> None:
    """Raise PermissionError if others could change a file or a folder.

    `above` is the path, for the message, if this is a folder above the one that is asked for.
    """
    name = above or "it"
    if stat.S_IFMT(state.st_mode) != kind:
        raise PermissionError(0, f"{name} is not a {'folder' if kind == stat.S_IFDIR else 'regular file'}")
    if not _HAS_OWNERS:
        return
    owners = {os.geteuid(), os.stat(__file__).st_uid} | ({0} if above else set())
    if state.st_uid not in owners:
        raise PermissionError(0, f"{name} belongs to another user")
    if not state.st_mode & 0o022 or (above and state.st_mode & stat.S_ISVTX):
        return
    if state.st_mode & 0o002 or not (above and has_private_group(above, state)):
        raise PermissionError(0, f"others can write to {name}")


class OpenFolder(NamedTuple):
    """A trusted folder, and a descriptor that refers to the same folder even if the path changes."""

    path: Path
    descriptor: int | None

    def name(self, file: str) -> str:
        """Return the name of a file for a call with ``dir_fd=descriptor``."""
        return file if self.descriptor is not None else str(self.path / file)

    def opener(self, mode: int = 0o777) -> Callable[[str, int], int]:
        """Return the opener for `open` with a name in this folder; a link is not followed."""
        return lambda path, flags: os.open(path, flags | _FILE_FLAGS, mode, dir_fd=self.descriptor)


@contextlib.contextmanager
def open_folder(folder: Path, *, make: bool = False) -> Iterator[OpenFolder]:
    """Open a folder for a ``with`` block; raise OSError if it does not exist or if others could put files there."""
    path = _check_folder(folder, make=make)
    if not HAS_FOLDER_DESCRIPTORS:
        yield OpenFolder(path, None)
        return
    descriptor = os.open(path, FOLDER_FLAGS)
    try:
        _check_state(os.fstat(descriptor), stat.S_IFDIR)
        yield OpenFolder(path, descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_trusted(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file to read it, unbuffered; raise OSError if it does not exist, or others could have written it."""
    with open_folder(folder) as opened, open(opened.name(name), "rb", 0, opener=opened.opener()) as file:
        _check_state(os.fstat(file.fileno()), stat.S_IFREG)
        yield file


def write_trusted(folder: Path, name: str, pieces: Iterable[bytes | memoryview], *, mode: int = 0o644) -> None:
    """Write a file that gets its name when it is complete; raise OSError if the folder cannot be used.

    What a process has left that was killed while it wrote the file is deleted. The same happens to what another one
    writes now; a file that is not small needs a lock.
    The umask does not change `mode`, as a package may have several users. Windows does not have such modes.
    """
    with open_folder(folder, make=True) as opened:

        def write(file: BinaryIO) -> None:
            file.writelines(pieces)
            if _HAS_OWNERS:
                os.fchmod(file.fileno(), mode)

        partial = opened.name(f".{name[:16]}.partial")
        with contextlib.suppress(FileNotFoundError):  # of a writer that was killed
            os.unlink(partial, dir_fd=opened.descriptor)
        replace_file(opened.name(name), partial, write, opened.opener(mode), opened.descriptor)


def delete_files(folder: Path, names: re.Pattern[str], *, unused_seconds: float = 0.0) -> tuple[int, int]:
    """Delete the regular files in a folder whose names match, then the folder if it is empty; return number and size.

    With `unused_seconds`, only the user's own files that were not used for so long.

    Raises
    ------
    OSError
        The folder or a file cannot be changed, or others could put files there. There is no error without a folder.
    """
    count = size = 0
    try:
        with open_folder(folder) as opened:
            at = opened.descriptor
            for name in filter(names.fullmatch, os.listdir(opened.path if at is None else at)):
                state = os.stat(opened.name(name), dir_fd=at, follow_symlinks=False)
                own = not _HAS_OWNERS or state.st_uid == os.geteuid()
                unused = not unused_seconds or (own and time.time() - state.st_atime > unused_seconds)
                if stat.S_ISREG(state.st_mode) and unused:
                    os.unlink(opened.name(name), dir_fd=at)
                    count, size = count + 1, size + state.st_size
        with contextlib.suppress(OSError):  # it holds other files
            os.rmdir(opened.path)
    except FileNotFoundError:
        pass
    return count, size


def has_private_group(path: str | os.PathLike[str], state: os.stat_result) -> bool:
    """Return whether only the owner of a file is in its group, so that the group's permissions help nobody else.

    Where users have a group of their own, the umask is often 002, and ``~/.cache`` is open to the group. Such a group
    has the name of the owner, is the owner's first group, and neither lists another user nor is another user's first
    group. With an access list the bits of the mode say nothing about the group, so then the answer is False.

    Parameters
    ----------
    path : path
        Where the file is, to look for an access list.
    state : os.stat_result
        The answer of ``os.lstat(path)``.

    Notes
    -----
    OpenSSH of Debian judges by the members and the first groups, too. It does not compare the names; here they are
    compared, because a directory service need not list all its users.
    """
    try:
        import grp
        import pwd

        owner, group = pwd.getpwuid(state.st_uid), grp.getgrgid(state.st_gid)
        others = any(user.pw_gid == state.st_gid and user.pw_uid != state.st_uid for user in pwd.getpwall())
        lists = os.listxattr(path, follow_symlinks=False) if hasattr(os, "listxattr") else []
    except (ImportError, KeyError, OSError):  # not a system with groups; a number without a name; no answer
        return False
    named = group.gr_name == owner.pw_name and owner.pw_gid == state.st_gid
    return named and not others and set(group.gr_mem) <= {owner.pw_name} and "system.posix_acl_access" not in lists
