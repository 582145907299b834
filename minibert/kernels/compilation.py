"""The options with which kernels/ is compiled, and the cache of the machine code.

Numba can keep compiled functions in files, but its own files are not safe enough here:

- A damaged file raises an error at every start until somebody deletes it, and one flipped bit is executed.
- A folder that cannot be written to raises an error too.
- Numba does not notice a change in another file that a function uses.

So `_MachineCode` keeps the files instead:

- A file is used only if it is complete (it begins with the SHA-256 of the rest) and was made from exactly these
  sources, by this Numba, for this processor and these types. If not, the kernel is compiled again.
- A file gets its name when it is complete, so many processes may start, or be killed, at the same time.
- Machine code is read only from a file and a folder that no user except the current one, or the owner of the package,
  can write to or replace (`why_untrusted` lists the conditions).
- If machine code cannot be saved, it is compiled at every start, and one warning says so.
- Machine code of other versions of the sources is deleted when it has not been used for a month.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from minibert.base.warn import warn_caller

__all__ = ["cache_folders", "function", "inline", "kernel", "processor", "why_untrusted"]

if numba.config.DISABLE_JIT:  # an ImportError, so that callers handle it like a missing Numba
    raise ImportError("NUMBA_DISABLE_JIT is set, but minibert's kernels exist only as compiled code; unset it")


def _check_features(features: str | None) -> None:
    """Raise ImportError for features without a sign, because LLVM would end the process."""
    for feature in (features or "").split(","):
        if feature and feature[0] not in "+-":
            raise ImportError(
                f"NUMBA_CPU_FEATURES={features!r}, where {feature!r} begins with neither + nor -; "
                "expected names with such a sign, separated by commas and without spaces, as in '+avx2,-avx512f'"
            )


_check_features(numba.config.CPU_FEATURES)

# No fastmath, because a result must not depend on how a loop was compiled. With nogil, other Python threads can run.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}

# A folder of other versions of the sources is deleted when it has not been used for this time.
_UNUSED_SECONDS = 30 * 24 * 3600

_DIGEST_SIZE = hashlib.sha256().digest_size

# Python on Windows does not give owners or descriptors of folders. There, only the access list protects a folder.
_HAS_OWNERS = hasattr(os, "geteuid")
_HAS_FOLDER_DESCRIPTORS = {os.open, os.rename, os.unlink} <= os.supports_dir_fd
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# With O_NONBLOCK, opening a fifo does not wait for a writer. It is refused afterwards, because it is not a file.
_FILE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

# A child that is forked while another thread compiles would wait for Numba's lock for ever. So the fork waits instead.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


def kernel(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, at its first call; keep the machine code for later processes."""
    dispatcher = numba.njit(**_OPTIONS)(body)
    # With njit(cache=True), Numba stores its own cache in this attribute.
    dispatcher._cache = _MachineCode(f"{body.__module__}.{body.__qualname__}")
    return dispatcher


def function(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that only kernels call."""
    return numba.njit(**_OPTIONS)(body)


def inline(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function into each place that calls it."""
    return numba.njit(inline="always", **_OPTIONS)(body)


def processor() -> tuple[str, frozenset[str]]:
    """Return LLVM's name of the processor that kernels are compiled for, and the names of its features."""
    name, features = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()[1:3]
    return name, frozenset(feature[1:] for feature in features.split(",") if feature.startswith("+"))


class _MachineCode(NullCache):
    """The cache of one kernel, with the methods that Numba's dispatcher calls; it has one file for each signature."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def cache_path(self) -> str | None:
        """The folder in which this kernel's machine code is searched first."""
        return next((str(folder) for folder in cache_folders()), None)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the compiled kernel; or None, so that Numba compiles it."""
        rtsys.initialize(target_context)  # compiled code needs only this; the compiler's registries would take longer
        key = self._key(signature, target_context.codegen())
        for folder in cache_folders():
            try:
                content = _read(folder, self._file_name(key))
                digest, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
                if hashlib.sha256(payload).digest() == digest:
                    found, parts = pickle.loads(payload)
                    if found == key:
                        _mark_used(folder)
                        return CompileResult._rebuild(target_context, *parts)
            except Exception:  # after any error in a file, the kernel is compiled
                continue
        _announce()
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save a kernel that was just compiled in the first folder that can be written to."""
        if result.library.has_dynamic_globals or any(not lifted.can_cache for lifted in result.lifted):
            return  # the code contains addresses of this process
        key = self._key(signature, result.codegen)
        payload = dumps((key, result._reduce()))
        reasons = []
        for folder in cache_folders():
            try:
                _write(folder, self._file_name(key), hashlib.sha256(payload).digest() + payload)
            except OSError as error:
                reasons.append(f"{folder}: {error.strerror or error}")
            else:
                _delete_unused(folder)
                return
        _warn_not_saved("; ".join(reasons) or "there is not a folder for them")

    def _file_name(self, key: str) -> str:
        return f"{self._name.rpartition('.')[2]}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.bin"

    def _key(self, signature: Any, codegen: Any) -> str:
        """Return a text with everything that the machine code depends on."""
        versions = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag)
        return repr((self._name, str(signature), codegen.magic_tuple(), versions, _sources()))


@functools.cache
def _sources() -> str | None:
    """Return the SHA-256 of all files in kernels/ at the first call in this process; None if there are no files."""
    digest = hashlib.sha256()
    files = sorted(Path(__file__).parent.glob("*.py"))
    for file in files:
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
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR) / name
        return
    yield Path(__file__).parent / "__pycache__" / name
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(base):  # without a home directory, the path is not absolute
        yield Path(base) / "minibert" / name


def why_untrusted(folder: Path) -> str | None:
    """Return the reason why machine code in a folder is not executed; None if only trusted users can write there.

    The user and the owner of the package are trusted; for the folders above, root is trusted too. Other users must not
    have write access to any of these folders. A folder above may be sticky, as /tmp is, because there other users
    cannot rename files that are not theirs. Folders above the package's sources are not checked, because users who can
    write there can replace the sources.
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
    if state.st_mode & 0o022 and not (above and state.st_mode & stat.S_ISVTX):
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
