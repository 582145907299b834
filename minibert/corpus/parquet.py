"""Read and write the columns of Parquet files. The only import of pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from minibert._utils.system import needs

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 4096, 2**22  # that are read together


def pyarrow() -> Any:
    """Return the library; an ImportError says how to install it."""
    with needs("a Parquet file", "pyarrow"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def writer(file: BinaryIO, schema: Any) -> Any:
    """Return a writer of tables into an open file."""
    # Numbers of vectors hardly repeat, and nobody filters by them: a dictionary and their least and greatest value
    # take three quarters of the time, and space.
    names = [field.name for field in schema if not pyarrow().types.is_nested(field.type)]
    return pyarrow().parquet.ParquetWriter(file, schema, use_dictionary=names, write_statistics=names)


def columns_of_lists(path: str) -> list[str]:
    """Return the names of the columns of a file that hold lists or tensors; one of them can be there twice."""
    with _file(path) as file:
        kinds = [(field.name, getattr(field.type, "storage_type", field.type)) for field in file.schema_arrow]
        return [name for name, kind in kinds if str(kind).partition("<")[0].endswith("list")]


def batches(path: str | BinaryIO, choose: Callable[[list[str]], list[str]]) -> Iterator[Any]:
    """Yield the rows of a file, open or not, or of a folder's files in the order of their names, as pyarrow's batches.

    `choose` gets the names of the columns, and returns those that are to be read.
    """
    paths: list[Any] = [path]
    if isinstance(path, str) and Path(path).is_dir():
        paths = sorted(Path(path).glob("[!.]*.parquet"))
    if not paths:
        raise FileNotFoundError("the folder does not hold a .parquet file")
    for name in paths:
        with _file(name) as file:
            columns = choose(file.schema_arrow.names)
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                rows = 1 + group.num_rows * _BYTES_AT_ONCE // max(1, group.total_byte_size)
                yield from file.iter_batches(min(rows, _ROWS_AT_ONCE), row_groups=[number], columns=columns)


def numbers(path: str, name: str) -> Iterator[Any]:
    """Yield the numbers of a column of lists, or of lists of lists, a batch at a time; nulls are left out."""
    for batch in batches(path, lambda names: [name]):
        column = batch[name]
        while column.type.num_fields:
            column = column.flatten()
        yield column.to_numpy(zero_copy_only=False)


@contextlib.contextmanager
def _file(path: str | BinaryIO) -> Iterator[Any]:
    library = pyarrow()
    try:
        with library.parquet.ParquetFile(path) as file:
            yield file
    except (library.ArrowException, UnicodeDecodeError) as error:
        raise OSError(str(error).rstrip(".")) from error
