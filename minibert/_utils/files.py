"""Read a model's files as data: regular files only, strict JSON, size limits. Write files completely or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import math
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import NotFiniteError, brief
from minibert.errors import ModelFormatError

JSON_LIMIT = 16 * 2**20
"""Most bytes of a JSON file of settings. The largest real one, the index of a sharded model, is well below 1 MB."""


class MadeFile(type(Path())):  # type: ignore[misc]  # before Python 3.12 a class cannot derive from Path itself
    """The path of a file that does not exist, with the content that `read_bytes` gives for it."""

    content = b""


def read_json(path: Path) -> Any:
    """Read a JSON file strictly: UTF-8 (a byte order mark is tolerated), at most 16 MB, each key once.

    NaN, Infinity and numbers too large for a float are refused, because JSON does not have them, and settings of a
    model do not need them.

    Raises
    ------
    ModelFormatError
        The file cannot be read or is not JSON. The message names the file, the position and the reason.
    """
    return parse_json(read_bytes(path), str(path))


def parse_json(content: bytes, name: str) -> Any:
    """Parse JSON by the rules of `read_json`; `name` is the name of the file, for the message."""
    if content.startswith(b"version https://git-lfs"):  # git writes it instead of a file if Git LFS is not installed
        raise ModelFormatError(f"{name} is a Git LFS pointer instead of the file: run `git lfs pull` in its folder.")
    try:
        hooks: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite_float}
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique_keys, **hooks)
        if b"\\ud" in content.lower():  # surrogates; two may be one character, but one alone cannot be encoded
            _refuse_half_characters(value)
        return value
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        fault = "it is empty" if not content.strip() else error.msg
        place = f"line {error.lineno}, column {error.colno}"
        raise ModelFormatError(f"{name} is not valid JSON: {fault} at {place}.") from error
    except ValueError as error:  # from the three hooks, or from an integer with thousands of digits
        raise ModelFormatError(f"{name} is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise ModelFormatError(f"{name} is nested too deeply to be read.") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object; the errors are as for `read_json`."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path} holds {json.dumps(value)[:40]}, expected an object {{...}}.")
    return value


def read_bytes(path: Path, *, limit: int = JSON_LIMIT) -> bytes:
    """Read a whole regular file of at most `limit` bytes.

    Raises
    ------
    ModelFormatError
        The file cannot be read, is larger, or is truncated while it is read.
    """
    if isinstance(path, MadeFile):
        return path.content
    if not is_regular_file(path):
        raise ModelFormatError(f"{path} does not exist.")
    with explained(f"{path} cannot be read", ModelFormatError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ModelFormatError(f"{path} is larger than {limit} bytes, the limit for such a file of a model.")
        # Read no more than that size. It is 0 for files of /proc, and reading some of them never ends.
        content = file.read(size)
    if len(content) < size:
        raise ModelFormatError(f"{path} was truncated while it was being read; load it again.")
    return content


def check_format(content: Mapping[str, Any], newest: int, name: str) -> None:
    """Refuse a file of minibert if its format number is newer than this version can read.

    Files of minibert 0.1 do not have a format number. `name` is for the message.
    """
    number = content.get("format", 0)
    if type(number) is not int or not 0 <= number <= newest:
        raise ValueError(f"{name} has the format {number!r}, but this minibert reads up to {newest}; use a newer one.")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object; raise for two equal keys, because readers disagree on which of them counts."""
    result = dict(pairs)
    if len(result) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} occurs twice in one object")
    return result


def _refuse_half_characters(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start : error.end]!a} is half a character") from None


def _refuse_constant(name: str) -> NoReturn:
    raise NotFiniteError(f"{name} is not a JSON number")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def is_regular_file(path: Path) -> bool:
    """Return whether a file exists; raise if it is not a regular file, because reading it might never end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise ModelFormatError(f"{path} is a link to {os.readlink(path)!r}, which does not exist.") from error
        return False
    except OSError as error:  # no permission, a loop of links, a name too long
        raise ModelFormatError(f"{path} cannot be read: {os_reason(error)}.") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"
        raise ModelFormatError(f"{path} is {kind}, expected a regular file.")
    return True


def os_reason(error: Exception) -> str:
    """Return the system's error message without the path, because minibert's own message names the path."""
    return getattr(error, "strerror", None) or str(error)


@contextlib.contextmanager
def explained(failed: str, kind: type[Exception] = OSError) -> Iterator[None]:
    """Raise an OSError as an error of this kind, whose message says what failed, and the system's reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{failed}: {os_reason(error)}.") from error


def printable(text: str) -> str:
    """Return text from outside minibert; if it is empty or holds control characters, its repr."""
    return text if text and text.isprintable() else repr(text)


def is_plain_name(name: str) -> bool:
    """Return whether a name, with "/" between its parts, names something below a folder on every system."""
    return name.isprintable() and not set(name) & {"\\", ":"} and not set(name.split("/")) & {"", ".", ".."}


def within(prefix: str, names: Iterable[str]) -> list[str]:
    """Return the sorted names that begin with a prefix ("folder/", or "" for all), without the prefix."""
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def check_output(path: str | os.PathLike[str], suffixes: Sequence[str]) -> str:
    """Check the name of a file to write (for a link: its target's name) before the content of the file is computed.

    Parameters
    ----------
    path : str or path
    suffixes : sequence of str
        Those of the formats that can be written, in lower case.

    Returns
    -------
    str
        The suffix in lower case: it is the format.

    Raises
    ------
    ValueError
        The name does not have one of the suffixes.
    OSError
        The name is empty or a folder's, or its folder does not exist.
    """
    path = os.fspath(path)
    if not path:
        raise OSError("the name of the file to write is empty; give a name.")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder; give the name of a file to write.")
    target = os.path.realpath(path)
    path = target if os.path.islink(path) else path
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in suffixes:
        expected = " or ".join(filter(None, [", ".join(suffixes[:-1]), suffixes[-1]]))
        raise ValueError(f"{printable(path)} must end in {expected}, because the end is the format; give another name.")
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{printable(path)} cannot be written: there is no folder {folder}. Make it first.")
    return suffix


def make_folder(path: str | os.PathLike[str], name: str = "save_directory") -> str:
    """Make a folder, and the folders above it, if it does not exist; return its path. `name` is the argument's.

    Raises
    ------
    TypeError, OSError
        The path is not a str or a path; or the folder cannot be made, for example because it is a file.
    """
    folder = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(folder, str):
        raise TypeError(f"{name}={brief(path)}; expected a str or a path.")
    if folder.isspace():
        raise OSError(f"{name}={folder!r} cannot be the name of a folder.")
    folder = os.path.expanduser(folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError for a name that holds a zero byte
        raise OSError(f"the folder {printable(folder)} cannot be made: {os_reason(error)}.") from error
    return folder


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any] | list[Any]) -> None:
    """Write a JSON object or list with `write_whole`, indented by two spaces; the keys keep their order."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file that gets its name only when it is complete and on the disk; a link is followed.

    Parameters
    ----------
    path : str or path
    write : callable
        Called with the open file; writes its content.

    Raises
    ------
    OSError
        The file cannot be written. A file that was there before is not changed.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    with explained(f"{path} cannot be written"):
        replace_file(target, os.path.join(folder, f".minibert-{os.urandom(4).hex()}"), write)
    sync_folder(folder)


def replace_file(
    name: str,
    partial: str,
    write: Callable[[BinaryIO], object],
    opener: Callable[[str, int], int] | None = None,
    folder: int | None = None,
) -> None:
    """Write a file under the name `partial` (it must be free), then give it its name; delete it after an error.

    `opener` is as for `open`. `folder` is the descriptor of an open folder; both names are then names in this folder.
    """
    try:
        with open(partial, "xb", opener=opener) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):  # so that the first error is raised
            os.unlink(partial, dir_fd=folder)
        raise


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Write a folder's list of names to the disk, as fsync does with a file's bytes, if the system supports it.

    Before this a power cut can undo that a file was made or renamed.
    """
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):  # some network drives do not support it; the names are then only less safe
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def exchange(a: Path, b: Path) -> None:
    """Give a folder the name of another one: in one step on Linux, elsewhere in two, which can be done again.

    What `b` was is then `a`, or, after two steps, ``<a>.replaced``.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # an old C library
            at, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
            if not ctypes.CDLL(None).renameat2(at, os.fsencode(a), at, os.fsencode(b), swap):
                return
    if b.exists():
        os.rename(b, a.with_name(f"{a.name}.replaced"))
    os.rename(a, b)


def parse_npy(content: bytes) -> npt.NDArray[Any]:
    """Read the bytes of an .npy file.

    Raises
    ------
    ValueError
        It is not such a file, its length differs from its shape, or it holds Python objects: a pickle.
    """
    # NumPy's own reader asks for the memory of the shape before it compares the shape with the file.
    if (declared := declared_nbytes(content)) != len(content):
        raise ValueError(f"it has {len(content)} bytes, and its header says {declared}")
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def declared_nbytes(begin: bytes) -> int:
    """Return the length of an .npy file as its header says it; `begin` is the start of the file and holds the header.

    Raises
    ------
    ValueError
        As `parse_npy`.
    """
    file = io.BytesIO(begin)
    version = np.lib.format.read_magic(file)
    # The formats 2.0 and 3.0 differ from 1.0 in the length of the header only; NumPy has no public reader of 3.0.
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"it has an array of the format {version}")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are a pickle; save an array of numbers")
    return file.tell() + math.prod(shape) * dtype.itemsize


class FileLock:
    """A lock on a file. Making this object creates the file and takes the lock. The lock ends with the process.

    Parameters
    ----------
    path : Path
        In a folder that exists.
    seconds : float
        How long to wait for another process.

    Raises
    ------
    BlockingIOError
        Another process has the lock.
    OSError
        The file cannot be made.

    Warns
    -----
    UserWarning
        The file system does not support locks, like some network drives, so a second process is not stopped.
    """

    def __init__(self, path: Path, *, seconds: float = 0.0) -> None:
        import filelock

        from minibert._utils.reporting import warn_caller

        self._path, self._lock = path, filelock.FileLock(path, thread_local=False)
        try:
            self._lock.acquire(timeout=seconds, poll_interval=0.02)
        except filelock.Timeout as error:
            raise BlockingIOError("another process") from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
                raise
            advice = "Make sure that no second process writes the same files."
            warn_caller(f"{path}: its file system does not support locks ({os_reason(error)}). {advice}")

    def release(self, *, delete: bool = False) -> None:
        """Release the lock; with `delete`, delete the file first, while no other process can take its lock."""
        if delete:
            with contextlib.suppress(OSError):  # Windows cannot delete an open file; filelock deletes it there
                self._path.unlink(missing_ok=True)
        self._lock.release()
