"""Find the tensors in a checkpoint of TensorFlow, the format of the models that came with the paper of BERT.

A checkpoint is `bert_model.ckpt.index` with `bert_model.ckpt.data-00000-of-00001`, or more such shards. The index is a
table of LevelDB: blocks of sorted keys, of which each says how many letters it shares with the one before. The value of
a key, the name of a variable, is a record of protocol buffers: dtype, shape, shard, offset and size. The numbers lie in
the shards row by row. The matrix of a linear map, "kernel", is stored as (in, out); embeddings and the maps that are
called output_weights are not. The variables of the optimizer are left out.

Sources: https://github.com/google-research/bert/blob/eedf5716ce1268e56f0a50264a88cafad334ac61/modeling.py,
https://github.com/tensorflow/tensorflow/tree/v2.16.1/tensorflow/core/protobuf/tensor_bundle.proto and
https://github.com/google/leveldb/blob/1.23/doc/table_format.md
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from pathlib import Path

from minibert._utils.files import is_regular_file
from minibert._utils.validation import brief
from minibert.checkpoint.safetensors import BITS, StoredTensor, file_state, read_exactly
from minibert.errors import ModelFormatError

_LIMIT = 2**22  # most bytes of an index; that of BERT-large with an optimizer has 60 KB
_MAGIC = 0xDB4775248B80FB57  # the last 8 bytes of a table
_DTYPES = {1: "F32", 2: "F64", 3: "I32", 9: "I64", 14: "BF16", 19: "F16"}
_OPTIMIZER = re.compile(
    r"(.*/)?((adam|lamb)_[mv]|Adam(_\d+)?|Momentum|RMSProp(_\d+)?|ExponentialMovingAverage|beta[12]_power(_\d+)?|global_step)"
)
_OBJECTS = b"_CHECKPOINTABLE_OBJECT_GRAPH"  # a key of checkpoints of TensorFlow 2

# The end of a variable's name here -> the end of a tensor's name in transformers.
_NAMES = (
    (r"\.layer_(\d+)\.", r".layer.\1."),
    (r"^cls\.predictions\.output_bias$", "cls.predictions.bias"),
    (r"^cls\.squad\.", "qa_outputs."),
    (r"^output_", "classifier.output_"),
    (r"(kernel|gamma|output_weights)$", "weight"),
    (r"(beta|output_bias)$", "bias"),
    (r"_embeddings$", "_embeddings.weight"),
)


def read_header(index: Path) -> list[StoredTensor]:
    """List the tensors of a checkpoint, under the names that they have in transformers.

    Raises
    ------
    ModelFormatError
        The index or a shard is missing, damaged or compressed.
    """
    try:
        with open(index, "rb") as file:
            if (size := file_state(file)[2]) > _LIMIT:
                raise ValueError(f"it has {size} bytes; an index has at most {_LIMIT}")
            entries = dict(_table(bytes(read_exactly(file, size))))
        if _OBJECTS in entries:
            raise ValueError("it is a checkpoint of TensorFlow 2, whose names are those of the objects of a program")
        header = _numbers(entries.pop(b"", b""))
        shards = header.get(1, 0)
        if header.get(2):
            raise ValueError("its numbers are big-endian")
        if not 0 < shards <= 10_000:
            raise ValueError(f"it says that there are {shards} shards")
        stem = index.name.removesuffix(".index")
        paths = [index.with_name(f"{stem}.data-{number:05d}-of-{shards:05d}") for number in range(shards)]
        states = [_state(path) for path in paths]
        return [
            _tensor(name, entry, paths, states)
            for name, entry in ((key.decode(), entry) for key, entry in entries.items())
            if not _OPTIMIZER.fullmatch(name)
        ]
    except (OSError, ValueError, IndexError) as error:
        reason = "it is damaged" if isinstance(error, IndexError) else str(error).removesuffix(".")
        raise ModelFormatError(f"{index} cannot be read: {reason}. Fetch or copy the checkpoint again.") from error


def _state(path: Path) -> tuple[int, ...]:
    if not is_regular_file(path):
        raise ValueError(f"{path.name} is missing")
    with open(path, "rb") as file:
        return file_state(file)


def _tensor(name: str, entry: bytes, paths: list[Path], states: list[tuple[int, ...]]) -> StoredTensor:
    """Return where the variable of an entry is, after a comparison of its size with its shape and its shard."""
    numbers = _numbers(entry)
    dtype, shard, offset, size = (numbers.get(field, 0) for field in (1, 3, 4, 5))
    shape = tuple(_numbers(size).get(1, 0) for shape in _records(entry, 2) for size in _records(shape, 2))
    if dtype not in _DTYPES or _records(entry, 7):
        raise ValueError(f"the variable {brief(name)} has the dtype {dtype} of TensorFlow, or is stored in slices")
    expected = math.prod(shape) * BITS[_DTYPES[dtype]] // 8
    if len(shape) > 8 or shard >= len(paths) or size != expected or offset + size > states[shard][2]:
        raise ValueError(f"the variable {brief(name)} has {size} bytes at {offset}, not those of its shape or shard")
    kernel = name.endswith("/kernel") and len(shape) == 2
    name = name.replace("/", ".")
    for old, new in _NAMES:
        name = re.sub(old, new, name)
    if kernel:  # the transposed matrix, whose neighbours in a row are `out` numbers apart
        return StoredTensor(paths[shard], states[shard], name, _DTYPES[dtype], shape[::-1], offset, (1, shape[1]))
    return StoredTensor(paths[shard], states[shard], name, _DTYPES[dtype], shape, offset)


# --- the table --------------------------------------------------------------------------------------------------------


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table of LevelDB."""
    if len(data) < 48 or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise ValueError("it is not the index of a checkpoint of TensorFlow 1.0 or later")
    _, at = _handle(data, len(data) - 48)
    blocks, _ = _handle(data, at)
    for _, handle in _block(data, blocks):
        yield from _block(data, _handle(handle, 0)[0])


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return the offset and the size of a block, and where the next number begins."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(data: bytes, place: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; refuse one whose checksum differs."""
    begin, end = place[0], sum(place)
    if end + 5 > len(data) or data[end] != 0:
        raise ValueError("a block of it is compressed, or not whole")
    if masked_crc32c(data[begin : end + 1]) != int.from_bytes(data[end + 1 : end + 5], "little"):
        raise ValueError("a block of it has another checksum")
    end -= 4 + 4 * int.from_bytes(data[end - 4 : end], "little")  # what follows are the places of whole keys
    key, at = b"", begin
    while at < end:
        shared, at = _varint(data, at)
        (more, size), at = _handle(data, at)
        key = key[:shared] + data[at : at + more]
        yield key, data[at + more : at + more + size]
        at += more + size


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes, rotated and with a constant added, as LevelDB stores it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in table]
    return table


# --- protocol buffers -------------------------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, the lowest first, and where the next one begins."""
    number = 0
    for shift in range(0, 70, 7):
        number |= (data[at + shift // 7] & 0x7F) << shift
        if data[at + shift // 7] < 0x80:
            return number, at + shift // 7 + 1
    raise ValueError("a number in it has more than 10 bytes")


def _values(record: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a record."""
    at = 0
    while at < len(record):
        tag, at = _varint(record, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = _varint(record, at)
        elif tag & 7 == 2:
            size, at = _varint(record, at)
            value, at = record[at : at + size], at + size
        elif tag & 7 == 5:
            value, at = record[at : at + 4], at + 4
        else:
            raise ValueError(f"a record in it has a field of the kind {tag & 7}")
        yield tag >> 3, value


def _numbers(record: bytes) -> dict[int, int]:
    """Return the fields of a record that are numbers."""
    return {field: value for field, value in _values(record) if isinstance(value, int)}


def _records(record: bytes, number: int) -> list[bytes]:
    """Return the fields of a record that have this number and are records."""
    return [value for field, value in _values(record) if field == number and isinstance(value, bytes)]
