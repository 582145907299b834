"""What a long run has done so far: a folder of finished shards and the manifest that says what they belong to.

Each file appears whole or not at all, so a run that is killed at any moment leaves a folder from which the next one
goes on: shard n is done if its file is there, and shards are done in order.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minibert.errors import ModelFormatError
from minibert.files import os_reason, read_json_object, write_whole
from minibert.ops import FloatArray

__all__ = ["Shard", "ShardFolder", "folder_of"]

_MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
    """The vectors of some records, n of them.

    Parameters
    ----------
    vectors : ndarray of shape (n, width), float32 or float16
        NaN for a record without a text.
    rows : list of n dict
        "id", "file" and "line" of each; "null", with the reason, where there is no text.
    n_tokens, n_cut, n_left_out : int
        Tokens of its texts as they were computed; texts that were cut; records that are not in it.
    """

    vectors: FloatArray
    rows: list[dict[str, Any]]
    n_tokens: int
    n_cut: int
    n_left_out: int


class ShardFolder:
    """The folder of one run.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def manifest(self) -> dict[str, Any] | None:
        """Return what `start` wrote, or None if no run has started.

        Raises
        ------
        ValueError
            It is damaged.
        """
        file = self.path / _MANIFEST
        if not file.exists():
            return None
        try:
            return read_json_object(file)
        except ModelFormatError as error:
            raise ValueError(f"{error} Delete {self.path} to start again.") from error

    def make(self) -> None:
        """Make an empty folder; what a run left that had not started, or had ended, is deleted."""
        try:
            if self.path.exists():
                shutil.rmtree(self.path)
            self.path.mkdir()
        except OSError as error:
            raise OSError(f"{self.path} cannot be made: {os_reason(error)}.") from error

    def start(self, manifest: dict[str, Any]) -> None:
        """Write the manifest: from now on there is a run to resume."""
        content = json.dumps(manifest, indent=1, ensure_ascii=False).encode()
        write_whole(self.path / _MANIFEST, lambda file: file.write(content))

    def count(self) -> int:
        """Count the shards that are done."""
        number = 0
        while self._file(number).exists():
            number += 1
        return number

    def write(self, number: int, shard: Shard) -> None:
        """Write a shard; whole, or not at all."""
        rows = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in shard.rows).encode()
        counts = np.array([len(shard.rows), shard.n_tokens, shard.n_cut, shard.n_left_out])
        write_whole(
            self._file(number),
            lambda file: np.savez(file, vectors=shard.vectors, rows=np.frombuffer(rows, dtype=np.uint8), counts=counts),
        )

    def counts(self) -> np.ndarray:
        """Return rows, tokens, cut texts and left out records of all shards: int array of shape (4,)."""
        total = np.zeros(4, dtype=np.int64)
        for number in range(self.count()):
            with self._open(number) as arrays:
                total += arrays["counts"]
        return total

    def __iter__(self) -> Iterator[Shard]:
        """Yield the shards in order, one in memory at a time."""
        for number in range(self.count()):
            with self._open(number) as arrays:
                rows = [json.loads(line) for line in arrays["rows"].tobytes().decode().splitlines()]
                _, n_tokens, n_cut, n_left_out = map(int, arrays["counts"])
                yield Shard(arrays["vectors"], rows, n_tokens, n_cut, n_left_out)

    def remove(self) -> None:
        """Delete the folder, the manifest first: what is left if that is interrupted is no run any more."""
        (self.path / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def _file(self, number: int) -> Path:
        return self.path / f"shard-{number:06}.npz"

    def _open(self, number: int) -> Any:
        try:
            return np.load(self._file(number), allow_pickle=False)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise OSError(
                f"{self._file(number)} is damaged ({error}). Delete it and those after it, then resume."
            ) from error


def folder_of(output: str | os.PathLike[str]) -> Path:
    """Return where the run that makes a file keeps its shards."""
    return Path(f"{os.path.realpath(output)}.parts")
