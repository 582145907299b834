"""A lock on a file that ends with its process, however that ends, since the system itself keeps it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from minibert.base.files import os_reason
from minibert.base.warn import warn_caller

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FileLock", "is_ours"]

# The text of a lock: "process 123 on host". An empty one belongs to a run that could not write it, or was killed first.
_HOLDER = re.compile(r"process \d+ on [^\n]+")

# What the system says where another process has the lock, and where a file system has none to give.
_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


class FileLock:
    """The lock on a file, taken by making this object; the file is made, and tells people who has it.

    Parameters
    ----------
    path : Path
        In a folder that exists.
    check : callable, optional
        Called once the lock is taken, before anything is written, with what the file held; None if it is new. If it
        raises, the file is left as it was.

    Raises
    ------
    BlockingIOError
        Another process has the lock; it is named.
    FileNotFoundError
        The folder, or the file, was deleted under way: make it and try again.
    OSError
        The file cannot be made.

    Warns
    -----
    UserWarning
        The file system has no locks, as some network drives: nothing keeps a second run away.
    """

    def __init__(self, path: Path, check: Callable[[str | None], object] | None = None) -> None:
        self._path = path
        self._descriptor, new = _open(path)
        try:
            _take(self._descriptor)
        except OSError as error:
            holder = _read(self._descriptor)
            if error.errno in _WITHOUT_LOCKS:
                self._check(check, None if new else holder)
            os.close(self._descriptor)
            if error.errno in _TAKEN:
                raise BlockingIOError(holder if _HOLDER.fullmatch(holder) else "another process") from error
            if error.errno not in _WITHOUT_LOCKS:
                raise
            warn_caller(
                f"{path} cannot be locked ({os_reason(error)}): its file system has no locks. See to it that no second "
                "run writes the same output."
            )
            self._descriptor = -1
            return
        # Whoever had the lock before may have deleted the file after it was opened here: then this is no lock at all.
        if not _is_open_here(path, self._descriptor):
            os.close(self._descriptor)
            raise FileNotFoundError(errno.ENOENT, "deleted under way", str(path))
        self._check(check, None if new else _read(self._descriptor))
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name in it
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def release(self, *, delete: bool) -> None:
        """Give the lock back; `delete` the file while nobody else can have its lock."""
        if delete and sys.platform != "win32":  # where an open file cannot be deleted it is closed first
            self._delete()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if delete and sys.platform == "win32":
            self._delete()

    def _check(self, check: Callable[[str | None], object] | None, content: str | None) -> None:
        try:
            if check is not None:
                check(content)
        except BaseException:
            self.release(delete=content is None)
            raise

    def _delete(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def is_ours(content: str) -> bool:
    """Whether a file that holds this text is a lock that `FileLock` made, or an empty file."""
    return not content or _HOLDER.fullmatch(content) is not None


def _open(path: Path) -> tuple[int, bool]:
    """Open the file, and say whether this call made it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, os.O_RDWR), False


def _take(descriptor: int) -> None:
    if sys.platform == "win32":
        os.lseek(descriptor, 2**20, os.SEEK_SET)  # what is locked there cannot be read: not the name of the process
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 1000).decode(errors="replace")


def _is_open_here(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
