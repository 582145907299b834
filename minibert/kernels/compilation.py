"""How everything in kernels/ is compiled, and where the machine code is kept.

Numba can keep compiled functions in files, but its own files are not good enough here: a damaged one raises at every
start until somebody deletes it, one flipped bit is executed, a place that cannot be written to raises as well, and a
change in a helper's file goes unnoticed. `_MachineCode` keeps them instead. What it promises:

- A file is used only if it is whole (it begins with the SHA-256 of the rest) and was made from exactly these sources,
  by this Numba, for this processor and these types. Anything else is as good as absent: the kernel is compiled again.
- A file appears under its name whole or not at all, so any number of processes may start, or be killed, at once.
- Machine code is read only from a folder that nobody but the user, or the owner of the package itself, can write to.
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
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from minibert.warn import warn_caller

__all__ = ["cache_folders", "function", "inline", "is_private", "kernel", "processor"]

if numba.config.DISABLE_JIT:  # an ImportError, since it means what a missing Numba means
    raise ImportError("NUMBA_DISABLE_JIT is set, and minibert's kernels exist only as compiled code")

# No fastmath anywhere: a result must not depend on how a loop was compiled. nogil: other threads go on meanwhile.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}

# A folder of other sources that nobody has used for so long is deleted.
_UNUSED_SECONDS = 30 * 24 * 3600

_DIGEST_SIZE = hashlib.sha256().digest_size

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
                if not is_private(folder):
                    continue
                content = (folder / self._file_name(key)).read_bytes()
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


def is_private(folder: Path) -> bool:
    """Whether only the user, or whoever owns the package, could have put machine code into a folder."""
    if not hasattr(os, "geteuid"):
        return True
    state = folder.stat()
    return state.st_uid in (os.geteuid(), os.stat(__file__).st_uid) and state.st_mode & 0o022 == 0


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write a file that takes its name only once it is complete; raise OSError if the folder is no place for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o755, exist_ok=True)
    if not is_private(folder):
        raise PermissionError(0, "others can write to it")
    descriptor, partial = tempfile.mkstemp(dir=folder, prefix=".", suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(partial, 0o644)  # mkstemp's files are private; a package may have several users
        os.replace(partial, folder / name)
    except BaseException:
        os.unlink(partial)
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
    if os.unlink not in os.supports_dir_fd:  # nothing could be held on to while it is looked at, then emptied
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(folder.parent):
            if name != folder.name and re.fullmatch(r"kernels-[0-9a-f]{16}", name):
                with contextlib.suppress(OSError):
                    _delete_if_unused(folder.parent / name)


def _delete_if_unused(folder: Path) -> None:
    """Delete a folder of the user's own that holds machine code only and has not been used for long."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
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
        "5 to 15 seconds. Let NUMBA_CACHE_DIR name a folder of your own that can be written to.",
        RuntimeWarning,
    )
