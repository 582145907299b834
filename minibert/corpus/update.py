"""What a finished output has for texts that are there again: `Earlier`, for ``update=True`` of a run.

A text keeps its result if the output has one for the same characters, whatever its id: results depend on nothing else,
because the fingerprint of the model and the options are the same. ``<output>.rows`` has a digest of each text.
Memory: 24 bytes for each row of the output. Results are read where they are: an array is mapped, lines are found by
their places, and Parquet is first copied to such an array, one batch after the other, into a file that has no name.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import IntArray
from minibert.corpus import parquet
from minibert.corpus.writers import LineWriter, VectorWriter

Rows = npt.NDArray[Any]
"""An array of `ROW`, or a field of it."""


def digests(texts: Iterable[str]) -> Rows:
    """Return 128 bits of the BLAKE2 of each text, (n, 2); none of them is zero but by a chance of 1 in 2^128."""
    found = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(found, "<u8").reshape(-1, 2)


class Earlier:
    """The results of a finished output.

    Parameters
    ----------
    writer : VectorWriter or LineWriter
        That of the output.
    scratch : Path
        A folder for a file without a name.

    Attributes
    ----------
    rows : ndarray of `ROW`
    """

    def __init__(self, writer: VectorWriter | LineWriter, scratch: Path) -> None:
        self.rows: Rows = np.load(writer.files[-1].output, mmap_mode="r")
        keys = self.rows["text"][:, 0]
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._array: Any
        suffix, path = writer.files[0].suffix, writer.files[0].output
        counts = self.rows["tokens"] if writer.of_tokens else np.ones(len(self.rows), np.int64)
        if suffix == ".parquet" and not writer.of_tokens:
            counts = keys > 0  # a null is no vector there
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._of_tokens, self._is_text = writer.of_tokens, suffix == ".jsonl"
        # What follows the id of a line. A quote in an id is escaped, so no id has it.
        self._after_id = f', "{writer.names[0] if isinstance(writer, LineWriter) else "embedding"}": '.encode()
        if self._is_text:
            with open(path, "rb") as file:
                self._array = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._ends = np.fromiter(itertools.accumulate(map(len, file)), np.int64, len(self.rows))
        elif isinstance(writer, VectorWriter) and suffix == ".parquet":
            with tempfile.TemporaryFile(dir=scratch) as copied:
                for numbers in parquet.numbers(path, "embedding"):
                    copied.write(numbers.data)
                copied.flush()
                shape = (int(self._ends[-1]), writer.width)
                self._array = np.memmap(copied, writer.dtype, "r", shape=shape) if shape[0] else np.zeros(shape)
        else:
            self._array = np.load(path, mmap_mode="r")

    def find(self, texts: Rows) -> IntArray:
        """Return the row of the output that has each of these `digests`; -1 for those that are not there."""
        found = self._order[np.minimum(np.searchsorted(self._keys, texts[:, 0]), len(self._keys) - 1)]
        return np.where((self.rows["text"][found] == texts).all(axis=1), found, -1)

    def items(self, rows: IntArray) -> npt.NDArray[Any]:
        """Return the items of these rows, as `VectorWriter.items` and `LineWriter.items` make them."""
        ends = self._ends[rows]
        if not self._of_tokens and not self._is_text:
            return self._array[ends - 1]
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        parts = (self._array[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
        return np.fromiter(
            (part[part.index(self._after_id) :] if self._is_text else part for part in parts), dtype=object
        )


def repeated_ids(paths: Sequence[Path]) -> dict[str, int]:
    """Count the rows whose id an earlier row has, and those without an id, as `Summary` names them; 8 bytes a row."""
    ids = np.concatenate([np.load(path)["id"][:, 0].copy() for path in paths])
    given = ids[ids != digests([""])[0, 0]]
    return {"n_duplicate_ids": len(given) - len(np.unique(given)), "n_empty_ids": len(ids) - len(given)}


def compare(earlier: Sequence[Rows], rows: Sequence[Rows], numbered: bool) -> tuple[int, int, int, int]:
    """Count the texts that are kept, new and changed, and the rows that are removed; `numbered`: ids are numbers."""
    (old, new), (old_ids, new_ids) = (
        [np.concatenate([part[name][:, 0] for part in parts]) for parts in (earlier, rows)] for name in ("text", "id")
    )
    computed = (new > 0) & ~np.isin(new, old)
    n_computed, more = int(computed.sum()), len(new) - len(old)
    n_kept = int((new > 0).sum()) - n_computed
    if numbered:  # a line more changes the numbers of those after it
        n_new, n_removed = max(0, min(more, n_computed)), max(0, -more)
    else:
        n_new = int((computed & ~np.isin(new_ids, old_ids)).sum())
        n_removed = int((~np.isin(old_ids, new_ids)).sum())
    return n_kept, n_new, n_computed - n_new, n_removed
