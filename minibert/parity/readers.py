"""Files of values that another program wrote -> arrays by name. Nothing in a file is run, and no size is believed.

>>> from minibert.parity.readers import SUFFIXES
>>> SUFFIXES
('.npz', '.npy', '.safetensors', '.json', '.bin', '.raw')
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import declared_nbytes, is_regular_file, parse_json, parse_npy, printable, read_bytes
from minibert._utils.system import available_memory
from minibert._utils.validation import brief
from minibert.checkpoint.tensors import StoredTensor, read_header
from minibert.errors import ModelFormatError
from minibert.parity.debugger_tree import TREE_SUFFIX, TREE_SUFFIXES, read_tree
from minibert.parity.json_values import read_json
from minibert.parity.numbers import as_numbers, from_lists, widen

__all__ = ["SUFFIXES", "Dump", "NothingComparedError", "as_dump", "read_dump"]

SUFFIXES = (".npz", ".npy", ".safetensors", ".json", ".bin", ".raw")
"""The formats that are read."""


class NothingComparedError(ValueError):
    """A dump has no value that can be compared."""


Dump = dict[str, npt.NDArray[Any] | list[npt.NDArray[Any]]]
"""Arrays by name; a list holds one array for each text, of different lengths."""

_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
_PICKLE_REMEDY = (
    "is a pickle, which can run any code when it is opened, so minibert does not open it. Write the values with "
    'safetensors.torch.save_file({name: tensor.contiguous()}, "dump.safetensors") or numpy.savez("dump.npz", **arrays).'
)

# The bytes of an .npy file in which its header is; NumPy itself reads headers of at most 10,000 characters.
_HEADER = 1 << 14

# Files of a folder that are not values.
_NOT_VALUES = (".txt", ".md", ".log", ".py")

_SAFETENSORS = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1", "I64": "<i8", "I32": "<i4"},
    **{"I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
}


def read_dump(path: str | os.PathLike[str], raw: Mapping[str, tuple[int, ...]] | None = None) -> Dump:
    """Read a file or a folder of values.

    Parameters
    ----------
    path : str or path
        .npz, .npy, .safetensors, .json, or .bin and .raw, which are float32 numbers without a header; a folder of such
        files, whose names are the names of the values; or what transformers' model_addition_debugger_context wrote.
    raw : mapping of str to shape, optional
        The name and shape of values in .bin and .raw files. Without it, the name is that of the file, and the array is
        flat.

    Raises
    ------
    ValueError
        A file is damaged, of another kind, or a pickle; or there are no values in it.
    OSError
        It cannot be read.
    MemoryError
        The values do not fit into the memory that this process may use.
    """
    where = Path(os.fspath(path))
    raw = dict(raw or {})
    if not where.exists():
        raise FileNotFoundError(f"{printable(str(where))} does not exist.")
    try:
        found = _read_folder(where, raw) if where.is_dir() else _read_file(where, raw)
    except ModelFormatError as error:  # the same kind of error for all formats
        raise ValueError(str(error)) from error
    if raw:
        raise ValueError(f"There is no .bin or .raw file for {', '.join(raw)}, of which a shape was given.")
    if not found:
        raise NothingComparedError(f"{printable(str(where))} holds no values; expected arrays by name.")
    return found


def as_dump(values: Mapping[Any, Any]) -> Dump:
    """Check values that were given as a mapping, and turn them into arrays.

    Raises
    ------
    TypeError, ValueError
    """
    found: Dump = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"The name {brief(name)} of a value is a {type(name).__name__}; expected a str.")
        found[name] = as_numbers(from_lists(value, name) if isinstance(value, list | tuple) else value, name)
    if not found:
        raise NothingComparedError("The dump holds no values; expected arrays by name.")
    return found


# --- files ------------------------------------------------------------------------------------------------------------


def _read_folder(folder: Path, raw: dict[str, tuple[int, ...]]) -> Dump:
    trees = sorted(folder.glob(f"*{TREE_SUFFIX}"))
    if trees:
        if len(trees) > 1:
            names = ", ".join(tree.name for tree in trees)
            raise ValueError(f"{printable(str(folder))} has several call trees: {names}. Give the file of one of them.")
        return _read_tree(trees[0])
    found: Dump = {}
    files = sorted(one for one in folder.rglob("*") if one.is_file() and not one.name.startswith("."))
    for file in files:
        suffix = file.suffix.lower()
        if suffix in _NOT_VALUES:
            continue
        if suffix not in (*SUFFIXES, *_PICKLES):
            raise ValueError(
                f"{printable(str(file))} is of an unknown kind; expected files that end in {', '.join(SUFFIXES)}."
            )
        one = _read_file(file, raw)
        # Folders are parts of the name: encoder/layer.0/attention.npy.
        prefix = ".".join(file.relative_to(folder).parent.parts)
        for name, array in one.items():
            full = f"{prefix}.{name}" if prefix else name
            if full in found:
                raise ValueError(f"{printable(full)} is in several files of {printable(str(folder))}; keep one.")
            found[full] = array
    return found


def _read_file(path: Path, raw: dict[str, tuple[int, ...]]) -> Dump:
    suffix, shown = path.suffix.lower(), printable(str(path))
    if not is_regular_file(path):
        raise FileNotFoundError(f"{shown} does not exist.")
    if suffix in _PICKLES or _begins_as_pickle(path):
        raise ValueError(f"{shown} {_PICKLE_REMEDY}")
    if suffix == ".npz":
        return _read_npz(path)
    if suffix == ".npy":
        return {path.stem: as_numbers(_parsed_npy(_content(path), shown), path.stem)}
    if suffix == ".safetensors":
        return _read_safetensors(path)
    if suffix == ".json":
        return _read_tree(path) if path.name.endswith(TREE_SUFFIXES) else read_json(_content(path), path.stem, shown)
    if suffix in (".bin", ".raw"):
        return _read_raw(path, raw)
    raise ValueError(f"{shown} is of an unknown kind; expected a file that ends in {', '.join(SUFFIXES)}, or a folder.")


def _begins_as_pickle(path: Path) -> bool:
    """Return whether a file begins as a pickle does, or is a zip file that holds one, as torch.save writes."""
    try:
        with open(path, "rb") as file:
            first = file.read(4)
        if first[:1] == b"\x80" and len(first) > 1 and first[1] in range(2, 6) and path.suffix.lower() in (".bin", ""):
            return first[2:3] in (b"c", b"}", b"]", b"(", b"\x95", b"\x8a", b"X")
        if first == b"PK\x03\x04" and path.suffix.lower() != ".npz":
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith("data.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False
    return False


def _content(path: Path) -> bytes:
    """Return the bytes of a file that fits into the memory."""
    size = path.stat().st_size
    _check_memory(size, path)
    return read_bytes(path, limit=max(size, 1))


def _check_memory(needed: int, path: Path) -> None:
    limit = available_memory()
    if limit is not None and 2 * needed > limit:
        raise MemoryError(
            f"{printable(str(path))} holds {needed / 2**30:,.1f} GiB of values; this process may use "
            f"{limit / 2**30:,.1f}. Dump fewer names or fewer texts."
        )


def _parsed_npy(content: bytes, shown: str) -> npt.NDArray[Any]:
    try:
        return parse_npy(content)
    except MemoryError:
        raise
    except Exception as error:  # NumPy's readers raise errors of many types
        raise ValueError(f"{shown} is not a whole .npy file ({error}). Write or copy it again.") from error


def _read_npz(path: Path) -> Dump:
    shown = printable(str(path))
    found: Dump = {}
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            _check_memory(sum(entry.file_size for entry in entries), path)
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if not entry.filename.endswith(".npy"):
                    raise ValueError(f"it holds {brief(entry.filename)}, which is not an array")
                with archive.open(entry) as file:
                    content = file.read(_HEADER)
                    if declared_nbytes(content) != entry.file_size:  # before anything is inflated
                        raise ValueError(f"{brief(name)} is not as long as its shape says")
                    content += file.read(entry.file_size + 1 - len(content))  # not more than the size that was checked
                array = parse_npy(content)
                if array.dtype.kind in "US" and not array.shape:  # a header, such as a trace's
                    continue
                found[name] = as_numbers(array, name)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise errors of many types
        raise ValueError(f"{shown} is not a whole .npz file ({error}). Write or copy it again.") from error
    return found


def _read_safetensors(path: Path) -> Dump:
    stored = read_header(path)
    _check_memory(path.stat().st_size, path)
    return {tensor.name: _tensor(tensor) for tensor in stored}


def _tensor(stored: StoredTensor) -> npt.NDArray[Any]:
    if stored.dtype not in _SAFETENSORS:
        raise ValueError(
            f"{printable(str(stored.path))}: {printable(stored.name)} is {stored.dtype}; "
            f"expected {', '.join(_SAFETENSORS)}."
        )
    count, dtype = math.prod(stored.shape), np.dtype(_SAFETENSORS[stored.dtype])
    with open(stored.path, "rb") as file:
        file.seek(stored.offset)
        content = file.read(count * dtype.itemsize)
    if len(content) != count * dtype.itemsize:
        raise ValueError(f"{printable(str(stored.path))} changed while it was being read; give it again.")
    values = np.frombuffer(content, dtype)
    if stored.dtype == "BF16":
        values = widen(values)
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(stored.shape)


def _read_raw(path: Path, raw: dict[str, tuple[int, ...]]) -> Dump:
    """Read float32 numbers without a header.

    One shape that is left belongs to a file of any name. Without a shape they are a flat array with the name of the
    file; their count says later which layout they have.
    """
    shown, size = printable(str(path)), path.stat().st_size
    name = path.stem if path.stem in raw else next(iter(raw), None) if len(raw) == 1 else None
    if name is None:
        if size % 4 or not size:
            raise ValueError(f"{shown} has {size:,} bytes, which is not a number of float32 numbers. Write it again.")
        return {path.stem: _little_endian(np.frombuffer(_content(path), "<f4"), shown)}
    shape = raw.pop(name)
    needed = 4 * math.prod(shape)
    if size != needed:
        raise ValueError(
            f"{shown} has {size:,} bytes; {name} of shape {shape} takes {needed:,} as float32."
            + (" It has the size of float64 numbers: write float32." if size == 2 * needed else "")
            + (" It has the size of float16 numbers: write float32." if 2 * size == needed else "")
        )
    return {name: _little_endian(np.frombuffer(_content(path), "<f4"), shown).reshape(shape)}


def _little_endian(values: npt.NDArray[Any], shown: str) -> npt.NDArray[Any]:
    """Return numbers that were read as little-endian ones, unless they make sense in the other order alone."""
    with np.errstate(all="ignore"):
        sizes, swapped = np.abs(values), np.abs(values.byteswap())
        if not sizes.max(initial=0) < 1e15 and swapped.max(initial=0) < 1e15 and np.median(swapped) > 1e-12:
            raise ValueError(
                f"{shown} holds big-endian numbers; expected little-endian ones. Java: "
                "ByteBuffer.order(ByteOrder.LITTLE_ENDIAN)."
            )
    return values.astype(np.float32, copy=False)


def _read_tree(path: Path) -> Dump:
    tree = parse_json(_content(path), printable(str(path)))

    def load(file: Path) -> npt.NDArray[Any]:
        if not is_regular_file(file):
            raise FileNotFoundError(f"{printable(str(file))} does not exist.")
        values = _read_safetensors(file)
        if set(values) != {"data"}:
            raise ValueError(f"{printable(str(file))} holds {brief(sorted(values))}; expected one tensor, data.")
        return values["data"]  # type: ignore[return-value]

    return dict(read_tree(tree, path, load))
