"""The cache of the machine code: the kernels as a file that a process loads without Numba.

What        `load_run_task` returns the one function of kernels/ that Python calls. The code is on disk after the first
            use. If not, compilation.py compiles it; importing Numba and compiling take seconds
Files       - A file is used only if it is complete (it begins with the SHA-256 of the rest) and was made from exactly
              these sources, by this Numba, for this processor. If not, the code is compiled again.
            - A file gets its name when it is complete, so many processes may start, or be killed, at the same time.
            - Machine code is read only from a file and a folder that no user except the current one, or the owner of
              the package, can write to or replace (`why_untrusted` lists the conditions).
            - If machine code cannot be saved, it is compiled at every start, and one warning says so.
            - Machine code of other versions of the sources is deleted when it has not been used for a month.
Layout      SHA-256 of the rest (32 bytes) | one line of JSON: format, key, symbol | an object file
Contract    This file imports numba only to compile
Why not     Numba's own cache: a damaged file raises an error at every start, or is executed; a folder that cannot be
            written to raises an error; a change in another file that a function uses is not noticed; and loading needs
            all of Numba, which takes longer than loading a small model
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import llvmlite
import llvmlite.binding as llvm

from minibert.base.owners import has_private_group
from minibert.base.warn import warn_caller
from minibert.bert import low_precision
from minibert.kernels.object_code import Kernel, ObjectCode, link
from minibert.kernels.processor import target

__all__ = ["cache_folders", "load_run_task", "why_untrusted"]

_FORMAT = 1
_FILE = "run_task-{}.bin"

# A folder of other versions of the sources is deleted when it has not been used for this time.
_UNUSED_SECONDS = 30 * 24 * 3600

_DIGEST_SIZE = hashlib.sha256().digest_size

# Python on Windows does not give owners or descriptors of folders. There, only the access list protects a folder.
_HAS_OWNERS = hasattr(os, "geteuid")
_HAS_FOLDER_DESCRIPTORS = {os.open, os.rename, os.unlink} <= os.supports_dir_fd
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# With O_NONBLOCK, opening a fifo does not wait for a writer. It is refused afterwards, because it is not a file.
_FILE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


_lock = threading.RLock()

# A child that is forked while another thread compiles would wait for this lock for ever. So the fork waits instead.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)

_loaded: dict[str, Kernel] = {}


def load_run_task(compute_type: str = "float32") -> Kernel:
    """Return what run_task.make_run_task makes as machine code: from disk, or compiled now and saved.

    Raises
    ------
    ImportError
        The machine code is not on disk, and Numba cannot be imported.
    """
    with _lock:
        if compute_type not in _loaded:
            _loaded[compute_type] = _load_kernel(compute_type) or _make_kernel(compute_type)
        return _loaded[compute_type]


def _load_kernel(compute_type: str) -> Kernel | None:
    code = _read_code(compute_type)
    try:
        return link(code, 1) if code else None
    except Exception:  # a file that cannot be linked is compiled again
        return None


def _make_kernel(compute_type: str) -> Kernel:
    _announce()
    code = _compile_code(compute_type)
    if _sources.__wrapped__() != _sources():  # the files that were just compiled are not those of this process
        raise ImportError("the files of minibert have changed since it was imported; restart Python")
    _save(code, compute_type)
    return link(code, 1)


def _read_code(compute_type: str = "float32") -> ObjectCode | None:
    """Return the machine code on disk; None if there is none that can be used."""
    key = _key(compute_type)
    for folder in cache_folders():
        try:
            content = _read(folder, _FILE.format(hashlib.sha256(key.encode()).hexdigest()[:32]))
            digest, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
            if hashlib.sha256(payload).digest() == digest:
                line, _, code = payload.partition(b"\n")
                header = json.loads(line)
                if header["format"] == _FORMAT and header["key"] == key:
                    _mark_used(folder)
                    return ObjectCode(header["symbol"], code)
        except Exception:  # after any error in a file, the code is compiled
            continue
    return None


def _compile_code(compute_type: str) -> ObjectCode:
    """Compile the machine code for this processor."""
    from minibert.kernels.compilation import compile_to_object
    from minibert.kernels.run_task import make_run_task

    return compile_to_object(make_run_task(compute_type), 1)


def _save(code: ObjectCode, compute_type: str = "float32") -> None:
    """Save machine code in the first folder that can be written to."""
    key = _key(compute_type)
    header = json.dumps({"format": _FORMAT, "key": key, "symbol": code.symbol}).encode()
    payload = header + b"\n" + code.content
    reasons = []
    for folder in cache_folders():
        try:
            name = _FILE.format(hashlib.sha256(key.encode()).hexdigest()[:32])
            _write(folder, name, hashlib.sha256(payload).digest() + payload)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
        else:
            _delete_unused(folder)
            return
    _warn_not_saved("; ".join(reasons) or "there is not a folder for them")


def _key(compute_type: str) -> str:
    """Return a text with everything that the machine code depends on."""
    try:
        compiler = importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        compiler = ""
    return repr((*target(), llvm.get_process_triple(), compiler, llvmlite.__version__, _sources(), compute_type))


@functools.cache
def _sources() -> str | None:
    """Return the SHA-256 of all files in kernels/ at the first call in this process; None if there are no files.

    Also of the one other file whose constants are compiled into the code.
    """
    digest = hashlib.sha256()
    files = sorted(Path(__file__).parent.glob("*.py"))
    for file in (*files, *([Path(low_precision.__file__)] if files else ())):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest() if files else None


_sources()  # called at import, because a file that changes later is not the code that runs


def cache_folders() -> Iterator[Path]:
    """Yield the folders in which machine code of these sources is searched and saved, in this order.

    If NUMBA_CACHE_DIR is set, only that folder is used. If not, the folder beside the sources comes first, then the
    user's cache.
    """
    sources = _sources()
    if sources is None:  # imported from an archive, so old machine code could not be told from new
        return
    name = f"kernels-{sources[:16]}"
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen) / name
        return
    yield Path(__file__).parent / "__pycache__" / name
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(base):  # without a home directory, the path is not absolute
        yield Path(base) / "minibert" / name


def why_untrusted(folder: Path) -> str | None:
    """Return the reason why machine code in a folder is not executed; None if only trusted users can write there.

    The user and the owner of the package are trusted; for the folders above, root is trusted too. Other users must not
    have write access to any of these folders. A folder above may be sticky, as /tmp is, because there other users
    cannot rename files that are not theirs. It may be open to a group whose only user is its owner
    (`has_private_group`). Folders above the package's sources are not checked, because users who can write there can
    replace the sources.
    """
    try:
        _check_folder(folder)
    except OSError as error:
        return error.strerror or str(error)
    return None


@functools.cache
def _source_folders() -> frozenset[Path]:
    """Return the folders of the sources. They are not checked: users who can write there can change the sources."""
    sources = Path(os.path.realpath(__file__)).parent
    return frozenset((sources / "__pycache__", sources, *sources.parents))


def _check_folder(folder: Path, *, make: bool = False) -> Path:
    """Return a folder's path without links; raise PermissionError if others could put machine code there.

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
        if path not in _source_folders():
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


class _OpenFolder(NamedTuple):
    """A trusted folder and its descriptor, which means the same folder even if the path changes."""

    path: Path
    descriptor: int | None

    def name(self, file: str) -> str:
        """Return the name of a file for a call that gets `descriptor` as `dir_fd`."""
        return file if self.descriptor is not None else str(self.path / file)


@contextlib.contextmanager
def _open_folder(folder: Path, *, make: bool = False) -> Iterator[_OpenFolder]:
    """Keep a folder open; raise OSError if it does not exist, or others could put machine code there."""
    path = _check_folder(folder, make=make)
    if not _HAS_FOLDER_DESCRIPTORS:
        yield _OpenFolder(path, None)
        return
    descriptor = os.open(path, _FOLDER_FLAGS)
    try:
        _check_state(os.fstat(descriptor), stat.S_IFDIR)
        yield _OpenFolder(path, descriptor)
    finally:
        os.close(descriptor)


def _read(folder: Path, name: str) -> bytes:
    """Read a file of machine code; raise OSError if it does not exist, or others could have written it."""
    with _open_folder(folder) as opened:

        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | _FILE_FLAGS, dir_fd=opened.descriptor)

        with open(opened.name(name), "rb", opener=opener) as file:
            _check_state(os.fstat(file.fileno()), stat.S_IFREG)
            return file.read()


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write a file that gets its name when it is complete; raise OSError if the folder cannot be used."""
    with _open_folder(folder, make=True) as opened:
        partial, at = opened.name(f".{os.urandom(8).hex()}.partial"), opened.descriptor

        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | _FILE_FLAGS, 0o644, dir_fd=at)

        try:
            with open(partial, "xb", opener=opener) as file:
                if hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), 0o644)  # the umask must not decide, as a package may have several users
                file.write(content)
            os.replace(partial, opened.name(name), src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(OSError):  # so that the first error is raised
                os.unlink(partial, dir_fd=at)
            raise


@functools.cache
def _mark_used(folder: Path) -> None:
    """Set a folder's modification time to now, once in each process, to record when it was last used."""
    with contextlib.suppress(OSError):
        os.utime(folder)


@functools.cache
def _delete_unused(folder: Path) -> None:
    """Delete other versions' folders beside this folder that were not used for `_UNUSED_SECONDS`; never raise.

    If an older version still runs, it keeps the code that it has loaded, and compiles again the code that is missing.
    """
    if not _HAS_FOLDER_DESCRIPTORS:  # without descriptors, a folder could be replaced after its check
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(folder.parent):
            if name != folder.name and re.fullmatch(r"kernels-[0-9a-f]{16}", name):
                with contextlib.suppress(OSError):
                    _delete_if_unused(folder.parent / name)


def _delete_if_unused(folder: Path) -> None:
    """Delete a folder if it belongs to the user, holds only machine code, and was not used for `_UNUSED_SECONDS`."""
    descriptor = os.open(folder, _FOLDER_FLAGS)
    try:
        state, names = os.fstat(descriptor), os.listdir(descriptor)
        if state.st_uid != os.geteuid() or time.time() - state.st_mtime < _UNUSED_SECONDS:
            return
        if all(name.endswith((".bin", ".partial")) for name in names):
            for name in names:
                os.unlink(name, dir_fd=descriptor)
            os.rmdir(folder)
    finally:
        os.close(descriptor)


@functools.cache
def _announce() -> None:
    """Print the reason for the delay, once, if stderr is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("minibert: compiling the kernels for this machine, once; this takes about 5 to 15 seconds\n")


@functools.cache
def _warn_not_saved(reasons: str) -> None:
    warn_caller(
        f"minibert's compiled kernels cannot be kept ({reasons}), so every start compiles them again. This takes about "
        "5 to 15 seconds. Set NUMBA_CACHE_DIR to a folder to which only you can write.",
        RuntimeWarning,
    )
