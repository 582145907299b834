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

from minibert._utils.files import os_reason
from minibert._utils.reporting import warn_caller

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

# A process writes its name just after it has taken the lock; until then the text is empty, or names the process before.
# So a process that waits for the name tries for a moment, and for a while if there is no name, because the other one
# may not have the core. If the name of a killed process is there for longer than the moment, the message has that name.
_MOMENT_SECONDS, _WHILE_SECONDS, _TURN_SECONDS = 0.05, 2.0, 0.01


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
    waits : bool
        Whether a refusal takes 0.05 s, and up to 2 s until the other process has written its name. The lock is taken if
        it becomes free meanwhile.

    Raises
    ------
    BlockingIOError
        Another process has the lock. The message names it, or is "another process" if it has not written its name.
    FileNotFoundError
        The folder or the file was deleted meanwhile: make it and try again.
    OSError
        The file cannot be made.

    Warns
    -----
    UserWarning
        The file system does not support locks, like some network drives, so a second run is not prevented.
    """

    def __init__(
        self,
        path: Path,
        check: Callable[[str | None], object] | None = None,
        *,
        needed: bool = True,
        waits: bool = False,
    ) -> None:
        self._path = path
        self._descriptor, new = _open(path)
        try:
            refusal = _take_or_wait(self._descriptor, _WHILE_SECONDS if waits else 0.0)
            # The process that had the lock may have deleted the file after it was opened here; the lock is then void.
            if refusal is None and not _is_open_here(path, self._descriptor):
                raise FileNotFoundError(errno.ENOENT, "deleted meanwhile", str(path))
            content = _read(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._check(check, None if new and not content else content)
        if refusal is not None:
            os.close(self._descriptor)
            self._descriptor = -1
            if needed:
                warn_caller(
                    f"{path} cannot be locked ({os_reason(refusal)}): its file system does not support locks. Make "
                    "sure that no second run writes the same output."
                )
            return
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


def _take_or_wait(descriptor: int, patience: float) -> OSError | None:
    """Take the lock; return the error if the file system does not support locks.

    After up to `patience` seconds, raise BlockingIOError with the name of the process that has the lock.
    """
    start = time.monotonic()
    while True:
        try:
            _take(descriptor)
            return None
        except OSError as error:
            if error.errno in _WITHOUT_LOCKS:
                return error
            if error.errno not in _TAKEN:
                raise
            holder = _read(descriptor)
            is_name = _HOLDER.fullmatch(holder) is not None
            if time.monotonic() - start >= min(patience, _MOMENT_SECONDS if is_name else _WHILE_SECONDS):
                raise BlockingIOError(holder if is_name else "another process") from error
        time.sleep(_TURN_SECONDS)


def _read(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 1000).decode(errors="replace")


def _is_open_here(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
