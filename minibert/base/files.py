"""Reading the files of a model as data: regular files only, JSON strictly and within limits; writing files whole."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from minibert.errors import ModelFormatError

__all__ = [
    "JSON_LIMIT",
    "check_format",
    "is_regular_file",
    "os_reason",
    "parse_json",
    "printable",
    "read_bytes",
    "read_json",
    "read_json_object",
    "refuse_lfs_pointer",
    "sync_folder",
    "within",
    "write_whole",
]

JSON_LIMIT = 16 * 2**20
"""Bytes of a JSON file of settings; the largest real one is the index of a sharded model, well below 1 MB."""


def read_json(path: Path, *, what: str | None = None) -> Any:
    """Read a JSON file strictly: UTF-8 (a byte order mark is tolerated), at most 16 MB, each key once.

    NaN, Infinity and numbers too large for a float are refused: JSON has none, and no setting of a model is one.

    Parameters
    ----------
    path : Path
    what : str, optional
        What the file is, for the message ("the shard index"); the path is always in it.

    Raises
    ------
    ModelFormatError
        The file cannot be read or is not JSON. The message names the file, the position and the reason.
    """
    return parse_json(read_bytes(path, what=what), _name(path, what))


def parse_json(content: bytes, name: str) -> Any:
    """Parse JSON that is already read, by the rules of `read_json`; `name` is the file's, for the message."""
    refuse_lfs_pointer(content, name)
    try:
        value = json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=_object_with_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
        if b"\\ud" in content.lower():  # halves of characters, which are one together, or cannot be written
            _refuse_half_characters(value)
        return value
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        found = "it is empty" if not content.strip() else error.msg
        raise ModelFormatError(
            f"{name} is not valid JSON: {found} at line {error.lineno}, column {error.colno}."
        ) from error
    except ValueError as error:  # of the three hooks, or an integer with thousands of digits
        raise ModelFormatError(f"{name} is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise ModelFormatError(f"{name} is nested too deeply to be read.") from error


def refuse_lfs_pointer(content: bytes, name: str) -> None:
    """Raise a ModelFormatError for the note that git leaves in place of a file where Git LFS is not installed."""
    if content.startswith(b"version https://git-lfs"):
        raise ModelFormatError(f"{name} is a Git LFS pointer instead of the file: run `git lfs pull` in its folder.")


def read_json_object(path: Path, *, what: str | None = None) -> dict[str, Any]:
    """Read a JSON file that must hold an object; otherwise as `read_json`."""
    value = read_json(path, what=what)
    if not isinstance(value, dict):
        raise ModelFormatError(f"{_name(path, what)} holds a JSON {_json_type(value)}, expected an object {{...}}.")
    return value


def read_bytes(path: Path, *, limit: int = JSON_LIMIT, what: str | None = None) -> bytes:
    """Read a whole regular file of at most `limit` bytes.

    Parameters
    ----------
    path : Path
    limit : int
    what : str, optional
        As in `read_json`.

    Raises
    ------
    ModelFormatError
        The file cannot be read, is larger, or is cut while it is read.
    """
    name = _name(path, what)
    if not is_regular_file(path):
        raise ModelFormatError(f"{name} does not exist.")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise ModelFormatError(f"{name} is larger than {limit} bytes, which no such file of a model is.")
            # Never beyond that size: it is 0 for the files of /proc, and a read of some of them waits for ever.
            content = file.read(size)
    except OSError as error:
        raise ModelFormatError(f"{name} cannot be read: {os_reason(error)}.") from error
    if len(content) < size:
        raise ModelFormatError(f"{name} was cut while it was being read; load it again.")
    return content


def check_format(content: Mapping[str, Any], newest: int, name: str) -> None:
    """Refuse a file of minibert's own whose format number is newer than this version can read.

    Parameters
    ----------
    content : mapping
        Its "format" is the number. Files of minibert 0.1 have none.
    newest : int
    name : str
        The file, for the message.

    Raises
    ------
    ValueError
    """
    found = content.get("format", 0)
    if type(found) is not int or not 0 <= found <= newest:
        raise ValueError(
            f"{name} has the format {found!r}, but this version of minibert reads formats up to {newest} only. Read it "
            "with a newer minibert."
        )


def _name(path: Path, what: str | None) -> str:
    return f"{what} ({path})" if what else str(path)


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object. Readers disagree on which of two equal keys counts, so there must not be two."""
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
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def is_regular_file(path: Path) -> bool:
    """Whether there is a file to read. What is there but is no regular file (it might never end) is refused."""
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


def os_reason(error: OSError) -> str:
    """What the system says, without the path, which the message has already."""
    return error.strerror or str(error)


def printable(text: str) -> str:
    """Escape text from outside that holds control characters."""
    return text if text.isprintable() else repr(text)


def within(prefix: str, names: Iterable[str]) -> list[str]:
    """Keep the names in a folder (prefix "folder/", or "" for all), as seen from there."""
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file that takes its name only once it is complete and on the disk; a link is followed.

    Parameters
    ----------
    path : str or path
    write : callable

    Raises
    ------
    OSError
        The file cannot be written; nothing is left under `path` that was not there before.
    """
    target = os.path.realpath(path)
    try:
        descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".minibert-")
    except OSError as error:
        raise OSError(f"{path} cannot be written: {os_reason(error)}.") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(descriptor)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(partial, 0o666 & ~umask)  # mkstemp's files are private, the user's are as usual
        os.replace(partial, target)
    except BaseException as error:
        os.unlink(partial)
        if isinstance(error, OSError):
            raise OSError(f"{path} cannot be written: {os_reason(error)}.") from error
        raise
    sync_folder(os.path.dirname(target))


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Put the names in a folder on the disk, as fsync does with the bytes of a file, where the system has a way to.

    Until then a power cut can take back that a file was made, or got its name.
    """
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):  # some network drives cannot; the names are there, if not for certain
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
