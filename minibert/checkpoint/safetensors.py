"""Find the tensors in safetensors files, and write float32 tensors into one.

The reader is ours, for two reasons. NumPy does not have bfloat16, so the safetensors library cannot give it. And the
library maps a file: if the file is cut meanwhile, the system kills the process (SIGBUS).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np

from minibert._utils.files import JSON_LIMIT, parse_json, write_whole
from minibert._utils.system import needs
from minibert._utils.validation import brief
from minibert.errors import ModelFormatError

# Bits of every dtype that a safetensors file can hold; the offset of each tensor depends on them.
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class Blocks(NamedTuple):
    """How numbers are stored: the dtype of a block, the conversion of an array of them, how many numbers one has."""

    stored: np.dtype[Any]
    to_float32: Callable[[np.ndarray], np.ndarray]
    numbers: int = 1


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: the file and its state, the tensor's name, dtype and shape, the offset of its first byte.

    `strides` says how many numbers lie between neighbours in each dimension; None if the numbers lie row by row.
    `blocks` says how quantised numbers are stored; their dtype is "F32", which they become.
    """

    path: Path
    state: tuple[int, ...]
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] | None = None
    blocks: Blocks | None = None

    def size_of(self, count: int) -> int:
        """Return the bytes of so many numbers that lie in a row."""
        if self.blocks is not None:
            return count // self.blocks.numbers * self.blocks.stored.itemsize
        return count * BITS[self.dtype] // 8

    def block(self, index: int, count: int) -> StoredTensor:
        """Return one of `count` equal blocks of rows; the tensor itself if it does not have such blocks."""
        if count == 1 or not self.shape or self.shape[0] % count:
            return self
        rows = self.shape[0] // count
        distance = math.prod(self.shape[1:]) if self.strides is None else self.strides[0]
        offset = self.offset + self.size_of(index * rows * distance)
        return dataclasses.replace(self, shape=(rows, *self.shape[1:]), offset=offset)


def read_header(path: Path) -> list[StoredTensor]:
    """List the tensors of one file with their offsets, in the order of the file.

    The header is checked at least as strictly as by the safetensors library.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            state = file_state(file)
            if (size := state[2]) < 8:
                raise ValueError(f"it has {size} bytes, expected at least 8")
            if (begin := read_exactly(file, 8)) == b"version ":
                raise ValueError("it is a Git LFS pointer instead of the file: run `git lfs pull` in its folder")
            length = int.from_bytes(begin, "little")
            if length > min(size - 8, JSON_LIMIT):
                raise ValueError(f"its header has {length} bytes; the file has {size}, and the limit is {JSON_LIMIT}")
            header = bytes(read_exactly(file, length))
        return _tensors_of(path, state, parse_json(header, "its header"), 8 + length)
    except (OSError, ValueError) as error:
        reason = str(error).removesuffix(".")
        raise ModelFormatError(f"{path} is not a whole safetensors file: {reason}. Fetch or copy it again.") from error


def _tensors_of(path: Path, state: tuple[int, ...], header: Any, first: int) -> list[StoredTensor]:
    """Check that a header has known dtypes, and tensors that fill the rest of the file without gaps; list them."""
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", None)  # minibert does not use it
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    ):
        raise ValueError(f"its __metadata__ is {brief(metadata)}; expected an object of strings")
    entries = [(name, *_entry(name, entry)) for name, entry in header.items()]
    tensors, end = [], 0
    for name, dtype, shape, begin, stop in sorted(entries, key=lambda entry: entry[3:]):
        bits = math.prod(shape) * BITS[dtype]
        if begin != end or bits % 8 or stop - begin != bits // 8:
            raise ValueError(
                f"tensor {name!a} ({dtype} {list(shape)}) is at {begin} to {stop}; expected {end} to {end + bits // 8}"
            )
        tensors.append(StoredTensor(path, state, name, dtype, shape, first + begin))
        end = stop
    if first + end != state[2]:
        raise ValueError(f"it is {state[2]} bytes long, its tensors need {first + end}")
    return tensors


def _entry(name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape, offset of the first byte and of the one after the last, of one tensor of a header."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, stop]}:
            if dtype not in BITS:
                raise ValueError(f"tensor {name!a} has the dtype {dtype[:20]!a}, which minibert does not know")
            whole = all(type(number) is int and 0 <= number < 2**63 for number in (*shape, begin, stop))
            # The product of many large sizes takes minutes; no array has more than 64 sizes.
            if whole and len(shape) <= 64 and math.prod(max(size, 1) for size in shape) < 2**60:
                return dtype, tuple(shape), begin, stop
    raise ValueError(f"tensor {name!a} is described by {brief(entry)}; expected dtype, shape and data_offsets")


def file_state(file: IO[bytes]) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced or written to."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_exactly(file: BinaryIO, count: int) -> bytearray:
    """Read this many bytes; raise an OSError if the file ends before."""
    data = bytearray(count)
    fill(file, memoryview(data))
    return data


def fill(file: BinaryIO, view: memoryview) -> None:
    """Fill memory with bytes of a file; raise an OSError if the file ends before."""
    filled, count = 0, len(view)
    while filled < count:
        got = file.readinto(view[filled:])  # type: ignore[attr-defined]
        if not got:
            raise OSError(f"the file ends {count - filled} bytes early; it was cut while being read")
        filled += got


def safetensors_library() -> Any:
    """Import safetensors.numpy, which writes files and reads traces. What reads models does not need it."""
    with needs("a safetensors file of minibert", "safetensors"):
        import safetensors.numpy
    return safetensors.numpy


def write_safetensors(path: str | os.PathLike[str], arrays: Iterable[tuple[str, Any]]) -> None:
    """Write named arrays as float32 into one safetensors file; the file gets its name when it is complete."""
    tensors = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays}
    # transformers refuses a file without this metadata.
    write_whole(path, lambda file: file.write(safetensors_library().save(tensors, {"format": "pt"})))
