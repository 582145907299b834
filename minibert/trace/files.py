"""Named arrays and a header in JSON, in one file: .npz or .safetensors."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_output, os_reason, parse_json, parse_npy, printable, write_whole
from minibert._utils.validation import brief

__all__ = ["SUFFIXES", "Stored", "path_text", "read_arrays", "write_arrays"]

SUFFIXES = (".npz", ".safetensors")

# The name of the header among the arrays of an .npz, and in the metadata of a safetensors file.
_HEADER = "minibert_trace"

_DTYPES = {"float32": "F32", "float64": "F64", "uint8": "U8"}


class Stored(NamedTuple):
    """One array to write; `make` returns it, so that only one of them is in memory at a time."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], npt.NDArray[Any]]


def path_text(path: object) -> str:
    """Return a path as a str; raise a TypeError if it is not a str or a path object."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise TypeError(f"{brief(path)} is not the name of a file; expected a str or a path.")
    return text


def write_arrays(path: str | os.PathLike[str], arrays: Sequence[Stored], header: str) -> None:
    """Write arrays and a header; the suffix of the path is the format.

    Raises
    ------
    ValueError
        The suffix is not in `SUFFIXES`.
    OSError
    """
    path = path_text(path)
    write = _write_npz if check_output(path, SUFFIXES) == ".npz" else _write_safetensors
    write_whole(path, lambda file: write(file, arrays, header))


def _write_npz(file: BinaryIO, arrays: Sequence[Stored], header: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, make in [(_HEADER, lambda: np.array(header)), *((stored.name, stored.make) for stored in arrays)]:
            # A fixed date, so that equal traces are equal files.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, make(), allow_pickle=False)  # type: ignore[no-untyped-call]


def _write_safetensors(file: BinaryIO, arrays: Sequence[Stored], header: str) -> None:
    """Write the format of huggingface/safetensors: 8 bytes of length, a header in JSON, the values without gaps."""
    entries: dict[str, Any] = {"__metadata__": {_HEADER: header}}
    ordered = sorted(arrays, key=lambda stored: -stored.dtype.itemsize)  # so that each array is aligned
    end = 0
    for stored in ordered:
        first, end = end, end + stored.dtype.itemsize * int(np.prod(stored.shape, dtype=np.int64))
        dtype = _DTYPES[stored.dtype.name]
        entries[stored.name] = {"dtype": dtype, "shape": list(stored.shape), "data_offsets": [first, end]}
    content = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    content += b" " * (-len(content) % 8)
    file.write(len(content).to_bytes(8, "little") + content)
    for stored in ordered:
        file.write(np.ascontiguousarray(stored.make(), dtype=stored.dtype.newbyteorder("<")).data)


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Read what `write_arrays` wrote: the arrays by name, and the header, a JSON object.

    Raises
    ------
    ValueError
        The suffix is not in `SUFFIXES`; or the file is damaged or was not written by `write_arrays`.
    OSError
        The file cannot be read.
    """
    path = path_text(path)
    name = printable(path)
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{name} must end in {' or '.join(SUFFIXES)}, which is the format of a trace.")
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise OSError(f"{name} cannot be read: {os_reason(error)}.") from error
    try:
        arrays, header = (_parse_npz if suffix == ".npz" else _parse_safetensors)(content)
    except MemoryError:
        raise
    except Exception as error:  # zipfile, zlib, NumPy and safetensors raise errors of many types
        raise ValueError(f"{name} is not a whole trace of minibert ({error}). Write or copy it again.") from error
    parsed = parse_json(header.encode(), f"the header of {name}")
    if not isinstance(parsed, dict):
        raise ValueError(f"the header of {name} is not a JSON object. Write or copy the file again.")
    return arrays, parsed


def _parse_npz(content: bytes) -> tuple[dict[str, npt.NDArray[Any]], str]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        # What is written is not compressed. So no entry can be larger than the file.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it is compressed")
        for entry in archive.infolist():
            arrays[entry.filename.removesuffix(".npy")] = parse_npy(archive.read(entry))
    header = arrays.pop(_HEADER)
    if header.dtype.kind != "U" or header.shape:
        raise ValueError("its header is not text")
    return arrays, str(header)


def _parse_safetensors(content: bytes) -> tuple[dict[str, npt.NDArray[Any]], str]:
    import safetensors.numpy

    arrays = safetensors.numpy.load(content)  # checks the header, the offsets and the length
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")], "its header")
    return arrays, str(header["__metadata__"][_HEADER])
