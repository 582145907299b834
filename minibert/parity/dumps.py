"""Files of values from another program -> arrays by name. No code in a file is run; every size is checked.

>>> from minibert.parity.dumps import SUFFIXES
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import declared_nbytes, is_regular_file, parse_json, parse_npy, printable, read_bytes
from minibert._utils.system import require_memory
from minibert._utils.torch_interop import to_array
from minibert._utils.validation import NotFiniteError, brief
from minibert.checkpoint.safetensors import read_header
from minibert.errors import ModelFormatError

SUFFIXES = (".npz", ".npy", ".safetensors", ".json", ".bin", ".raw")
"""The formats that are read."""


class NothingComparedError(ValueError):
    """A dump has no value that can be compared."""


Array = npt.NDArray[Any]

Dump = dict[str, Array | list[Array]]
"""Arrays by name; a list holds one array for each text, of different lengths."""

_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
_PICKLE_REMEDY = (
    "is a pickle, which can run any code when it is opened, so minibert does not open it. Write the values with "
    'safetensors.torch.save_file({name: tensor.contiguous()}, "dump.safetensors") or numpy.savez("dump.npz", **arrays).'
)

# The second byte of a pickle is its protocol, the third one an opcode: these begin the pickles of programs.
_PROTOCOLS, _OPCODES = (b"\x02", b"\x03", b"\x04", b"\x05"), (b"c", b"}", b"]", b"(", b"\x95", b"\x8a", b"X")

# The header of an .npy file is within its first bytes; NumPy itself reads headers of at most 10,000 characters.
_HEADER = 1 << 14

# Files of a folder that are not values.
_NOT_VALUES = (".txt", ".md", ".log", ".py")

# The most levels of lists in lists that are read.
_DEEPEST = 32

# As safetensors names them; JSON may have the long names, "float32".
_DTYPES = {
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
        The name and shape of values in .bin and .raw files. Without it, the array is flat and has the file's name.

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
        dump = _read_folder(where, raw) if where.is_dir() else _read_file(where, raw)
    except ModelFormatError as error:  # the same kind of error for all formats
        raise ValueError(str(error)) from error
    if raw:
        raise ValueError(f"There is no .bin or .raw file for {', '.join(raw)}, of which a shape was given.")
    if not dump:
        raise NothingComparedError(f"{printable(str(where))} holds no values; expected arrays by name.")
    return dump


def as_dump(values: Mapping[Any, Any]) -> Dump:
    """Check values that the caller gave as a mapping, and turn them into arrays."""
    dump: Dump = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"The name {brief(name)} of a value is a {type(name).__name__}; expected a str.")
        value = _from_lists(to_array(value), name) if isinstance(value, list | tuple) else value
        dump[name] = _as_numbers(value, name)
    if not dump:
        raise NothingComparedError("The dump holds no values; expected arrays by name.")
    return dump


# --- files ------------------------------------------------------------------------------------------------------------


def _read_folder(folder: Path, raw: dict[str, tuple[int, ...]]) -> Dump:
    trees = sorted(folder.glob(f"*{_TREE}"))
    if len(trees) > 1:
        names = ", ".join(tree.name for tree in trees)
        raise ValueError(f"{printable(str(folder))} has several call trees: {names}. Give the file of one of them.")
    if trees:
        return _read_tree(trees[0])
    dump: Dump = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        if file.suffix.lower() in _NOT_VALUES:
            continue
        # Folders are parts of the name: encoder/layer.0/attention.npy.
        prefix = "".join(f"{part}." for part in file.relative_to(folder).parent.parts)
        for name, array in _read_file(file, raw).items():
            full = f"{prefix}{name}"
            if full in dump:
                raise ValueError(f"{printable(full)} is in several files of {printable(str(folder))}; keep one.")
            dump[full] = array
    return dump


def _read_file(path: Path, raw: dict[str, tuple[int, ...]]) -> Dump:
    suffix, source = path.suffix.lower(), printable(str(path))
    is_regular_file(path)  # raises for a device or a pipe
    if suffix in _PICKLES or _begins_as_pickle(path):
        raise ValueError(f"{source} {_PICKLE_REMEDY}")
    if suffix in (".npz", ".npy"):
        try:
            if suffix == ".npz":
                return _read_npz(path)
            return {path.stem: _as_numbers(parse_npy(_content(path)), path.stem)}
        except (MemoryError, OSError, ModelFormatError):
            raise
        except Exception as error:  # zipfile, zlib and NumPy raise errors of many types
            raise ValueError(f"{source} is not a whole {suffix} file ({error}). Write or copy it again.") from error
    if suffix == ".safetensors":
        return _read_safetensors(path)
    if suffix == ".json":
        return _read_tree(path) if path.name.endswith((_TREE, _SUMMARY)) else _read_json(path)
    if suffix in (".bin", ".raw"):
        return _read_raw(path, raw)
    raise ValueError(f"{source} is of an unknown kind; expected a folder, or a file in {', '.join(SUFFIXES)}.")


def _begins_as_pickle(path: Path) -> bool:
    """Return whether a file whose name does not say its kind begins as a pickle, or as the zip file of torch.save."""
    with open(path, "rb") as file:
        first = file.read(4)
    is_pickle = first[:1] == b"\x80" and first[1:2] in _PROTOCOLS and first[2:3] in _OPCODES
    return path.suffix.lower() in (".bin", ".raw", "") and (is_pickle or first == b"PK\x03\x04")


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    _check_memory(size, path)
    return read_bytes(path, limit=max(size, 1))


def _check_memory(needed: int, path: Path) -> None:
    require_memory(2 * needed, f"Two copies of the values of {printable(str(path))}", "Dump fewer names or texts.")


def _read_npz(path: Path) -> Dump:
    arrays: Dump = {}
    with zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        _check_memory(sum(entry.file_size for entry in entries), path)
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"it holds {brief(name)} twice")
            if not entry.filename.endswith(".npy"):
                raise ValueError(f"it holds {brief(entry.filename)}, which is not an array")
            with archive.open(entry) as file:
                content = file.read(_HEADER)
                if declared_nbytes(content) != entry.file_size:  # before anything is inflated
                    raise ValueError(f"{brief(name)} is not as long as its shape says")
                content += file.read(entry.file_size + 1 - len(content))  # not more than the size that was checked
            array = parse_npy(content)
            if array.dtype.kind not in "US" or array.shape:  # not a header, such as a trace's
                arrays[name] = _as_numbers(array, name)
    return arrays


def _read_safetensors(path: Path) -> Dump:
    tensors, content, source = read_header(path), _content(path), printable(str(path))
    return {
        tensor.name: _decoded(tensor.dtype, content, tensor.shape, f"{source}: {printable(tensor.name)}", tensor.offset)
        for tensor in tensors
    }


def _dtype(name: str, where: str) -> np.dtype[Any]:
    """Return the dtype of stored numbers; `name` is its name in safetensors."""
    if name not in _DTYPES:
        raise ValueError(f"{where} has the dtype {brief(name)}; expected one of {', '.join(_DTYPES)}.")
    return np.dtype(_DTYPES[name])


def _decoded(dtype: str, content: bytes, shape: Sequence[int], where: str, offset: int = 0) -> Array:
    """Return the numbers of a tensor from the bytes that begin at `offset`."""
    values = np.frombuffer(content, _dtype(dtype, where), math.prod(shape), offset)
    values = _widen(values) if dtype == "BF16" else values
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(shape)


def _read_raw(path: Path, raw: dict[str, tuple[int, ...]]) -> Dump:
    """Read float32 numbers without a header: flat, or of their shape in `raw`; the shape is removed from `raw`."""
    source, size = printable(str(path)), path.stat().st_size
    # One shape that is left belongs to a file of any name.
    name = path.stem if path.stem in raw or len(raw) != 1 else next(iter(raw))
    shape = raw.pop(name, None)
    if shape is None and (size % 4 or not size):
        raise ValueError(f"{source} has {size:,} bytes; float32 takes a multiple of 4. Is it cut off? Write it again.")
    needed = size if shape is None else 4 * math.prod(shape)
    if size != needed:
        stored = {2 * needed: "float64", needed // 2: "float16"}.get(size)
        raise ValueError(
            f"{source} has {size:,} bytes; {name} of shape {shape} takes {needed:,} as float32."
            + (f" It has the size of {stored} numbers: write float32." if stored else "")
        )
    values = np.frombuffer(_content(path), "<f4")
    with np.errstate(all="ignore"):
        sizes, swapped = np.abs(values), np.abs(values.byteswap())
        if not sizes.max(initial=0) < 1e15 and swapped.max(initial=0) < 1e15 and np.median(swapped) > 1e-12:
            raise ValueError(
                f"{source} holds big-endian numbers; expected little-endian ones. Java: "
                "ByteBuffer.order(ByteOrder.LITTLE_ENDIAN)."
            )
    return {name: values.astype(np.float32, copy=False).reshape(shape or -1)}


# --- JSON -------------------------------------------------------------------------------------------------------------

_NOT_FINITE = "Find the first step of the port whose result is not finite; .npz and .safetensors hold such values."


def _read_json(path: Path) -> Dump:
    """Read `{name: values}`; a list alone has the name of the file."""
    source = printable(str(path))
    try:
        content = parse_json(_content(path), source)
    except ModelFormatError as error:
        if isinstance(error.__cause__, NotFiniteError):
            raise ValueError(f"{error} {_NOT_FINITE}") from error
        raise
    if isinstance(content, list):
        content = {path.stem: content}
    if not isinstance(content, dict):
        raise ValueError(f"{source} holds {brief(content)}; expected an object {{name: values}}, or a list of vectors.")
    return {name: _as_numbers(_json_value(x, f"{source}: {printable(name)}"), name) for name, x in content.items()}


def _json_value(value: Any, where: str) -> Any:
    """Turn nested lists, or an object with shape, dtype and data, into an array."""
    if not isinstance(value, dict):
        return _from_lists(value, where)
    shape = value.get("shape", value.get("dims"))
    data = value.get("data", value.get("cpuData"))
    name = str(value.get("dtype", value.get("type", "float32"))).removeprefix("torch.").lower()
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**40 for size in shape):
        raise ValueError(f"{where} has the shape {brief(shape)}; expected a list of integers: {{shape, dtype, data}}.")
    short = name.replace("uint", "u").replace("int", "i").replace("float", "f").upper()
    count, needed = math.prod(shape), math.prod(shape) * _dtype(short, where).itemsize
    if isinstance(data, str):
        try:
            content = base64.b64decode(re.sub(r"\s+", "", data), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{where}: its data is not base64 ({error}).") from error
        if len(content) != needed:
            raise ValueError(f"{where} has {len(content)} bytes of data; shape {shape} takes {needed}.")
        return _decoded(short, content, shape, where)
    if isinstance(data, dict):  # JSON.stringify(new Float32Array([1, 2])) is {"0": 1, "1": 2}
        if list(data) != [str(i) for i in range(len(data))]:
            raise ValueError(f"{where}: the keys of its data are not 0, 1, 2, ...; write Array.from(tensor.data).")
        data = list(data.values())
    if not isinstance(data, list) or len(data) != count or any(isinstance(number, list | dict) for number in data):
        raise ValueError(f"{where}: its data is {brief(data)}; expected base64, or a flat list of {count} numbers.")
    return np.asarray(_from_lists(data, where)).reshape(shape)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _as_numbers(value: Any, name: str) -> Any:
    """Return an array of numbers in the byte order of the machine; floats that NumPy lacks are widened."""
    if isinstance(value, list):
        if any(isinstance(part, list) or part.ndim == 0 for part in value):
            raise ValueError(f"{printable(name)} holds lists of different lengths; expected one array, or one a text.")
        return [_as_numbers(part, name) for part in value]
    array = np.asarray(to_array(value))
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype.names is None:
        array = _widen(array.view(np.uint16))  # bfloat16, as ml_dtypes writes it
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{printable(name)} holds {array.dtype} values; expected float32, float16 or integers.")
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _widen(stored: Array) -> Array:
    """Return bfloat16 numbers, given as 16-bit integers, as float32."""
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _from_lists(value: Any, where: str, depth: int = 0) -> Any:
    """Turn nested lists of numbers into an array; lists of different lengths into a list of arrays."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        if depth == _DEEPEST or not isinstance(value, list | tuple):
            text = f"{where[:60]} is {brief(value)}; expected numbers in at most {_DEEPEST} levels of lists"
            raise ValueError(f"{text} ({error}).") from None
        return [_from_lists(part, f"{where}[{i}]", depth + 1) for i, part in enumerate(value)]
    if array.dtype.kind not in "biuf":
        if _has_null(value):
            raise ValueError(
                f"{where} holds null among its numbers: JavaScript writes NaN and Infinity as null, and Python writes "
                f"None so. {_NOT_FINITE}"
            )
        raise ValueError(f"{where} is {brief(value)}; expected numbers in nested lists, or {{shape, dtype, data}}.")
    if array.dtype == np.float64:  # JSON has one type of numbers; what float32 numbers became is float32 again
        with np.errstate(all="ignore"):
            narrow = array.astype(np.float32)
            # The digits that programs print of a float32 number.
            if np.all(np.abs(array - narrow) <= np.abs(array) * 2.0**-24):
                return narrow
    return array


def _has_null(value: Any) -> bool:
    return any(map(_has_null, value)) if isinstance(value, list | tuple) else value is None


# --- the call tree of transformers' model_addition_debugger_context (5.23, model_debugging_utils.py) ------------------
#
# A node has module_path ("BertModel.encoder.layer.0.attention.self.query"), inputs, outputs and children. Only modules
# without children have outputs. With use_repr=False each tensor is in a safetensors file beside the tree; with
# use_repr=True, the default, the tree holds the printed tensors, where most numbers are left out.

_TREE, _SUMMARY = "_debug_tree_FULL_TENSORS.json", "_debug_tree_SUMMARY.json"
_TREE_REMEDY = "Write it again with model_addition_debugger_context(..., use_repr=False, do_prune_layers=False)."
# Modules whose input is a value of its own; the inputs of the others are outputs of other modules.
_WITH_INPUT = re.compile(r"(?:LayerNorm|\boutput\.dense|intermediate\.dense)$")
_LAYER = re.compile(r"encoder\.layer\.(\d{1,6})$")


def _read_tree(path: Path) -> Dump:
    """Return the values of a call tree: outputs of modules by their names, and inputs as "module.input"."""
    source = printable(str(path))
    if path.name.endswith(_SUMMARY):
        raise ValueError(f"{source} is the summary, without values. Give the file that ends in {_TREE}.")
    nodes = list(_nodes(parse_json(_content(path), source), source))
    layers = sorted({int(match[1]) for module, _ in nodes if (match := _LAYER.search(module))})
    if layers and layers != list(range(layers[-1] + 1)):
        listed = ", ".join(map(str, layers))
        raise ValueError(f"{source} has only the layers {listed}; others were left out. {_TREE_REMEDY}")
    values: Dump = {}
    for module, node in nodes[1:]:
        name = module.removeprefix(f"{nodes[0][0]}.").removeprefix("bert.")
        for key, end in (("outputs", ""), ("inputs", ".input"))[: 2 if _WITH_INPUT.search(name) else 1]:
            file = _first_tensor(node.get(key), source)
            if file is not None and f"{name}{end}" not in values:
                values[f"{name}{end}"] = _tensor_beside(path, file)
    return values


def _nodes(tree: Any, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or not isinstance(node.get("module_path"), str):
            raise ValueError(f"{source} is not a call tree: a node {brief(node)} has no module_path. {_TREE_REMEDY}")
        yield node["module_path"], node
        if isinstance(children := node.get("children"), list):
            waiting += reversed(children)


def _first_tensor(value: Any, source: str, depth: int = 0) -> str | None:
    """Return the file of the first tensor among the inputs or outputs of a module; None if there is none."""
    if depth > _DEEPEST:
        raise ValueError(f"{source} has inputs or outputs of more than {_DEEPEST} levels. {_TREE_REMEDY}")
    if isinstance(value, dict) and {"shape", "dtype", "value"} <= set(value):
        stored = value["value"]
        if isinstance(stored, list):
            raise ValueError(f"{source} holds printed tensors, from which most numbers are missing. {_TREE_REMEDY}")
        return stored if isinstance(stored, str) else None
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((file for part in parts[:8] if (file := _first_tensor(part, source, depth + 1)) is not None), None)


def _tensor_beside(tree: Path, file: str) -> Array | list[Array]:
    """Read a safetensors file with one tensor, `data`; it must be in the folder of the tree."""
    name = PurePosixPath(file).name
    if file not in (name, f"./{name}") or not name.endswith(".safetensors"):
        source = printable(str(tree))
        raise ValueError(f"{source} names the file {brief(file)}; expected a safetensors file in the same folder.")
    path = tree.parent / name
    if not is_regular_file(path):
        raise FileNotFoundError(f"{printable(str(path))} does not exist.")
    values = _read_safetensors(path)
    if set(values) != {"data"}:
        raise ValueError(f"{printable(str(path))} holds {brief(sorted(values))}; expected one tensor, data.")
    return values["data"]
