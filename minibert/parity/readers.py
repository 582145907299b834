"""Files of values that another program wrote -> arrays by name. Nothing in a file is run, and no size is believed.

>>> from minibert.parity.readers import SUFFIXES
>>> SUFFIXES
('.npz', '.npy', '.safetensors', '.json', '.bin', '.raw')
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.base.checks import brief
from minibert.base.files import is_regular_file, parse_json, printable, read_bytes
from minibert.base.machine import available_memory
from minibert.base.npy import declared_nbytes, parse_npy
from minibert.checkpoint.tensors import StoredTensor, read_header
from minibert.errors import ModelFormatError
from minibert.parity.debugger_tree import TREE_SUFFIX, TREE_SUFFIXES, read_tree

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

_NOT_FINITE = "Find the first step of the port whose result is not finite; .npz and .safetensors hold such values."

# The bytes of an .npy file in which its header is; NumPy itself reads headers of at most 10,000 characters.
_HEADER = 1 << 14

# Files of a folder that are not values.
_NOT_VALUES = (".txt", ".md", ".log", ".py")

_SAFETENSORS = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1", "I64": "<i8", "I32": "<i4"},
    **{"I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
}
_JSON_DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")},
    **{"f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8"), "i32": np.dtype("i4")},
    **{"i64": np.dtype("i8"), "bfloat16": np.dtype("u2"), "bf16": np.dtype("u2")},
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
        found[name] = _numbers(_from_lists(value, name) if isinstance(value, list | tuple) else value, name)
    if not found:
        raise NothingComparedError("The dump holds no values; expected arrays by name.")
    return found


def _numbers(value: Any, name: str) -> Any:
    """Return an array of numbers in the byte order of the machine; floats that NumPy lacks are widened."""
    if isinstance(value, list):
        return [_numbers(one, name) for one in value]
    from minibert.base.tensors import as_array

    array = np.asarray(as_array(value))
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype.names is None:
        array = _widen(array.view(np.uint16))  # bfloat16, as ml_dtypes writes it
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{printable(name)} holds {array.dtype} values; expected numbers: float32, float16 or integers."
        )
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _widen(stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return bfloat16 numbers, given as 16-bit integers, as float32."""
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


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
        return {path.stem: _numbers(_parsed_npy(_content(path), shown), path.stem)}
    if suffix == ".safetensors":
        return _read_safetensors(path)
    if suffix == ".json":
        return _read_tree(path) if path.name.endswith(TREE_SUFFIXES) else _read_json(path)
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
                found[name] = _numbers(array, name)
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
        values = _widen(values)
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


# --- JSON -------------------------------------------------------------------------------------------------------------


def _read_tree(path: Path) -> Dump:
    tree = parse_json(_content(path), printable(str(path)))

    def load(file: Path) -> npt.NDArray[Any]:
        values = _read_safetensors(file)
        if set(values) != {"data"}:
            raise ValueError(f"{printable(str(file))} holds {brief(sorted(values))}; expected one tensor, data.")
        return values["data"]  # type: ignore[return-value]

    return dict(read_tree(tree, path, load))


def _read_json(path: Path) -> Dump:
    shown = printable(str(path))
    try:
        content = parse_json(_content(path), shown)
    except ModelFormatError as error:
        if str(error).endswith("is not a JSON number."):  # NaN and Infinity, which Python's json writes
            raise ValueError(f"{error} {_NOT_FINITE}") from error
        raise
    if isinstance(content, list):
        content = {path.stem: content}
    if not isinstance(content, dict):
        raise ValueError(f"{shown} holds {brief(content)}; expected an object {{name: values}}, or a list of vectors.")
    return {name: _numbers(_json_value(value, f"{shown}: {printable(name)}"), name) for name, value in content.items()}


def _json_value(value: Any, shown: str) -> Any:
    """Turn nested lists, or an object with shape and data, into an array; lists of different lengths into a list."""
    if isinstance(value, dict):
        return _json_tensor(value, shown)
    return _from_lists(value, shown)


def _from_lists(value: Any, shown: str) -> Any:
    try:
        array = np.asarray(value)
    except ValueError:
        if isinstance(value, list | tuple) and value:
            return [_from_lists(one, f"{shown}[{i}]") for i, one in enumerate(value)]
        raise
    if array.dtype.kind not in "biuf":
        if _has_null(value):
            text = (
                "holds null among its numbers: JavaScript writes NaN and Infinity as null, and Python writes None so."
            )
            raise ValueError(f"{shown} {text} {_NOT_FINITE}")
        raise ValueError(f"{shown} is {brief(value)}; expected numbers in nested lists, or {{shape, dtype, data}}.")
    if array.dtype == np.float64:  # JSON has one type of numbers; what float32 numbers became is float32 again
        narrow = array.astype(np.float32)
        if _prints_as_float32(array, narrow):
            return narrow
    return array


def _has_null(value: Any) -> bool:
    """Return whether there is a None in nested lists, among numbers."""
    if isinstance(value, list | tuple):
        return any(map(_has_null, value))
    return value is None


def _prints_as_float32(array: npt.NDArray[Any], narrow: npt.NDArray[Any]) -> bool:
    """Return whether numbers are within the digits that programs print of a float32."""
    with np.errstate(all="ignore"):
        return bool(np.all(np.abs(array - narrow) <= np.abs(array) * 2.0**-24))


def _json_tensor(value: dict[str, Any], shown: str) -> npt.NDArray[Any]:
    shape = value.get("shape", value.get("dims"))
    data = value.get("data", value.get("cpuData"))
    name = str(value.get("dtype", value.get("type", "float32"))).removeprefix("torch.").lower()
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**40 for size in shape):
        raise ValueError(f"{shown} has the shape {brief(shape)}; expected a list of integers: {{shape, dtype, data}}.")
    if name not in _JSON_DTYPES:
        raise ValueError(f"{shown} has the dtype {brief(name)}; expected one of {', '.join(_JSON_DTYPES)}.")
    dtype = _JSON_DTYPES[name]
    if isinstance(data, str):
        try:
            content = base64.b64decode(re.sub(r"\s+", "", data), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{shown}: its data is not base64 ({error}).") from error
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise ValueError(
                f"{shown} has {len(content)} bytes of data; shape {shape} takes {math.prod(shape) * dtype.itemsize}."
            )
        flat = np.frombuffer(content, dtype.newbyteorder("<"))
        return (_widen(flat) if "bf" in name else flat).reshape(shape)
    if isinstance(data, dict):  # JSON.stringify(new Float32Array([1, 2])) is {"0": 1, "1": 2}
        if list(data) != [str(i) for i in range(len(data))]:
            raise ValueError(f"{shown}: the keys of its data are not 0, 1, 2, ...; write Array.from(tensor.data).")
        data = list(data.values())
    if not isinstance(data, list) or len(np.shape(data)) != 1 or len(data) != math.prod(shape):
        raise ValueError(
            f"{shown}: its data is {brief(data)}; expected base64, or a flat list of {math.prod(shape)} numbers."
        )
    return np.asarray(_from_lists(data, shown)).reshape(shape)
