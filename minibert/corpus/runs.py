"""A run over a corpus: files of texts -> shards -> the output. Memory is bounded; a run resumes after a crash.

The input is read twice. The first reading finds lines that cannot be used before anything is computed, and computes the
input's checksum. The second reading computes the shards, one at a time. A shard depends only on its input lines, so an
interrupted run ends with the same bytes as one that was not.

Until the run ends, the folder ``<output>.parts`` holds

- ``minibert.lock``: the process that holds it may write here;
- ``manifest.json``: the settings of the run and the checksums of its input. If it exists, there is a run to resume;
- ``shard-00000.npy`` and so on: the files of each shard, and ``shard-00000.json``, its record: the counts, and the size
  and checksum of these files. A file gets its name when it is whole and on the disk, and the record is the last one;
- ``standard-input``: a copy of the standard input, if that is an input.

A run that is resumed skips the shards whose files are as their record says. At the end the files of all shards are
joined, which needs the disk space of the output a second time. If the output is a folder, each shard is a file there
as soon as it is computed, ``part-00000.parquet`` and so on, and nothing is joined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import shutil
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

import minibert
from minibert._utils.files import FileLock, check_format, os_reason, printable, sync_folder, write_whole
from minibert._utils.reporting import progress_bar
from minibert._utils.validation import check_choice, check_int, counted
from minibert.corpus.sources import (
    CHARACTERS_AT_ONCE,
    ON_ERROR,
    InputLine,
    Source,
    describe,
    read_input_lines,
    standard_input,
    survey,
    weight,
)
from minibert.tokenizer.windows import in_chunks

FORMAT = 2
"""The format number of a manifest. That of minibert 0.3.0 is 1; its finished runs are read, its unfinished ones not."""

SHARD_SIZE = 10_000
"""Most input lines of a shard if the caller does not say."""

_LOCK, _MANIFEST, _STANDARD_INPUT, _WHOLE = "minibert.lock", "manifest.json", "standard-input", "whole"
_OURS = re.compile(
    rf"{_LOCK}|{_MANIFEST}|{_STANDARD_INPUT}|{_WHOLE}\.[a-z.]+|shard-\d+\.[a-z.]+|\.minibert-[a-z0-9_]{8}"
)
_BLOCK = 2**20  # bytes read at a time
_DIGITS = 5  # of the number of a shard in names of files, or more if there can be more shards
_NAMES_SHOWN = 3

NumberedLines = list[tuple[int, InputLine]]
"""The input lines of a shard, with their numbers in the whole input."""

Progress = Callable[[int], object]
"""Called with the number of input lines done since its last call."""

Files = Sequence[BinaryIO]
"""The open files of a shard, one for each of `Task.files`."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """The counts of computed shards.

    Parameters
    ----------
    n_texts : int
        Input lines in the output, those without a text included.
    n_tokens : int
        Tokens of the texts after cutting; equal texts count separately.
    n_cut : int
        Texts that were cut, because they had more tokens than the model takes.
    n_left_out : int
        Input lines that could not be used and were left out.
    """

    n_texts: int = 0
    n_tokens: int = 0
    n_cut: int = 0
    n_left_out: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


Written = tuple[Counts, str | None]
"""The counts of a shard that was written, and the processor that has computed it; None if nothing was computed."""


@dataclasses.dataclass(frozen=True)
class Summary(Counts):
    """The counts of a run.

    Parameters
    ----------
    n_texts, n_tokens, n_cut, n_left_out : int
        As in `Counts`.
    width : int
        Numbers of one vector.
    n_resumed : int
        Texts that earlier runs have computed.
    seconds : float
        Time of this run.
    n_files : int
        Files of vectors: 1, or those in the folder that the output is.
    """

    width: int = 0
    n_resumed: int = 0
    seconds: float = 0.0
    n_files: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that every run has.

    Parameters
    ----------
    resume : bool
        Continue an unfinished run of the same model, options and input; start one if there is none, or if the output
        of a finished run is gone.
    on_error : {"stop", "skip", "null"}
        What happens if an input line cannot be used. "stop" computes nothing, "skip" leaves the line out, "null" keeps
        its row without a result.
    shard_size : int
        Most input lines of a shard, fewer if they are long. A crash loses at most one shard.
    settings : dict, optional
        Values that must be the same to resume, such as the model's name and revision; JSON can hold them.
    show_progress : bool
    report : callable
        Called with each problem, as a line of text.

    Raises
    ------
    TypeError, ValueError
        A value is wrong.
    """

    resume: bool = False
    on_error: str = "stop"
    shard_size: int = SHARD_SIZE
    settings: dict[str, Any] | None = None
    show_progress: bool = False
    report: Callable[[str], object] = print

    def __post_init__(self) -> None:
        check_int("shard_size", self.shard_size, 1)
        check_choice("on_error", self.on_error, ON_ERROR)

    def keep(self, input_line: InputLine) -> bool:
        """Report an input line that cannot be used, and return whether its row is kept.

        Raises
        ------
        ValueError
            With "stop": the first reading did not find this bad line, so the file has changed.
        """
        if self.on_error == "stop":
            raise ValueError(
                f"{input_line.file} was changed while it was read: line {input_line.line} {input_line.problem}."
            )
        self.report(describe(input_line))
        return self.on_error == "null"


def join_bytes(file: BinaryIO, shards: Sequence[Path], total: Counts, start: int = 0) -> None:
    """Write the bytes of the shards' files one after the other, each from its byte `start` on."""
    for path in shards:
        with path.open("rb") as shard:
            shard.seek(start)
            shutil.copyfileobj(shard, file, _BLOCK)


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """One of the files of each shard, and the output that is made from these files.

    Parameters
    ----------
    suffix : str
    output : str
        The path of the output, or of the folder that is the output.
    join : callable
        Writes the output, given the open file, the files of all shards and the counts of the run.
    """

    suffix: str
    output: str
    join: Callable[[BinaryIO, Sequence[Path], Counts], object] = join_bytes


class Task:
    """The work of a run: the base class of the tasks in embed.py, extract.py and score.py.

    Attributes
    ----------
    files : sequence of ShardFile
        The files of a shard. Outputs get their names in this order.
    width : int
        Numbers of one vector.
    into_folder : bool
        Whether the output is a folder of the shards' files.
    """

    files: Sequence[ShardFile]
    width: int
    into_folder = False

    def begin(self, chunk: NumberedLines, progress: Progress) -> Callable[[], Any]:
        """Begin to compute a shard, and return a function that waits for the result, the argument of `write`."""
        return lambda: chunk

    def has_room(self, begun: int) -> bool:
        """Return whether to begin another shard before the oldest of the `begun` shards is saved."""
        return False

    def write(self, result: Any, before: Counts, files: Files, progress: Progress) -> Written:
        """Write a shard's files.

        Parameters
        ----------
        result
            See `begin`.
        before : Counts
            Those of all earlier shards.
        files : sequence of binary files
            One for each of `files`, opened to write.
        progress : callable

        Returns
        -------
        counts : Counts
        processor : str or None
            As `Ops.processor` names it.
        """
        raise NotImplementedError


def run_shards(
    output: str | os.PathLike[str],
    sources: Sequence[Source],
    make: Callable[[str], Task],
    *,
    options: RunOptions,
    settings: dict[str, Any],
    probe: npt.NDArray[Any],
    too_long: Callable[[list[str]], list[str | None]] | None = None,
) -> Summary | None:
    """Compute an output file, or a folder of files, from files of texts, shard by shard.

    Parameters
    ----------
    output : str or path
        Name of the file or folder; a link is followed.
    sources : sequence of Source
        For the path "-" the standard input is copied first, because the input is read twice.
    make : callable
        Returns the `Task` for the file or folder of this name, which is not a link.
    options : RunOptions
    settings : dict
        Further values that must be the same to resume; JSON can hold them.
    probe : float ndarray
        The model's result for a fixed text; it must be the same to resume.
    too_long : callable, optional
        Texts -> for each the problem if it is too long, else None. Such texts are bad lines too.

    Returns
    -------
    Summary, or None if resume finds that this very run has ended

    Raises
    ------
    ValueError
        An input line cannot be used with on_error="stop"; nothing was computed then. The run to resume, finished or
        not, has other settings, another model or another input. The input has changed.
    OSError
        A file cannot be read or written; another process writes this output. Computed shards are kept.
    """
    start = time.perf_counter()
    output, resume, shard_size = os.fspath(output), options.resume, options.shard_size
    settings = {**(options.settings or {}), **settings, "on_error": options.on_error, "shard_size": shard_size}
    if os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output):
        raise OSError(f"{output} is a device or a pipe; a run that can be resumed needs a file.")
    target = os.path.realpath(output)
    _refuse_names(target, sources, settings)
    task = make(target)
    _refuse_inputs(sources, [_manifest_path(target), target, *(file.output for file in task.files)])
    with _RunFolder(target, task) as folder:
        unfinished = folder.manifest()
        if unfinished is not None and not resume:
            raise ValueError(
                f"{folder.path} holds an unfinished run with {counted(len(folder.records()), 'shard')} done. Continue "
                f"it with resume=True, or delete {folder.to_delete}."
            )
        finished = folder.finished() if resume and unfinished is None else None
        if unfinished is None and finished is None:
            folder.refuse_used()
        files = [dataclasses.replace(source, path=folder.path_of(source)) for source in sources]
        before = [_state(source) for source in files]
        checksums, total = survey(files, stop=options.on_error == "stop", too_long=too_long)
        _refuse_changes(files, before)
        mine = {
            "settings": {**settings, "minibert": minibert.__version__},
            "inputs": [dataclasses.asdict(source) for source in sources],
            "checksums": checksums,
            "probe": np.nan_to_num(probe.astype(np.float64)).tolist(),
        }
        if finished is not None:
            _compare(finished, mine, f"The run that made {output}", folder.again)
            return None
        if unfinished is None:
            folder.start(mine)
        else:
            delete = f"Give the same again, or delete {folder.to_delete} to start again."
            _compare(unfinished, mine, "The unfinished run", delete)
        folder.digits = max(folder.digits, len(str(total)))  # there are no more shards than lines
        done = folder.whole_shards(options.report)
        n_resumed = sum(counts.n_texts for counts in done.values())
        lines_done = n_resumed + sum(counts.n_left_out for counts in done.values())
        lines = _numbered_lines(files, checksums)
        counts, n_shards, begun = Counts(), 0, deque[tuple[int, Callable[[], Any]]]()

        def save_oldest() -> Counts:
            number, wait = begun.popleft()
            result = wait()
            return folder.save(
                number,
                lambda opened: task.write(result, counts, opened, progress),
                lambda: _refuse_changes(files, before),
            )

        with progress_bar(total, show=options.show_progress, initial=min(lines_done, total)) as progress:
            for chunk in in_chunks(lines, shard_size, lambda numbered: weight(numbered[1]), CHARACTERS_AT_ONCE):
                if n_shards not in done:
                    begun.append((n_shards, task.begin(chunk, progress)))
                while begun and (n_shards in done or not task.has_room(len(begun))):
                    counts += save_oldest()
                counts += done.get(n_shards, Counts())
                n_shards += 1
                del chunk  # frees its memory before the next one is read
            while begun:
                counts += save_oldest()
        folder.finish(counts, n_shards)
    return Summary(
        **dataclasses.asdict(counts),
        width=task.width,
        n_resumed=n_resumed,
        seconds=time.perf_counter() - start,
        n_files=n_shards if task.into_folder else 1,
    )


def folder_of(output: str | os.PathLike[str]) -> Path:
    """Return the folder that holds the unfinished output of the run that makes this file."""
    return Path(f"{os.path.realpath(output)}.parts")


def is_unfinished(output: str | os.PathLike[str]) -> bool:
    """Return whether there is a run to resume."""
    return (folder_of(output) / _MANIFEST).is_file()


def number_settings(model: Any) -> dict[str, Any]:
    """Return the settings that decide a model's rounding, for a run's manifest; defaults are left out.

    Parameters
    ----------
    model : BertModel or a model with a head
    """
    settings = {} if model.compute_type == "float32" else {"compute_type": model.compute_type}
    # Ops with the products of NumPy name the kind of processor only. They do not have the bits of the kernels.
    return {**settings, "products": "NumPy"} if model.ops.processor() == platform.machine() else settings


# --- the folder of the run --------------------------------------------------------------------------------------------


class _RunFolder:
    """The folder of one run, a context manager that holds its lock. On exit without a manifest its files are deleted.

    Parameters
    ----------
    output : str
        The file or folder that the run makes, not a link. All other files are beside it.
    task : Task

    Attributes
    ----------
    path : Path
    to_delete : str
        What must be deleted to start again.
    again : str
        A sentence on how to compute a finished output again.
    digits : int
        Digits of a shard's number in the names of files; the order of the names is that of the shards.
    """

    def __init__(self, output: str, task: Task) -> None:
        self.output, self.task, self.path, self.digits = Path(output), task, folder_of(output), _DIGITS
        self.to_delete = f"{self.path} and {output}" if task.into_folder else str(self.path)
        self.again = (
            f"Delete {output} to compute it again." if task.into_folder else "Without resume=True it is computed again."
        )
        self.beside = Path(_manifest_path(output))

    def __enter__(self) -> Self:
        self._refuse_strangers()
        try:
            while True:
                self.path.mkdir(exist_ok=True)
                # Another run may delete both just now, because it ends.
                with contextlib.suppress(FileNotFoundError):
                    self._lock = FileLock(self.path / _LOCK, seconds=2.0)
                    break
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{self.output} is being written by {error}. Wait until that run has ended, stop it, or give another "
                "output."
            ) from error
        except OSError as error:
            raise OSError(f"{self.path} cannot be made: {os_reason(error)}.") from error
        return self

    def __exit__(self, *_: object) -> None:
        ended = not (self.path / _MANIFEST).exists()
        if ended:
            self._clear()
        self._lock.release(delete=ended)
        with contextlib.suppress(OSError):
            if ended:
                self.path.rmdir()

    def _refuse_strangers(self) -> None:
        """Raise if files of others are where a run that starts here would write: in this folder, or beside it."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise FileExistsError(
                f"{self.path} exists and is not a folder, but the run makes a folder of this name for its unfinished "
                "output. Move it elsewhere, or give another output."
            )
        if (self.path / _MANIFEST).exists():
            return
        strangers = [name for name in _names(self.path) if not _OURS.fullmatch(name)]
        if strangers:
            raise FileExistsError(
                f"{self.path} is the folder for the unfinished run, but it holds other files: {_listed(strangers)}. "
                "Move this folder elsewhere, or give another output."
            )
        earlier = {output["name"] for output in _outputs_of(_read_manifest(self.beside) or {})}
        for file in self.task.files[1:]:
            name = os.path.basename(file.output)
            if os.path.lexists(file.output) and (name not in earlier or not os.path.isfile(file.output)):
                raise FileExistsError(
                    f"{file.output} exists, and the run would replace it by a file beside {self.output}; but no "
                    f"manifest ({self.beside.name}) says that minibert wrote it. Move it elsewhere, or give another "
                    "output."
                )

    def _clear(self, *kept: str) -> None:
        """Delete the files of runs but those to be kept, and no others. The lock is deleted last, by `release`."""
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
            The manifest is damaged, or that of minibert 0.3.0, whose unfinished runs have other files.
        """
        manifest = _read_manifest(self.path / _MANIFEST, f"Delete {self.to_delete} to start again.")
        if manifest is not None and manifest.get("format") != FORMAT:
            raise ValueError(
                f"{self.path} holds an unfinished run of an earlier minibert. Finish it with that version, or delete "
                f"{self.to_delete} to start again."
            )
        return manifest

    def finished(self) -> dict[str, Any] | None:
        """Return the manifest of the run that made the output; None if there is no output.

        Raises
        ------
        ValueError
            The output is there without its manifest, or is not the one that the run has written.
        """
        if self.task.into_folder:  # without its files, a run starts again, as without its one file
            if not self.beside.exists() or not _names(self.output):
                return None
        elif not self.output.exists():
            return None
        manifest = _read_manifest(self.beside)
        if manifest is None:
            raise ValueError(
                f"There is nothing to resume: {self.output} exists, but not its manifest {self.beside.name}. "
                f"{self.again}"
            )
        for output in _outputs_of(manifest):
            path, size = self.output.parent / output["name"], output["size"]
            found = path.stat().st_size if path.exists() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes"
                raise ValueError(f"{path} {state}, but the run that made it has written {size} bytes. {self.again}")
        return manifest

    def path_of(self, source: Source) -> str:
        """Return the path of a source; copy the standard input into the folder unless the unfinished run did so."""
        if source.path != "-":
            return source.path
        copy = self.path / _STANDARD_INPUT
        if not (copy.exists() and (self.path / _MANIFEST).exists()):
            with self._kept():
                write_whole(copy, lambda file: shutil.copyfileobj(standard_input(), file, _BLOCK))
        return str(copy)

    # -- start and resume

    def refuse_used(self) -> None:
        """Raise a FileExistsError if the output is a folder that holds files, because a run does not replace them."""
        if self.task.into_folder:
            _refuse_used(self.output, finished=self.beside.exists())

    def start(self, manifest: dict[str, Any]) -> None:
        """Write the manifest. From now on there is a run to resume."""
        self._clear(_STANDARD_INPUT)  # of a run that was killed before it wrote its manifest, or at its end
        with self._kept():
            _write_json(self.path / _MANIFEST, {"format": FORMAT, **manifest})
            if self.task.into_folder:
                self.beside.unlink(missing_ok=True)  # of an earlier run, whose folder is gone
        sync_folder(self.path.parent)

    def records(self) -> dict[int, dict[str, Any]]:
        """Return the records of the saved shards by number."""
        found = {}
        for path in sorted(self.path.glob("shard-*.json")):
            with contextlib.suppress(OSError, ValueError):  # a damaged record is that of no shard
                found[int(path.stem.removeprefix("shard-"))] = json.loads(path.read_bytes())
        return found

    def whole_shards(self, report: Callable[[str], object]) -> dict[int, Counts]:
        """Return the counts of the shards whose files agree with their records; report the other shards.

        Raises
        ------
        FileExistsError
            The output is a folder, and holds files that the run did not write.
        """
        for path in self.path.glob(".minibert-????????"):  # of a run that was killed
            path.unlink(missing_ok=True)
        if self.task.into_folder:
            with self._kept():
                self.output.mkdir(exist_ok=True)
        records, found = self.records(), dict[int, Counts]()
        self._refuse_others(max(records, default=-1) + 2)  # a shard can be there whose record is not
        for number, record in records.items():
            try:
                files = self._final_files(number)
                damaged = [path.name for path in files if _state_of(path) != record["files"][path.name]]
                if not damaged:
                    found[number] = Counts(**record["counts"])
            except (KeyError, TypeError):
                damaged = ["its record"]
            if damaged:
                report(f"{self.path}: shard {number} is damaged ({', '.join(damaged)}); it is computed again.")
        return found

    # -- shards

    def save(self, number: int, write: Callable[[Files], Written], check: Callable[[], object]) -> Counts:
        """Write the files of a shard, then its record. After this call a crash cannot lose the shard.

        Parameters
        ----------
        number : int
        write : callable
            See `Task.write`.
        check : callable
            Called before the record is written; if it raises, the shard is not saved.
        """
        results = list[Written]()
        paths = [self._shard(number, file.suffix) for file in self.task.files]

        def write_all(opened: list[BinaryIO]) -> None:
            if len(opened) == len(paths):
                results.append(write(opened))
            else:
                write_whole(paths[len(opened)], lambda file: write_all([*opened, file]))

        with self._kept():
            write_all([])
            check()
            if self.task.into_folder:
                os.replace(paths[0], self._final_files(number)[0])
                sync_folder(self.output)
            counts, processor = results[0]
            states = {path.name: _state_of(path) for path in self._final_files(number)}
            record = {"counts": dataclasses.asdict(counts), "processor": processor, "files": states}
            _write_json(self._shard(number, ".json"), record)
        return counts

    def finish(self, total: Counts, n_shards: int) -> None:
        """Join the shards into the outputs, which get their names when all are complete; write the manifest last.

        A run that is killed here joins the shards again when it is resumed, because they are deleted last.
        """
        self._refuse_others(n_shards)
        renames: list[tuple[Path, Path]] = []
        with self._kept():
            for file in () if self.task.into_folder else self.task.files:
                shards = [self._shard(number, file.suffix) for number in range(n_shards)]
                whole = self.path / f"{_WHOLE}{file.suffix}"
                write_whole(whole, lambda opened, file=file, shards=shards: file.join(opened, shards, total))  # type: ignore[misc]
                renames.append((whole, Path(file.output)))
            outputs, processors = dict[str, dict[str, Any]](), set[str]()
            for number, record in self.records().items():
                processors |= {record["processor"]} - {None}
                if self.task.into_folder:
                    ((name, state),) = record["files"].items()
                    place = f"{self.output.name}/{name}"
                    outputs[name] = {"name": place, "rows": record["counts"]["n_texts"], **state}
                assert number < n_shards
            outputs |= {path.name: {"name": path.name, "size": whole.stat().st_size} for whole, path in renames}
            manifest = self.manifest() or {}
            manifest["processors"] = sorted(processors)
            manifest["finished"] = {"counts": dataclasses.asdict(total), "outputs": outputs}
            _write_json(self.path / _MANIFEST, manifest)
            # Files of an earlier run must not be beside a new output, because they do not belong to it.
            for stale in (self.beside, *(path for _, path in renames[1:])):
                stale.unlink(missing_ok=True)
            for whole, path in (*renames, (self.path / _MANIFEST, self.beside)):
                os.replace(whole, path)
            sync_folder(self.path.parent)

    # -- internals

    def _shard(self, number: int, suffix: str) -> Path:
        return self.path / f"shard-{number:0{self.digits}}{suffix}"

    def _final_files(self, number: int) -> list[Path]:
        """Return the paths of the files of a shard that is saved."""
        if self.task.into_folder:
            return [self.output / f"part-{number:0{self.digits}}{self.task.files[0].suffix}"]
        return [self._shard(number, file.suffix) for file in self.task.files]

    def _refuse_others(self, count: int) -> None:
        """Raise if the folder that is the output holds other files than those of so many shards."""
        if self.task.into_folder:
            known = {path.name for number in range(count) for path in self._final_files(number)}
            others = [name for name in _names(self.output) if name not in known]
            if others:
                raise FileExistsError(
                    f"{self.output} holds files that the unfinished run did not write: {_listed(others)}. Move them "
                    "elsewhere, then continue with resume=True."
                )

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Add to the message of an OSError the file and how to continue."""
        try:
            yield
        except OSError as error:
            message = str(error)
            if error.strerror is not None:  # it is the system's
                message = f"{error.filename2 or error.filename} cannot be written: {error.strerror}."
            if (self.path / _MANIFEST).exists():
                message += (
                    f" Finished shards are kept in {self.path}. Once the file can be written, continue with "
                    "resume=True."
                )
            raise OSError(message) from error


def _state_of(path: Path) -> dict[str, int] | None:
    """Return the size and the CRC-32 of a file; None if it cannot be read."""
    size = checksum = 0
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                size, checksum = size + len(block), zlib.crc32(block, checksum)
    except OSError:
        return None
    return {"size": size, "checksum": checksum}


# --- manifests --------------------------------------------------------------------------------------------------------


def _manifest_path(output: str) -> str:
    """Return the path of the manifest beside the output: the settings and counts of a finished run, as JSON."""
    return f"{output}.manifest.json"


def _read_manifest(
    path: Path, way_on: str = "A run writes its manifest there; delete it or move it elsewhere, or give another output."
) -> dict[str, Any] | None:
    """Return a manifest; None if there is none, ValueError with a sentence on what to do if it is damaged."""
    if not os.path.lexists(path):
        return None
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else None  # reading a pipe might never end
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or not a manifest of minibert: {error}. {way_on}") from error
    if not isinstance(content, dict) or not {"settings", "checksums", "inputs", "probe"} <= content.keys():
        raise ValueError(f"{path} is damaged, or not a manifest of minibert. {way_on}")
    check_format(content, FORMAT, str(path))
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, lambda file: file.write(json.dumps(content, ensure_ascii=False).encode()))


def _outputs_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the name and size of each output of a run; an empty list if the run has not finished."""
    return [*manifest.get("finished", {}).get("outputs", {}).values()]


def _compare(theirs: dict[str, Any], mine: dict[str, Any], whose: str, way_on: str) -> None:
    """Raise if a run to resume, finished or not, differs from this one."""
    mine = json.loads(json.dumps(mine))
    if theirs["checksums"] != mine["checksums"] or theirs["inputs"] != mine["inputs"]:
        raise ValueError(f"{whose} has another input: {_difference(theirs, mine)}. {way_on}")
    then, now = theirs["settings"], mine["settings"]
    # The version first: another version may have other names and values of settings, and round differently.
    for name in sorted({*then, *now}, key=lambda name: (name != "minibert", name)):
        if then.get(name) != now.get(name):
            theirs_has, mine_has = (
                f"{name}={of_run[name]!r}" if name in of_run else f"the default {name}" for of_run in (then, now)
            )
            raise ValueError(f"{whose} has {theirs_has}, this one has {mine_has}. {way_on}")
    if len(theirs["probe"]) != len(mine["probe"]) or not np.allclose(theirs["probe"], mine["probe"], atol=1e-4):
        raise ValueError(f"{whose} has another model, which gives another vector. {way_on}")


def _difference(theirs: dict[str, Any], mine: dict[str, Any]) -> str:
    names = [[source["name"] for source in one["inputs"]] for one in (theirs, mine)]
    if names[0] != names[1]:
        return f"{', '.join(names[0])}, not {', '.join(names[1])}"
    changed = [
        name for name, then, now in zip(names[1], theirs["checksums"], mine["checksums"], strict=True) if then != now
    ]
    return f"{', '.join(changed)} has changed" if changed else "it was read in another way"


# --- inputs -----------------------------------------------------------------------------------------------------------


def _refuse_names(output: str, sources: Sequence[Source], settings: dict[str, Any]) -> None:
    """Refuse texts that the manifest cannot hold because it is UTF-8, mostly file names in another encoding."""
    names = [os.path.basename(output), *(source.path for source in sources), *settings.values()]
    for name in filter(lambda name: isinstance(name, str), names):
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                f"{printable(name)} is not UTF-8, but the manifest is written in UTF-8; give another name."
            ) from None


def _refuse_inputs(sources: Sequence[Source], outputs: Sequence[str]) -> None:
    """Refuse inputs that cannot be read twice, or that the outputs would overwrite."""
    for source in sources:
        path = source.path
        if path != "-" and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise ValueError(
                f"{source.name} is a pipe or a device, which cannot be read twice; give it as the standard input, '-', "
                "which is copied first."
            )
        for output in outputs:
            if os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output):
                raise ValueError(f"{output} is an input too, and would be overwritten; give another output.")


def _numbered_lines(sources: Sequence[Source], checksums: Sequence[str]) -> Iterator[tuple[int, InputLine]]:
    """Yield the input lines of all files with their number; raise if a file differs from the first reading."""
    number = 0
    for source, expected in zip(sources, checksums, strict=True):
        checksum = hashlib.sha256()
        for input_line in read_input_lines(source, checksum):
            yield number, input_line
            number += 1
        if checksum.hexdigest() != expected:
            raise ValueError(
                f"{source.name} was changed while it was read. Computed vectors may be those of its old or new "
                "texts. Start again."
            )


def _refuse_changes(sources: Sequence[Source], before: Sequence[tuple[int, int]]) -> None:
    """Raise if a file has changed since before the first reading, so that all shards are of the same state of it."""
    for source, state in zip(sources, before, strict=True):
        if _state(source) != state:
            raise ValueError(f"{source.name} was changed while it was read. Restore it, or start again.")


def _state(source: Source) -> tuple[int, int]:
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise OSError(f"{source.name} cannot be read: {os_reason(error)}.") from error
    return status.st_size, status.st_mtime_ns


# --- an output that is a folder ---------------------------------------------------------------------------------------


def is_folder(output: str) -> bool:
    """Return whether an output is a folder: its name is that of an existing folder, or ends in a separator."""
    return output.endswith((os.sep, os.altsep or os.sep)) or os.path.isdir(output)


def refuse_folder(output: str) -> None:
    """Raise an OSError if a run could not use this output as its folder; nothing is created."""
    path, name = Path(os.path.realpath(output)), printable(output)
    if os.path.lexists(path) and not path.is_dir():
        raise NotADirectoryError(
            f"{name} is asked for as a folder, but it is a file; give the name of a folder, or of a file without "
            "a separator at its end."
        )
    if os.path.ismount(path):
        raise OSError(
            f"{name} is a mount point. A run keeps its unfinished output beside the folder, on the same file system; "
            f"give a folder in it, such as {os.path.join(path, 'vectors', '')}."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{name} cannot be made: there is no folder {printable(str(path.parent))}. Make it first."
        )
    if not os.path.lexists(_manifest_path(str(path))) and not os.path.lexists(folder_of(path)):
        _refuse_used(path, finished=False)  # before a model is loaded; the run checks it again


def _refuse_used(path: Path, *, finished: bool) -> None:
    others = _names(path)
    if others and finished:
        raise FileExistsError(
            f"{path} holds a finished run with {counted(len(others), 'file')}, which a further run does not "
            "replace. Delete this folder to compute it again, or give another one."
        )
    if others:
        raise FileExistsError(
            f"{path} holds files that this run did not write: {_listed(others)}. Readers of the folder would "
            "take them for its vectors. Move them elsewhere, or give another folder."
        )


def _names(path: Path) -> list[str]:
    """Return the sorted names in the folder, without those that the system makes and no reader takes, like .DS_Store.

    Hidden names that end in .parquet are not left out, because dask and Polars read such files.
    """
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OSError(f"{path} cannot be read: {os_reason(error)}.") from error
    return sorted(name for name in names if not name.startswith(".") or name.lower().endswith(".parquet"))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(printable, names[:_NAMES_SHOWN])) + more
