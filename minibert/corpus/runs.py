"""A run over a corpus: files of texts -> shards -> files, in bounded memory, with resume after a crash.

The input is read twice. The first reading finds lines that cannot be used before anything is computed, and computes the
input's checksum. The second reading computes the shards, one at a time. A shard depends only on its input lines, so an
interrupted run ends with the same bytes as one that was not. The caller computes the vectors and their bytes: of texts
(embed.py) or of tokens (extract.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

import minibert
from minibert.base.checks import check_choice, check_int, counted
from minibert.base.files import os_reason, printable
from minibert.base.ordering import in_chunks
from minibert.base.progress import progress_bar
from minibert.corpus.encoders import processor_name
from minibert.corpus.manifest import manifest_path, read_manifest
from minibert.corpus.readers import InputLine, Source, read_input_lines
from minibert.corpus.shards import Counts, Part, ShardFolder

__all__ = ["ON_ERROR", "Append", "BadLines", "Output", "Summary", "row_of", "run_shards", "standard_input", "survey"]

ON_ERROR = ("stop", "skip", "null")
"""If an input line cannot be used: compute nothing, leave the line out, or keep its row without a vector."""

# Most characters of the input lines that are held in memory, not counting the line that was read last.
_CHARACTERS_AT_ONCE = 2**25

# A run that stops shows at most this number of bad lines, and counts the others.
_PROBLEMS_SHOWN = 20

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
    """

    n_texts: int
    width: int
    n_tokens: int
    n_cut: int
    n_left_out: int
    n_resumed: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class BadLines:
    """The handling of input lines that cannot be used.

    Parameters
    ----------
    on_error : {"stop", "skip", "null"}
        See `ON_ERROR`.
    report : callable
        Called with each of them, as a line of text.

    Raises
    ------
    ValueError
        `on_error` is not one of these.
    """

    on_error: str
    report: Callable[[str], object]

    def __post_init__(self) -> None:
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
        self.report(_describe(input_line))
        return self.on_error == "null"


def _input_lines(chunk: list[tuple[int, InputLine]], progress: Callable[[int], object]) -> Any:
    """Begin nothing, and return the input lines."""
    return chunk


def _one_at_a_time() -> bool:
    """Return False: a shard is saved before the next one begins."""
    return False


def _this_processor() -> Collection[str]:
    """Return the name of this machine's processor."""
    return (processor_name(),)


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
    assemble : callable, optional
        See `ShardFolder.finish`.
    begin : callable
        Begins a shard, given its numbered input lines and a function to call with the number of lines done. By default
        it returns the input lines.
    has_room : callable
        Returns whether a further shard should begin before the oldest one that has begun is computed and saved.
    processors : callable
        Returns the names of the processors that have computed something, for the manifest.
    """

    parts: Sequence[Part]
    compute: Callable[[Any, Counts, Append, Callable[[int], object]], Counts]
    width: int
    assemble: Callable[[Path, Counts], Sequence[Part]] | None = None
    begin: Callable[[list[tuple[int, InputLine]], Callable[[int], object]], Any] = _input_lines
    has_room: Callable[[], bool] = _one_at_a_time
    processors: Callable[[], Collection[str]] = _this_processor


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
    """Compute an output file from files of texts, shard by shard.

    Parameters
    ----------
    output : str
        Name of the file; a link is followed.
    sources : sequence of Source
        For the path "-" the standard input is copied first, because the input is read twice.
    make : callable
        Returns the `Output` for the file of this name, which is not a link.
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
        Continue an unfinished run of the same model, options and input; start one if there is none.
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
    if os.path.exists(output) and not os.path.isfile(output):
        raise OSError(f"{output} is a device or a pipe; a run that can be resumed needs a file.")
    target = os.path.realpath(output)
    _refuse_names(target, sources, settings)
    task = make(target)
    _refuse_inputs(sources, [manifest_path(target), *(part.final for part in task.parts if part.final), target])
    with ShardFolder(target, task.parts) as folder:
        unfinished = folder.manifest()
        if unfinished is not None and not resume:
            raise ValueError(f"{folder.describe()}. Continue it with resume=True, or delete the folder.")
        finished = _finished(target) if resume and unfinished is None and os.path.exists(target) else None
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
            _compare(finished, mine, f"The run that made {output}", "Without resume=True it is computed again.")
            return None
        if unfinished is None:
            folder.start(mine)
        else:
            _compare(
                unfinished,
                mine,
                "The unfinished run",
                f"Give the same again, or delete {folder.path} to start again.",
            )
        if unfinished is None or "finished" not in unfinished:
            if unfinished is not None:
                folder.resume(bad_lines.report)
            n_resumed = folder.counts.n_texts
            done = n_resumed + folder.counts.n_left_out
            with progress_bar(sum(found.counts), show=show_progress, initial=min(done, sum(found.counts))) as count:
                _compute(task, folder, files, before, found, shard_size, count)
            folder.finish(task.assemble)
        else:
            folder.finish()
            n_resumed = folder.counts.n_texts
        counts = folder.counts
    seconds = time.perf_counter() - start
    return Summary(counts.n_texts, task.width, counts.n_tokens, counts.n_cut, counts.n_left_out, n_resumed, seconds)


def row_of(number: int, input_line: InputLine) -> dict[str, Any]:
    """Return the entry of an input line in an index: its id, file and line, and why it does not have a text.

    Without ids in the source the id is the input line's number. With ids it is None if it cannot be read, because a
    number could be the id of another input line.
    """
    row: dict[str, Any] = {
        "id": number if input_line.numbered else input_line.id,
        "file": input_line.file,
        "line": input_line.line,
    }
    return row if input_line.problem is None else {**row, "null": input_line.problem}


# --- the first reading ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Survey:
    """The checksum and the number of input lines of each file."""

    checksums: list[str]
    counts: list[int]


def survey(
    sources: Sequence[Source],
    bad_lines: BadLines,
    too_long: Callable[[list[str]], list[str | None]] | None,
    seen: Callable[[list[InputLine]], object] | None = None,
) -> _Survey:
    """Read every input line before anything is computed; with "stop" raise if some cannot be used.

    `seen` is called with all input lines, some at a time.
    """
    problems: list[str] = []
    checksums, counts, n_problems = [], [], 0
    for source in sources:
        checksum, count = hashlib.sha256(), 0
        for chunk in in_chunks(read_input_lines(source, checksum), 1024, _weight, _CHARACTERS_AT_ONCE):
            count += len(chunk)
            if seen is not None:
                seen(chunk)
            if bad_lines.on_error != "stop":
                continue
            if too_long is not None:
                usable = [index for index, input_line in enumerate(chunk) if input_line.text is not None]
                reasons = too_long([chunk[index].text or "" for index in usable])
                for index, reason in zip(usable, reasons, strict=True):
                    chunk[index] = dataclasses.replace(chunk[index], problem=reason)
            for input_line in chunk:
                if input_line.problem is not None:
                    n_problems += 1
                    if len(problems) < _PROBLEMS_SHOWN:
                        problems.append(_describe(input_line))
        checksums.append(checksum.hexdigest())
        counts.append(count)
    if n_problems:
        more = f"\n... and {n_problems - len(problems)} more" if n_problems > len(problems) else ""
        raise ValueError(
            f"{counted(n_problems, 'input line')} cannot be used; nothing was computed:\n"
            + "\n".join(problems)
            + f"{more}\n"
            "Correct them, leave them out (on_error='skip'), or keep their rows without vectors (on_error='null')."
        )
    if not sum(counts):
        raise ValueError(f"{', '.join(source.name for source in sources)}: there is no text; give files with texts.")
    return _Survey(checksums, counts)


def _weight(input_line: InputLine) -> int:
    """Count the characters of an input line."""
    return sum(len(value) for value in (input_line.text, input_line.id, input_line.problem) if isinstance(value, str))


def _describe(input_line: InputLine) -> str:
    return f"{input_line.file}, line {input_line.line}: {input_line.problem}"


# --- the shards -------------------------------------------------------------------------------------------------------


def _compute(
    task: Output,
    folder: ShardFolder,
    sources: Sequence[Source],
    before: Sequence[tuple[int, int]],
    found: _Survey,
    shard_size: int,
    progress: Callable[[int], object],
) -> None:
    """Compute the shards that are not done yet; the input lines of the others are read and ignored."""
    input_lines = _numbered_lines(sources, found.checksums)
    # Lines are counted, not shards, because a shard of long lines has fewer of them.
    done = folder.counts.n_texts + folder.counts.n_left_out
    next(islice(input_lines, done, done), None)
    begun: deque[Any] = deque()

    def save_oldest() -> None:
        counts = task.compute(begun.popleft(), folder.counts, folder.append, progress)
        _refuse_changes(sources, before)
        folder.add_processors(task.processors())
        folder.commit(counts)

    for chunk in in_chunks(input_lines, shard_size, lambda numbered: _weight(numbered[1]), _CHARACTERS_AT_ONCE):
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


# --- checks of files and settings -------------------------------------------------------------------------------------


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


def _finished(output: str) -> dict[str, Any]:
    manifest = read_manifest(output)
    if manifest is None:
        raise ValueError(
            f"There is nothing to resume: {output} exists, but not its manifest "
            f"{os.path.basename(manifest_path(output))}. Without resume=True it is computed again."
        )
    return manifest


def _compare(theirs: dict[str, Any], mine: dict[str, Any], whose: str, way_on: str) -> None:
    """Raise if a run to resume, finished or not, differs from this one."""
    mine = json.loads(json.dumps(mine))
    if theirs.get("checksums") != mine["checksums"] or theirs.get("inputs") != mine["inputs"]:
        raise ValueError(f"{whose} has another input: {_difference(theirs, mine)}. {way_on}")
    then, now = theirs.get("settings", {}), mine["settings"]
    # The version first: another version may have other names and values of settings, and round differently.
    for name in sorted({*then, *now}, key=lambda name: (name != "minibert", name)):
        if then.get(name) != now.get(name):
            raise ValueError(f"{whose} has {name}={then.get(name)!r}, this one has {name}={now.get(name)!r}. {way_on}")
    if len(theirs.get("probe", ())) != len(mine["probe"]) or not np.allclose(theirs["probe"], mine["probe"], atol=1e-4):
        raise ValueError(f"{whose} has another model, which gives another vector. {way_on}")


def _difference(theirs: dict[str, Any], mine: dict[str, Any]) -> str:
    names = [[source["name"] for source in one.get("inputs", ())] for one in (theirs, mine)]
    if names[0] != names[1]:
        return f"{', '.join(names[0])}, not {', '.join(names[1])}"
    changed = [
        name for name, then, now in zip(names[1], theirs["checksums"], mine["checksums"], strict=True) if then != now
    ]
    return f"{', '.join(changed)} has changed" if changed else "it was read in another way"


def standard_input() -> BinaryIO:
    """Return the standard input as bytes; raise a ValueError if it is closed."""
    if sys.stdin is None:
        raise ValueError("the standard input is closed.")
    return sys.stdin.buffer
