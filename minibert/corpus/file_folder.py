"""A folder that a run fills with Parquet files, one after the other: part-00000.parquet, part-00001.parquet, ...

Each file is whole when it gets its name, and never changed again, so that other programs can read it while the run goes
on. The folder holds nothing else. Readers of such folders differ in what they skip: pyarrow and Spark skip names that
begin with "." or "_", datasets only ".", dask and Polars neither. So the unfinished output and the manifest are beside
the folder, as they are beside an output file (run_folder.py).
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO, Any

from minibert._utils.files import os_reason, printable, sync_folder
from minibert._utils.validation import counted
from minibert.corpus.parts import Counts

__all__ = ["FILE_SIZE", "FileFolder", "checksum_of", "is_empty", "is_folder", "listed", "refuse_folder", "refuse_used"]

FILE_SIZE = 512 * 10**6
"""Bytes of vectors at which a file ends. Spark's readers split at 128 MB, and datasets writes files of 500 MB."""

_SUFFIX = ".parquet"
_DIGITS = 5
_BLOCK = 2**20  # bytes read at a time
_NAMES_SHOWN = 3


def is_folder(output: str) -> bool:
    """Return whether the name of an output is that of a folder: it exists as one, or ends in a separator."""
    return output.endswith((os.sep, os.altsep or os.sep)) or os.path.isdir(output)


def refuse_folder(output: str, suffixes: Collection[str]) -> None:
    """Raise if an output cannot be a folder that a run fills; nothing is made.

    Parameters
    ----------
    output : str
    suffixes : collection of str
        Those of the formats of a single file.

    Raises
    ------
    ValueError
        The name ends in a suffix of another format than Parquet, or is that of a file to write.
    OSError
        It is a file, a mount point, or cannot be written; or the folder that it is in does not exist.
    """
    path = os.path.realpath(output)
    name = printable(output)
    suffix = os.path.splitext(path)[1].lower()
    if suffix in suffixes and suffix != _SUFFIX:
        state = "is a folder" if os.path.isdir(path) else "is asked for as a folder"
        raise ValueError(
            f"{name} {state}, but a folder gets Parquet files, and {suffix} is the format of a single file; give "
            "another name."
        )
    if os.path.lexists(path) and not os.path.isdir(path):
        raise NotADirectoryError(
            f"{name} is asked for as a folder, but it is a file; give the name of a folder, or of a file without "
            "a separator at its end."
        )
    if os.path.ismount(path):
        raise OSError(
            f"{name} is a mount point. A run keeps its unfinished output beside the folder, on the same file system; "
            f"give a folder in it, such as {os.path.join(path, 'vectors', '')}."
        )
    if not os.path.isdir(os.path.dirname(path)):
        raise FileNotFoundError(
            f"{name} cannot be made: there is no folder {printable(os.path.dirname(path))}. Make it first."
        )
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(f"{name} cannot be written: Permission denied.")


def refuse_used(path: Path, *, finished: bool) -> None:
    """Raise a FileExistsError if the folder holds files; a run does not replace them.

    Parameters
    ----------
    path : Path
        The folder; it need not exist.
    finished : bool
        Whether the manifest of a finished run is beside the folder.
    """
    others = _names(path)
    if others and finished:
        raise FileExistsError(
            f"{path} holds a finished run with {counted(len(others), 'file')}, which a further run does not "
            "replace. Delete this folder to compute it again, or give another one."
        )
    if others:
        raise FileExistsError(
            f"{path} holds files that this run did not write: {listed(others)}. Readers of the folder would "
            "take them for its vectors. Move them elsewhere, or give another folder."
        )


@dataclasses.dataclass(frozen=True)
class FileFolder:
    """The folder, and how its files are made.

    Parameters
    ----------
    path : Path
        It need not exist.
    size : int
        Bytes of vectors at which a file ends. A file holds whole shards, so it may be larger by one of them.
    row_bytes : int
        Bytes of one vector.
    make : callable
        Makes a file of the parts in the folder of the unfinished run, given that folder and the counts of what the
        parts hold. Returns the path of the file, which is in that folder and on the disk.
    """

    path: Path
    size: int
    row_bytes: int
    make: Callable[[Path, Counts], Path]

    def name(self, number: int) -> str:
        """Return the name of a file. The order of the names is that of the texts."""
        return f"part-{number:0{_DIGITS}}{_SUFFIX}"

    def refuse_too_many(self, n_rows: int) -> None:
        """Raise a ValueError if so many rows could need more files than there are names."""
        if n_rows * self.row_bytes // self.size >= 10**_DIGITS:
            least = n_rows * self.row_bytes // 10**_DIGITS + 1
            raise ValueError(
                f"file_size={self.size} gives {n_rows * self.row_bytes // self.size + 1:,} files, more than "
                f"{10**_DIGITS:,}; give at least {least}."
            )

    def refuse_changes(self, records: Sequence[dict[str, Any]], way_on: str) -> None:
        """Raise if the folder does not hold the files that a run has recorded, and nothing else.

        A file that was not recorded yet may be there: the next one, which is made again.

        Parameters
        ----------
        records : sequence of dict
        way_on : str
            A sentence on what to do about a file that is missing or damaged, for the message.

        Raises
        ------
        ValueError
            A file is missing or damaged.
        FileExistsError
            There are other files.
        """
        for record in records:
            path = self.path / record["name"]
            problem = _problem(path, record)
            if problem:
                raise ValueError(
                    f"{path} {problem}, but the unfinished run has written it: {record['rows']} vectors in "
                    f"{record['size']} bytes. {way_on}"
                )
        known = {record["name"] for record in records} | {self.name(len(records))}
        others = [name for name in _names(self.path) if name not in known]
        if others:
            raise FileExistsError(
                f"{self.path} holds files that the unfinished run did not write: {listed(others)}. Move them "
                "elsewhere, then continue with resume=True."
            )

    def add(self, number: int, folder: Path, counts: Counts) -> dict[str, Any]:
        """Make the next file, and return its record: name, rows, size and checksum."""
        made = self.make(folder, counts)
        with made.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            checksum = checksum_of(file, size)
        name = self.name(number)
        os.replace(made, self.path / name)
        sync_folder(self.path)
        return {"name": name, "rows": counts.n_texts, "size": size, "checksum": checksum}


def checksum_of(file: IO[bytes], length: int) -> int | None:
    """Return the CRC-32 of the next bytes of a file; None if there are fewer."""
    checksum = 0
    while length and (block := file.read(min(length, _BLOCK))):
        checksum, length = zlib.crc32(block, checksum), length - len(block)
    return None if length else checksum


def is_empty(path: Path) -> bool:
    """Return whether a folder does not exist, or holds nothing that a reader could take for a file of vectors."""
    return not _names(path)


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, and the number of the others."""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(printable, names[:_NAMES_SHOWN])) + more


def _problem(path: Path, record: dict[str, Any]) -> str:
    """Return what is wrong with a recorded file; "" if it is as it was written."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != record["size"]:
                return f"has {size} bytes"
            return "" if checksum_of(file, size) == record["checksum"] else "is damaged: its checksum is wrong"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {os_reason(error)}"


def _names(path: Path) -> list[str]:
    """Return the sorted names in the folder, without those that the system makes and no reader takes, like .DS_Store.

    Hidden names that end in .parquet are not left out, because dask and Polars read such files.
    """
    try:
        return sorted(name for name in os.listdir(path) if not name.startswith(".") or name.lower().endswith(_SUFFIX))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OSError(f"{path} cannot be read: {os_reason(error)}.") from error
