"""Write vectors and their ids as bytes: .npy with an index beside it, .jsonl, .parquet, a folder of Parquet files.

The only import of pyarrow.
"""

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

from minibert._utils.files import check_output, write_whole
from minibert._utils.validation import FloatArray
from minibert.corpus.file_folder import FileFolder, is_folder, refuse_folder, refuse_used
from minibert.corpus.manifest import FORMAT, manifest_path
from minibert.corpus.parts import Counts, Part
from minibert.corpus.run_folder import folder_of

__all__ = ["OUTPUT_DTYPES", "OUTPUT_SUFFIXES", "VectorWriter", "index_path", "json_line", "npy_header", "output_suffix"]

OUTPUT_SUFFIXES = (".npy", ".jsonl", ".parquet")
OUTPUT_DTYPES = ("float32", "float16")

_VECTORS, _IDS, _LINES, _TABLE = "part-vectors.npy", "part-ids.jsonl", "part-vectors.jsonl", "part-vectors.parquet"
_ROW_GROUP = 10_000  # rows of a Parquet file that are held in memory and written together

# Made once, because json.dumps makes an encoder for each call.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def output_suffix(path: str, file_size: int | None = None) -> str:
    """Check the name of a file of vectors, or of a folder of Parquet files, and return the suffix, which is the format.

    Parameters
    ----------
    path : str
    file_size : int, optional
        Given for a folder: then a name without one of the suffixes is that of a folder, too.

    Raises
    ------
    ValueError, OSError
        As in `check_output`, for `OUTPUT_SUFFIXES`, or as in `refuse_folder`; or the format needs pyarrow and that is
        not installed.
    """
    plain = file_size is not None and os.path.splitext(path)[1].lower() not in OUTPUT_SUFFIXES
    if path and (plain or is_folder(path)):
        refuse_folder(path, OUTPUT_SUFFIXES)
        target = os.path.realpath(path)
        if not os.path.lexists(manifest_path(target)) and not os.path.lexists(folder_of(target)):
            refuse_used(Path(target), finished=False)  # before a model is loaded; the run checks it again
        suffix = ".parquet"
    else:
        try:
            suffix = check_output(path, OUTPUT_SUFFIXES)
        except ValueError as error:
            if os.path.splitext(path)[1]:
                raise
            raise ValueError(f"{error} The name of a folder of Parquet files ends in {os.sep!r}.") from error
        if file_size is not None:
            raise ValueError(
                f"file_size= is for a folder of files, but {path} is the name of a single file; end the name of a "
                f"folder with {os.sep!r}."
            )
    if suffix == ".parquet":
        _pyarrow()
    return suffix


def index_path(path: str) -> str:
    """Return the name of the index of an .npy file: JSON lines with the id of each row."""
    return f"{os.path.splitext(path)[0]}.ids.jsonl"


def npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    """Return the header of an .npy file. Its length does not depend on the number of rows, so it can be replaced."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape},
    )
    return header.getvalue()


def json_line(value: dict[str, Any]) -> bytes:
    """Return an object as a line of JSON in UTF-8, with the newline."""
    return f"{_encode(value)}\n".encode()


@dataclasses.dataclass(frozen=True)
class VectorWriter:
    """Append vectors and their index entries to the parts of a file (see journal.py).

    Parameters
    ----------
    path : str
        Path of the file; its suffix is one of `OUTPUT_SUFFIXES`.
    width : int
    dtype : {"float32", "float16"}
    numbered : bool
        The ids are the numbers of the input lines. Then a Parquet file stores them as integers, else as strings.
    file_size : int, optional
        If the path is that of a folder: bytes of vectors at which each of its files ends.
    """

    path: str
    width: int
    dtype: str
    numbered: bool
    file_size: int | None = None

    @property
    def _suffix(self) -> str:
        return os.path.splitext(self.path)[1].lower() if self.file_size is None else ".parquet"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The array first: parts are renamed in this order, so the array is there if the index is."""
        if self._suffix == ".jsonl":
            return (Part(_LINES, self.path),)
        array, index = (self.path, index_path(self.path)) if self._suffix == ".npy" else (None, None)
        return Part(_VECTORS, array, self._header), Part(_IDS, index)

    @property
    def assemble(self) -> Callable[[Path, Counts], Sequence[Part]] | None:
        """The function that makes a Parquet file from an array and an index; a Parquet file cannot be appended to."""
        return self._assemble if self._suffix == ".parquet" else None

    @property
    def files(self) -> FileFolder | None:
        """The folder of Parquet files, if the path is that of a folder."""
        if self.file_size is None:
            return None
        row_bytes = self.width * np.dtype(self.dtype).itemsize
        return FileFolder(Path(self.path), self.file_size, row_bytes, self._make_parquet)

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
            See `minibert.corpus.survey.row_of`: id, file and line; "null" if there is no text.
        vectors : ndarray of shape (n, width)
        """
        converted = vectors.astype(self.dtype)
        if self._suffix == ".jsonl":
            append(_LINES, b"".join(map(_vector_line, rows, converted)))
        else:
            append(_VECTORS, converted.tobytes())
            append(_IDS, b"".join(json_line({"row": number, **row}) for number, row in enumerate(rows, first)))

    def _header(self, counts: Counts) -> bytes:
        return npy_header((counts.n_texts, self.width), self.dtype)

    def _assemble(self, folder: Path, counts: Counts) -> Sequence[Part]:
        self._make_parquet(folder, counts)
        return (Part(_TABLE, self.path),)

    def _make_parquet(self, folder: Path, counts: Counts) -> Path:
        with open(folder / _VECTORS, "rb") as vectors, open(folder / _IDS, "rb") as index:
            vectors.seek(len(self._header(counts)))
            write_whole(folder / _TABLE, lambda file: self._write_parquet(file, vectors, index))
        return folder / _TABLE

    def _write_parquet(self, file: BinaryIO, vectors: BinaryIO, index: BinaryIO) -> None:
        arrow = _pyarrow()
        from pyarrow import parquet

        numbers = arrow.float32() if self.dtype == "float32" else arrow.float16()
        kind = arrow.list_(numbers, self.width)
        id_kind = arrow.int64() if self.numbered else arrow.string()
        metadata = {"minibert": json.dumps({"format": FORMAT})}
        schema = arrow.schema([("id", id_kind), ("embedding", kind)], metadata=metadata)
        # Numbers of vectors hardly repeat, and nobody filters by them: a dictionary and their least and greatest value
        # take three quarters of the time, and space.
        with parquet.ParquetWriter(file, schema, use_dictionary=["id"], write_statistics=["id"]) as writer:
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
        # NumPy writes the fewest digits from which the same float16 or float32 can be read again.
        numbers = f"[{', '.join(vector.astype(np.str_).tolist())}]"
    else:
        numbers = json.dumps(vector.tolist())
    return f'{{"id": {_encode(row["id"])}, "embedding": {numbers}}}\n'.encode()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError("Parquet files need pyarrow: pip install pyarrow.") from error
    return pyarrow
