"""The cache of machine code: a file on disk holds the kernels, and a process loads it without Numba.

What        `load_run_task` returns the one function of kernels/ that Python calls. The code is on disk after the first
            use. If not, compilation.py compiles it; importing Numba and compiling take seconds
Files       - A file is used only if it is complete (it begins with the SHA-256 of the rest) and was made from exactly
              these sources, by this Numba, for this processor. If not, the code is compiled again.
            - A file gets its name when it is complete, so many processes may start, or be killed, at the same time.
            - Machine code is read only from a file and a folder that no user except the current one, or the owner of
              the package, can write to or replace (_utils/private_files.py).
            - If machine code cannot be saved, it is compiled at every start, and one warning says so.
            - Machine code of other versions of the sources is deleted when it has not been used for a month.
Layout      SHA-256 of the rest (32 bytes) | one line of JSON: format, key, symbol | an object file
Contract    Code that `link` has loaded is never freed, because a helper thread may still run it.
            This file imports numba only to compile
Source      https://llvm.org/docs/MCJITDesignAndImplementation.html
Why not     Numba's own cache: a damaged file raises an error at every start, or is executed; a folder that cannot be
            written to raises an error; a change in another file that a function uses is not noticed; and loading needs
            all of Numba, which takes longer than loading a small model
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import llvmlite
import llvmlite.binding as llvm

from minibert._utils.private_files import FOLDER_FLAGS, HAS_FOLDER_DESCRIPTORS, read_trusted, user_cache, write_trusted
from minibert._utils.reporting import warn_caller
from minibert.bert import low_precision
from minibert.kernels.processor import target, words_of

Kernel = Callable[[int], None]
"""A compiled function of one address. It does not raise, and other Python threads run meanwhile."""


class ObjectCode(NamedTuple):
    """Machine code as LLVM wrote it: an object file, and the name of the function in it."""

    symbol: str
    content: bytes


# --- files -----------------------------------------------------------------------------------------------------------

_FORMAT = 1
_FILE = "run_task-{}.bin"

# A folder of other versions of the sources is deleted when it has not been used for this time.
_UNUSED_SECONDS = 30 * 24 * 3600

_DIGEST_SIZE = hashlib.sha256().digest_size

_lock = threading.RLock()

# A child that is forked while another thread compiles would wait for this lock for ever. So the fork waits instead.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)

_loaded: dict[str, Kernel] = {}


def load_run_task(compute_type: str = "float32") -> Kernel:
    """Return the function of run_task.make_run_task as machine code, loaded from disk, or compiled now and saved.

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
    key = cache_key(compute_type)
    for folder in cache_folders():
        try:
            content = read_trusted(folder, _FILE.format(hashlib.sha256(key.encode()).hexdigest()[:32]))
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
    key = cache_key(compute_type)
    header = json.dumps({"format": _FORMAT, "key": key, "symbol": code.symbol}).encode()
    payload = header + b"\n" + code.content
    reasons = []
    for folder in cache_folders():
        try:
            name = _FILE.format(hashlib.sha256(key.encode()).hexdigest()[:32])
            write_trusted(folder, name, [hashlib.sha256(payload).digest(), payload])
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
        else:
            _delete_unused(folder)
            return
    _warn_not_saved("; ".join(reasons) or "there is not a folder for them")


def cache_key(compute_type: str) -> str:
    """Return a text with everything on which the machine code and the packed weights depend."""
    try:
        compiler = importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        compiler = ""
    words = [words_of(name) for name in low_precision.FORMATS_OF[compute_type]]
    return repr((*target(), llvm.get_process_triple(), compiler, llvmlite.__version__, _sources(), compute_type, words))


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
    """Yield the folders where the machine code of these sources is searched and saved, in this order.

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
    if (users := user_cache()) is not None:
        yield users / name


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
    if not HAS_FOLDER_DESCRIPTORS:  # without descriptors, a folder could be replaced after its check
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(folder.parent):
            if name != folder.name and re.fullmatch(r"kernels-[0-9a-f]{16}", name):
                with contextlib.suppress(OSError):
                    _delete_if_unused(folder.parent / name)


def _delete_if_unused(folder: Path) -> None:
    """Delete a folder if it belongs to the user, holds only machine code, and was not used for `_UNUSED_SECONDS`."""
    descriptor = os.open(folder, FOLDER_FLAGS)
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


# --- loading ---------------------------------------------------------------------------------------------------------

# Never freed, like the machine code, because a helper thread may still run when the interpreter ends.
_UNUSED = (ctypes.c_int64 * 2)()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_UNUSED))


def link(code: ObjectCode, num_arguments: int) -> Callable[..., None]:
    """Load an object file into this process and return its function, which takes this number of integers.

    The function does not return anything. Other Python threads run while it runs.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
    engine.finalize_object()
    # Numba's convention for calls: a place for the result and one for an exception, then the arguments.
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * num_arguments)
    address = engine.get_function_address(code.symbol)
    if not address:
        raise ImportError(f"the machine code does not have the function {code.symbol}")
    function = prototype(address)
    engine.detach()  # never freed
    unused = ctypes.addressof(_UNUSED)
    return functools.partial(function, unused, unused)
