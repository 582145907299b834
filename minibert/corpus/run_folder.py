"""The folder that holds the shards of a run until it ends.

Until then the folder ``<output>.parts`` holds

- ``minibert.lock``: the process that holds it may write here;
- ``manifest.json``: the settings of the run and the checksums of its input. If it exists, there is a run to resume;
- ``shard-00000.npy`` and so on: the files of each shard, and ``shard-00000.json``, its record: the counts, the ids of
  texts that were cut or are empty, the size and checksum of these files, and a checksum of its own. A file gets its
  name when it is whole and on the disk, and the record is the last one;
- ``standard-input``: a copy of the standard input, if that is an input.

At the end the files of all shards are joined. That needs the disk space of the output a second time. If the output is
a folder, each shard is a file there as soon as it is computed, ``part-00000.parquet`` and so on, and is not joined. If
such a folder is updated, the new files are in ``folder`` until the end, when the two change their names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Self

from minibert._utils.files import FileLock, exchange, os_reason, printable, sync_folder, write_whole
from minibert.corpus import manifests
from minibert.corpus.sources import Source
from minibert.corpus.tasks import Counts, Files, Task

_LOCK, _MANIFEST, _STANDARD_INPUT, _WHOLE = "minibert.lock", "manifest.json", "standard-input", "whole"
_SUFFIX = r"\.(json|npy|csv|parquet|rows|((ids|tokens)\.)?jsonl)"
_OURS = re.compile(rf"{_LOCK}|{_MANIFEST}|{_STANDARD_INPUT}|({_WHOLE}|shard-\d+){_SUFFIX}|\.minibert-[a-z0-9_]{{8}}")
_BLOCK = 2**20  # bytes read at a time
_DIGITS = 5  # of the number of a shard in names of files, or more if there can be more shards


def folder_of(output: str | os.PathLike[str]) -> Path:
    """Return the folder that holds the unfinished output of the run that makes this file."""
    return Path(f"{os.path.realpath(output)}.parts")


class RunFolder:
    """The folder of one run, a context manager that holds its lock. On exit without a manifest its files are deleted.

    Parameters
    ----------
    task : Task
        Its first output is not a link; all other files are beside it.
    report : callable
        Called with a line of text if the user ends the run.

    Attributes
    ----------
    path : Path
    to_delete : str
        What must be deleted to start again.
    again : str
        A sentence on how to compute a finished output again.
    digits : int
        Digits of a shard's number in the names of files, so that their names are in the order of the shards.
    """

    def __init__(self, task: Task, report: Callable[[str], object]) -> None:
        output = task.files[0].output
        self.output, self.task, self.path, self.digits = Path(output), task, folder_of(output), _DIGITS
        self.to_delete = f"{self.path} and {output}" if task.into_folder else str(self.path)
        self.again = f"Delete {output} to compute it again."
        self.beside, self._staging = Path(manifests.path_of(output)), self.path / "folder"
        self._report = report

    def __enter__(self) -> Self:
        try:
            while True:
                self.path.mkdir(exist_ok=True)
                # Another run may delete both just now, because it ends.
                with contextlib.suppress(FileNotFoundError):
                    self._lock = FileLock(self.path / _LOCK, seconds=2.0)
                    break
        except BlockingIOError as error:
            how = "Wait until that run has ended, or give another output."
            raise BlockingIOError(f"{self.output} is being written by {error}. {how}") from error
        except OSError as error:
            raise OSError(f"{self.path} cannot be made: {os_reason(error)}.") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        ended = not (self.path / _MANIFEST).exists()
        kept = f"shards are kept in {self.path}; resume=True continues."
        if ended:
            self._clear()
        elif kind is KeyboardInterrupt:
            self._report(f"finished {kept}")
        self._lock.release(delete=ended)
        with contextlib.suppress(OSError):
            if ended:
                self.path.rmdir()
        if isinstance(error, OSError):
            message = str(error)
            if error.strerror is not None:  # it is the system's
                message = f"{error.filename2 or error.filename}: {error.strerror}."
            raise type(error)(message if ended else f"{message} Finished {kept}") from error

    def _clear(self, *kept: str) -> None:
        """Delete the files of runs but those to be kept, and no others. The lock is deleted last, by `release`."""
        for path in self.path.glob(f"{self._staging.name}*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.path.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in (_LOCK, *kept):
                with contextlib.suppress(OSError):
                    path.unlink()

    # -- manifests

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the unfinished run; None if no run has started.

        Raises
        ------
        ValueError
            The manifest is damaged, or minibert 0.3.0 wrote it: its unfinished runs have other files.
        """
        manifest = manifests.read(self.path / _MANIFEST, f"Delete {self.to_delete} to start again.")
        if manifest is not None and manifest.get("format") != manifests.FORMAT:
            how = f"Finish it with that version, or delete {self.to_delete} to start again."
            raise ValueError(f"{self.path} holds an unfinished run of an earlier minibert. {how}")
        return manifest

    def finished(self) -> dict[str, Any] | None:
        """Return the manifest of the run that made the output; None if there is no output.

        Raises
        ------
        ValueError
            The output is there without its manifest, or was renamed.
        """
        if not (_names(self.output) if self.task.into_folder else self.output.exists()):
            return None  # the run starts again, even if the manifest is still there
        manifest = manifests.read(self.beside, f"Delete it and {self.output} to compute all texts.")
        manifest = manifest if "finished" in (manifest or {}) else None
        if manifest is None and not self.task.into_folder:
            how = f"If it was renamed, give all its files their names again. {self.again}"
            raise ValueError(f"{self.output} has no {self.beside.name} of a finished run. {how}")
        manifests.check_name(manifest or {}, self.output)
        return manifest

    def path_of(self, source: Source, update: bool) -> str:
        """Return the path of a source; copy the standard input into the folder unless the unfinished run did so.

        An update copies it again: the unfinished one may have had other texts.
        """
        if source.path != "-":
            return source.path
        copy = self.path / _STANDARD_INPUT
        if copy.exists() and (self.path / _MANIFEST).exists() and not update:
            # It is not compared with the present one, because reading that may never end.
            self._report("the standard input is the copy of the unfinished run; it is not read again")
        elif sys.stdin is None:
            raise ValueError("the standard input is closed.")
        else:
            write_whole(copy, lambda file: shutil.copyfileobj(sys.stdin.buffer, file, _BLOCK))
        return str(copy)

    # -- start and resume

    def refuse_strangers(self) -> None:
        """Raise a FileExistsError if the output is a folder that holds files, or if a file beside it is not ours."""
        self._refuse_others(0)
        earlier = {output["name"] for output in manifests.outputs_of(manifests.read(self.beside) or {})}
        for file in self.task.files[1:]:
            if os.path.lexists(file.output) and os.path.basename(file.output) not in earlier:
                why = f"{file.output} exists, and no manifest ({self.beside.name}) says that minibert wrote it."
                raise FileExistsError(f"{why} The run would replace it. Move it elsewhere, or give another output.")

    def start(self, manifest: dict[str, Any], update: bool) -> None:
        """Write the manifest. From now on there is a run to resume. `update`: the output stays until the end."""
        self._clear(_STANDARD_INPUT)  # of a run that was killed before it wrote its manifest, or at its end
        if update and self.task.into_folder:
            self._staging.mkdir()
        manifests.write(self.path / _MANIFEST, {"format": manifests.FORMAT, **manifest})
        if self.task.into_folder and not update:
            self.beside.unlink(missing_ok=True)  # of an earlier run: its folder is gone
        sync_folder(self.path.parent)

    def records(self) -> dict[int, dict[str, Any]]:
        """Return the records of the saved shards by number, in order."""
        records = {}
        for path in sorted(self.path.glob("shard-*.json")):
            with contextlib.suppress(OSError, ValueError):  # a damaged record belongs to no shard
                records[int(path.stem.removeprefix("shard-"))] = json.loads(path.read_bytes())
        return records

    def whole_shards(self) -> dict[int, Counts]:
        """Return the counts of the shards whose files agree with their records; report the other shards.

        Raises
        ------
        FileExistsError
            The output is a folder, and holds files that the run did not write.
        """
        for path in self.path.glob(".minibert-????????"):  # of a run that was killed
            path.unlink(missing_ok=True)
        if self.task.into_folder:
            self._folder.mkdir(exist_ok=True)
        records, whole = self.records(), dict[int, Counts]()
        self._refuse_others(max(records, default=-1) + 2)  # a shard can be there whose record is not
        for number, record in records.items():
            damaged = ["its record"]
            if isinstance(record, dict) and record.get("checksum") == _checksum(record):
                files = self._final_files(number)
                damaged = [path.name for path in files if manifests.state_of(path) != record["files"][path.name]]
            if damaged:
                self._report(f"{self.path}: shard {number} is damaged ({', '.join(damaged)}); it is computed again.")
            else:
                whole[number] = Counts(**record["counts"])
        return whole

    # -- shards

    def save(self, number: int, write: Callable[[Files], tuple[Counts, dict[str, Any]]]) -> Counts:
        """Write the files of a shard, then its record. After this call a crash cannot lose the shard.

        Parameters
        ----------
        number : int
        write : callable
            Writes the shard, and returns its counts and further facts for its record. If it raises, the shard is not
            saved.
        """
        counts, facts = Counts(), dict[str, Any]()
        paths = [self.shard(number, file.suffix) for file in self.task.files]

        def write_all(opened: list[BinaryIO]) -> None:
            nonlocal counts, facts
            if len(opened) < len(paths):
                write_whole(paths[len(opened)], lambda file: write_all([*opened, file]))
                return
            for shard, file in zip(self.task.files, opened, strict=True):
                file.write(shard.header(counts))
            counts, facts = write(opened)
            for shard, file in zip(self.task.files, opened, strict=True):
                file.seek(0)
                file.write(shard.header(counts))

        write_all([])
        if self.task.into_folder:
            os.replace(paths[0], self._final_files(number)[0])
            sync_folder(self._folder)
        states = {path.name: manifests.state_of(path) for path in self._final_files(number)}
        record = {"counts": dataclasses.asdict(counts), **facts, "files": states}
        manifests.write(self.shard(number, ".json"), {**record, "checksum": _checksum(record)})
        return counts

    def finish(self, total: Counts, n_shards: int) -> None:
        """Join the shards into the outputs. They get their names when all are complete; the manifest is the last file.

        A run that is killed here joins the shards again when it is resumed, because they are deleted last.
        """
        self._refuse_others(n_shards)
        outputs, processors = dict[str, dict[str, Any]](), set[str]()
        named: dict[str, list[str | int]] = {"cut": [], "empty": []}
        for record in self.records().values():
            processors |= {record["processor"]} - {None}
            for what, ids in named.items():
                ids += record.get(what, ())
            if self.task.into_folder:
                name, state = next(iter(record["files"].items()))
                outputs[name] = {"name": f"{self.output.name}/{name}", "rows": record["counts"]["n_texts"], **state}
        for file in self.task.files[self.task.into_folder :]:
            shards = [self.shard(number, file.suffix) for number in range(n_shards)]
            whole, name = self.path / f"{_WHOLE}{file.suffix}", os.path.basename(file.output)
            write_whole(whole, lambda opened, file=file, shards=shards: file.join(opened, shards, total))  # type: ignore[misc]
            outputs[name] = {"name": name, **(manifests.state_of(whole) or {})}
        manifest = self.manifest() or {}
        manifest["processors"] = sorted(processors)
        manifest["finished"] = {"counts": dataclasses.asdict(total), "outputs": outputs, **named}
        manifests.write(self.path / _MANIFEST, manifest)
        self.commit()

    def commit(self) -> None:
        """Give the outputs of a run that has ended their names; after a kill, it is done again."""
        files = [(self.path / f"{_WHOLE}{file.suffix}", Path(file.output)) for file in self.task.files]
        renames = [(whole, path) for whole, path in files if whole.exists()]
        # Files of an earlier run must not be beside a new output, because they do not belong to it.
        for stale in (self.beside, *(path for _, path in renames[1:])):
            stale.unlink(missing_ok=True)
        if self._staging.exists():
            parts = [part for part in manifests.outputs_of(self.manifest() or {}) if "rows" in part]
            names = sorted(os.path.basename(part["name"]) for part in parts)
            if _names(self.output) != names or any(
                manifests.is_changed(part, self.output) for part in parts
            ):  # else they are exchanged already
                exchange(self._staging, self.output)
        for whole, path in (*renames, (self.path / _MANIFEST, self.beside)):
            os.replace(whole, path)
        sync_folder(self.path.parent)

    # -- internals

    def shard(self, number: int, suffix: str) -> Path:
        """Return the path of a file of a shard."""
        return self.path / f"shard-{number:0{self.digits}}{suffix}"

    def _final_files(self, number: int) -> list[Path]:
        """Return the paths of the files of a shard that is saved."""
        files = [self.shard(number, file.suffix) for file in self.task.files]
        if self.task.into_folder:
            files[0] = self._folder / f"part-{number:0{self.digits}}{self.task.files[0].suffix}"
        return files

    @property
    def _folder(self) -> Path:
        """The folder that gets the files of the shards, if the output is a folder."""
        return self._staging if self._staging.exists() else self.output

    def _refuse_others(self, count: int) -> None:
        """Raise if the output is a folder with other files than the first `count` shards have."""
        if self.task.into_folder:
            known = {self._final_files(number)[0].name for number in range(count)}
            if others := [name for name in _names(self._folder) if name not in known]:
                what = f"{self.output} holds other files: {', '.join(map(printable, others[:3]))}"
                raise FileExistsError(f"{what}. Delete or move them, or give another folder.")


def _checksum(record: dict[str, Any]) -> int:
    return zlib.crc32(manifests.as_json({**record, "checksum": None}).encode())


def _names(path: Path) -> list[str]:
    """Return the sorted names in the folder, without those that the system makes and no reader takes, like .DS_Store.

    Hidden names that end in .parquet are not left out, because dask and Polars read such files.
    """
    names = os.listdir(path) if path.exists() else []
    return sorted(name for name in names if not name.startswith(".") or name.lower().endswith(".parquet"))
