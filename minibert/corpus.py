"""A corpus run: files of texts -> one file of vectors, in bounded memory, to be resumed after a crash.

The input is gone through twice. First every record is looked at, so that one that cannot be used is met before anything
is computed, and the input's checksum is known; then the vectors are computed, a shard at a time. Distinct texts are
shared and sorted within a shard only: a shard depends on nothing but its own records, so a run that was interrupted
ends with the same bytes as one that was not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import minibert
from minibert.files import os_reason
from minibert.ops import FloatArray
from minibert.ordering import in_windows
from minibert.progress import progress_bar
from minibert.readers import Record, Source, read_records
from minibert.sentence import WINDOW, SentenceTransformer
from minibert.shards import Shard, ShardFolder, folder_of
from minibert.windows import check_positive
from minibert.writers import output_suffix, write_shards

__all__ = [
    "ON_ERROR",
    "Summary",
    "Survey",
    "check_on_error",
    "describe_problem",
    "embed_corpus",
    "numbered_records",
    "survey",
]

ON_ERROR = ("stop", "skip", "null")
"""What to do about a record that cannot be used: compute nothing at all, leave it out, put a vector of NaN there."""

# A run that stops says so about as many records, and counts the rest.
_PROBLEMS_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a run did.

    Parameters
    ----------
    n_texts, width : int
        Shape of what was written.
    n_tokens : int
        Tokens of the texts as they were computed, each text for itself.
    n_cut : int
        Texts that had more tokens than the model takes.
    n_left_out : int
        Records that could not be used and were left out.
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
class Survey:
    """What a first look at the input found: the checksum and the number of records of each file."""

    checksums: tuple[str, ...]
    counts: tuple[int, ...]


def embed_corpus(
    model: SentenceTransformer,
    sources: Sequence[Source],
    output: str,
    *,
    resume: bool = False,
    on_error: str = "stop",
    dtype: str = "float32",
    shard_size: int = WINDOW,
    settings: dict[str, Any] | None = None,
    show_progress: bool = False,
    report: Callable[[str], object] = print,
    **options: Any,
) -> Summary | None:
    """Compute one vector per text of some files and write them, in order, into one file.

    Parameters
    ----------
    model : SentenceTransformer
    sources : sequence of Source
    output : str
        Name of the file: .npy (with the ids beside it), .jsonl or .parquet.
    resume : bool
        Go on with what an earlier run of the same model, options and input has left; start, if there is nothing.
    on_error : {"stop", "skip", "null"}
        See `ON_ERROR`.
    dtype : {"float32", "float16"}
        Of the numbers that are written.
    shard_size : int
        Texts that are computed, and then saved, at a time: at most so many are lost by a crash.
    settings : dict, optional
        What else must be the same to resume, such as the model's name and revision.
    show_progress : bool
    report : callable
        Is given each problem as a line of text.
    **options
        Of `SentenceTransformer.encode_windows`. With truncation="error" a text that is too long counts as a record
        that cannot be used.

    Returns
    -------
    Summary, or None if resume finds the output complete

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; a record cannot be used with on_error="stop" (nothing was computed then); what there is
        to resume belongs to other settings; the input has changed.
    OSError
        A file cannot be read or written. What was computed stays in the folder ``<output>.parts``.
    """
    start = time.perf_counter()
    check_on_error(on_error)
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype={dtype!r}; expected 'float32' or 'float16'.")
    check_positive("shard_size", shard_size)
    if os.path.isdir(output):
        raise IsADirectoryError(f"{output} is a folder; give the name of a file to write.")
    output_suffix(output)
    folder = ShardFolder(folder_of(output))
    manifest = folder.manifest()
    if manifest is not None and not resume:
        raise ValueError(
            f"{folder.path} holds an unfinished run, {folder.count() * shard_size} texts of it done. Go on with it by "
            "--resume (resume=True), or delete the folder."
        )
    if manifest is None and resume and os.path.exists(output):
        folder.remove()
        return None
    long_texts = options.get("truncation") == "error"
    if long_texts:
        options["truncation"] = "silent"
    probe = _probe(model, options)
    task = _Task(model, sources, on_error, dtype, shard_size, long_texts, len(probe), options)
    mine = {
        "settings": {
            **(settings or {}),
            **options,
            "minibert": minibert.__version__,
            "max_seq_length": model.max_seq_length,
            "too_long": "error" if long_texts else "as truncation says",
            "on_error": on_error,
            "dtype": dtype,
            "shard_size": shard_size,
        },
        "inputs": [dataclasses.asdict(source) for source in sources],
        "probe": probe,
    }
    if manifest is None:
        folder.make()  # before the first look: if nothing can be written here, that is known at once
    try:
        found = survey(sources, on_error, _too_long(model, options) if long_texts else None)
    except BaseException:
        if manifest is None:
            folder.remove()
        raise
    mine["checksums"] = list(found.checksums)
    if manifest is None:
        folder.start(mine)
    else:
        _compare(manifest, mine, folder)
    resumed = int(folder.counts()[0])
    with progress_bar(sum(found.counts), show=show_progress, initial=folder.count() * shard_size) as bar:
        for number, shard in _shards(task, folder.count(), found, bar.update, report):
            folder.write(number, shard)
    n, n_tokens, n_cut, n_left_out = map(int, folder.counts())
    numbered = all(source.id_column is None for source in sources)
    write_shards(output, folder, n, task.width, dtype, numbered)
    folder.remove()
    return Summary(n, task.width, n_tokens, n_cut, n_left_out, resumed, time.perf_counter() - start)


def survey(
    sources: Sequence[Source], on_error: str, too_long: Callable[[list[str]], list[str | None]] | None = None
) -> Survey:
    """Look at every record before anything is computed.

    Parameters
    ----------
    sources : sequence of Source
    on_error : {"stop", "skip", "null"}
    too_long : callable, optional
        Says of some texts what is wrong with each.

    Raises
    ------
    ValueError
        With "stop": records cannot be used; each is named by file and line. There is no record at all.
    OSError
        A file cannot be read.
    """
    problems: list[str] = []
    checksums, counts, n_problems = [], [], 0
    for source in sources:
        checksum, count = hashlib.sha256(), 0
        for window in in_windows(read_records(source, checksum), 1024):
            count += len(window)
            if on_error != "stop":
                continue
            if too_long is not None:
                usable = [place for place, record in enumerate(window) if record.text is not None]
                reasons = too_long([window[place].text or "" for place in usable])
                for place, reason in zip(usable, reasons, strict=True):
                    window[place] = dataclasses.replace(window[place], problem=reason)
            for record in window:
                if record.problem is not None:
                    n_problems += 1
                    if len(problems) < _PROBLEMS_SHOWN:
                        problems.append(describe_problem(record))
        checksums.append(checksum.hexdigest())
        counts.append(count)
    if n_problems:
        more = f"\n... and {n_problems - len(problems)} more" if n_problems > len(problems) else ""
        raise ValueError(
            f"{n_problems} records cannot be used; nothing was computed:\n" + "\n".join(problems) + f"{more}\n"
            "Correct them, leave them out (--on-error skip), or keep their places empty (--on-error null)."
        )
    if not sum(counts):
        raise ValueError(f"{', '.join(source.name for source in sources)}: there is no text.")
    return Survey(tuple(checksums), tuple(counts))


def check_on_error(on_error: str) -> None:
    """Refuse what is none of `ON_ERROR`."""
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error={on_error!r}; expected one of {', '.join(map(repr, ON_ERROR))}.")


@dataclasses.dataclass(frozen=True)
class _Task:
    model: SentenceTransformer
    sources: Sequence[Source]
    on_error: str
    dtype: str
    shard_size: int
    long_texts: bool
    width: int
    options: dict[str, Any]


def numbered_records(sources: Iterable[Source], checksums: Sequence[str]) -> Iterator[tuple[int, Record]]:
    """Yield the records of all files with their number; make sure that they are those of the survey.

    Raises
    ------
    ValueError
        A file is not the one that the checksums were made of.
    """
    number = 0
    for source, expected in zip(sources, checksums, strict=True):
        checksum = hashlib.sha256()
        for record in read_records(source, checksum):
            yield number, record
            number += 1
        if checksum.hexdigest() != expected:
            raise ValueError(
                f"{source.name} was changed while it was read. What was computed may belong to either state of it: "
                "start again."
            )


def _shards(
    task: _Task, done: int, found: Survey, progress: Callable[[int], object], report: Callable[[str], object]
) -> Iterator[tuple[int, Shard]]:
    """Compute the shards that are not done yet; those that are, are read over."""
    before = [_state(source) for source in task.sources]
    for number, window in enumerate(in_windows(numbered_records(task.sources, found.checksums), task.shard_size)):
        if number < done:
            continue
        shard = _compute(task, window, progress, report)
        for source, state in zip(task.sources, before, strict=True):
            if _state(source) != state:
                raise ValueError(
                    f"{source.name} was changed while it was read; bring it back as it was, or start again."
                )
        yield number, shard


def _compute(
    task: _Task, window: list[tuple[int, Record]], progress: Callable[[int], object], report: Callable[[str], object]
) -> Shard:
    texts = [record.text for _, record in window if record.text is not None]
    encoded = next(task.model.encode_windows(texts, window=max(1, len(texts)), progress=progress, **task.options), None)
    progress(len(window) - len(texts))
    vectors, rows, n_tokens, n_cut = list[FloatArray](), list[dict[str, Any]](), 0, 0
    place = -1
    for number, record in window:
        problem, vector = record.problem, None
        if problem is None:
            place += 1
            assert encoded is not None  # there is a text
            cut = int(encoded.n_truncated[place])
            if cut and task.long_texts:
                problem = _length_problem(int(encoded.n_tokens[place]), task.model.max_seq_length)
            else:
                vector = encoded.vectors[place]
                n_tokens += int(encoded.n_tokens[place]) - cut
                n_cut += cut > 0
        if problem is not None:
            if task.on_error == "stop":
                raise ValueError(f"{record.file} was changed while it was read: line {record.line} {problem}.")
            report(describe_problem(dataclasses.replace(record, problem=problem)))
            if task.on_error == "skip":
                continue
        row = {"id": number if record.id is None else record.id, "file": record.file, "line": record.line}
        rows.append(row if problem is None else {**row, "null": problem})
        vectors.append(np.full(task.width, np.nan, dtype=np.float32) if vector is None else vector)
    array = np.stack(vectors) if vectors else np.zeros((0, task.width), dtype=np.float32)
    return Shard(array.astype(task.dtype), rows, n_tokens, n_cut, len(window) - len(rows))


def describe_problem(record: Record) -> str:
    """Say where a record stands and why it cannot be used."""
    return f"{record.file}, line {record.line}: {record.problem}"


def _length_problem(n_tokens: int, limit: int) -> str:
    return f"has {n_tokens} tokens, the limit is {limit} (max_seq_length)"


def _too_long(model: SentenceTransformer, options: dict[str, Any]) -> Callable[[list[str]], list[str | None]]:
    """Return a function that says of some texts which have more tokens than the model takes."""
    prompt = {name: options.get(name) for name in ("prompt", "prompt_name")}

    def reasons(texts: list[str]) -> list[str | None]:
        limit = model.max_seq_length
        return [_length_problem(n, limit) if n > limit else None for n in model.num_tokens(texts, **prompt)]

    return reasons


def _probe(model: SentenceTransformer, options: dict[str, Any]) -> list[float]:
    """Compute the vector of a fixed text, which tells whether model and options are those of another run.

    Where texts are split it is a long one, so that windows without room for a text are met at once.
    """
    text = "minibert " * (model.max_seq_length if options.get("truncation") == "split" else 1)
    encoded = next(model.encode_windows([text], **options))
    return [float(x) for x in encoded.vectors[0]]


def _state(source: Source) -> tuple[int, int]:
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise OSError(f"{source.name} cannot be read: {os_reason(error)}.") from error
    return status.st_size, status.st_mtime_ns


def _compare(theirs: dict[str, Any], mine: dict[str, Any], folder: ShardFolder) -> None:
    """Refuse to go on with what was made otherwise."""
    mine = json.loads(json.dumps(mine))
    start_again = f"Give the same again, or delete {folder.path} to start anew."
    if theirs.get("checksums") != mine["checksums"] or theirs.get("inputs") != mine["inputs"]:
        raise ValueError(f"The input is not the one that the unfinished run began with. {start_again}")
    then, now = theirs.get("settings", {}), mine["settings"]
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            raise ValueError(
                f"The unfinished run was begun with {name}={then.get(name)!r}, this one has {now.get(name)!r}. "
                f"{start_again}"
            )
    if len(theirs.get("probe", ())) != len(mine["probe"]) or not np.allclose(theirs["probe"], mine["probe"], atol=1e-4):
        raise ValueError(
            f"The model is not the one that the unfinished run began with: it gives another vector. {start_again}"
        )
