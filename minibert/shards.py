"""What a long run has done so far: a folder with its growing output, a journal of finished shards, and a manifest.

The folder ``<output>.parts`` holds

- ``lock``: whoever has it may write here (see locks.py);
- ``manifest.json``: what the run was begun with. Where it is, there is a run to resume;
- ``part-*``: the output as far as it is computed. A shard is appended to each part, and never changed again;
- ``shards.jsonl``: the journal. Once all of a shard is on the disk, a line is added that says where it ends in each
  part, and its checksum. What stands behind the last such place belongs to a shard that was interrupted: it is cut off.

So no output is ever copied or read again, a shard is there or it is not, and whatever was damaged meanwhile is noticed.
When all shards are there the parts take their final names, and the manifest does so last, as the record of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

from minibert.errors import ModelFormatError
from minibert.files import os_reason, read_json_object, sync_folder, write_whole
from minibert.locks import FileLock

__all__ = ["Counts", "Part", "ShardFolder", "folder_of", "is_unfinished", "read_record", "record_path"]

_LOCK, _MANIFEST, _JOURNAL, _STANDARD_INPUT = "lock", "manifest.json", "shards.jsonl", "standard-input"
_BLOCK = 2**20  # bytes read at a time


@dataclasses.dataclass(frozen=True)
class Counts:
    """What was computed.

    Parameters
    ----------
    n_texts : int
        Records in the output, those without a text included.
    n_tokens : int
        Tokens of the texts as they were computed, each text for itself.
    n_cut : int
        Texts that had more tokens than the model takes.
    n_left_out : int
        Records that could not be used and were left out.
    """

    n_texts: int = 0
    n_tokens: int = 0
    n_cut: int = 0
    n_left_out: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def _no_header(counts: Counts) -> bytes:
    """Nothing stands before the shards."""
    return b""


@dataclasses.dataclass(frozen=True)
class Part:
    """A file that grows by shards.

    Parameters
    ----------
    name : str
    final : str, optional
        The path that it takes in the end; None for one of which the output is made then.
    header : callable
        What stands before the shards when these counts are done: bytes, always equally many.
    """

    name: str
    final: str | None
    header: Callable[[Counts], bytes] = _no_header


class ShardFolder:
    """The folder of one run; to be entered, which takes its lock. Left without a manifest, it is deleted.

    Parameters
    ----------
    output : str
        The file that the run makes, no link: everything is beside it.
    parts : sequence of Part

    Attributes
    ----------
    path : Path
    n_shards : int
        That are done, since `start` or `resume`.
    counts : Counts
        Of these, and of all after `finish`.

    Raises
    ------
    OSError
        The folder cannot be made; another process is at work there.
    """

    def __init__(self, output: str, parts: Sequence[Part]) -> None:
        self.output, self.path, self._parts = output, folder_of(output), tuple(parts)
        self.n_shards, self.counts = 0, Counts()
        self._files: dict[str, IO[bytes]] = {}
        self._open_files = contextlib.ExitStack()
        self._ends: dict[str, int] = {}
        self._checksums: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            while True:
                self.path.mkdir(exist_ok=True)
                # Another run that ends just now deletes both.
                with contextlib.suppress(FileNotFoundError):
                    self._lock = FileLock(self.path / _LOCK)
                    return self
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{self.output} is being written by {error}. Wait until that run has ended, or stop it; to write "
                "another file meanwhile, give another output."
            ) from error
        except FileNotFoundError as error:
            raise OSError(f"{self.output} cannot be written: there is no folder {self.path.parent}.") from error
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

    # -- a run begins, or goes on

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
        return _unseal(file, f"Delete {self.path} to start again.")

    def describe(self) -> str:
        """Say how far the run to resume has come."""
        journal = self.path / _JOURNAL
        done = 0
        with contextlib.suppress(OSError), open(journal, "rb") as file:
            done = sum(1 for _ in file)
        return f"{self.path} holds an unfinished run, {done} shards of it done"

    def keep_standard_input(self, stream: Callable[[], BinaryIO]) -> str:
        """Copy the standard input into the folder, unless the run to resume has done so; return the copy's path."""
        copy = self.path / _STANDARD_INPUT
        if not (copy.exists() and (self.path / _MANIFEST).exists()):
            with self._writing(copy):
                write_whole(copy, lambda file: _copy(stream(), file))
        return str(copy)

    def start(self, manifest: dict[str, Any]) -> None:
        """Begin with no shard, and write the manifest: from now on there is a run to resume."""
        for part in self._parts:
            self._open(part, "w+b")
        self._open(Part(_JOURNAL, None), "w+b")
        self._write_manifest(manifest)
        sync_folder(self.path.parent)

    def resume(self, report: Callable[[str], object]) -> None:
        """Find the shards that are done and whole; what stands behind them is cut off.

        Parameters
        ----------
        report : callable
            Is told of a shard that was damaged: it and those after it are to be computed again.
        """
        journal = self.path / _JOURNAL
        for part in self._parts:
            self._open(part, "r+b" if (self.path / part.name).exists() else "w+b")
        self._open(Part(_JOURNAL, None), "r+b" if journal.exists() else "w+b")
        end = 0
        for line in self._files[_JOURNAL]:
            shard = self._whole_shard(line)
            if shard is None:
                report(
                    f"{self.path}: shard {self.n_shards} is damaged; it, and what follows it, is computed again "
                    f"({self.counts.n_texts} texts before it are good)."
                )
                break
            end += len(line)
            self.n_shards, self._ends, self.counts = self.n_shards + 1, shard["ends"], self._sum(shard)
        else:
            if not end:
                report(f"{self.path}: no shard was finished; the run begins anew.")
        headers = {part.name: part.header(self.counts) for part in self._parts}
        for name, place in {**self._ends, _JOURNAL: end}.items():
            with self._writing(self.path / name):
                self._files[name].seek(0)
                self._files[name].write(headers.get(name, b""))
                self._files[name].truncate(place)
                self._files[name].seek(place)

    # -- it works

    def append(self, name: str, data: bytes | memoryview) -> None:
        """Add bytes to the part of this name, for the next shard."""
        with self._writing(self.path / name):
            self._files[name].write(data)
        self._checksums[name] = zlib.crc32(data, self._checksums.get(name, 0))

    def commit(self, counts: Counts) -> None:
        """Say that all of a shard was appended: when this returns, it is done, whatever happens."""
        total = self.counts + counts
        ends: dict[str, int] = {}
        for part in self._parts:
            file = self._files[part.name]
            with self._writing(self.path / part.name):
                ends[part.name] = file.tell()
                if header := part.header(total):
                    file.seek(0)
                    file.write(header)
                    file.seek(ends[part.name])
                file.flush()
                os.fsync(file.fileno())
        checksums = {part.name: self._checksums.get(part.name, 0) for part in self._parts}
        line = _seal(
            {"shard": self.n_shards, "counts": dataclasses.asdict(counts), "ends": ends, "checksums": checksums}
        )
        with self._writing(self.path / _JOURNAL):
            self._files[_JOURNAL].write(line + b"\n")
            self._files[_JOURNAL].flush()
            os.fsync(self._files[_JOURNAL].fileno())
        self.n_shards, self.counts, self._ends, self._checksums = self.n_shards + 1, total, ends, {}

    # -- it ends

    def finish(self, assemble: Callable[[Path, Counts], Sequence[Part]] | None = None) -> None:
        """Give all parts their final names, and the manifest its own; one that was killed while doing so is finished.

        Parameters
        ----------
        assemble : callable, optional
            Makes further parts, whole, of those in this folder.
        """
        self._close()
        manifest = self.manifest()
        assert manifest is not None  # start has written it
        if "finished" not in manifest:
            parts = [part for part in self._parts if part.final is not None]
            with self._writing(self.path):
                parts += [] if assemble is None else assemble(self.path, self.counts)
                outputs = {
                    part.name: {
                        "name": os.path.basename(str(part.final)),
                        "size": (self.path / part.name).stat().st_size,
                    }
                    for part in parts
                }
            manifest["finished"] = {"counts": dataclasses.asdict(self.counts), "outputs": outputs}
            self._write_manifest(manifest)
        self.counts = Counts(**manifest["finished"]["counts"])
        waiting = {
            name: self.path.parent / output["name"]
            for name, output in manifest["finished"]["outputs"].items()
            if (self.path / name).exists()
        }
        # What an earlier run left must not stand beside a new file as if it belonged to it.
        record = Path(record_path(self.output))
        for stale in (record, *list(waiting.values())[1:]):
            with self._writing(stale):
                stale.unlink(missing_ok=True)
        for name, final in waiting.items():
            with self._writing(final):
                os.replace(self.path / name, final)
        _check_outputs(manifest, self.path.parent, f"Delete {self.path} to start again.")
        with self._writing(record):
            os.replace(self.path / _MANIFEST, record)
        sync_folder(self.path.parent)  # before the folder is deleted, from which a run could be finished

    # -- how it is done

    def _open(self, part: Part, mode: str) -> None:
        header = part.header(Counts())
        self._ends[part.name] = len(header)
        with self._writing(self.path / part.name):
            file: IO[bytes] = open(self.path / part.name, mode)  # noqa: SIM115 (closed by _close)
            self._files[part.name] = self._open_files.enter_context(file)
            file.write(header)
            file.flush()

    def _whole_shard(self, line: bytes) -> dict[str, Any] | None:
        """Return what the journal says of the next shard, or None if that, or the shard, is damaged."""
        shard = _unsealed(line) if line.endswith(b"\n") else None
        if shard is None or shard.get("shard") != self.n_shards:
            return None
        for part in self._parts:
            file, first, last = self._files[part.name], self._ends[part.name], shard["ends"][part.name]
            file.seek(first)
            checksum, left = 0, last - first
            while left and (block := file.read(min(left, _BLOCK))):
                checksum, left = zlib.crc32(block, checksum), left - len(block)
            if left or checksum != shard["checksums"][part.name]:
                return None
        return shard

    def _sum(self, shard: dict[str, Any]) -> Counts:
        return self.counts + Counts(**shard["counts"])

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        with self._writing(self.path / _MANIFEST):
            write_whole(self.path / _MANIFEST, lambda file: file.write(_seal(manifest)))

    @contextlib.contextmanager
    def _writing(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Name the file in what the system says, and the way on."""
        try:
            yield
        except OSError as error:
            reason = os_reason(error)
            message = reason if "cannot be written" in reason else f"{path} cannot be written: {reason}."
            if (self.path / _MANIFEST).exists():
                message += (
                    f" What is done is kept in {self.path}: once there is room, and the right to write, go on with "
                    "--resume (resume=True)."
                )
            raise OSError(message) from error

    def _close(self) -> None:
        """Close the parts; of a shard that was interrupted nothing is left in them."""
        with contextlib.suppress(OSError):  # what could not be written was said already
            self._open_files.close()
        for part in self._parts:
            with contextlib.suppress(OSError):  # it has its final name by now
                if part.name in self._files:
                    os.truncate(self.path / part.name, self._ends[part.name])
        self._files = {}

    def _clear(self) -> None:
        """Delete what runs leave here, and nothing else."""
        for name in (_JOURNAL, _STANDARD_INPUT, "part-*", ".minibert-*"):
            for file in self.path.glob(name):
                with contextlib.suppress(OSError):
                    file.unlink()


def folder_of(output: str | os.PathLike[str]) -> Path:
    """Return where the run that makes a file keeps what it has done."""
    return Path(f"{os.path.realpath(output)}.parts")


def is_unfinished(output: str | os.PathLike[str]) -> bool:
    """Whether there is a run to resume."""
    return (folder_of(output) / _MANIFEST).exists()


def record_path(output: str) -> str:
    """Return the name of the record of a finished run: what it was begun with, and what it counted, as JSON."""
    return f"{output}.manifest.json"


def read_record(output: str) -> dict[str, Any] | None:
    """Return the record of the finished run that made a file; None if there is none.

    Raises
    ------
    ValueError
        It is damaged, or the file is not the one that the run made.
    """
    file = Path(record_path(output))
    if not file.exists():
        return None
    anew = "Without --resume (resume=True) it is made anew."
    record = _unseal(file, anew)
    _check_outputs(record, file.parent, anew)
    return record


def _check_outputs(manifest: dict[str, Any], folder: Path, way_on: str) -> None:
    """Refuse outputs that are missing, or have another size than the run that is recorded here gave them."""
    for output in manifest["finished"]["outputs"].values():
        path, size = folder / output["name"], output["size"]
        found = path.stat().st_size if path.exists() else None
        if found != size:
            state = "missing" if found is None else f"of {found} bytes"
            raise ValueError(f"{path} is {state}, but the run that made it has written {size} bytes. {way_on}")


def _seal(content: dict[str, Any]) -> bytes:
    """Write an object as one line of JSON with a checksum of the rest in it."""
    text = json.dumps(content, ensure_ascii=False)
    return json.dumps({**content, "crc32": zlib.crc32(text.encode())}, ensure_ascii=False).encode()


def _unsealed(line: bytes) -> dict[str, Any] | None:
    """Read what `_seal` wrote; None if it is damaged."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _checked(content) if isinstance(content, dict) else None


def _unseal(path: Path, way_on: str) -> dict[str, Any]:
    try:
        content = _checked(read_json_object(path))
    except ModelFormatError as error:
        raise ValueError(f"{error} {way_on}") from error
    if content is None:
        raise ValueError(f"{path} is damaged: its checksum is wrong. {way_on}")
    return content


def _checked(content: dict[str, Any]) -> dict[str, Any] | None:
    checksum = content.pop("crc32", None)
    return content if checksum == zlib.crc32(json.dumps(content, ensure_ascii=False).encode()) else None


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while block := source.read(_BLOCK):
        target.write(block)
