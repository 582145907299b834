"""`StoredTable`: a large table that stays in its file; the rows that are needed are read.

What        A model of 250,000 words has a table of 384 MB and more, of which a text needs some dozen rows. Each is read
            at its place in the file, which is not mapped. A copy of recent rows is kept
Kept        Up to KEPT_BYTES of rows, or those of one step if it has more. If they are full, they begin again. A table
            that is not larger than this stays in memory: all of its rows could be kept
Files       The file is open as long as the table lives. So it may be deleted or replaced by another one. If it is
            written to or cut, the next read is an error. A row has been checked before it is used
Threads     There is no lock, so a process may fork at any time. A place for a row is given to one thread only, in one
            step that Python does not interrupt. A row is written to its place before `_places` leads there, and it
            never changes again: when the kept rows begin again, they do so in new memory
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from minibert._utils.files import os_reason
from minibert._utils.validation import FloatArray, IntArray
from minibert.checkpoint.safetensors import StoredTensor, file_state
from minibert.checkpoint.tensors import BUFFER_BYTES, blocks_of, check_numbers
from minibert.errors import ModelFormatError

KEPT_BYTES = 8 * 2**20

_SEEK = threading.Lock()


def read_at(file: BinaryIO, count: int, offset: int) -> bytes:
    """Read bytes of an unbuffered file at a place, from any thread; less if the file ends there."""
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), count, offset)
    with _SEEK:  # Windows
        file.seek(offset)
        return file.read(count)


def stored_table(tensor: StoredTensor) -> StoredTable | None:
    """Return a table that stays in its file; None if it is small, or if its numbers do not lie row by row."""
    return StoredTable(tensor) if 4 * math.prod(tensor.shape) > KEPT_BYTES and tensor.strides is None else None


class StoredTable:
    """A two-dimensional tensor of `DTYPES` in a file, as float32; NumPy reads it as a whole, as an array.

    Attributes
    ----------
    shape : (rows, columns)

    Raises
    ------
    ModelFormatError
        The file has changed since its header was read, or cannot be opened.
    """

    def __init__(self, tensor: StoredTensor) -> None:
        self.shape = tensor.shape
        self._tensor = tensor
        try:
            self._file = open(tensor.path, "rb", buffering=0)  # noqa: SIM115  # closed with the table
        except OSError as error:
            raise self._failed(error) from error
        weakref.finalize(self, self._file.close)
        self._whole: Any = lambda: None
        self._kept = _Kept(self.shape)
        self._compare_state()

    def look_up(self, ids: IntArray) -> tuple[FloatArray, IntArray]:
        """Return rows of the table, and the place among them of each id, which must be in the table.

        Raises
        ------
        ModelFormatError
            The file has changed since it was opened or cannot be read, or a row holds NaN, infinity or a number
            beyond 10^6.
        """
        kept = self._kept
        places = kept.places[ids]
        if (places >= 0).all():
            return kept.rows, places
        missing = sorted(set(ids[places < 0].tolist()))
        slots = kept.take(len(missing))
        if slots[-1] >= len(kept.rows):
            missing = sorted(set(ids.ravel().tolist()))
            kept = _Kept(self.shape, len(missing))
            slots = kept.take(len(missing))
            self._kept = kept
        kept.rows[slots] = self._read(missing)
        kept.places[missing] = slots
        return kept.rows, kept.places[ids]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        """Read the whole table; as long as somebody holds the array, it is the same one."""
        whole: FloatArray | None = self._whole()
        if whole is None:
            whole, first = np.empty(self.shape, np.float32), 0
            for piece in self.pieces():
                whole[first : first + len(piece)] = piece
                first += len(piece)
            whole.flags.writeable = False
            self._whole = weakref.ref(whole)
        return np.array(whole, dtype, copy=copy)

    def pieces(self) -> Iterator[FloatArray]:
        """Read the whole table, some rows at a time, and keep none."""
        rows, columns = self.shape
        step = max(1, BUFFER_BYTES // self._tensor.size_of(columns))
        for first in range(0, rows, step):
            yield self._read(range(rows)[first : first + step])

    def __reduce__(self) -> tuple[Any, tuple[FloatArray]]:
        return np.asarray, (np.asarray(self),)  # a copy elsewhere need not have the file

    def _read(self, ids: Sequence[int]) -> FloatArray:
        """Read these rows; a range of them at once."""
        columns = self.shape[1]
        size = self._tensor.size_of(columns)
        blocks = [(ids.start, len(ids))] if isinstance(ids, range) else zip(ids, itertools.repeat(1))
        try:
            read = b"".join([read_at(self._file, n * size, self._tensor.offset + i * size) for i, n in blocks])
            self._compare_state()
            if len(read) < len(ids) * size:
                raise OSError("the file ends early")
        except OSError as error:
            raise self._failed(error) from error
        except ValueError as error:
            if not self._file.closed:
                raise
            raise self._failed(OSError("the file is closed, because the program ends")) from error
        stored, to_float32, _ = blocks_of(self._tensor)
        rows = to_float32(np.frombuffer(read, stored)).reshape(-1, columns)
        check_numbers(self._tensor, rows, lambda i: ids[i // columns] * columns + i % columns)
        return rows

    def _compare_state(self) -> None:
        if file_state(self._file) != self._tensor.state:
            raise ModelFormatError(
                f"{self._tensor.path} has changed, and {self._tensor.name} is read from it. Load the model again."
            )

    def _failed(self, error: OSError) -> ModelFormatError:
        return ModelFormatError(f"{self._tensor.path}: reading {self._tensor.name} failed: {os_reason(error)}.")


class _Kept:
    """Memory for up to KEPT_BYTES of rows, or `least` rows, and the place of each row in it, -1 if it is not there."""

    def __init__(self, shape: tuple[int, ...], least: int = 0) -> None:
        rows, columns = shape
        self.rows: FloatArray = np.empty((max(least, KEPT_BYTES // (4 * columns)), columns), np.float32)
        self.places: IntArray = np.full(rows, -1, np.int32)
        self._free = itertools.count()

    def take(self, count: int) -> IntArray:
        """Return places that nobody else gets; those beyond the rows do not exist."""
        return np.fromiter(itertools.islice(self._free, count), np.int32, count)
