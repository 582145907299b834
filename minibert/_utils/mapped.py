"""Arrays in a file that many processes map, so that the machine holds one copy of them.

What        `shared_arrays` maps the file of a key. If there is none that can be used, it makes the arrays and writes it
Layout      CRC-32 of the rest (4 bytes) | one line of JSON: format, key, title, names, shapes and offsets | the
            arrays, float32 in the byte order of the machine, each at a cache line
Files       - A file is used only if its checksum is right and its key is the one that is asked for, and if only trusted
              users can write to it and to its folder (trusted.py). If not, it is written again.
            - A file gets its name when it is complete. One process writes it; the others wait for the lock, and then
              map what was written. If the writer is killed, the next one takes over.
            - A file that was not used for a month is deleted when another one is written. A process that maps it keeps
              it.
Writing     The mapping is private: a write into it, which only code outside minibert can try, changes pages of that
            process alone. Neither the file nor another process sees it
SIGBUS      The system kills a process that reads a page of a mapped file that was cut off. The checksum is computed by
            reading, not through the mapping, so a file that is too short is noticed before. Afterwards nothing of
            minibert cuts a file, and the file's mode allows nobody to write to it. To delete or replace it is harmless
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from minibert._utils.locks import FileLock
from minibert._utils.private_files import HAS_FOLDER_DESCRIPTORS, open_folder, open_trusted, write_trusted
from minibert._utils.validation import FloatArray

__all__ = ["FILE_NAMES", "MappedFile", "is_mapped", "list_files", "shared_arrays"]

_FORMAT = 1
_SUFFIX = ".weights"
FILE_NAMES = re.compile(r"[0-9a-f]{32}\.(weights|digest|weights\.lock)|\.[0-9a-f]{16}\.partial")
"""The names of all files that minibert makes in a folder of weights, also those that killed writers left."""
_CACHE_LINE = 64
_BLOCK = 4 * 2**20  # bytes that are read together; the header is in the first ones

# It finds damage, three times as fast as SHA-256. Against people, the file is protected by its owner and mode.
_CHECKSUM_SIZE = 4

_UNUSED_SECONDS = 30 * 24 * 3600
_WAIT_SECONDS = 0.02
# A process that stops while it holds the lock must not stop the others for ever.
_PATIENCE_SECONDS = 300.0


def shared_arrays(
    folder: Path, key: str, make: Callable[[], Mapping[str, FloatArray]], *, title: str = "", mode: int = 0o444
) -> dict[str, FloatArray]:
    """Map the arrays of a key from its file in a folder; make them and write the file if it cannot be used.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    key : str
        Everything that the arrays depend on.
    make : callable
        Returns the arrays by name. It is called at most once.
    title : str
        A name for people, for `list_files`.
    mode : int
        Permissions of a file that is written.

    Returns
    -------
    dict of str to ndarray, float32, read-only

    Raises
    ------
    OSError
        The file cannot be written or mapped, or the process that writes it does not come to an end.
    """
    name = hashlib.sha256(key.encode()).hexdigest()[:32] + _SUFFIX
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        if (arrays := _map(folder, name, key)) is not None:
            return arrays
        with open_folder(folder, make=True) as opened:
            path = opened.path
        try:
            lock = FileLock(path / f"{name}.lock", needed=False)
        except (BlockingIOError, FileNotFoundError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(0, f"waited {_PATIENCE_SECONDS:.0f} s for {error}, which writes {name}") from error
            time.sleep(_WAIT_SECONDS)
            continue
        try:
            if (arrays := _map(folder, name, key)) is None:  # another process may have written it just now
                write_trusted(folder, name, _pieces(key, title, make()), mode=mode)
                arrays = _map(folder, name, key)
        finally:
            lock.release(delete=True)
        _delete_unused(folder)
        if arrays is None:
            raise OSError(0, f"{name} was written, but what is read is not the same")
        return arrays


def is_mapped(array: FloatArray) -> bool:
    """Return whether the memory of an array is that of a file, as for those of `shared_arrays`."""
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return isinstance(owner, mmap.mmap)


class MappedFile(NamedTuple):
    """A file of `shared_arrays`, for people: its path, title, size in bytes, and when it was last used (Unix time)."""

    path: str
    title: str
    bytes: int
    used: float


def list_files(folder: Path) -> list[MappedFile]:
    """List the files of a folder, by title; their arrays are not read."""
    found = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []:
        with contextlib.suppress(Exception), open_trusted(folder, path.name) as file:
            state = os.fstat(file.fileno())
            header, _ = _header(file.read(_BLOCK))
            found.append(MappedFile(str(path), str(header["title"]), state.st_size, state.st_mtime))
    return sorted(found, key=lambda one: one.title)


# --- reading ----------------------------------------------------------------------------------------------------------


def _map(folder: Path, name: str, key: str) -> dict[str, FloatArray] | None:
    """Map a file; None if there is none that can be used."""
    try:
        with open_trusted(folder, name) as file:
            arrays = _arrays_of(file, key)
            with contextlib.suppress(OSError):  # a file of the package's owner
                os.utime(file.fileno() if os.utime in os.supports_fd else folder / name)
            return arrays
    except Exception:  # after any error in a file, it is written again
        return None


def _arrays_of(file: BinaryIO, key: str) -> dict[str, FloatArray]:
    """Return the arrays of an open file; raise if the file is not whole, or is that of another key."""
    size = os.fstat(file.fileno()).st_size
    first = _read_checked(file, size)
    header, start = _header(first)
    if header["format"] != _FORMAT or header["key"] != key:
        raise ValueError("it is a file of another format or key")
    whole = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY), np.uint8)
    arrays = {}
    for name, (shape, offset) in header["arrays"].items():
        begin = start + offset
        array = whole[begin : begin + 4 * math.prod(shape)].view(np.float32).reshape(shape)
        array.flags.writeable = False
        arrays[name] = array
    return arrays


def _read_checked(file: BinaryIO, size: int) -> bytes:
    """Read a file of `size` bytes and compare its checksum; return its first bytes."""
    block, first, checksum, done = bytearray(min(size, _BLOCK)), b"", 0, 0
    while done < size:
        count = file.readinto(block)  # type: ignore[attr-defined]
        if not count:
            raise ValueError("it was cut while it was read")
        with memoryview(block)[:count] as view:
            first = first or bytes(view)
            checksum = zlib.crc32(view if done else view[_CHECKSUM_SIZE:], checksum)
        done += count
    if checksum != int.from_bytes(first[:_CHECKSUM_SIZE], "little"):
        raise ValueError("its checksum is wrong")
    return first


def _header(first: bytes) -> tuple[dict[str, Any], int]:
    """Return the header that is in the first bytes of a file, and the offset of the arrays."""
    end = first.index(b"\n", _CHECKSUM_SIZE) + 1
    header = json.loads(first[_CHECKSUM_SIZE:end])
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header, end


# --- writing ----------------------------------------------------------------------------------------------------------


def _pieces(key: str, title: str, arrays: Mapping[str, FloatArray]) -> list[bytes | memoryview]:
    """Return the content of a file in pieces, of which those of the arrays are not copies."""
    listed, body, end = {}, list[bytes | memoryview](), 0
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array, np.float32)
        listed[name] = [list(array.shape), end]
        rest = -flat.nbytes % _CACHE_LINE
        body += [flat.reshape(-1).view(np.uint8).data, bytes(rest)]
        end += flat.nbytes + rest
    line = json.dumps({"format": _FORMAT, "key": key, "title": title, "arrays": listed}).encode()
    line += b" " * (-(_CHECKSUM_SIZE + len(line) + 1) % _CACHE_LINE) + b"\n"
    checksum = 0
    for piece in (line, *body):
        checksum = zlib.crc32(piece, checksum)
    return [checksum.to_bytes(_CHECKSUM_SIZE, "little"), line, *body]


def _delete_unused(folder: Path) -> None:
    """Delete the user's files that were not used for `_UNUSED_SECONDS`, and what killed writers left; never raise.

    A file may be deleted while another process maps it.
    """
    if not HAS_FOLDER_DESCRIPTORS:  # without descriptors, a folder could be replaced after its check
        return
    with contextlib.suppress(OSError), open_folder(folder) as opened:
        for name in filter(FILE_NAMES.fullmatch, os.listdir(opened.descriptor)):
            with contextlib.suppress(OSError):
                state = os.stat(name, dir_fd=opened.descriptor, follow_symlinks=False)
                own = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid()
                if own and time.time() - state.st_mtime > _UNUSED_SECONDS:
                    os.unlink(name, dir_fd=opened.descriptor)
