"""How everything in kernels/ is compiled, and where the machine code is kept.

Numba can keep compiled functions in files, but its own files are not good enough here: a damaged one raises at every
start until somebody deletes it, one flipped bit is executed, a place that cannot be written to raises as well, and a
change in a helper's file goes unnoticed. `_MachineCode` keeps them instead. What it promises:

- A file is used only if it is whole (it begins with the SHA-256 of the rest) and was made from exactly these sources,
  by this Numba, for this processor and these types. Anything else is as good as absent: the kernel is compiled again.
- A file appears under its name whole or not at all, so any number of processes may start, or be killed, at once.
- Machine code is read only from a file and a folder that nobody but the user, or the owner of the package itself, can
  write to or replace (`why_untrusted` lists the conditions).
- What cannot be saved is compiled at every start, and a single warning says so.
- What other versions of the sources left is deleted once nobody has used it for a month.
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

if numba.config.DISABLE_JIT:  # an ImportError, since it means what a missing Numba means
    raise ImportError("NUMBA_DISABLE_JIT is set, and minibert's kernels exist only as compiled code")


def _check_features(features: str | None) -> None:
    """Raise ImportError for features that would make LLVM end the process: those without a sign."""
    for feature in (features or "").split(","):
        if feature and feature[0] not in "+-":
            raise ImportError(
                f"NUMBA_CPU_FEATURES={features!r}, where {feature!r} begins with neither + nor -; "
                "expected names with such a sign, separated by commas and without spaces, as in '+avx2,-avx512f'"
            )


_check_features(numba.config.CPU_FEATURES)

# No fastmath anywhere: a result must not depend on how a loop was compiled. nogil: other threads go on meanwhile.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}

# A folder of other sources that nobody has used for so long is deleted.
_UNUSED_SECONDS = 30 * 24 * 3600

_DIGEST_SIZE = hashlib.sha256().digest_size

# Windows knows neither owners nor descriptors of folders; there, a folder is as private as its access list makes it.
_HAS_OWNERS = hasattr(os, "geteuid")
_HOLDS_FOLDERS = {os.open, os.rename, os.unlink} <= os.supports_dir_fd
_OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# A fifo is opened without waiting for a writer, and then refused because it is not a file.
_OPEN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

# A child that is forked while another thread compiles would wait for Numba's lock for ever: let the fork wait instead.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


def kernel(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, at its first call; keep the machine code for later processes."""
    dispatcher = numba.njit(**_OPTIONS)(body)
    dispatcher._cache = _MachineCode(f"{body.__module__}.{body.__qualname__}")  # where njit(cache=True) puts Numba's
    return dispatcher


def function(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that only kernels call."""
    return numba.njit(**_OPTIONS)(body)


def inline(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function into each place that calls it."""
    return numba.njit(inline="always", **_OPTIONS)(body)


def processor() -> tuple[str, frozenset[str]]:
    """The processor that kernels are compiled for: LLVM's name of it, and of the features it has."""
    name, features = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()[1:3]
    return name, frozenset(feature[1:] for feature in features.split(",") if feature.startswith("+"))


class _MachineCode(NullCache):
    """The cache of one kernel, as Numba's dispatcher expects one: a file for each signature it was compiled for."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def cache_path(self) -> str | None:
        """Where this kernel's machine code is looked for first."""
        return next((str(folder) for folder in cache_folders()), None)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled kernel, or None, which makes Numba compile it."""
        rtsys.initialize(target_context)  # all that finished machine code needs; the compiler's registries take longer
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
            except Exception:  # whatever may be wrong with a file, compiling is the answer
                continue
        _announce()
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep a kernel that was just compiled, in the first folder that takes it."""
        if result.library.has_dynamic_globals or any(not lifted.can_cache for lifted in result.lifted):
            return  # addresses of this very process are in it
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
        _warn_not_saved("; ".join(reasons) or "there is no place for them")

    def _file_name(self, key: str) -> str:
        return f"{self._name.rpartition('.')[2]}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.bin"

    def _key(self, signature: Any, codegen: Any) -> str:
        """All that the machine code depends on."""
        versions = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag)
        return repr((self._name, str(signature), codegen.magic_tuple(), versions, _sources()))


@functools.cache
def _sources() -> str | None:
    """SHA-256 of all files in kernels/, as they were when this process first asked; None where there are none."""
    digest = hashlib.sha256()
    files = sorted(Path(__file__).parent.glob("*.py"))
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest() if files else None


_sources()  # now, before a later change of a file could be taken for what is running


def cache_folders() -> Iterator[Path]:
    """The folders in which machine code of these sources is looked for, and kept if they allow it, in order.

    NUMBA_CACHE_DIR alone where it is set; otherwise beside the sources, then in the user's own cache.
    """
    sources = _sources()
    if sources is None:  # imported from an archive: nothing could tell old machine code from new
        return
    name = f"kernels-{sources[:16]}"
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR) / name
        return
    yield Path(__file__).parent / "__pycache__" / name
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(base):  # no home, no folder
        yield Path(base) / "minibert" / name


def why_untrusted(folder: Path) -> str | None:
    """Say why machine code in a folder is not executed; None if nobody untrusted can put any there.

    Trusted are the user and the owner of the package; for the folders above, root too. None of these folders may be
    open to others, except that a folder above may be sticky, as /tmp is: others cannot rename there what is not theirs.
    Folders above the package's sources are not looked at, because others who can write there can replace the sources.
    """
    try:
        _check_folder(folder)
    except OSError as error:
        return error.strerror or str(error)
    return None


@functools.cache
def _source_folders() -> frozenset[Path]:
    """The folders of the sources: others who can write there can have Python execute anything, without a cache."""
    sources = Path(os.path.realpath(__file__)).parent
    return frozenset((sources / "__pycache__", sources, *sources.parents))


def _check_folder(folder: Path, *, make: bool = False) -> Path:
    """Return a folder's path without links; raise PermissionError if others could put machine code there.

    Each folder is looked at after the one above it, in which others can then no longer rename anything: so they cannot
    change afterwards what the path means. Where a folder is missing, it is made, or the rest is not looked at.
    """
    if not _HAS_OWNERS:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        return folder
    resolved = Path(os.path.realpath(folder))
    for place in (*reversed(resolved.parents), resolved):
        try:
            state = os.lstat(place)
        except FileNotFoundError:
            if not make:
                break
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, 0o755)
            state = os.lstat(place)
        if place not in _source_folders():
            _check_state(state, stat.S_IFDIR, "" if place == resolved else str(place))
    return resolved


def _check_state(state: os.stat_result, kind: int, above: str = "") -> None:
    """Raise PermissionError if others could change a file or a folder; `above` is the path of a folder further up."""
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


class _Held(NamedTuple):
    """A folder that was found trusted, and its descriptor, by which it is the same one even if its path is not."""

    path: Path
    descriptor: int | None

    def name(self, file: str) -> str:
        """The name of a file for a call that is given `descriptor` as `dir_fd`."""
        return file if self.descriptor is not None else str(self.path / file)


@contextlib.contextmanager
def _hold(folder: Path, *, make: bool = False) -> Iterator[_Held]:
    """Hold on to a folder; raise OSError if there is none, or others could put machine code there."""
    path = _check_folder(folder, make=make)
    if not _HOLDS_FOLDERS:
        yield _Held(path, None)
        return
    descriptor = os.open(path, _OPEN_FOLDER)
    try:
        _check_state(os.fstat(descriptor), stat.S_IFDIR)
        yield _Held(path, descriptor)
    finally:
        os.close(descriptor)


def _read(folder: Path, name: str) -> bytes:
    """Read a file of machine code; raise OSError if there is none, or others could have written it."""
    with _hold(folder) as held:

        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | _OPEN_FILE, dir_fd=held.descriptor)

        with open(held.name(name), "rb", opener=opener) as file:
            _check_state(os.fstat(file.fileno()), stat.S_IFREG)
            return file.read()


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write a file that takes its name only once it is complete; raise OSError if the folder is no place for it."""
    with _hold(folder, make=True) as held:
        partial, at = held.name(f".{os.urandom(8).hex()}.partial"), held.descriptor

        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | _OPEN_FILE, 0o644, dir_fd=at)

        try:
            with open(partial, "xb", opener=opener) as file:
                if hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), 0o644)  # whatever the umask: a package may have several users
                file.write(content)
            os.replace(partial, held.name(name), src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                os.unlink(partial, dir_fd=at)
            raise


@functools.cache
def _mark_used(folder: Path) -> None:
    """Let a folder's time of modification say when it was used last, once in each process."""
    with contextlib.suppress(OSError):
        os.utime(folder)


@functools.cache
def _delete_unused(folder: Path) -> None:
    """Delete what other sources left beside a folder and nobody has used for `_UNUSED_SECONDS`; never raise.

    Where an older version still runs, it keeps what it has loaded, and compiles again what it finds no more.
    """
    if not _HOLDS_FOLDERS:  # nothing could be held on to while it is looked at, then emptied
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(folder.parent):
            if name != folder.name and re.fullmatch(r"kernels-[0-9a-f]{16}", name):
                with contextlib.suppress(OSError):
                    _delete_if_unused(folder.parent / name)


def _delete_if_unused(folder: Path) -> None:
    """Delete a folder of the user's own that holds machine code only and has not been used for long."""
    held = os.open(folder, _OPEN_FOLDER)
    try:
        state, names = os.fstat(held), os.listdir(held)
        if state.st_uid != os.geteuid() or time.time() - state.st_mtime < _UNUSED_SECONDS:
            return
        if all(name.endswith((".bin", ".partial")) for name in names):
            for name in names:
                os.unlink(name, dir_fd=held)
            os.rmdir(folder)
    finally:
        os.close(held)


@functools.cache
def _announce() -> None:
    """Say once, to whoever sits before a terminal, why nothing happens for a while."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("minibert: compiling the kernels for this machine, once; this takes about 5 to 15 seconds\n")


@functools.cache
def _warn_not_saved(reasons: str) -> None:
    warn_caller(
        f"minibert's compiled kernels cannot be kept ({reasons}), so every start compiles them anew, which takes about "
        "5 to 15 seconds. Let NUMBA_CACHE_DIR name a folder of your own, to which you can write and others cannot.",
        RuntimeWarning,
    )
