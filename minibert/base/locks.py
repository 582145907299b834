"""A lock on a file. The system keeps it, so it ends with its process, even if the process is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from minibert.base.files import os_reason
from minibert.base.warn import warn_caller

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FileLock", "is_ours"]

# The text of a lock is "process 123 on host". It is empty if the run could not write it, or was killed before.
_HOLDER = re.compile(r"process \d+ on [^\n]+")

# Error numbers of the system if another process has the lock, and if the file system does not support locks.
_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}

# A process writes its name just after it has taken the lock. So the name is read a moment later, because until then the
# text is empty or names the process before; and read again for a while, if that process did not have the core.
_MOMENT_SECONDS, _WHILE_SECONDS = 0.05, 2.0


class FileLock:
    """A lock on a file. Making this object takes the lock, and makes the file, whose text names the process.

    Parameters
    ----------
    path : Path
        In a folder that exists.
    check : callable, optional
        Called when the lock is taken, before anything is written, with the text of the file; None if it is new. If it
        raises, the file is not changed.
    needed : bool
        Whether to warn if the file system does not support locks, because a second process could then do harm.

    Raises
    ------
    BlockingIOError
        Another process has the lock; the message names it.
    FileNotFoundError
        The folder or the file was deleted meanwhile: make it and try again.
    OSError
        The file cannot be made.

    Warns
    -----
    UserWarning
        The file system does not support locks, like some network drives, so a second run is not prevented.
    """

    def __init__(self, path: Path, check: Callable[[str | None], object] | None = None, *, needed: bool = True) -> None:
        self._path = path
        self._descriptor, new = _open(path)
        try:
            _take(self._descriptor)
        except OSError as error:
            if error.errno in _TAKEN:
                holder = _read_holder(self._descriptor)
                os.close(self._descriptor)
                raise BlockingIOError(holder) from error
            if error.errno in _WITHOUT_LOCKS:
                self._check(check, None if new else _read(self._descriptor))
            os.close(self._descriptor)
            if error.errno not in _WITHOUT_LOCKS:
                raise
            if needed:
                warn_caller(
                    f"{path} cannot be locked ({os_reason(error)}): its file system does not support locks. Make sure "
                    "that no second run writes the same output."
                )
            self._descriptor = -1
            return
        # The process that had the lock may have deleted the file after it was opened here; the lock is then void.
        if not _is_open_here(path, self._descriptor):
            os.close(self._descriptor)
            raise FileNotFoundError(errno.ENOENT, "deleted meanwhile", str(path))
        self._check(check, None if new else _read(self._descriptor))
        with contextlib.suppress(OSError):  # if the disk is full, the lock is valid without the text
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def release(self, *, delete: bool) -> None:
        """Release the lock; with `delete`, delete the file first, while no other process can take its lock."""
        if delete and sys.platform != "win32":  # Windows cannot delete an open file, so it is deleted below
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
    """Return whether this text is that of a lock that `FileLock` made, or empty."""
    return not content or _HOLDER.fullmatch(content) is not None


def _open(path: Path) -> tuple[int, bool]:
    """Open the file; return its descriptor, and whether this call made it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, os.O_RDWR), False


def _take(descriptor: int) -> None:
    if sys.platform == "win32":
        os.lseek(descriptor, 2**20, os.SEEK_SET)  # locked bytes cannot be read, so a byte far after the text is locked
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 1000).decode(errors="replace")


def _read_holder(descriptor: int) -> str:
    """Return the name of the process that has the lock; "another process" if it could not write its name."""
    deadline = time.monotonic() + _WHILE_SECONDS
    while True:
        time.sleep(_MOMENT_SECONDS)
        holder = _read(descriptor)
        if _HOLDER.fullmatch(holder):
            return holder
        if time.monotonic() > deadline:
            return "another process"


def _is_open_here(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
