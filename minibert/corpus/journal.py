"""The journal of a run: which shards the growing parts of its output hold, and whether they are undamaged.

A shard is appended to each part, and never changed again. Once a whole shard is on the disk, a line is added to the
journal with its end offset in each part and its checksums. Bytes after the last recorded offset come from an
interrupted shard and are truncated. So a shard is complete or absent, and later damage is noticed.

If the output is a folder (file_folder.py), a line of another kind records each of its files. The shards before that
line are then in files, and the parts begin anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import zlib
from collections.abc import Callable
from typing import IO, Any

from minibert.corpus.file_folder import checksum_of
from minibert.corpus.manifest import FORMAT, seal, unsealed
from minibert.corpus.parts import Counts, Part
from minibert.corpus.run_folder import JOURNAL, RunFolder

__all__ = ["Journal"]


class Journal:
    """The journal in the folder of a run, and the parts whose shards it records.

    Parameters
    ----------
    folder : RunFolder
        Its lock is held.
    name_of : callable, optional
        If the output is a folder: number -> the name of the file with this number.

    Attributes
    ----------
    n_shards : int
        Number of recorded shards.
    counts : Counts
        Counts of these shards.
    files : list of dict
        The record of each file of the folder: name, rows, size and checksum.
    """

    def __init__(self, folder: RunFolder, name_of: Callable[[int], str] | None = None) -> None:
        self._folder, self._name_of, self._path = folder, name_of, folder.path / JOURNAL
        self.n_shards, self.counts = 0, Counts()
        self.files: list[dict[str, Any]] = []
        self._in_files = Counts()  # of the shards in these files
        self._opened: dict[str, IO[bytes]] = {}
        self._to_close = contextlib.ExitStack()
        self._ends: dict[str, int] = {}
        self._checksums: dict[str, int] = {}

    @property
    def in_parts(self) -> Counts:
        """The counts of the shards that the parts hold, which are not in a file of the folder yet."""
        return self.counts - self._in_files

    def lines_of_shards(self) -> int:
        """Count the lines of shards in the journal, undamaged or not; it need not be open."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            return sum(b'"shard": ' in line for line in file)
        return 0

    # -- open and close

    def start(self) -> None:
        """Make an empty journal and empty parts."""
        for part in self._folder.parts:
            self._open(part, "w+b")
        self._open(Part(JOURNAL, None), "w+b")

    def resume(self, report: Callable[[str], object]) -> None:
        """Find the shards that are done and undamaged; truncate the parts after them.

        Parameters
        ----------
        report : callable
            Called with a message if a shard is damaged.

        Raises
        ------
        ValueError
            The journal does not know a shard whose bytes are in a file of the folder only.
        """
        for part in (*self._folder.parts, Part(JOURNAL, None)):
            self._open(part, "r+b" if (self._folder.path / part.name).exists() else "w+b")
        end, n_in_files = 0, self._shards_in_files()
        for line in self._opened[JOURNAL]:
            entry = self._next_entry(line)
            if entry is not None and "file" in entry:
                self._take_file(entry["file"])
            elif entry is not None and (self.n_shards < n_in_files or self._is_whole(entry)):
                self.n_shards, self._ends = self.n_shards + 1, entry["ends"]
                self.counts += Counts(**entry["counts"])
            else:
                report(
                    f"{self._folder.path}: shard {self.n_shards} is damaged; it and the shards after it are computed "
                    f"again ({self.counts.n_texts} texts before it are good)."
                )
                break
            end += len(line)
        else:
            if not end:
                report(f"{self._folder.path}: no shard was finished; the run starts again.")
        if self.n_shards < n_in_files:
            raise ValueError(f"{self._path} is damaged. Delete {self._folder.to_delete} to start again.")
        headers = {part.name: part.header(self.in_parts) for part in self._folder.parts}
        for name, offset in {**self._ends, JOURNAL: end}.items():
            with self._folder.writing(self._folder.path / name):
                self._opened[name].seek(0)
                self._opened[name].write(headers.get(name, b""))
                self._opened[name].truncate(offset)
                self._opened[name].seek(offset)

    def close(self) -> None:
        """Close the parts, and truncate what they hold of an interrupted shard."""
        with contextlib.suppress(OSError):  # the error was raised already
            self._to_close.close()
        for part in self._folder.parts:
            with contextlib.suppress(OSError):  # the part has its final name already
                if part.name in self._opened:
                    os.truncate(self._folder.path / part.name, self._ends[part.name])
        self._opened = {}

    # -- write

    def append(self, name: str, data: bytes | memoryview) -> None:
        """Append bytes of the next shard to the part with this name."""
        with self._folder.writing(self._folder.path / name):
            self._opened[name].write(data)
        self._checksums[name] = zlib.crc32(data, self._checksums.get(name, 0))

    def commit(self, counts: Counts) -> None:
        """Record the shard that was appended. After the return it is on the disk, and a crash cannot lose it."""
        total = self.counts + counts
        ends: dict[str, int] = {}
        for part in self._folder.parts:
            file = self._opened[part.name]
            with self._folder.writing(self._folder.path / part.name):
                ends[part.name] = file.tell()
                if header := part.header(total - self._in_files):
                    file.seek(0)
                    file.write(header)
                    file.seek(ends[part.name])
                file.flush()
                os.fsync(file.fileno())
        checksums = {part.name: self._checksums.get(part.name, 0) for part in self._folder.parts}
        self._record(
            {"shard": self.n_shards, "counts": dataclasses.asdict(counts), "ends": ends, "checksums": checksums}
        )
        self.n_shards, self.counts, self._ends, self._checksums = self.n_shards + 1, total, ends, {}

    def add_file(self, record: dict[str, Any]) -> None:
        """Record a file of the folder, which was made of the parts; then empty the parts."""
        self._record({"file": record, "shards": self.n_shards})
        self._take_file(record)
        for part in self._folder.parts:
            file, header = self._opened[part.name], part.header(Counts())
            with self._folder.writing(self._folder.path / part.name):
                file.seek(0)
                file.write(header)
                file.truncate()
                file.flush()

    # -- internals

    def _open(self, part: Part, mode: str) -> None:
        header = part.header(Counts())
        self._ends[part.name] = len(header)
        with self._folder.writing(self._folder.path / part.name):
            file: IO[bytes] = open(self._folder.path / part.name, mode)  # noqa: SIM115 (closed by close)
            self._opened[part.name] = self._to_close.enter_context(file)
            file.write(header)
            file.flush()

    def _record(self, entry: dict[str, Any]) -> None:
        """Add a line to the journal; after the return it is on the disk."""
        file = self._opened[JOURNAL]
        with self._folder.writing(self._path):
            file.write(seal({"format": FORMAT, **entry}) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _take_file(self, record: dict[str, Any]) -> None:
        """Note that the shards up to now are in a file; the parts begin anew."""
        self.files.append(record)
        self._in_files = self.counts
        self._ends = {part.name: len(part.header(Counts())) for part in self._folder.parts}

    def _next_entry(self, line: bytes) -> dict[str, Any] | None:
        """Return the entry of the next shard or file in a line of the journal; None if it is damaged or another one."""
        entry = _entry(line)
        if entry is None:
            return None
        if "file" in entry:
            is_next = self._name_of is not None and entry["file"]["name"] == self._name_of(len(self.files))
        else:
            is_next = entry.get("shard") == self.n_shards
        return entry if is_next else None

    def _shards_in_files(self) -> int:
        """Return the number of shards whose bytes are in a file of the folder, and not in the parts any more.

        The journal is read up to its first damaged line.
        """
        found = 0
        for line in self._opened[JOURNAL] if self._name_of is not None else ():
            entry = _entry(line)
            if entry is None:
                break
            found = entry.get("shards", found)
        self._opened[JOURNAL].seek(0)
        return found

    def _is_whole(self, shard: dict[str, Any]) -> bool:
        """Return whether the parts hold the next shard as its entry says."""
        for part in self._folder.parts:
            file, first, last = self._opened[part.name], self._ends[part.name], shard["ends"][part.name]
            file.seek(first)
            if checksum_of(file, last - first) != shard["checksums"][part.name]:
                return False
        return True


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line of the journal; None if it is damaged, or was not written to its end."""
    return unsealed(line) if line.endswith(b"\n") else None
