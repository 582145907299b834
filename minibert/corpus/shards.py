"""The folder of an unfinished run: its growing output, a journal of finished shards, and a manifest.

The folder ``<output>.parts`` holds

- ``lock``: the run that holds it may write here (see locks.py);
- ``manifest.json``: the manifest of the unfinished run, with its settings. If it exists, there is a run to resume;
- ``part-*``: the output as far as it is computed. A shard is appended to each part, and never changed again;
- ``shards.jsonl``: the journal. Once a whole shard is on the disk, a line is added with its end offset in each part and
  its checksums. Bytes after the last recorded offset come from an interrupted shard and are truncated.

So no output is copied or read again, a shard is complete or absent, and later damage is noticed. When all shards are
done, the parts get their final names. The manifest gets its final name last: it is then the manifest beside the output.

If the output is a folder (file_folder.py), a file is made of the parts whenever they are large enough: first the file
gets its name, then a line in the journal records it, then the parts are emptied. A run that is killed between the first
two makes the file again, of the same shards; one that is killed between the last two finds the line.

Other programs use such names too: Spark and dask write ``part-00000.parquet``. So a run deletes only files with exactly
these names. It starts only in a folder in which every file comes from an earlier run: there is a manifest, or a lock of
minibert and no other files than leftovers with these names. A run writes its manifest before its parts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

from minibert.base.files import os_reason, sync_folder, write_whole
from minibert.base.locks import FileLock, is_ours
from minibert.corpus.file_folder import FileFolder, checksum_of, listed, refuse_used
from minibert.corpus.manifest import (
    FORMAT,
    check_outputs,
    is_sealed,
    manifest_path,
    outputs_of,
    seal,
    unseal,
    unseal_beside,
    unsealed,
)
from minibert.corpus.parts import Counts, Part

__all__ = ["ShardFolder", "folder_of", "is_unfinished"]

_LOCK, _MANIFEST, _JOURNAL, _STANDARD_INPUT = "lock", "manifest.json", "shards.jsonl", "standard-input"
_TEMPORARY = re.compile(r"\.minibert-[a-z0-9_]{8}")  # temporary files of write_whole
_BLOCK = 2**20  # bytes copied at a time


class ShardFolder:
    """The folder of one run, a context manager that holds its lock. On exit without a manifest its files are deleted.

    Parameters
    ----------
    output : str
        The file or folder that the run makes, not a link. All other files are beside it.
    parts : sequence of Part
    files : FileFolder, optional
        If the output is a folder: how its files are made of the parts. The parts do not have final names then.

    Attributes
    ----------
    path : Path
    n_shards : int
        Number of shards that are done.
    counts : Counts
        Counts of these shards; after `finish` of all shards.
    n_files : int
        Number of files of vectors after `finish`.
    to_delete : str
        What must be deleted to start again.

    Raises
    ------
    OSError
        The folder cannot be made, another process holds its lock, or a file that minibert did not write is in it or has
        the name of a second output.
    """

    def __init__(self, output: str, parts: Sequence[Part], files: FileFolder | None = None) -> None:
        self.output, self.path, self._parts, self._into = output, folder_of(output), tuple(parts), files
        self.to_delete = str(self.path) if files is None else f"{self.path} and {output}"
        self.n_shards, self.counts, self.n_files = 0, Counts(), 1
        self._recorded: list[dict[str, Any]] = []  # of each file of the folder its name, rows, size and checksum
        self._in_files = Counts()  # of the shards in these files
        self._files: dict[str, IO[bytes]] = {}
        self._open_files = contextlib.ExitStack()
        self._ends: dict[str, int] = {}
        self._checksums: dict[str, int] = {}
        self._processors: set[str] = set()

    def __enter__(self) -> Self:
        try:
            while True:
                self._make()
                # Another run may delete both just now, because it ends.
                with contextlib.suppress(FileNotFoundError):
                    self._lock = FileLock(self.path / _LOCK, self._refuse_strangers)
                    return self
        except (FileExistsError, ValueError):  # the message is complete
            with contextlib.suppress(OSError):
                self.path.rmdir()  # only if it is empty, so it was made here
            raise
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{self.output} is being written by {error}. Wait until that run has ended, stop it, or give another "
                "output."
            ) from error
        except OSError as error:
            raise OSError(f"{self.path} cannot be made: {os_reason(error)}.") from error

    def __exit__(self, *_: object) -> None:
        self._close()
        ended = not (self.path / _MANIFEST).exists()
        if ended:
            self._clear()
        self._lock.release(delete=ended)
        with contextlib.suppress(OSError):
            if ended:
                self.path.rmdir()

    # -- start and resume

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the unfinished run; None if no run has started.

        Raises
        ------
        ValueError
            The manifest is damaged.
        """
        file = self.path / _MANIFEST
        if not file.exists():
            return None
        return unseal(file, f"Delete {self.to_delete} to start again.")

    def describe(self) -> str:
        """Return a sentence about the unfinished run: its folder and its number of shards."""
        journal = self.path / _JOURNAL
        done = 0
        with contextlib.suppress(OSError), open(journal, "rb") as file:
            done = sum(b'"shard": ' in line for line in file)
        return f"{self.path} holds an unfinished run with {done} shards done"

    def keep_standard_input(self, stream: Callable[[], BinaryIO]) -> str:
        """Copy the standard input into the folder, unless the unfinished run did so; return the copy's path."""
        copy = self.path / _STANDARD_INPUT
        if not (copy.exists() and (self.path / _MANIFEST).exists()):
            with self._writing(copy):
                write_whole(copy, lambda file: _copy(stream(), file))
        return str(copy)

    def start(self, manifest: dict[str, Any]) -> None:
        """Write the manifest and empty parts. From now on there is a run to resume."""
        self._write_manifest({"format": FORMAT, **manifest})
        if self._into is not None:
            with self._writing(self.output):
                Path(manifest_path(self.output)).unlink(missing_ok=True)  # of an earlier run, whose folder is gone
                self._into.path.mkdir(exist_ok=True)
        sync_folder(self.path.parent)
        for part in self._parts:
            self._open(part, "w+b")
        self._open(Part(_JOURNAL, None), "w+b")
        sync_folder(self.path)

    def resume(self, report: Callable[[str], object]) -> None:
        """Find the shards that are done and undamaged; truncate the parts after them.

        Parameters
        ----------
        report : callable
            Called with a message if a shard is damaged; it and those after it are computed again.

        Raises
        ------
        ValueError, OSError
            The output is a folder, and a file in it is missing, damaged, or from elsewhere.
        """
        journal = self.path / _JOURNAL
        self._clear_temporary()
        for part in self._parts:
            self._open(part, "r+b" if (self.path / part.name).exists() else "w+b")
        self._open(Part(_JOURNAL, None), "r+b" if journal.exists() else "w+b")
        end, n_in_files = 0, self._shards_in_files()
        for line in self._files[_JOURNAL]:
            entry = self._next_entry(line)
            if entry is not None and "file" in entry:
                self._take_file(entry["file"])
            elif entry is not None and (self.n_shards < n_in_files or self._is_whole(entry)):
                self.n_shards, self._ends, self.counts = self.n_shards + 1, entry["ends"], self._sum(entry)
            else:
                report(
                    f"{self.path}: shard {self.n_shards} is damaged; it and the shards after it are computed again "
                    f"({self.counts.n_texts} texts before it are good)."
                )
                break
            end += len(line)
        else:
            if not end:
                report(f"{self.path}: no shard was finished; the run starts again.")
        if self.n_shards < n_in_files:
            raise ValueError(f"{journal} is damaged. Delete {self.to_delete} to start again.")
        headers = {part.name: part.header(self.counts - self._in_files) for part in self._parts}
        for name, offset in {**self._ends, _JOURNAL: end}.items():
            with self._writing(self.path / name):
                self._files[name].seek(0)
                self._files[name].write(headers.get(name, b""))
                self._files[name].truncate(offset)
                self._files[name].seek(offset)
        if self._into is not None:
            self._into.refuse_changes(self._recorded, self._way_on)
            with self._writing(self.output):
                self._into.path.mkdir(exist_ok=True)
        self._save_large_file()

    # -- one shard after the other

    def append(self, name: str, data: bytes | memoryview) -> None:
        """Append bytes of the next shard to the part with this name."""
        with self._writing(self.path / name):
            self._files[name].write(data)
        self._checksums[name] = zlib.crc32(data, self._checksums.get(name, 0))

    def commit(self, counts: Counts) -> None:
        """Record the shard that was appended. After the return it is on the disk, and a crash cannot lose it."""
        total = self.counts + counts
        ends: dict[str, int] = {}
        for part in self._parts:
            file = self._files[part.name]
            with self._writing(self.path / part.name):
                ends[part.name] = file.tell()
                if header := part.header(total - self._in_files):
                    file.seek(0)
                    file.write(header)
                    file.seek(ends[part.name])
                file.flush()
                os.fsync(file.fileno())
        checksums = {part.name: self._checksums.get(part.name, 0) for part in self._parts}
        self._record(
            {"shard": self.n_shards, "counts": dataclasses.asdict(counts), "ends": ends, "checksums": checksums}
        )
        self.n_shards, self.counts, self._ends, self._checksums = self.n_shards + 1, total, ends, {}
        self._save_large_file()

    def add_processors(self, names: Collection[str]) -> None:
        """Record in the manifest the processors that computed, before a shard of theirs is recorded."""
        if self._processors.issuperset(names):
            return
        manifest = self.manifest()
        assert manifest is not None  # `start` has written it
        known = manifest.get("processors", [])
        self._processors = {*known, *names}
        if len(self._processors) > len(known):
            self._write_manifest({**manifest, "processors": sorted(self._processors)})

    # -- finish

    def finish(self, assemble: Callable[[Path, Counts], Sequence[Part]] | None = None) -> None:
        """Rename the parts, then the manifest, to their final names. An interrupted `finish` is continued.

        Parameters
        ----------
        assemble : callable, optional
            Folder, counts -> further parts, which it makes whole from those in the folder.
        """
        manifest = self.manifest()
        assert manifest is not None  # `start` has written it
        if "finished" not in manifest:
            outputs = self._parts_to_rename(assemble) if self._into is None else self._last_files()
            manifest["finished"] = {"counts": dataclasses.asdict(self.counts), "outputs": outputs}
            self._write_manifest(manifest)
        self._close()
        self.counts, outputs = Counts(**manifest["finished"]["counts"]), manifest["finished"]["outputs"]
        self.n_files = 1 if self._into is None else len(outputs)
        waiting = {
            name: self.path.parent / output["name"]
            for name, output in outputs.items()
            if self._into is None and (self.path / name).exists()
        }
        # Files of an earlier run must not be beside a new output, because they do not belong to it.
        beside = Path(manifest_path(self.output))
        for stale in (beside, *list(waiting.values())[1:]):
            with self._writing(stale):
                stale.unlink(missing_ok=True)
        for name, final in waiting.items():
            with self._writing(final):
                os.replace(self.path / name, final)
        check_outputs(manifest, self.path.parent, self._way_on)
        with self._writing(beside):
            os.replace(self.path / _MANIFEST, beside)
        sync_folder(self.path.parent)  # before the folder is deleted, because a run could be finished from it

    # -- the files of a folder

    def refuse_used(self) -> None:
        """Raise a FileExistsError if the output is a folder that holds files; call this before `start`."""
        if self._into is not None:
            refuse_used(self._into.path, finished=is_sealed(Path(manifest_path(self.output))))

    def _save_large_file(self) -> None:
        """Make a file of what the parts hold, if it is large enough."""
        if self._into is not None and self._rows_in_parts() * self._into.row_bytes >= self._into.size:
            self._save_file(self._into)

    def _rows_in_parts(self) -> int:
        return (self.counts - self._in_files).n_texts

    def _save_file(self, into: FileFolder) -> None:
        """Make a file of what the parts hold, record it, and empty the parts."""
        with self._writing(into.path / into.name(len(self._recorded))):
            record = into.add(len(self._recorded), self.path, self.counts - self._in_files)
        self._record({"file": record, "shards": self.n_shards})
        self._take_file(record)
        for part in self._parts:
            file, header = self._files[part.name], part.header(Counts())
            with self._writing(self.path / part.name):
                file.seek(0)
                file.write(header)
                file.truncate()
                file.flush()

    def _take_file(self, record: dict[str, Any]) -> None:
        """Note that the shards up to now are in a file; the parts begin anew."""
        self._recorded.append(record)
        self._in_files = self.counts
        self._ends = {part.name: len(part.header(Counts())) for part in self._parts}

    def _last_files(self) -> dict[str, Any]:
        """Make the last file, and return the files of the folder, as the manifest names them.

        If there are no vectors, an empty file tells the columns.
        """
        assert self._into is not None
        if self._rows_in_parts() or not self._recorded:
            self._save_file(self._into)
        beside = os.path.basename(self.output)
        return {record["name"]: {**record, "name": f"{beside}/{record['name']}"} for record in self._recorded}

    # -- internals

    @property
    def _way_on(self) -> str:
        """A sentence on what to do about an output that is missing or damaged."""
        if self._into is None:
            return f"Delete {self.to_delete} to start again."
        # Somebody has moved or changed a file of the folder, which was finished before.
        return (
            "Put a copy of it there, then continue with resume=True. If there is no copy, delete "
            f"{self.to_delete} to start again."
        )

    def _parts_to_rename(self, assemble: Callable[[Path, Counts], Sequence[Part]] | None) -> dict[str, Any]:
        """Close the parts, and return those that have a final name, as the manifest names them."""
        self._close()
        parts = [part for part in self._parts if part.final is not None]
        with self._writing(self.path):
            parts += [] if assemble is None else assemble(self.path, self.counts)
            return {
                part.name: {
                    "name": os.path.basename(str(part.final)),
                    "size": (self.path / part.name).stat().st_size,
                }
                for part in parts
            }

    def _record(self, entry: dict[str, Any]) -> None:
        """Add a line to the journal; after the return it is on the disk."""
        file = self._files[_JOURNAL]
        with self._writing(self.path / _JOURNAL):
            file.write(seal({"format": FORMAT, **entry}) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _make(self) -> None:
        """Make the folder; raise if its name, or that of its lock, belongs to something else."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            kind = "a link" if self.path.is_symlink() else "a file"
            raise FileExistsError(
                f"{self.path} is {kind}, but the run makes a folder of this name for its unfinished output. Move it "
                "elsewhere, or give another output."
            )
        self.path.mkdir(exist_ok=True)
        lock = self.path / _LOCK
        if os.path.lexists(lock) and not _is_plain_file(lock):
            self._refuse([_LOCK])

    def _refuse_strangers(self, lock: str | None) -> None:
        """Raise if a folder without a manifest holds files that do not come from a killed run.

        Parameters
        ----------
        lock : str, optional
            Content of the lock; None if there was no lock. A run makes its lock first and deletes it last.
        """
        names = sorted(os.listdir(self.path))
        if lock is None:
            strangers = [name for name in names if name != _LOCK]
        else:
            strangers = [name for name in names if not (is_ours(lock) and self._is_own(name))]
        if strangers and not is_sealed(self.path / _MANIFEST):
            self._refuse(strangers)
        if not (self.path / _MANIFEST).exists():
            self._refuse_outputs()

    def _refuse(self, strangers: Sequence[str]) -> None:
        raise FileExistsError(
            f"{self.path} is the folder for the unfinished run, but it holds other files: {listed(strangers)}. Move "
            "this folder elsewhere, or give another output."
        )

    def _refuse_outputs(self) -> None:
        """Raise if a file that the user did not name, such as the index, would be replaced and no run wrote it."""
        beside = Path(manifest_path(self.output))
        earlier: set[str] = set()
        if os.path.lexists(beside):
            earlier = {output["name"] for output in outputs_of(unseal_beside(beside))}
        for path in (Path(part.final) for part in self._parts if part.final not in (None, self.output)):
            if os.path.lexists(path) and (path.name not in earlier or not _is_plain_file(path)):
                raise FileExistsError(
                    f"{path} exists, and the run would replace it by a file beside {self.output}; but no manifest "
                    f"({beside.name}) says that minibert wrote it. Move it elsewhere, or give another output."
                )

    def _is_own(self, name: str) -> bool:
        """Return whether a run with these parts makes files of this name."""
        names = {_LOCK, _MANIFEST, _JOURNAL, _STANDARD_INPUT, *(part.name for part in self._parts)}
        return (name in names or _TEMPORARY.fullmatch(name) is not None) and _is_plain_file(self.path / name)

    def _open(self, part: Part, mode: str) -> None:
        header = part.header(Counts())
        self._ends[part.name] = len(header)
        with self._writing(self.path / part.name):
            file: IO[bytes] = open(self.path / part.name, mode)  # noqa: SIM115 (closed by _close)
            self._files[part.name] = self._open_files.enter_context(file)
            file.write(header)
            file.flush()

    def _next_entry(self, line: bytes) -> dict[str, Any] | None:
        """Return the entry of the next shard or file in a line of the journal; None if it is damaged or another one."""
        entry = unsealed(line) if line.endswith(b"\n") else None
        if entry is None:
            return None
        if "file" in entry:
            is_next = self._into is not None and entry["file"]["name"] == self._into.name(len(self._recorded))
        else:
            is_next = entry.get("shard") == self.n_shards
        return entry if is_next else None

    def _shards_in_files(self) -> int:
        """Return the number of shards whose bytes are in a file of the folder, and not in the parts any more.

        The journal is read up to its first damaged line.
        """
        found = 0
        for line in self._files[_JOURNAL] if self._into is not None else ():
            entry = unsealed(line) if line.endswith(b"\n") else None
            if entry is None:
                break
            found = entry.get("shards", found)
        self._files[_JOURNAL].seek(0)
        return found

    def _is_whole(self, shard: dict[str, Any]) -> bool:
        """Return whether the parts hold the next shard as its entry says."""
        for part in self._parts:
            file, first, last = self._files[part.name], self._ends[part.name], shard["ends"][part.name]
            file.seek(first)
            if checksum_of(file, last - first) != shard["checksums"][part.name]:
                return False
        return True

    def _sum(self, shard: dict[str, Any]) -> Counts:
        return self.counts + Counts(**shard["counts"])

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        with self._writing(self.path / _MANIFEST):
            write_whole(self.path / _MANIFEST, lambda file: file.write(seal(manifest)))

    @contextlib.contextmanager
    def _writing(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Add the file, and how to continue, to the message of an OSError."""
        try:
            yield
        except OSError as error:
            reason = os_reason(error)
            message = reason if "cannot be written" in reason else f"{path} cannot be written: {reason}."
            if (self.path / _MANIFEST).exists():
                message += (
                    f" Finished shards are kept in {self.path}. Once the file can be written, continue with "
                    "resume=True."
                )
            raise OSError(message) from error

    def _close(self) -> None:
        """Close the parts, and truncate what they hold of an interrupted shard."""
        with contextlib.suppress(OSError):  # the error was raised already
            self._open_files.close()
        for part in self._parts:
            with contextlib.suppress(OSError):  # the part has its final name already
                if part.name in self._files:
                    os.truncate(self.path / part.name, self._ends[part.name])
        self._files = {}

    def _clear_temporary(self) -> None:
        """Delete what `write_whole` has left in a run that was killed."""
        for name in os.listdir(self.path):
            if _TEMPORARY.fullmatch(name) and _is_plain_file(self.path / name):
                with contextlib.suppress(OSError):
                    (self.path / name).unlink()

    def _clear(self) -> None:
        """Delete the files of runs, and no others. `release` deletes the lock last."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if name != _LOCK and self._is_own(name):
                    with contextlib.suppress(OSError):
                        (self.path / name).unlink()


def folder_of(output: str | os.PathLike[str]) -> Path:
    """Return the folder in which the run that makes a file keeps its unfinished output."""
    return Path(f"{os.path.realpath(output)}.parts")


def is_unfinished(output: str | os.PathLike[str]) -> bool:
    """Return whether there is a run to resume."""
    return is_sealed(folder_of(output) / _MANIFEST)


def _is_plain_file(path: Path) -> bool:
    """Return whether a path is a regular file, not a link, folder, device or pipe; False if it does not exist."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while block := source.read(_BLOCK):
        target.write(block)
