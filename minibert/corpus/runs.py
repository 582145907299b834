"""A run over a corpus: files of texts -> shards -> files, in bounded memory, with resume after a crash.

The input is read twice. The first reading finds lines that cannot be used before anything is computed, and computes the
input's checksum. The second reading computes the shards, one at a time. A shard depends only on its input lines, so an
interrupted run ends with the same bytes as one that was not. The caller computes the vectors and their bytes: of texts
(embed.py) or of tokens (extract.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import minibert
from minibert._utils.files import os_reason
from minibert._utils.reporting import progress_bar
from minibert._utils.validation import check_int
from minibert.corpus.file_folder import FileFolder, is_empty
from minibert.corpus.manifest import manifest_path
from minibert.corpus.parts import Counts, Part
from minibert.corpus.readers import InputLine, Source, read_input_lines
from minibert.corpus.run_checks import compare, manifest_of_finished, refuse_inputs, refuse_names
from minibert.corpus.run_folder import RunFolder
from minibert.corpus.shards import Shards
from minibert.corpus.survey import CHARACTERS_AT_ONCE, BadLines, Survey, standard_input, survey, weight
from minibert.sentence.batching import in_chunks

__all__ = ["Append", "Output", "Summary", "run_shards"]

Append = Callable[[str, bytes | memoryview], None]


@dataclasses.dataclass(frozen=True)
class Summary:
    """The counts of a run.

    Parameters
    ----------
    n_texts : int
        Input lines in the output, those without a text included.
    width : int
        Numbers of one vector.
    n_tokens : int
        Tokens of the texts after cutting; equal texts count separately.
    n_cut : int
        Texts that were cut, because they had more tokens than the model takes.
    n_left_out : int
        Input lines that could not be used and were left out.
    n_resumed : int
        Texts that earlier runs have computed.
    seconds : float
        Time of this run.
    n_files : int
        Files of vectors: 1, or those in the folder that the output is.
    """

    n_texts: int
    width: int
    n_tokens: int
    n_cut: int
    n_left_out: int
    n_resumed: int
    seconds: float
    n_files: int = 1


def _input_lines(chunk: list[tuple[int, InputLine]], progress: Callable[[int], object]) -> Any:
    """Begin nothing, and return the input lines."""
    return chunk


def _one_at_a_time() -> bool:
    """Return False: a shard is saved before the next one begins."""
    return False


@dataclasses.dataclass(frozen=True)
class Output:
    """The parts of a run's output, and how to compute them.

    Parameters
    ----------
    parts : sequence of Part
        Those with a final name become the output files.
    compute : callable
        Computes a shard from what `begin` returned for it, the counts of all earlier shards, a function that appends
        bytes to the part with a name, and a function to call with the number of lines done. Returns the shard's counts.
    width : int
        Numbers of one vector.
    processors : callable
        Returns the names of the processors that have computed something (`Ops.processor`), for the manifest.
    assemble : callable, optional
        See `Shards.finish`.
    begin : callable
        Begins a shard, given its numbered input lines and a function to call with the number of lines done. By default
        it returns the input lines.
    has_room : callable
        Returns whether a further shard should begin before the oldest one that has begun is computed and saved.
    files : FileFolder, optional
        If the output is a folder: how its files are made of the parts. `assemble` is not used then.
    """

    parts: Sequence[Part]
    compute: Callable[[Any, Counts, Append, Callable[[int], object]], Counts]
    width: int
    processors: Callable[[], Collection[str]]
    assemble: Callable[[Path, Counts], Sequence[Part]] | None = None
    begin: Callable[[list[tuple[int, InputLine]], Callable[[int], object]], Any] = _input_lines
    has_room: Callable[[], bool] = _one_at_a_time
    files: FileFolder | None = None


def run_shards(
    output: str,
    sources: Sequence[Source],
    make: Callable[[str], Output],
    *,
    settings: dict[str, Any],
    probe: npt.NDArray[Any],
    bad_lines: BadLines,
    too_long: Callable[[list[str]], list[str | None]] | None,
    shard_size: int,
    resume: bool,
    show_progress: bool,
) -> Summary | None:
    """Compute an output file, or a folder of files, from files of texts, shard by shard.

    Parameters
    ----------
    output : str
        Name of the file or folder; a link is followed.
    sources : sequence of Source
        For the path "-" the standard input is copied first, because the input is read twice.
    make : callable
        Returns the `Output` for the file or folder of this name, which is not a link.
    settings : dict
        Values that must be the same to resume; JSON can hold them.
    probe : float ndarray
        The model's result for a fixed text; it must be the same to resume.
    bad_lines : BadLines
    too_long : callable, optional
        Texts -> for each the problem if it is too long, else None. Such texts are bad lines too.
    shard_size : int
        Most input lines of a shard, fewer if they are long. A crash loses at most one shard.
    resume : bool
        Continue an unfinished run of the same model, options and input; start one if there is none, or if the output
        of a finished run is gone.
    show_progress : bool

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
    shard_size = check_int("shard_size", shard_size, 1)
    if os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output):
        raise OSError(f"{output} is a device or a pipe; a run that can be resumed needs a file.")
    target = os.path.realpath(output)
    refuse_names(target, sources, settings)
    task = make(target)
    refuse_inputs(sources, [manifest_path(target), *(part.final for part in task.parts if part.final), target])
    again = (
        "Without resume=True it is computed again." if task.files is None else f"Delete {output} to compute it again."
    )
    with (
        RunFolder(target, task.parts, is_folder=task.files is not None) as folder,
        Shards(folder, task.files) as shards,
    ):
        unfinished = folder.manifest()
        if unfinished is not None and not resume:
            delete = "the folder" if task.files is None else folder.to_delete
            raise ValueError(f"{shards.describe()}. Continue it with resume=True, or delete {delete}.")
        if task.files is None:
            ended = os.path.exists(target)
        else:  # without its files, a run starts again, as without its one file
            ended = os.path.exists(manifest_path(target)) and not is_empty(task.files.path)
        finished = manifest_of_finished(target, again) if resume and unfinished is None and ended else None
        if unfinished is None and finished is None:
            shards.refuse_used()
        files = [
            dataclasses.replace(source, path=folder.keep_standard_input(standard_input))
            if source.path == "-"
            else source
            for source in sources
        ]
        before = [_state(source) for source in files]
        found = survey(files, bad_lines, too_long)
        _refuse_changes(files, before)
        mine = {
            "settings": {**settings, "minibert": minibert.__version__, "shard_size": shard_size},
            "inputs": [dataclasses.asdict(source) for source in sources],
            "checksums": found.checksums,
            "probe": np.nan_to_num(probe.astype(np.float64)).tolist(),
        }
        if finished is not None:
            compare(finished, mine, f"The run that made {output}", again)
            return None
        if task.files is not None:
            task.files.refuse_too_many(sum(found.counts))
        if unfinished is None:
            shards.start(mine)
        else:
            compare(
                unfinished,
                mine,
                "The unfinished run",
                f"Give the same again, or delete {folder.to_delete} to start again.",
            )
        if unfinished is None or "finished" not in unfinished:
            if unfinished is not None:
                shards.resume(bad_lines.report)
            n_resumed = shards.counts.n_texts
            done = n_resumed + shards.counts.n_left_out
            with progress_bar(sum(found.counts), show=show_progress, initial=min(done, sum(found.counts))) as count:
                _compute(task, shards, files, before, found, shard_size, count)
            counts, n_files = shards.finish(task.assemble)
        else:
            counts, n_files = shards.finish()
            n_resumed = counts.n_texts
    return Summary(
        **dataclasses.asdict(counts),
        width=task.width,
        n_resumed=n_resumed,
        seconds=time.perf_counter() - start,
        n_files=n_files,
    )


# --- the shards -------------------------------------------------------------------------------------------------------


def _compute(
    task: Output,
    shards: Shards,
    sources: Sequence[Source],
    before: Sequence[tuple[int, int]],
    found: Survey,
    shard_size: int,
    progress: Callable[[int], object],
) -> None:
    """Compute the shards that are not done yet; the input lines of the others are read and ignored."""
    input_lines = _numbered_lines(sources, found.checksums)
    # Lines are counted, not shards, because a shard of long lines has fewer of them.
    done = shards.counts.n_texts + shards.counts.n_left_out
    next(islice(input_lines, done, done), None)
    begun: deque[Any] = deque()

    def save_oldest() -> None:
        counts = task.compute(begun.popleft(), shards.counts, shards.append, progress)
        _refuse_changes(sources, before)
        shards.add_processors(task.processors())
        shards.commit(counts)

    for chunk in in_chunks(input_lines, shard_size, lambda numbered: weight(numbered[1]), CHARACTERS_AT_ONCE):
        begun.append(task.begin(chunk, progress))
        del chunk  # frees its memory before the next one is read
        while begun and not task.has_room():
            save_oldest()
    while begun:
        save_oldest()


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
