"""What a long run has done so far: a folder with its growing output, a journal of finished shards, and a manifest.

The folder ``<output>.parts`` holds

- ``lock``: the run that holds it may write here (see locks.py);
- ``manifest.json``: what the run was begun with. Where it is, there is a run to resume;
- ``part-*``: the output as far as it is computed. A shard is appended to each part, and never changed again;
- ``shards.jsonl``: the journal. Once all of a shard is on the disk, a line is added that says where it ends in each
  part, and its checksum. What stands behind the last such place belongs to a shard that was interrupted: it is cut off.

So no output is ever copied or read again, a shard is there or it is not, and whatever was damaged meanwhile is noticed.
When all shards are there the parts take their final names, and the manifest does so last, as the manifest beside the
output.

Other programs use such names too: Spark and dask write ``part-00000.parquet``. So a run deletes only files with the
exact names above, and begins only in a folder in which every file is of an earlier run: there is a manifest, or a lock
of minibert's and nothing but leftovers with these names. No run makes its parts before its manifest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

from minibert.base.files import check_format, os_reason, printable, read_json_object, sync_folder, write_whole
from minibert.base.locks import FileLock, is_ours
from minibert.errors import ModelFormatError

__all__ = ["FORMAT", "Counts", "Part", "ShardFolder", "folder_of", "is_unfinished", "manifest_path", "read_manifest"]

FORMAT = 1
"""The format number of manifest and journal. That of the manifest is also the one of the outputs beside it."""

_LOCK, _MANIFEST, _JOURNAL, _STANDARD_INPUT = "lock", "manifest.json", "shards.jsonl", "standard-input"
_TEMPORARY = re.compile(r"\.minibert-[a-z0-9_]{8}")  # what write_whole fills before a file takes its name
_BLOCK = 2**20  # bytes read at a time
_NAMES_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Counts:
    """What was computed.

    Parameters
    ----------
    n_texts : int
        Input lines in the output, those without a text included.
    n_tokens : int
        Tokens of the texts as they were computed, each text for itself.
    n_cut : int
        Texts that had more tokens than the model takes.
    n_left_out : int
        Input lines that could not be used and were left out.
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
    """The folder of one run; to be entered, which takes its lock. Left without a manifest, its files are deleted.

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
        The folder cannot be made; another process is at work there; there are files that no run of minibert has made,
        in the folder or under the name of a second output.
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
                self._make()
                # Another run that ends just now deletes both.
                with contextlib.suppress(FileNotFoundError):
                    self._lock = FileLock(self.path / _LOCK, self._refuse_strangers)
                    return self
        except (FileExistsError, ValueError):  # refused, in a message that is complete
            with contextlib.suppress(OSError):
                self.path.rmdir()  # if it is empty: it was made here
            raise
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
        """Write the manifest, and begin with no shard: from now on there is a run to resume."""
        self._write_manifest({"format": FORMAT, **manifest})
        sync_folder(self.path.parent)
        for part in self._parts:
            self._open(part, "w+b")
        self._open(Part(_JOURNAL, None), "w+b")
        sync_folder(self.path)

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
            {
                "format": FORMAT,
                "shard": self.n_shards,
                "counts": dataclasses.asdict(counts),
                "ends": ends,
                "checksums": checksums,
            }
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
        beside = Path(manifest_path(self.output))
        for stale in (beside, *list(waiting.values())[1:]):
            with self._writing(stale):
                stale.unlink(missing_ok=True)
        for name, final in waiting.items():
            with self._writing(final):
                os.replace(self.path / name, final)
        _check_outputs(manifest, self.path.parent, f"Delete {self.path} to start again.")
        with self._writing(beside):
            os.replace(self.path / _MANIFEST, beside)
        sync_folder(self.path.parent)  # before the folder is deleted, from which a run could be finished

    # -- how it is done

    def _make(self) -> None:
        """Make the folder; refuse to take anything else for it, or for the lock in it."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            kind = "a link" if self.path.is_symlink() else "a file"
            raise FileExistsError(
                f"{self.path} is {kind}, but the run makes a folder of this name to keep what it has done. Move it "
                "elsewhere, or give another output."
            )
        self.path.mkdir(exist_ok=True)
        lock = self.path / _LOCK
        if os.path.lexists(lock) and not _is_plain_file(lock):
            self._refuse([_LOCK])

    def _refuse_strangers(self, lock: str | None) -> None:
        """Refuse a folder that has no manifest, but files that are not of a run that was killed.

        Parameters
        ----------
        lock : str, optional
            What the lock held; None if there was no lock. Every run makes its lock first and deletes it last.
        """
        names = sorted(os.listdir(self.path))
        if lock is None:
            strangers = [name for name in names if name != _LOCK]
        else:
            strangers = [name for name in names if not (is_ours(lock) and self._is_own(name))]
        if strangers and not _is_sealed(self.path / _MANIFEST):
            self._refuse(strangers)
        if not (self.path / _MANIFEST).exists():
            self._refuse_outputs()

    def _refuse(self, strangers: Sequence[str]) -> None:
        more = f" and {len(strangers) - _NAMES_SHOWN} more" if len(strangers) > _NAMES_SHOWN else ""
        shown = ", ".join(map(printable, strangers[:_NAMES_SHOWN]))
        raise FileExistsError(
            f"{self.path} is where the run would keep what it has done, but it holds files of something else: {shown}"
            f"{more}. Move this folder elsewhere, or give another output."
        )

    def _refuse_outputs(self) -> None:
        """Refuse to replace a file that the user did not name, such as the index, if it is not of an earlier run."""
        beside = Path(manifest_path(self.output))
        earlier: set[str] = set()
        if os.path.lexists(beside):
            earlier = {output["name"] for output in _outputs(_unseal_beside(beside))}
        for path in (Path(part.final) for part in self._parts if part.final not in (None, self.output)):
            if os.path.lexists(path) and (path.name not in earlier or not _is_plain_file(path)):
                raise FileExistsError(
                    f"{path} would be replaced, because the run writes a file of this name beside {self.output}; but "
                    f"no manifest ({beside.name}) says that minibert wrote what is there. Move it elsewhere, or give "
                    "another output."
                )

    def _is_own(self, name: str) -> bool:
        """Whether a run with these parts makes files of this name."""
        own = {_LOCK, _MANIFEST, _JOURNAL, _STANDARD_INPUT, *(part.name for part in self._parts)}
        return (name in own or _TEMPORARY.fullmatch(name) is not None) and _is_plain_file(self.path / name)

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
                    f" What is done is kept in {self.path}: once there is room, and the right to write, go on "
                    "with resume=True."
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
        """Delete what runs leave here, and nothing else; the lock is deleted last, by `release`."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if name != _LOCK and self._is_own(name):
                    with contextlib.suppress(OSError):
                        (self.path / name).unlink()


def folder_of(output: str | os.PathLike[str]) -> Path:
    """Return where the run that makes a file keeps what it has done."""
    return Path(f"{os.path.realpath(output)}.parts")


def is_unfinished(output: str | os.PathLike[str]) -> bool:
    """Whether there is a run to resume."""
    return _is_sealed(folder_of(output) / _MANIFEST)


def manifest_path(output: str) -> str:
    """Return the name of the manifest beside the output: a finished run's settings and counts, as JSON."""
    return f"{output}.manifest.json"


def read_manifest(output: str) -> dict[str, Any] | None:
    """Return the manifest of the finished run that made a file; None if there is none.

    Raises
    ------
    ValueError
        It is damaged, or the file is not the one that the run made.
    """
    file = Path(manifest_path(output))
    if not file.exists():
        return None
    manifest = _unseal_beside(file)
    _check_outputs(manifest, file.parent, "Without resume=True it is made anew.")
    return manifest


def _check_outputs(manifest: dict[str, Any], folder: Path, way_on: str) -> None:
    """Refuse outputs that are missing, or have another size than the run of the manifest gave them."""
    for output in _outputs(manifest):
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
    check_format(content, FORMAT, str(path))
    return content


def _is_sealed(path: Path) -> bool:
    """Whether there is a whole file that `_seal` made, of any format."""
    try:
        return _checked(read_json_object(path)) is not None
    except (ModelFormatError, OSError):
        return False


def _unseal_beside(path: Path) -> dict[str, Any]:
    return _unseal(path, "A run writes its manifest there: delete it or move it elsewhere, or give another output.")


def _outputs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the name and the size of each output of a run; none if the run has not finished."""
    return [*manifest.get("finished", {}).get("outputs", {}).values()]


def _is_plain_file(path: Path) -> bool:
    """Whether a name is that of a file itself: no link, folder, device or pipe, and not gone meanwhile."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _checked(content: dict[str, Any]) -> dict[str, Any] | None:
    checksum = content.pop("crc32", None)
    return content if checksum == zlib.crc32(json.dumps(content, ensure_ascii=False).encode()) else None


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while block := source.read(_BLOCK):
        target.write(block)
