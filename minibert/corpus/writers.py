"""Write results and their ids: .npy with an index file, .jsonl, .parquet, or a folder of Parquet files."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_output
from minibert._utils.validation import IntArray
from minibert.corpus import parquet
from minibert.corpus.tasks import Counts, Files, Lines, ShardFile
from minibert.vectors.similarity import rounded

OUTPUT_SUFFIXES = (".npy", ".jsonl", ".parquet")
OUTPUT_DTYPES = ("float32", "float16")

ROW = np.dtype([("text", "<u8", 2), ("id", "<u8", 2), ("tokens", "<i4"), ("cut", "<i4")])
"""What ``<output>.rows`` has of each row, for `minibert.corpus.update`: digests of the text (zeros without one) and of
the id; tokens after cutting, or vectors of tokens; and tokens that were cut off."""

_FORMAT = 1  # of Parquet files

# Made once, because json.dumps makes an encoder for each call.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def is_folder(output: str) -> bool:
    """Return whether an output is a folder: the folder exists, or the name ends in a separator."""
    return output.endswith((os.sep, os.altsep or os.sep)) or os.path.isdir(output)


def output_suffix(path: str) -> str:
    """Check the name of a file of vectors, or of a folder of Parquet files; return its format as a suffix.

    Raises
    ------
    ValueError, OSError
        As in `check_output`, for `OUTPUT_SUFFIXES`; or the folder is a mount point.
    ImportError
        The format is Parquet, and pyarrow is not installed.
    """
    if path and is_folder(path):
        suffix = os.path.splitext(os.path.realpath(path))[1].lower()
        if suffix in OUTPUT_SUFFIXES and suffix != ".parquet":
            raise ValueError(f"{path} is a folder, so it gets Parquet files, not {suffix}; give another name.")
        if os.path.ismount(path):
            inner = os.path.join(path, "vectors", "")
            raise OSError(f"{path} is a mount point, beside which a run cannot write; give a folder in it: {inner}.")
        suffix = ".parquet"
    else:
        try:
            suffix = check_output(path, OUTPUT_SUFFIXES)
        except ValueError as error:
            if os.path.splitext(path)[1]:
                raise
            raise ValueError(f"{error} The name of a folder of Parquet files ends in {os.sep!r}.") from error
    if suffix == ".parquet":
        parquet.pyarrow()
    return suffix


def npy_header(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bytes:
    """Return the header of an .npy file. Its length does not depend on the number of rows."""
    header, kind = io.BytesIO(), np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    return header.getvalue()


def rows_file(path: str) -> ShardFile:
    """Return the file of the `ROW` of each row of an output; the writers have it last."""
    return ShardFile(".rows", f"{path}.rows", lambda counts: npy_header((counts.n_texts,), ROW))


def json_line(value: dict[str, Any]) -> bytes:
    """Return an object as a line of JSON in UTF-8, with the newline."""
    return f"{_encode(value)}\n".encode()


@dataclasses.dataclass(frozen=True)
class VectorWriter:
    """Write the vectors and ids of shards, as .npy or Parquet.

    Parameters
    ----------
    path : str
        Path of the file, or of a folder of Parquet files.
    into_folder : bool
    width : int
    dtype : {"float32", "float16"}
    numbered : bool
        The ids are the numbers of the input lines. Then a Parquet file stores them as integers, else as strings.
    fingerprint : str
        That of the model, for the metadata of Parquet files.
    of_tokens : bool
        A text has several vectors. An .npy file has the vectors of all texts, one text after the other, and the index
        says how many each text has; elsewhere they are a list in the row of the text.
    """

    path: str
    into_folder: bool
    width: int
    dtype: str
    numbered: bool
    fingerprint: str
    of_tokens: bool = False

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """The files of a shard. The array gets its final name first, so it exists if the index exists."""
        suffix = ".parquet" if self.into_folder else os.path.splitext(self.path)[1].lower()
        if suffix == ".parquet":
            return ParquetFile(suffix, self.path), rows_file(self.path)
        index = f"{os.path.splitext(self.path)[0]}.ids.jsonl"
        counted = "n_tokens" if self.of_tokens else "n_texts"
        size = self.width, self.dtype
        array = ShardFile(suffix, self.path, lambda counts: npy_header((getattr(counts, counted), size[0]), size[1]))
        return array, ShardFile(".ids.jsonl", index), rows_file(self.path)

    def items(self, results: Any) -> npt.NDArray[Any]:
        """Return the results of n texts as an array of n items, which `write` takes."""
        return np.asarray(results)

    def write(self, files: Files, first: int, lines: Lines, vectors: Any) -> None:
        """Write a shard.

        Parameters
        ----------
        files : sequence of binary files
        first : int
            Rows of the earlier shards.
        lines : list of InputLine
            The rows; those without a text get no vector, which is NaN in an array.
        vectors : ndarray of shape (n, width) of the n texts; of tokens, n arrays of shape (tokens, width)
        """
        rows, ends = [line.row() for line in lines], None
        with_text = [line.text is not None for line in lines]
        if self.of_tokens:
            counts = np.zeros(len(lines), np.int64)
            counts[with_text] = [*map(len, vectors)]
            ends, vectors = np.cumsum([0, *counts]), np.concatenate([np.zeros((0, self.width), np.float32), *vectors])
            rows = [{**row, "vectors": count} for row, count in zip(rows, counts.tolist(), strict=True)]
        elif not all(with_text):  # else nothing is copied
            vectors, own = np.full((len(lines), self.width), np.nan, vectors.dtype), vectors
            vectors[with_text] = own
        converted = np.ascontiguousarray(rounded(vectors, np.dtype(self.dtype)))
        if self.files[0].suffix == ".parquet":
            self._write_parquet(files[0], rows, converted, ends)
        else:
            files[0].write(converted.data)
            files[1].writelines(json_line({"row": number, **row}) for number, row in enumerate(rows, first))

    def _write_parquet(
        self, file: BinaryIO, rows: Sequence[dict[str, Any]], vectors: npt.NDArray[Any], ends: IntArray | None
    ) -> None:
        arrow = parquet.pyarrow()
        flat = arrow.array(vectors.reshape(-1))
        kind = arrow.list_(flat.type, self.width)
        column_kind = kind if ends is None else arrow.list_(kind)
        id_kind = arrow.int64() if self.numbered else arrow.string()
        metadata = {"minibert": json.dumps({"format": _FORMAT, "fingerprint": self.fingerprint})}
        schema = arrow.schema([("id", id_kind), ("embedding", column_kind)], metadata=metadata)
        ids = [row["id"] if self.numbered or row["id"] is None else str(row["id"]) for row in rows]
        null = arrow.array(np.array(["null" in row for row in rows], dtype=np.bool_))
        column = arrow.FixedSizeListArray.from_arrays(flat, type=kind, mask=null if ends is None else None)
        if ends is not None:
            column = arrow.ListArray.from_arrays(arrow.array(ends, arrow.int32()), column, type=column_kind, mask=null)
        table = arrow.Table.from_arrays([arrow.array(ids, type=id_kind), column], schema=schema)
        with parquet.writer(file, schema) as writer:
            writer.write_table(table)


@dataclasses.dataclass(frozen=True)
class LineWriter:
    """Write a line of JSON for each input line: its id, and fields that are null without a text.

    Parameters
    ----------
    path : str
        Path of the .jsonl file.
    width : int
    names : tuple of str
        The names of the fields.
    fields : callable
        The results of some texts -> the fields of each text, as JSON without the first brace.
    """

    path: str
    width: int
    names: tuple[str, ...]
    fields: Callable[[Any], Iterable[str]]
    into_folder: ClassVar[bool] = False
    of_tokens: ClassVar[bool] = False

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """The files of a shard."""
        return ShardFile(".jsonl", self.path), rows_file(self.path)

    def items(self, results: Any) -> npt.NDArray[np.object_]:
        """Return an array of the ends of the lines, in UTF-8; see `VectorWriter.items`."""
        return np.fromiter((f", {fields}\n".encode() for fields in self.fields(results)), dtype=object)

    def write(self, files: Files, first: int, lines: Lines, ends: Iterable[bytes]) -> None:
        """Write a shard; see `VectorWriter.write`."""
        nothing, following = f", {json_fields(dict.fromkeys(self.names))}\n".encode(), iter(ends)
        for line in lines:
            end = nothing if line.text is None else next(following)
            files[0].write(b'{"id": ' + _encode(line.id).encode() + end)


def json_fields(fields: dict[str, Any]) -> str:
    """Return an object as JSON without the first brace."""
    return _encode(fields)[1:]


def vector_fields(vectors: Any, dtype: str) -> Iterator[str]:
    """Yield the field "embedding" of each text, rounded to a type, as `LineWriter` takes it."""
    for vector in (rounded(np.asarray(each), np.dtype(dtype)) for each in vectors):
        if np.isfinite(vector).all():
            # NumPy writes the fewest digits from which the same float16 or float32 can be read again.
            lines = [f"[{', '.join(line)}]" for line in np.atleast_2d(vector.astype(np.str_)).tolist()]
            numbers = lines[0] if vector.ndim == 1 else f"[{', '.join(lines)}]"
        else:
            numbers = json.dumps(vector.tolist())
        yield f'"embedding": {numbers}}}'


class ParquetFile(ShardFile):
    """A Parquet file of each shard."""

    def join(self, file: BinaryIO, shards: Sequence[Path], total: Counts) -> None:
        """See `ShardFile`."""
        library = parquet.pyarrow().parquet
        with parquet.writer(file, library.read_schema(shards[0])) as joined:
            for path in shards:  # one at a time, because of the memory
                with library.ParquetFile(path) as part:
                    joined.write_table(part.read())
