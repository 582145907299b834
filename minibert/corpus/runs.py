"""A run over a corpus: files of texts -> shards -> files, in bounded memory, to be resumed after a crash.

The input is gone through twice. First every input line is looked at, so that one that cannot be used is met before
anything is computed, and the input's checksum is known; then the shards are computed, one at a time. A shard depends on
nothing but its own input lines, so a run that was interrupted ends with the same bytes as one that was not. What is
computed, and in which bytes, is the caller's: vectors of texts (embed.py) or of tokens (extract.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

import minibert
from minibert.base.checks import check_choice, check_int
from minibert.base.files import os_reason
from minibert.base.ordering import in_chunks
from minibert.base.progress import progress_bar
from minibert.corpus.readers import InputLine, Source, read_input_lines
from minibert.corpus.shards import Counts, Part, ShardFolder, manifest_path, read_manifest

__all__ = ["ON_ERROR", "Append", "BadLines", "Output", "Summary", "row_of", "run_shards"]

ON_ERROR = ("stop", "skip", "null")
"""What to do about an input line that cannot be used: compute nothing at all, leave it out, keep its place empty."""

# Characters of the input lines that are held at a time; one more input line may come on top of them.
_CHARACTERS_AT_ONCE = 2**25

# A run that stops says so about as many input lines, and counts the rest.
_PROBLEMS_SHOWN = 20

Append = Callable[[str, bytes | memoryview], None]


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a run did.

    Parameters
    ----------
    n_texts : int
        Input lines in the output, those without a text included.
    width : int
        Numbers of one vector.
    n_tokens : int
        Tokens of the texts as they were computed, each text for itself.
    n_cut : int
        Texts that had more tokens than the model takes.
    n_left_out : int
        Input lines that could not be used and were left out.
    n_resumed : int
        Texts of earlier runs.
    seconds : float
        Of this run.
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
    """What becomes of input lines that cannot be used.

    Parameters
    ----------
    on_error : {"stop", "skip", "null"}
        See `ON_ERROR`.
    report : callable
        Is given each of them as a line of text.

    Raises
    ------
    ValueError
        `on_error` is none of these.
    """

    on_error: str
    report: Callable[[str], object]

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)

    def keep(self, input_line: InputLine) -> bool:
        """Report an input line whose `problem` says why it cannot be used, and return whether its place is kept.

        Raises
        ------
        ValueError
            With "stop": the first look has found no such input line, so the file is another one by now.
        """
        if self.on_error == "stop":
            raise ValueError(
                f"{input_line.file} was changed while it was read: line {input_line.line} {input_line.problem}."
            )
        self.report(_describe(input_line))
        return self.on_error == "null"


@dataclasses.dataclass(frozen=True)
class Output:
    """What a run makes of its shards.

    Parameters
    ----------
    parts : sequence of Part
        Those with a final name are the files that were asked for.
    compute : callable
        Is given the numbered input lines of a shard, how many texts of earlier shards are in the output, a function
        that appends bytes to the part of a name, and one to be told how many input lines are done; returns the shard's
        counts.
    width : int
        Numbers of one vector.
    assemble : callable, optional
        See `ShardFolder.finish`.
    """

    parts: Sequence[Part]
    compute: Callable[[list[tuple[int, InputLine]], Counts, Append, Callable[[int], object]], Counts]
    width: int
    assemble: Callable[[Path, Counts], Sequence[Part]] | None = None


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
    """Compute a file of some files of texts, shard by shard.

    Parameters
    ----------
    output : str
        Name of the file; a link is followed.
    sources : sequence of Source
        Of a path "-" the standard input is copied first, since it is read twice.
    make : callable
        Says what there is to do for the file of this name, which is no link.
    settings : dict
        What must be the same to resume; values that JSON has.
    probe : float ndarray
        What the model computes of a fixed text: this must be the same too.
    bad_lines : BadLines
    too_long : callable, optional
        Says of some texts what is wrong with each; these are bad lines too.
    shard_size : int
        Input lines of a shard, fewer where they are long: the most that a crash can lose.
    resume : bool
        Go on with what an earlier run of the same model, options and input has left; start, if there is nothing.
    show_progress : bool

    Returns
    -------
    Summary, or None if resume finds that this very run has ended

    Raises
    ------
    ValueError
        An input line cannot be used with on_error="stop" (nothing was computed then); what there is to resume, or has
        ended, belongs to other settings, another model or input; the input has changed.
    OSError
        A file cannot be read or written; another process writes this output. What was computed is kept.
    """
    start = time.perf_counter()
    shard_size = check_int("shard_size", shard_size, 1)
    if os.path.isdir(output):
        raise IsADirectoryError(f"{output} is a folder; give the name of a file to write.")
    if os.path.exists(output) and not os.path.isfile(output):
        raise OSError(f"{output} is a device or a pipe; a run that can be resumed needs a file.")
    target = os.path.realpath(output)
    _refuse_names(target, sources, settings)
    task = make(target)
    _refuse_inputs(sources, [manifest_path(target), *(part.final for part in task.parts if part.final), target])
    with ShardFolder(target, task.parts) as folder:
        unfinished = folder.manifest()
        if unfinished is not None and not resume:
            raise ValueError(f"{folder.describe()}. Go on with it by resume=True, or delete the folder.")
        finished = _finished(target) if resume and unfinished is None and os.path.exists(target) else None
        files = [
            dataclasses.replace(source, path=folder.keep_standard_input(_standard_input))
            if source.path == "-"
            else source
            for source in sources
        ]
        before = [_state(source) for source in files]
        found = _survey(files, bad_lines, too_long)
        _refuse_changes(files, before)
        mine = {
            "settings": {**settings, "minibert": minibert.__version__, "shard_size": shard_size},
            "inputs": [dataclasses.asdict(source) for source in sources],
            "checksums": found.checksums,
            "probe": np.nan_to_num(probe.astype(np.float64)).tolist(),
        }
        if finished is not None:
            _compare(finished, mine, f"The run that made {output}", "Without resume=True it is made anew.")
            return None
        if unfinished is None:
            folder.start(mine)
        else:
            _compare(
                unfinished,
                mine,
                "The unfinished run",
                f"Give the same again, or delete {folder.path} to start anew.",
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
    """Return what an index says of an input line: its id, its place, why it has no text.

    The id is the input line's number where its source has no ids; None where it has, and this one cannot be read: a
    number might be that of another input line.
    """
    row: dict[str, Any] = {
        "id": number if input_line.numbered else input_line.id,
        "file": input_line.file,
        "line": input_line.line,
    }
    return row if input_line.problem is None else {**row, "null": input_line.problem}


# --- the first look ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Survey:
    """The checksum and the number of input lines of each file."""

    checksums: list[str]
    counts: list[int]


def _survey(
    sources: Sequence[Source], bad_lines: BadLines, too_long: Callable[[list[str]], list[str | None]] | None
) -> _Survey:
    """Look at every input line before anything is computed; with "stop" refuse those that cannot be used."""
    problems: list[str] = []
    checksums, counts, n_problems = [], [], 0
    for source in sources:
        checksum, count = hashlib.sha256(), 0
        for chunk in in_chunks(read_input_lines(source, checksum), 1024, _weight, _CHARACTERS_AT_ONCE):
            count += len(chunk)
            if bad_lines.on_error != "stop":
                continue
            if too_long is not None:
                usable = [place for place, input_line in enumerate(chunk) if input_line.text is not None]
                reasons = too_long([chunk[place].text or "" for place in usable])
                for place, reason in zip(usable, reasons, strict=True):
                    chunk[place] = dataclasses.replace(chunk[place], problem=reason)
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
            f"{n_problems} input lines cannot be used; nothing was computed:\n" + "\n".join(problems) + f"{more}\n"
            "Correct them, leave them out (on_error='skip'), or keep their places empty (on_error='null')."
        )
    if not sum(counts):
        raise ValueError(f"{', '.join(source.name for source in sources)}: there is no text.")
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
    """Compute the shards that are not done yet; the input lines of those that are, are read over."""
    input_lines = _numbered_lines(sources, found.checksums)
    # Not the number of shards times their size: a shard of long input lines has fewer.
    done = folder.counts.n_texts + folder.counts.n_left_out
    next(islice(input_lines, done, done), None)
    for chunk in in_chunks(input_lines, shard_size, lambda numbered: _weight(numbered[1]), _CHARACTERS_AT_ONCE):
        counts = task.compute(chunk, folder.counts, folder.append, progress)
        _refuse_changes(sources, before)
        folder.commit(counts)
        del chunk  # before the next one is read


def _numbered_lines(sources: Sequence[Source], checksums: Sequence[str]) -> Iterator[tuple[int, InputLine]]:
    """Yield the input lines of all files with their number; make sure that they are those of the survey."""
    number = 0
    for source, expected in zip(sources, checksums, strict=True):
        checksum = hashlib.sha256()
        for input_line in read_input_lines(source, checksum):
            yield number, input_line
            number += 1
        if checksum.hexdigest() != expected:
            raise ValueError(
                f"{source.name} was changed while it was read. What was computed may belong to either state of it: "
                "start again."
            )


def _refuse_changes(sources: Sequence[Source], before: Sequence[tuple[int, int]]) -> None:
    """Refuse files that are not as they were before the first look, so that no shard is of another state than it."""
    for source, state in zip(sources, before, strict=True):
        if _state(source) != state:
            raise ValueError(f"{source.name} was changed while it was read; bring it back as it was, or start again.")


def _state(source: Source) -> tuple[int, int]:
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise OSError(f"{source.name} cannot be read: {os_reason(error)}.") from error
    return status.st_size, status.st_mtime_ns


# --- what must not be mixed -------------------------------------------------------------------------------------------


def _refuse_names(output: str, sources: Sequence[Source], settings: dict[str, Any]) -> None:
    """Refuse what the manifest, which is UTF-8, cannot hold: names of files in another encoding, mostly."""
    names = [os.path.basename(output), *(source.path for source in sources), *settings.values()]
    for name in filter(lambda name: isinstance(name, str), names):
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{name!r} is not UTF-8, in which the manifest is written; give another name.") from None


def _refuse_inputs(sources: Sequence[Source], outputs: Sequence[str]) -> None:
    for source in sources:
        path = source.path
        if path != "-" and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise ValueError(
                f"{source.name} is a pipe or a device, but the input is read twice; give it as the standard input, -, "
                "which is copied first."
            )
        for output in outputs:
            if os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output):
                raise ValueError(f"{output} is the input, and would be written over; give another output.")


def _finished(output: str) -> dict[str, Any]:
    manifest = read_manifest(output)
    if manifest is None:
        raise ValueError(
            f"There is nothing to resume: {output} exists, but no {os.path.basename(manifest_path(output))} that says "
            "of which run. Without resume=True it is made anew."
        )
    return manifest


def _compare(theirs: dict[str, Any], mine: dict[str, Any], whose: str, way_on: str) -> None:
    """Refuse to go on with, or to take for done, what was made otherwise."""
    mine = json.loads(json.dumps(mine))
    if theirs.get("checksums") != mine["checksums"] or theirs.get("inputs") != mine["inputs"]:
        raise ValueError(f"{whose} began with another input: {_difference(theirs, mine)}. {way_on}")
    then, now = theirs.get("settings", {}), mine["settings"]
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            raise ValueError(
                f"{whose} was begun with {name}={then.get(name)!r}, this one has {now.get(name)!r}. {way_on}"
            )
    if len(theirs.get("probe", ())) != len(mine["probe"]) or not np.allclose(theirs["probe"], mine["probe"], atol=1e-4):
        raise ValueError(f"{whose} had another model: this one gives another vector. {way_on}")


def _difference(theirs: dict[str, Any], mine: dict[str, Any]) -> str:
    names = [[source["name"] for source in one.get("inputs", ())] for one in (theirs, mine)]
    if names[0] != names[1]:
        return f"{', '.join(names[0])}, not {', '.join(names[1])}"
    changed = [
        name for name, then, now in zip(names[1], theirs["checksums"], mine["checksums"], strict=True) if then != now
    ]
    return f"{', '.join(changed)} has changed" if changed else "it was read otherwise"


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise ValueError("the standard input is closed.")
    return sys.stdin.buffer
