"""Find the tensors in a pytorch_model.bin. Nothing in the file is executed.

A file of torch 1.6 and later is a zip. Its `data.pkl` is a pickle, a program for a stack machine that makes a state
dict; each storage, an array of numbers, is a file `data/KEY` that is not compressed. An older file has five pickles: a
fixed number, a version, facts of the machine, the state dict, and the keys of the storages; these follow, each behind
the count of its numbers.

This module knows the few instructions that a state dict needs. They make dicts, tuples, strings, numbers and the three
records below. No name in the file is imported or called.

Sources: `torch/serialization.py`, `torch/_utils.py` (https://github.com/pytorch/pytorch/tree/v2.13.0/torch) and
Python's `pickletools.py`: it describes each instruction.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

from minibert._utils.validation import brief
from minibert.checkpoint.safetensors import BITS, StoredTensor, file_state, read_exactly
from minibert.errors import ModelFormatError

# Most bytes of the pickle, and of the zip's list of files. Those of BERT-large have 80 KB. Python's objects for them
# take up to 15 times as much memory.
_LIMIT = 2**20
_MOST_INSTRUCTIONS = 100_000  # BERT-large has 16,000

_DTYPES = {"Float": "F32", "Half": "F16", "BFloat16": "BF16", "Double": "F64", "Bool": "BOOL"}
_DTYPES |= {"Long": "I64", "Int": "I32", "Short": "I16", "Char": "I8", "Byte": "U8"}
_STORAGES = {f"torch.{name}Storage": dtype for name, dtype in _DTYPES.items()}
_DICT, _TENSOR = "collections.OrderedDict", "torch._utils._rebuild_tensor_v2"
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_NAMES = {_DICT, _TENSOR, *_PARAMETERS, *_STORAGES}

_REMEDY = (
    'Fetch it again, or give safetensors: revision="refs/pr/N", a pull request of the hub that has them '
    "(https://huggingface.co/spaces/safetensors/convert makes one); or load the file with transformers, if you trust "
    "it, and give a folder that save_pretrained wrote"
)
_OF_TORCH = "Where torch is, run {} and give the file that it writes"
_SCRIPT = _OF_TORCH.format(
    "`torch.save(torch.jit.load(path).state_dict(), path)`, if you trust the program in the file,"
)
_OLD_NUMBERS = (0x1950A86A20F9469CFC6C, 1001)  # what the first two pickles of such a file make


_Places = dict[str, tuple[int, int]]  # the key of a storage -> where its numbers begin, and their bytes


class _OtherFormatError(ValueError):
    """The file is whole and of torch, in a format that is not read here: its message and its remedy."""


@dataclasses.dataclass(frozen=True)
class _Name:
    """A class or function that the pickle names; its full name is in `_NAMES`."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Storage:
    """An array of `count` numbers; `dtype` is safetensors' name."""

    dtype: str
    key: str
    count: int


@dataclasses.dataclass(frozen=True)
class _View:
    """A tensor: its numbers are in a storage; offset and strides count numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_header(path: Path) -> list[StoredTensor]:
    """List the tensors of one file, in the order of its state dict; read no storage.

    Raises
    ------
    ModelFormatError
        The file is damaged, or holds something else than a dict of tensors.
    """
    try:
        with _BoundedFile(path) as file:
            state = file_state(file)
            if (begin := file.read(8)) == b"version ":
                raise ValueError("it is a Git LFS pointer instead of the file: run `git lfs pull` in its folder")
            if not begin.startswith((b"PK\3\4", b"\x80")):
                raise ValueError("it begins neither as a zip nor as a pickle")
            views, places = (_of_zip if begin.startswith(b"PK") else _of_old_file)(file)
        tensors = [_tensor(path, state, name, view, places.get(view.storage.key)) for name, view in views.items()]
        # Many names of one storage would need more memory than the file says.
        if (total := sum(math.prod(tensor.shape) * BITS[tensor.dtype] // 8 for tensor in tensors)) > 2 * state[2]:
            raise ValueError(f"its tensors have {total} bytes, more than twice the bytes of the file")
        return tensors
    except Exception as error:  # zipfile and a damaged program raise errors of many types
        reason, remedy = "it is damaged", _REMEDY
        if isinstance(error, _OtherFormatError):
            reason, remedy = error.args
        elif isinstance(error, ValueError | OSError):
            reason = str(error).removesuffix(".")
        raise ModelFormatError(f"{path} cannot be read: {reason}. Nothing in it was executed. {remedy}.") from error


class _BoundedFile(io.FileIO):
    """A file of which at most 1 MB is read at once, because zipfile asks for as much as the file says."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(_LIMIT if size is None or size < 0 else min(size, _LIMIT))


# --- the format before torch 1.6 --------------------------------------------------------------------------------------


def _of_old_file(file: _BoundedFile) -> tuple[dict[str, _View], _Places]:
    """Return the tensors of an older file, and where each storage begins and its size."""
    file.seek(0)
    pickles = io.BytesIO(read_exactly(file, min(file_state(file)[2], 2 * _LIMIT)))
    storages: dict[str, _Storage] = {}
    if any(_run(pickles, storages) != number for number in _OLD_NUMBERS):
        raise ValueError("it is a pickle that torch.save did not write")
    machine, views, keys = (_run(pickles, storages) for _ in range(3))
    if type(machine) is not dict or machine.get("little_endian") is not True:
        raise ValueError("its machine did not have little-endian numbers")
    if type(keys) is not list or sorted(map(str, keys)) != sorted(storages):
        raise ValueError("its storages are not those of its tensors")
    places, begin = {}, pickles.tell()
    for key in keys:
        file.seek(begin)
        count, size = storages[key].count, storages[key].count * BITS[storages[key].dtype] // 8
        if (stated := int.from_bytes(read_exactly(file, 8), "little")) != count:
            raise ValueError(f"the storage {brief(key)} has {stated} numbers; its tensors need {count}")
        places[key], begin = (begin + 8, size), begin + 8 + size
    if begin != file_state(file)[2]:
        raise ValueError(f"it has {file_state(file)[2]} bytes, its tensors need {begin}")
    return _state_dict(views), places


# --- the zip ----------------------------------------------------------------------------------------------------------


def _of_zip(file: _BoundedFile) -> tuple[dict[str, _View], _Places]:
    """Return the tensors of a zip, and where each storage begins and its size."""
    ranges = _ranges(file)
    folders = [name[:-8] for name in ranges if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(folders) != 1:
        raise ValueError(f"its zip has {len(folders)} files NAME/data.pkl; expected one")
    program = _content(file, *ranges[folders[0] + "data.pkl"])
    order = _content(file, *ranges.get(folders[0] + "byteorder", (0, 0)))
    if order not in (b"", b"little"):  # torch before 2.1 does not write it
        raise ValueError(f"its numbers have the byte order {brief(order)}; expected b'little'")
    data = f"{folders[0]}data/"
    places = {name.removeprefix(data): place for name, place in ranges.items() if name.startswith(data)}
    return _state_dict(_run(io.BytesIO(program), {})), places


def _ranges(file: _BoundedFile) -> dict[str, tuple[int, int]]:
    """Return the name in the zip -> where its content begins, and its size."""
    archive = zipfile.ZipFile(file)
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    if any(entry.filename.endswith("/constants.pkl") for entry in entries):
        raise _OtherFormatError("it is an archive of torch.jit.save, which is a program", _SCRIPT)
    ends = [entry.header_offset for entry in entries[1:]] + [archive.start_dir]
    ranges: dict[str, tuple[int, int]] = {}
    for entry, end in zip(entries, ends, strict=True):
        name = entry.filename
        file.seek(entry.header_offset)
        magic, flags, length, extra = struct.unpack("<4s2xH18xHH", read_exactly(file, 30))
        stored_name = read_exactly(file, length).decode("utf-8" if flags & 0x800 else "cp437")
        begin = entry.header_offset + 30 + length + extra
        if magic != b"PK\3\4" or stored_name != entry.orig_filename or name in ranges:
            raise ValueError(f"its zip has no header of {brief(name)}, or has it twice")
        encrypted = (flags | entry.flag_bits) & 1
        if encrypted or (entry.compress_type, entry.compress_size) != (zipfile.ZIP_STORED, entry.file_size):
            raise ValueError(f"{brief(name)} in its zip is compressed or encrypted; torch does not write such files")
        if begin + entry.file_size > end:
            raise ValueError(f"{brief(name)} in its zip overlaps what follows it, at byte {end}")
        ranges[name] = begin, entry.file_size
    return ranges


def _content(file: _BoundedFile, begin: int, size: int) -> bytes:
    """Return a small file of the zip. Its checksum is not compared, because torch can leave it out."""
    if size > _LIMIT:
        raise ValueError(f"a file in its zip has {size} bytes; at most {_LIMIT} are allowed there")
    file.seek(begin)
    return bytes(read_exactly(file, size))


# --- the pickle -------------------------------------------------------------------------------------------------------

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}


def _run(program: io.BytesIO, storages: dict[str, _Storage]) -> Any:
    """Run a pickle with the instructions of a state dict, and return what it makes; note the storages that it names."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def pop(count: int | None = None) -> list[Any]:
        """Take `count` values from the stack, or all above the last mark."""
        items: list[Any] = []
        while len(items) != count and ((item := stack.pop()) is not _MARK or count is not None):
            items.append(item)
        return items[::-1]

    argument: Any
    for count, (instruction, argument, _) in enumerate(pickletools.genops(program)):
        if count == _MOST_INSTRUCTIONS:
            raise ValueError(f"its data.pkl has more than {_MOST_INSTRUCTIONS} instructions")
        match instruction.name:
            case "PROTO" | "FRAME":
                pass
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "EMPTY_DICT" | "EMPTY_LIST" as name:
                stack.append({} if name == "EMPTY_DICT" else [])
            case "APPENDS":
                items = pop()
                stack[-1].extend(items)
            case "APPEND":
                stack[-2].append(stack.pop())
            case "TUPLE":
                stack.append(tuple(pop()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(pop(int(name[-1]))))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "SETITEM" | "SETITEMS" as name:
                items = pop(2 if name == "SETITEM" else None)
                _set_items(stack[-1], items)
            case "GLOBAL":
                stack.append(_known(argument.replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                stack.append(_known(".".join(pop(2))))
            case "BINPERSID":
                stack.append(_storage(stack.pop(), storages))
            case "REDUCE":
                stack.append(_made(*pop(2)))
            case "BUILD":  # the versions of the modules; nothing uses them
                stack.pop()
                _set_items(stack[-1], [])
            case "STOP":
                if len(stack) != 1:
                    raise ValueError(f"its data.pkl makes {len(stack)} values; expected one")
                return stack[0]
            case other:
                raise ValueError(f"its data.pkl has the instruction {other}, which a state dict does not need")
    raise ValueError("its data.pkl does not end")


def _set_items(target: object, items: list[Any]) -> None:
    """Put keys and values that follow each other into a dict."""
    if type(target) is not dict or len(items) % 2:
        raise ValueError(f"its data.pkl sets items of {brief(target)}; expected a dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str or not key.isprintable() or key in target:
            raise ValueError(f"its data.pkl has a dict with the key {brief(key)}; expected names, each once")
        target[key] = value


def _known(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(f"it asks for {name[:200]!a}, which a state dict does not need")
    return _Name(name)


def _storage(described: object, known: dict[str, _Storage]) -> _Storage:
    """Return the storage of a description; all descriptions of a key must agree."""
    match described:
        case ("storage", _Name(name), str(key), str(), int(count), *rest) if name in _STORAGES and rest in ([], [None]):
            storage = _Storage(_STORAGES[name], key, count)
            if (first := known.setdefault(key, storage)) != storage:
                both = f"{first.count} {first.dtype} and {count} {storage.dtype}"
                raise ValueError(f"its data.pkl describes the storage {brief(key)} twice, as {both}")
            return storage
    raise ValueError(f"its data.pkl describes a storage by {brief(described)}")


def _made(function: object, arguments: object) -> dict[str, Any] | _View:
    """Return what a call makes, if it is one of the calls in state dicts."""
    match function, arguments:
        case _Name(name), () if name == _DICT:
            return {}
        # A seventh argument says that the numbers are the negative of those in the file.
        case _Name(name), (_Storage() as storage, int(offset), tuple(shape), tuple(strides), _, _) if name == _TENSOR:
            if all(type(number) is int and 0 <= number < 2**63 for number in (offset, *shape, *strides)):
                return _View(storage, offset, shape, strides)
        case _Name(name), (_View() as tensor, *_) if name in _PARAMETERS:
            return tensor
    called = function.name if isinstance(function, _Name) else brief(function)
    raise ValueError(f"its data.pkl calls {called} with {brief(arguments)}")


def _state_dict(result: object) -> dict[str, _View]:
    """Check that the result of a pickle is a dict of tensors."""
    if type(result) is not dict:
        raise ValueError(f"its data.pkl makes {brief(result)}; expected a state dict")
    for name, value in result.items():
        if not isinstance(value, _View):
            contents = "a dict with more tensors" if isinstance(value, dict) else brief(value)
            raise ValueError(f"{brief(name)} in it is {contents}, expected a tensor: save the state dict alone")
    return result


def _tensor(path: Path, state: tuple[int, ...], name: str, view: _View, place: tuple[int, int] | None) -> StoredTensor:
    """Check that a tensor is within its storage; return where it is in the file."""
    storage, shape, strides = view.storage, view.shape, view.strides
    width = BITS[storage.dtype] // 8
    if place is None or place[1] != storage.count * width:
        raise ValueError(f"tensor {name!a} has no storage of {storage.count} {storage.dtype} in the zip")
    # The product of many large sizes takes minutes; no array has more than 64 sizes. A size of 0 hides the others.
    fits = len(shape) == len(strides) <= 64 and math.prod(max(size, 1) for size in shape) < 2**60
    count = math.prod(shape) if fits else 0
    span = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1 if count else 0
    # A view may repeat numbers, but then it must not be larger than its storage.
    if not fits or view.offset + max(span, count) > storage.count:
        described = f"shape {brief(shape)}, strides {brief(strides)}, first number {view.offset}"
        raise ValueError(f"tensor {name!a} ({described}) is not within its storage of {storage.count} numbers")
    by_rows = all(
        n in (0, 1) or step == math.prod(shape[i + 1 :]) for i, (n, step) in enumerate(zip(shape, strides, strict=True))
    )
    first = place[0] + view.offset * width
    return StoredTensor(path, state, name, storage.dtype, shape, first, None if by_rows or not count else strides)
