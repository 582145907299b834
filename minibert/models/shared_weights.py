"""Shared weights: a file with a model's large weights, packed for the kernels, which all processes of a machine map.

What        `Sharing.arrays` maps the file of a part of a model. If there is none that can be used, it makes the arrays
            and writes it. `noted_arrays` are what a model is made of, and `Restored` makes it from the mapped ones
Key         The SHA-256 of the checkpoint's files, so a checkpoint that was changed never gets the old weights; the
            config, which decides the arrays that a part has; the sources and the level of the kernels, and the compute
            type. A digest is noted beside the weights, with the state of its file, because it would take longer than
            the rest. The state has the time of the last change, which the system sets, and no program can set back
Parts       "encoder" has the tables and the layers. All models with the same config and encoder map that file. A
            masked-LM head has a file of its own, because its decoder is large. Poolers and other heads are small, and
            are not shared
Layout      CRC-32 of the rest (4 bytes) | one line of JSON: format, key, title, names, shapes and offsets | the
            arrays, float32 in the byte order of the machine, each at a cache line
Files       - A file is used only if its checksum is right and its key is the one that is asked for, and if only trusted
              users can write to it and to its folder (private_files.py). If not, it is written again.
            - A file gets its name when it is complete. One process writes it; the others wait for the lock, and then
              map what was written. If the writer is killed, the next one takes over, and deletes what it left.
            - A file that was not used for a month is deleted when another one is written. A process that maps it keeps
              it.
Failure     If the file cannot be written, each process has its own weights, and one warning says so
Writing     The mapping is private: a write into it, which only code outside minibert can try, changes pages of that
            process alone. Neither the file nor another process sees it
SIGBUS      The system kills a process that reads a page of a mapped file that was cut off. The checksum is computed by
            reading, not through the mapping, so a file that is too short is noticed before. Afterwards nothing of
            minibert cuts a file, and its mode is 0400: only a program of its owner that has made it writable, that has
            kept a descriptor, or root can do so. To delete or replace a file is harmless
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import mmap
import os
import re
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from minibert._utils import private_files
from minibert._utils.files import FileLock, explained, os_reason
from minibert._utils.reporting import warn_caller
from minibert._utils.validation import FloatArray
from minibert._version import __version__
from minibert.bert.config import BertConfig
from minibert.bert.ops import PreparedLinear
from minibert.checkpoint.safetensors import StoredTensor, file_state
from minibert.errors import ModelFormatError

if TYPE_CHECKING:
    from minibert.kernels.packing import PackedLayout, PackedLinear


# Add 1 when the arrays of a part, their names or the layout of a file change without a change in kernels/.
_FORMAT = 4

_SETTLED_SECONDS = 10

Arrays = dict[str, FloatArray]
"""The arrays of a part by name."""

_SUFFIX = ".weights"
FILE_NAMES = re.compile(r"[0-9a-f]{32}\.(weights|digest|weights\.lock)|\.[0-9a-f]{16}\.partial")
"""The names of all files that minibert makes in a folder of weights, also those that killed writers left."""
_CACHE_LINE = 64
_BLOCK = 4 * 2**20  # bytes that are read together; the header is in the first ones

# It finds damage, three times as fast as SHA-256. Against people, the file is protected by its owner and mode.
_CHECKSUM_SIZE = 4

_UNUSED_SECONDS = 30 * 24 * 3600
# A process that stops while it holds the lock must not stop the others for ever.
_PATIENCE_SECONDS = 300.0


def noted_arrays(noted: Mapping[str, object]) -> dict[str, FloatArray]:
    """Return the arrays that `Restored` needs from a model's tensors and packed linear maps, by name."""
    arrays: dict[str, FloatArray] = {}
    for name, value in noted.items():
        if hasattr(value, "panels"):
            packed = cast("PackedLinear", value)  # the kernels' `prepare` returned it
            arrays |= {f"{name}.panels{packed.half}": packed.panels, f"{name}.bias": packed.bias}
        else:
            arrays[name] = np.asarray(value)
    return arrays


class Restored:
    """The tensors and linear maps of `noted_arrays`, with the methods of `loading.FromFiles`."""

    def __init__(self, arrays: dict[str, FloatArray], layout: PackedLayout) -> None:
        self._arrays, self._layout = arrays, layout

    def array(self, names: Sequence[str], shape: tuple[int, ...]) -> FloatArray:
        """Return tensors that were noted; of frequencies that are not in the checkpoint, nothing."""
        if names[0].endswith("inv_freq"):
            return self._arrays.get(names[0], np.zeros(0, np.float32))
        return self._arrays[" ".join(names)]

    def linear(
        self, paths: tuple[str, ...], shape: tuple[int, int], *, bias: bool = True, gated: bool = False
    ) -> PreparedLinear:
        """Return a linear map that was noted; without a bias, it has zeros."""
        name = " ".join(paths)
        half = next(kind for kind in ("", "F16", "BF16") if f"{name}.panels{kind}" in self._arrays)
        panels, added = self._arrays[f"{name}.panels{half}"], self._arrays[f"{name}.bias"]
        return self._layout.restore(paths, shape, panels, added, gated, half)

    def decoder(self, path: str, word_embeddings: FloatArray, bias: bool) -> tuple[PreparedLinear, bool]:
        """Return a decoder that was noted."""
        V, H = word_embeddings.shape
        return self.linear((path,), (V, H)), bool(self._arrays[f"{path}.tied"][0])


class Sharing:
    """The files of a compute type's packed weights."""

    def __init__(self, layout: PackedLayout, compute_type: str) -> None:
        self.layout = layout
        self._compute_type = compute_type
        self._digests: dict[Path, tuple[str, tuple[int, ...]]] = {}
        self._mapped: list[weakref.ref[mmap.mmap]] = []

    def arrays(
        self, part: str, config: BertConfig, source: str, tensors: Iterable[StoredTensor], make: Callable[[], Arrays]
    ) -> Arrays | None:
        """Map the arrays of a part of a model; `make` makes them if there is no file. Return None if that fails.

        Raises
        ------
        ModelFormatError
            A file of the checkpoint cannot be read, or has changed since `tensors` were listed.
        """
        folder = shared_folder()
        if folder is None:
            _warn_not_shared("the user does not have a home folder")
            return None
        tensors = list(tensors)
        states = {tensor.path: tensor.state for tensor in tensors}
        digests = [self._digest(path, state) for path, state in sorted(states.items())]
        # In a checkpoint of TensorFlow, the names are in another file than the numbers.
        places = sorted((one.name, one.offset, one.shape) for one in tensors if ".data-" in one.path.name)
        key = repr((_FORMAT, __version__, part, config, digests, places, self.layout.key))
        write = functools.partial(shared_arrays, folder, key, make, title=f"{source}, {part}, {self._compute_type}")
        try:
            try:
                arrays = write()
            except FileNotFoundError:  # `minibert doctor --clear` has deleted meanwhile what was written
                arrays = write()
        except OSError as error:
            _warn_not_shared(f"{folder}: {os_reason(error)}")
            return None
        self._mapped += [weakref.ref(mapped) for array in [*arrays.values()][:1] if (mapped := _mapped(array))]
        return arrays

    def release(self) -> None:
        """Give back the memory of the mapped files; a page is mapped again when it is read.

        Another thread may read them meanwhile. A system other than Linux takes such pages when it needs memory.
        """
        for reference in self._mapped:
            if (mapped := reference()) is not None and sys.platform == "linux":
                mapped.madvise(mmap.MADV_DONTNEED)

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file: the noted one, if the file has not changed since, else the computed one.

        Raises
        ------
        OSError
            The file cannot be read.
        """
        if path not in self._digests:
            with open(path, "rb", buffering=0) as file:
                self._digests[path] = _noted_digest(shared_folder(), path, file), file_state(file)
        return self._digests[path][0]

    def _digest(self, path: Path, state: tuple[int, ...]) -> str:
        """Return the SHA-256 of a file of the checkpoint, which must be in this state."""
        with explained(f"{path} cannot be read", ModelFormatError):
            digest = self.digest(path)
        if self._digests[path][1] != state:
            raise ModelFormatError(f"{path} changed while it was being read; load the model again.")
        return digest


def _noted_digest(folder: Path | None, path: Path, file: IO[bytes]) -> str:
    """Return the SHA-256 of an open file: the noted one, if the file has not changed since, else the computed one."""
    if folder is None or sys.platform == "win32":  # its ctime is the time when the file was made
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    changed = os.fstat(file.fileno()).st_ctime_ns
    state = repr((os.path.realpath(path), *file_state(file), changed))
    name = hashlib.sha256(state.encode(errors="surrogateescape")).hexdigest()[:32] + ".digest"
    with contextlib.suppress(OSError), private_files.open_trusted(folder, name) as opened:
        noted = opened.read().decode("ascii", "replace")
        if re.fullmatch("[0-9a-f]{64}", noted):
            return noted
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    # A file that was changed just now may change again within the same tick of the system's clock.
    if time.time_ns() - changed > _SETTLED_SECONDS * 10**9:
        with contextlib.suppress(OSError):  # without the note, the next load computes it again
            private_files.write_trusted(folder, name, [digest.encode()])
    return digest


def shared_folder() -> Path | None:
    """Return the folder of the files: in MINIBERT_CACHE_DIR, else in the user's cache; None without a home folder."""
    if chosen := os.environ.get("MINIBERT_CACHE_DIR"):
        return Path(os.path.expanduser(chosen)) / "weights"
    no_home = os.environ.get("HOME") == ""  # "~" would be "/"
    base = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or ("" if no_home else "~/.cache"))
    return Path(base) / "minibert" / "weights" if os.path.isabs(base) else None


@functools.cache
def _warn_not_shared(reason: str) -> None:
    warn_caller(
        f"minibert's weights cannot be shared ({reason}), so this process has a copy of its own. The results are the "
        "same. Set MINIBERT_CACHE_DIR to another folder, with room for them, to which only you can write.",
        RuntimeWarning,
    )


# --- the files of arrays ----------------------------------------------------------------------------------------------


def shared_arrays(
    folder: Path, key: str, make: Callable[[], Mapping[str, FloatArray]], *, title: str = ""
) -> dict[str, FloatArray]:
    """Map the arrays of a key from its file in a folder; if the file cannot be used, make the arrays and write it.

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

    Returns
    -------
    dict of str to ndarray, float32, read-only

    Raises
    ------
    OSError
        The file cannot be written or mapped, or the process that writes it does not come to an end.
    """
    name = hashlib.sha256(key.encode()).hexdigest()[:32] + _SUFFIX
    if (arrays := _map(folder, name, key)) is not None:
        return arrays
    with private_files.open_folder(folder, make=True) as opened:
        path = opened.path / f"{name}.lock"
    try:
        lock = FileLock(path, seconds=_PATIENCE_SECONDS)
    except BlockingIOError as error:
        raise TimeoutError(0, f"waited {_PATIENCE_SECONDS:.0f} s for {error}, which writes {name}") from error
    try:
        if (arrays := _map(folder, name, key)) is None:  # another process may have written it just now
            private_files.write_trusted(folder, name, _pieces(key, title, make()), mode=0o400)
            arrays = _map(folder, name, key)
    finally:
        lock.release(delete=True)
    if private_files.HAS_FOLDER_DESCRIPTORS:  # without descriptors, a folder could be replaced after its check
        with contextlib.suppress(OSError):  # other processes may map the files; they keep them
            private_files.delete_files(folder, FILE_NAMES, unused_seconds=_UNUSED_SECONDS)
    if arrays is None:
        raise FileNotFoundError(0, f"{name} was written, but what is read is not the same")
    return arrays


def is_mapped(array: FloatArray) -> bool:
    """Return whether an array's memory is a mapped file, as for the arrays of `shared_arrays`."""
    return _mapped(array) is not None


def _mapped(array: FloatArray) -> mmap.mmap | None:
    """Return the mapped file of an array; None if its memory is not one."""
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, mmap.mmap) else None


class MappedFile(NamedTuple):
    """The description of a file of `shared_arrays`: path, title, size in bytes, and last use (Unix time)."""

    path: str
    title: str
    bytes: int
    used: float


def list_files(folder: Path) -> list[MappedFile]:
    """List the files of a folder by title, without reading their arrays."""
    mapped = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []:
        with contextlib.suppress(Exception), private_files.open_trusted(folder, path.name) as file:
            state = os.fstat(file.fileno())
            header, _ = _header(file.read(_BLOCK))
            mapped.append(MappedFile(str(path), str(header["title"]), state.st_size, state.st_atime))
    return sorted(mapped, key=lambda file: file.title)


# --- reading ----------------------------------------------------------------------------------------------------------


def _map(folder: Path, name: str, key: str) -> dict[str, FloatArray] | None:
    """Map a file; None if there is none that can be used.

    When its checksum was compared, a file gets a part of it as its time of change, in seconds. A file that is written
    to afterwards has another time. So one process reads the file as a whole, and the later ones only what they use.
    """
    try:
        with private_files.open_trusted(folder, name) as file:
            mark = int.from_bytes(file.read(_CHECKSUM_SIZE), "little") % 2**31
            state = os.fstat(file.fileno())
            if state.st_mtime != mark:
                _compare_checksum(file, state.st_size)
            arrays = _arrays_of(file, state.st_size, key)
            with contextlib.suppress(OSError):  # a file of the package's owner
                os.utime(file.fileno() if os.utime in os.supports_fd else folder / name, (time.time(), mark))
            return arrays
    except Exception:  # after any error in a file, it is written again
        return None


def _arrays_of(file: BinaryIO, size: int, key: str) -> dict[str, FloatArray]:
    """Return the arrays of an open file; raise if it has another key."""
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    header, start = _header(mapped)
    if header["format"] != _FORMAT or header["key"] != key:
        raise ValueError("it is a file of another format or key")
    whole = np.frombuffer(mapped, np.uint8)
    arrays = {}
    for name, (shape, offset) in header["arrays"].items():
        begin = start + offset
        array = whole[begin : begin + 4 * math.prod(shape)].view(np.float32).reshape(shape)
        array.flags.writeable = False
        arrays[name] = array
    return arrays


def _compare_checksum(file: BinaryIO, size: int) -> None:
    """Read a file of `size` bytes, and raise if it is not whole."""
    file.seek(0)
    block, stored, checksum, done = bytearray(min(size, _BLOCK)), b"", 0, 0
    while done < size:
        count = file.readinto(block)  # type: ignore[attr-defined]
        if not count:
            raise ValueError("it was cut while it was read")
        with memoryview(block)[:count] as view:
            stored = stored or bytes(view[:_CHECKSUM_SIZE])
            checksum = zlib.crc32(view if done else view[_CHECKSUM_SIZE:], checksum)
        done += count
    if checksum != int.from_bytes(stored, "little"):
        raise ValueError("its checksum is wrong")


def _header(content: bytes | mmap.mmap) -> tuple[dict[str, Any], int]:
    """Return the header of a file, from its content or a long enough beginning, and the offset of the arrays."""
    end = content.find(b"\n", _CHECKSUM_SIZE) + 1
    return json.loads(content[_CHECKSUM_SIZE:end]), end


# --- writing ----------------------------------------------------------------------------------------------------------


def _pieces(key: str, title: str, arrays: Mapping[str, FloatArray]) -> list[bytes | memoryview]:
    """Return the content of a file in pieces; the arrays are not copied."""
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
