"""The bytes of vectors and their ids: .npy with an index beside it, .jsonl, .parquet. The only import of pyarrow."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minibert.base.arrays import FloatArray
from minibert.base.files import write_whole
from minibert.corpus.shards import FORMAT, Counts, Part

__all__ = ["OUTPUT_DTYPES", "OUTPUT_SUFFIXES", "VectorWriter", "index_path", "json_line", "npy_header", "output_suffix"]

OUTPUT_SUFFIXES = (".npy", ".jsonl", ".parquet")
OUTPUT_DTYPES = ("float32", "float16")

_VECTORS, _IDS, _LINES, _TABLE = "part-vectors.npy", "part-ids.jsonl", "part-vectors.jsonl", "part-vectors.parquet"
_ROW_GROUP = 10_000  # rows of a Parquet file that are written, and held, at a time

# json.dumps makes an encoder for each call.
_encode = json.JSONEncoder(ensure_ascii=False).encode


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


def npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    """Return the header of an .npy file; its length does not depend on the number of rows."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape},
    )
    return header.getvalue()


def json_line(value: dict[str, Any]) -> bytes:
    """Return an object as a line of UTF-8, the line's end included."""
    return f"{_encode(value)}\n".encode()


@dataclasses.dataclass(frozen=True)
class VectorWriter:
    """Vectors and their rows -> the parts of a file (see shards.py).

    Parameters
    ----------
    path : str
        Of the file; its suffix is one of `OUTPUT_SUFFIXES`.
    width : int
    dtype : {"float32", "float16"}
    numbered : bool
        The ids are the numbers of the input lines, not the input's own: integers in a Parquet file, else strings.
    """

    path: str
    width: int
    dtype: str
    numbered: bool

    @property
    def parts(self) -> tuple[Part, ...]:
        """The array first: where the index has its name, the array has its own."""
        suffix = output_suffix(self.path)
        if suffix == ".jsonl":
            return (Part(_LINES, self.path),)
        array, index = (self.path, index_path(self.path)) if suffix == ".npy" else (None, None)
        return Part(_VECTORS, array, self._header), Part(_IDS, index)

    @property
    def assemble(self) -> Callable[[Path, Counts], Sequence[Part]] | None:
        """What makes a Parquet file, which cannot grow by shards, of an array and an index."""
        return self._make_parquet if output_suffix(self.path) == ".parquet" else None

    def write(
        self, append: Callable[[str, bytes], None], first: int, rows: Sequence[dict[str, Any]], vectors: FloatArray
    ) -> None:
        """Append rows to the parts.

        Parameters
        ----------
        append : callable
            Takes the name of a part, and bytes.
        first : int
            Number of the first row.
        rows : sequence of n dict
            See `minibert.corpus.runs.row_of`: the id, the place; "null" where there is no text.
        vectors : ndarray of shape (n, width)
        """
        own = vectors.astype(self.dtype)
        if output_suffix(self.path) == ".jsonl":
            append(_LINES, b"".join(map(_vector_line, rows, own)))
        else:
            append(_VECTORS, own.tobytes())
            append(_IDS, b"".join(json_line({"row": number, **row}) for number, row in enumerate(rows, first)))

    def _header(self, counts: Counts) -> bytes:
        return npy_header((counts.n_texts, self.width), self.dtype)

    def _make_parquet(self, folder: Path, counts: Counts) -> Sequence[Part]:
        with open(folder / _VECTORS, "rb") as vectors, open(folder / _IDS, "rb") as index:
            vectors.seek(len(self._header(counts)))
            write_whole(folder / _TABLE, lambda file: self._write_parquet(file, vectors, index))
        return (Part(_TABLE, self.path),)

    def _write_parquet(self, file: BinaryIO, vectors: BinaryIO, index: BinaryIO) -> None:
        arrow = _pyarrow()
        from pyarrow import parquet

        numbers = arrow.float32() if self.dtype == "float32" else arrow.float16()
        kind = arrow.list_(numbers, self.width)
        id_kind = arrow.int64() if self.numbered else arrow.string()
        metadata = {"minibert": json.dumps({"format": FORMAT})}
        schema = arrow.schema([("id", id_kind), ("embedding", kind)], metadata=metadata)
        with parquet.ParquetWriter(file, schema) as writer:
            while rows := [json.loads(line) for line in islice(index, _ROW_GROUP)]:
                ids = [row["id"] if self.numbered or row["id"] is None else str(row["id"]) for row in rows]
                null = np.array(["null" in row for row in rows], dtype=np.bool_)
                flat = arrow.array(np.fromfile(vectors, self.dtype, len(rows) * self.width), type=numbers)
                column = arrow.FixedSizeListArray.from_arrays(flat, type=kind, mask=arrow.array(null))
                writer.write_table(arrow.Table.from_arrays([arrow.array(ids, type=id_kind), column], schema=schema))


def _vector_line(row: dict[str, Any], vector: npt.NDArray[Any]) -> bytes:
    if "null" in row:
        numbers = "null"
    elif np.isfinite(vector).all():
        # NumPy's text of a float has just the digits that bring it back, of float16 and float32 too.
        numbers = f"[{', '.join(vector.astype(np.str_).tolist())}]"
    else:
        numbers = json.dumps(vector.tolist())
    return f'{{"id": {_encode(row["id"])}, "embedding": {numbers}}}\n'.encode()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError(".parquet needs pyarrow: pip install pyarrow.") from error
    return pyarrow
