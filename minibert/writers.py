"""Shards -> the file that was asked for: .npy, .jsonl or .parquet. The only import of pyarrow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from minibert.files import write_whole
from minibert.shards import Shard, ShardFolder

__all__ = ["OUTPUT_SUFFIXES", "index_path", "output_suffix", "write_shards"]

OUTPUT_SUFFIXES = (".npy", ".jsonl", ".parquet")


def output_suffix(path: str) -> str:
    """Return what a file's name says about its format; refuse what cannot be written here.

    Raises
    ------
    ValueError
        The suffix is none of `OUTPUT_SUFFIXES`, or pyarrow is needed and not installed.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in OUTPUT_SUFFIXES:
        raise ValueError(f"{path!r} must end in one of {', '.join(OUTPUT_SUFFIXES)}: that says what is written.")
    if suffix == ".parquet":
        _pyarrow()
    return suffix


def index_path(path: str) -> str:
    """Return the name of the ids that belong to an .npy file: a JSON object for each row."""
    return f"{os.path.splitext(path)[0]}.ids.jsonl"


def write_shards(path: str, shards: ShardFolder, n: int, width: int, dtype: str, numbered: bool) -> None:
    """Write n vectors into a file that takes its name only once it is complete; so do the ids beside an .npy file.

    Parameters
    ----------
    path : str
    shards : ShardFolder
        Also holds what is not complete yet.
    n, width : int
    dtype : {"float32", "float16"}
    numbered : bool
        The ids are the numbers of the records, not the input's own: integers in a Parquet file, else strings.

    Raises
    ------
    OSError
        It cannot be written.
    """
    suffix = output_suffix(path)
    if suffix == ".npy":

        def write_both(index: BinaryIO) -> None:
            _write_ids(index, shards)
            write_whole(path, lambda file: _write_npy(file, shards, n, width, dtype), folder=shards.path)

        write_whole(index_path(path), write_both, folder=shards.path)
    elif suffix == ".jsonl":
        write_whole(path, lambda file: _write_jsonl(file, shards), folder=shards.path)
    else:
        write_whole(path, lambda file: _write_parquet(file, shards, width, dtype, numbered), folder=shards.path)


def _write_ids(file: BinaryIO, shards: Iterable[Shard]) -> None:
    number = 0
    for shard in shards:
        for row in shard.rows:
            file.write(_json_line({"row": number, **row}))
            number += 1


def _write_npy(file: BinaryIO, shards: ShardFolder, n: int, width: int, dtype: str) -> None:
    header: dict[str, Any] = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": (n, width),
    }
    np.lib.format.write_array_header_1_0(file, header)
    for shard in shards:
        file.write(shard.vectors.tobytes())


def _write_jsonl(file: BinaryIO, shards: Iterable[Shard]) -> None:
    for shard in shards:
        for row, vector in zip(shard.rows, shard.vectors, strict=True):
            # str() of a float has just the digits that bring it back, of float16 and float32 too.
            numbers = None if "null" in row else [float(str(x)) for x in vector]
            file.write(_json_line({"id": row["id"], "embedding": numbers}))


def _write_parquet(file: BinaryIO, shards: Iterable[Shard], width: int, dtype: str, numbered: bool) -> None:
    arrow = _pyarrow()
    from pyarrow import parquet

    numbers = arrow.float32() if dtype == "float32" else arrow.float16()
    kind = arrow.list_(numbers, width)
    id_kind = arrow.int64() if numbered else arrow.string()
    schema = arrow.schema([("id", id_kind), ("embedding", kind)])
    with parquet.ParquetWriter(file, schema) as writer:
        for shard in shards:
            ids = [row["id"] if numbered else str(row["id"]) for row in shard.rows]
            null = np.array(["null" in row for row in shard.rows], dtype=np.bool_)
            flat = arrow.array(shard.vectors.reshape(-1), type=numbers)
            vectors = arrow.FixedSizeListArray.from_arrays(flat, type=kind, mask=arrow.array(null))
            writer.write_table(arrow.Table.from_arrays([arrow.array(ids, type=id_kind), vectors], schema=schema))


def _json_line(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError('.parquet needs pyarrow: pip install "minibert[parquet]".') from error
    return pyarrow
