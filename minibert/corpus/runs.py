"""A run over a corpus: files of texts -> shards -> the output. Memory is bounded; a run resumes after a crash.

The input is read twice. The first reading finds lines that cannot be used before anything is computed, and computes the
input's checksum. The second reading computes the shards, one at a time. A shard depends only on its input lines, so an
interrupted run ends with the same bytes as one that was not. A run that is resumed skips the shards whose files are as
their records say; run_folder.py has these files.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.files import printable
from minibert._utils.keywords import check_keywords
from minibert._utils.reporting import progress_bar
from minibert._utils.validation import brief, check_choice, check_int, counted
from minibert._version import __version__
from minibert.corpus import manifests
from minibert.corpus.run_folder import RunFolder
from minibert.corpus.sources import INPUT_FORMATS, ON_EMPTY, ON_ERROR, InputLine, Source
from minibert.corpus.survey import in_memory, numbered_lines, survey
from minibert.corpus.tasks import Counts, Files, Lines, Progress, Task
from minibert.models.fingerprint import differences, has_bits, sha256

SHARD_SIZE = 10_000
"""Most input lines of a shard if the caller does not say."""

# The manifest names this many cut texts, and this many empty ones; without a limit it would need much memory.
_NAMED = 100_000

# The settings that change no result: who was named, and which rows there are. The fingerprint is compared, too.
_NOT_OF_RESULTS = {"minibert", "model", "revision", "prompts", "backend", "batch_size", "shard_size", "shard_numbers"}
_NOT_OF_RESULTS |= {"on_error", "on_empty"}
_COMPARED = ("n_kept", "n_new", "n_changed", "n_removed")


@dataclasses.dataclass(frozen=True)
class Summary(Counts):
    """The counts of a run.

    Parameters
    ----------
    n_texts, n_tokens, n_cut, n_left_out, n_empty, n_words : int
        As in `Counts`.
    width : int
        Numbers of one vector.
    n_resumed : int
        Texts that earlier runs have computed.
    seconds : float
        Time of this run.
    n_files : int
        Files of vectors: 1, or those in the folder that the output is.
    n_kept, n_new, n_changed, n_removed : int
        Of an update: texts whose results the output had, texts with a new id, texts that an id did not have, and rows
        whose id is not there any more.
    n_duplicate_ids, n_empty_ids : int
        Of `embed_corpus` and its like: rows with an id that an earlier row has, and rows with an empty one.
    """

    width: int = 0
    n_resumed: int = 0
    seconds: float = 0.0
    n_files: int = 1
    n_kept: int = 0
    n_new: int = 0
    n_changed: int = 0
    n_removed: int = 0
    n_duplicate_ids: int = 0
    n_empty_ids: int = 0

    def __str__(self) -> str:
        """Return the counts in words: those of texts, tokens and cut texts, and all others that are not zero."""
        compared = ", ".join(f"{getattr(self, name):,} {name.removeprefix('n_')}" for name in _COMPARED)
        parts = {
            counted(self.n_texts, "text"): True,
            f"{self.n_resumed} of them by earlier runs": self.n_resumed,
            counted(self.n_words, "word"): self.n_words,
            counted(self.n_tokens, "token"): True,
            f"{counted(self.n_cut, 'text')} cut": True,
            f"{self.n_empty} empty": self.n_empty,
            f"{counted(self.n_left_out, 'input line')} left out": self.n_left_out,
            counted(self.n_duplicate_ids, "duplicate id"): self.n_duplicate_ids,
            counted(self.n_empty_ids, "empty id"): self.n_empty_ids,
        }
        counts = ", ".join(part for part, is_said in parts.items() if is_said)
        counts += f"; {compared}" if any(getattr(self, name) for name in _COMPARED) else ""
        return f"{counts}, {self.seconds:.1f} seconds"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that every run has.

    Parameters
    ----------
    resume : bool
        Continue an unfinished run of the same model, options and input; start one if there is none, or if the output
        of a finished run is gone.
    update : bool
        Texts that the finished output has keep their results, and the others are computed; rows that are not in the
        input any more go. The files are those of a run from nothing. Until they are complete, the output is as it was.
        Without an output this is a run from nothing; an unfinished run is continued.
    recompute : bool
        With `update`: if the model, its fingerprint or an option differs, compute all texts again. Else it is an error.
    on_error : {"stop", "skip", "null"}
        What happens if an input line cannot be used. "stop" computes nothing, "skip" leaves the line out, "null" keeps
        its row without a result.
    on_empty : {"keep", "null", "skip", "error"}
        What happens to a text without a visible character, or a null instead of a text. "keep" computes the text as it
        is; a null is then an input line that cannot be used. "null" keeps the row without a result, "skip" leaves the
        line out, and "error" computes nothing.
    shard_size : int
        Most input lines of a shard, fewer if they are long. A crash loses at most one shard.
    settings : dict, optional
        Values that must be the same to resume, such as the model's name and revision; JSON can hold them.
    show_progress : bool or str
        See `minibert._utils.reporting.progress_bar`.
    report : callable
        Called with each problem, as a line of text.

    Raises
    ------
    TypeError, ValueError
        A value is wrong.
    """

    resume: bool = False
    update: bool = False
    recompute: bool = False
    on_error: str = "stop"
    on_empty: str = "keep"
    shard_size: int = SHARD_SIZE
    settings: dict[str, Any] | None = None
    show_progress: bool | str = False
    report: Callable[[str], object] = print

    def __post_init__(self) -> None:
        check_int("shard_size", self.shard_size, 1)
        check_choice("on_error", self.on_error, ON_ERROR)
        check_choice("on_empty", self.on_empty, ON_EMPTY)
        if self.resume and self.update:
            raise ValueError(
                "resume=True and update=True are both given, and the second continues a run too. Give one."
            )
        if self.recompute and not self.update:
            raise ValueError("recompute=True is for an update: give update=True too, or leave it out.")

    def action(self, line: InputLine) -> str:
        """Return what happens to an input line: "keep", "null", "skip" or "stop"; one to leave out gets a problem."""
        if line.empty and self.on_empty != "keep":
            line.text, line.problem = None, line.problem or "is empty"
            return "stop" if self.on_empty == "error" else self.on_empty
        return "keep" if line.problem is None else self.on_error

    def kept(self, lines: Lines) -> Lines:
        """Report the input lines that cannot be used, and return those that have a row.

        Raises
        ------
        ValueError
            The first reading would have refused this line before anything was computed, so the file has changed.
        """
        actions = [(line, self.action(line)) for line in lines]
        for line, action in actions:
            if action == "stop":
                raise ValueError(f"{line.file} was changed while it was read: line {line.line} {line.problem}.")
            if line.problem is not None and (self.on_empty == "keep" or not line.empty):
                self.report(line.describe())
        return [line for line, action in actions if action != "skip"]


class Run:
    """A run of a task over files of texts, shard by shard.

    Parameters
    ----------
    sources : sequence of Source
        For the path "-" the standard input is copied first, because the input is read twice.
    task : Task
    options : RunOptions
    """

    def __init__(self, sources: Sequence[Source], task: Task, options: RunOptions) -> None:
        self.sources, self.task, self.options = sources, task, options
        self.folder = RunFolder(task, options.report)
        self._numbered = all(source.numbered for source in sources)

    def compute(self) -> Summary:
        """Compute what is not computed yet, and write the output.

        Returns
        -------
        Summary
            If this very run has ended, nothing is computed: all texts are resumed, or kept by an update.

        Raises
        ------
        ValueError
            An input line cannot be used with on_error="stop"; nothing was computed then. The run to resume, finished
            or not, has other settings, another model or another input. The input has changed.
        OSError
            A file cannot be read or written; another process writes this output. Computed shards are kept.
        """
        start, folder = time.perf_counter(), self.folder
        _refuse_inputs(self.sources, [str(folder.beside), *(file.output for file in self.task.files)])
        if os.path.exists(folder.output) and not os.path.isfile(folder.output) and not os.path.isdir(folder.output):
            raise OSError(f"{folder.output} is a device or a pipe; a run that can be resumed needs a file.")
        with folder:
            if (ended := self._begin()) is not None:
                counts, rows = Counts(**ended["finished"]["counts"]), [Path(self.task.files[-1].output)]
                facts = self._repeated(rows) | vars(counts)
                if self.options.update:
                    facts["n_kept"] = sum(self.task.compared(rows, numbered=False)[:3])
                else:
                    facts["n_resumed"] = counts.n_texts
                n_files = sum("rows" in output for output in manifests.outputs_of(ended)) or 1
                return Summary(**facts, n_files=n_files, width=self.task.width, seconds=time.perf_counter() - start)
            done, total = folder.whole_shards(), self._total
            resumed, counts, number = sum(done.values(), Counts()), Counts(), 0
            known = min(resumed.n_texts + resumed.n_left_out, total)
            with progress_bar(total, show=self.options.show_progress, initial=known) as progress:
                lines = numbered_lines(self._files, self._checksums)
                for chunk in in_memory(lines, self.options.shard_size, self.task.numbers):
                    counts += done[number] if number in done else self._save(number, chunk, counts, progress)
                    number += 1
                    del chunk  # frees its memory before the next one is read
            rows = [folder.shard(i, self.task.files[-1].suffix) for i in range(number)]
            compared = self._repeated(rows)
            if self.options.update:
                compared |= dict(zip(_COMPARED, self.task.compared(rows, self._numbered), strict=True))
            folder.finish(counts, number)
        seconds, n_files = time.perf_counter() - start, number if self.task.into_folder else 1
        facts = {**vars(counts), **compared, "n_resumed": resumed.n_texts, "n_files": n_files}
        return Summary(**facts, width=self.task.width, seconds=seconds)

    def _repeated(self, rows: Sequence[Path]) -> dict[str, int]:
        return {} if self._numbered else self.task.repeated(rows)

    def _begin(self) -> dict[str, Any] | None:
        """Start the run, or find that it can be continued; return its manifest if it has ended."""
        # What is there    neither option       resume                             update
        # nothing          begin                begin                              begin
        # unfinished run   refuse               continue; refuse if it is another  the same without an output; with one:
        #                                                                          continue, begin if it is another
        # finished run     begin, and replace   done; refuse if it is another      done if nothing differs; else begin
        # An update of an output takes its results; it is refused if they were made otherwise (`_reuse`).
        folder, update = self.folder, self.options.update
        unfinished = folder.manifest()
        if unfinished is not None and "finished" in unfinished:  # killed while its outputs got their names
            folder.commit()
            unfinished = None
        finished = None
        if update or self.options.resume:
            if unfinished is None or (update and folder.beside.exists()):
                finished = folder.finished()
        elif unfinished is not None:
            shards = counted(len(folder.records()), "shard")
            how = f"Continue it with resume=True, or delete {folder.to_delete}."
            raise ValueError(f"{folder.path} holds an unfinished run with {shards} done. {how}")
        if unfinished is None and finished is None:
            folder.refuse_strangers()
        self.sources = _named_as(self.sources, unfinished or finished or {})
        mine = self._survey()
        if finished is not None and update:
            facts = _facts(json.loads(manifests.as_json(mine)))
            same = unfinished is None and _facts(finished) == facts
            if same and not manifests.changed_output(finished, folder.output):
                return finished
            self._reuse(finished, mine)
            if unfinished is not None and _facts(unfinished) != facts:  # of another input; it is not worth much
                unfinished = None
        elif finished is not None:
            _compare(finished, mine, f"The run that made {folder.output}", folder.again)
            manifests.check_outputs(finished, folder.output, folder.again)
            return finished
        if unfinished is None:
            folder.start(mine, finished is not None)
        else:
            delete = f"Give the same again, or delete {folder.to_delete} to start again."
            _compare(unfinished, mine, "The unfinished run", delete)
        folder.digits = max(folder.digits, len(str(self._total)))  # there are no more shards than lines
        return None

    def _reuse(self, finished: dict[str, Any], mine: dict[str, Any]) -> None:
        """Let the task take the results of the output; raise if it was made otherwise, unless all is to be computed."""
        left_out = {*_NOT_OF_RESULTS, *(self.options.settings or {})}
        then, now = (
            {name: value for name, value in run["settings"].items() if name not in left_out} | run["fingerprint_parts"]
            for run in ({"fingerprint_parts": {}, **finished}, json.loads(manifests.as_json(mine)))
        )
        names, rows = differences(then, now), os.path.basename(self.task.files[-1].output)
        if rows not in finished["finished"]["outputs"]:
            differ: str | None = f"no {rows}, because an earlier version has written it"
        elif names:
            differ = manifests.difference(names[0], then, "this run has", now)
        else:
            differ = manifests.changed_output(finished, self.folder.output)
            differ = differ and f"a {differ} that is not as its run has written it"
        if not differ:
            self.task.reuse(self.folder.path)
        elif not self.options.recompute:
            how = "Give recompute=True to compute all texts again, or another output."
            raise ValueError(f"{self.folder.output} cannot be updated: it has {differ}. {how}")

    def _survey(self) -> dict[str, Any]:
        """Read the input for the first time, and return the manifest of this run."""
        sources, options = self.sources, self.options
        self._files = [
            dataclasses.replace(source, path=self.folder.path_of(source, options.update)) for source in sources
        ]
        self._states = [*map(_state, self._files)]

        def stops(chunk: Lines) -> Lines:
            self.task.survey(chunk)
            if options.on_error == "stop":
                self.task.refuse_long(chunk)
            return [line for line in chunk if options.action(line) == "stop"]

        with progress_bar(None, show=options.show_progress, unit=" lines read") as progress:
            self._checksums, self._total = survey(self._files, stops=stops, report=options.report, progress=progress)
        self._refuse_changes()
        contents = [*zip(self._checksums, (dataclasses.replace(one, path="", name="") for one in sources), strict=True)]
        last = {content: i for i, content in enumerate(contents)}
        if again := [source.name for i, source in enumerate(sources) if last[contents[i]] > i]:
            what = f"{counted(len(again), 'file')} with the content of a later file: {brief(again)}"
            options.report(f"{what}. Each of these texts has a row for each of its files")
        own = {name: getattr(options, name) for name in ("on_error", "on_empty", "shard_size")}
        return {
            "settings": {**(options.settings or {}), **self.task.settings, **own, "minibert": __version__},
            "inputs": [{**dataclasses.asdict(source), "path": _absolute(source)} for source in sources],
            "checksums": self._checksums,
            "fingerprint": sha256(self.task.fingerprint_parts),
            "fingerprint_parts": self.task.fingerprint_parts,
            "probe": np.nan_to_num(self.task.probe.astype(np.float64)).tolist(),
        }

    def _save(self, number: int, chunk: Lines, earlier: Counts, progress: Progress) -> Counts:
        """Compute a shard and save it; return its counts, given those of all earlier shards."""
        if self.options.on_error != "stop":  # else the first reading has found them
            self.task.refuse_long(chunk)
        lines = self.options.kept(chunk)
        progress(len(chunk) - len(lines))

        def write(opened: Files) -> tuple[Counts, dict[str, Any]]:
            n_tokens, n_truncated = self.task.write(lines, earlier, opened, progress)
            self._refuse_changes()
            with_text = [line for line in lines if line.text is not None]
            cut = [line.id for line, n in zip(with_text, n_truncated, strict=True) if n]
            empty = [line.id for line in chunk if line.empty]
            n_words = sum(len(line.words or ()) for line in with_text)
            counts = Counts(len(lines), n_tokens, len(cut), len(chunk) - len(lines), len(empty), n_words)
            processor = self.task.model.ops.processor() if with_text else None
            named = {"cut": cut[: max(0, _NAMED - earlier.n_cut)], "empty": empty[: max(0, _NAMED - earlier.n_empty)]}
            return counts, {"processor": processor, **named}

        return self.folder.save(number, write)

    def _refuse_changes(self) -> None:
        """Raise if a file is not as it was before the first reading; all shards need the same one."""
        for source, state in zip(self._files, self._states, strict=True):
            if _state(source) != state:
                raise ValueError(f"{source.name} was changed while it was read. Restore it, or start again.")


def check_arguments(
    function: Callable[..., Summary], models: dict[str, Any], sources: Any, options: dict[str, Any], known: Any
) -> None:
    """Raise a TypeError for a model of another class, for sources that are no `Source`, and for an unknown option.

    `models` are the models that the function takes by name, each with its class; `known` are the names of options.
    """
    for name, (model, kind) in models.items():
        if not isinstance(model, kind):
            expected = getattr(kind, "__name__", None) or " or ".join(each.__name__ for each in kind.__args__)
            raise TypeError(f"{name} is a {type(model).__name__}; expected a loaded {expected}.")
    listed = isinstance(sources, Sequence) and not isinstance(sources, str)
    if not listed or not sources or not all(isinstance(source, Source) for source in sources):
        how = f"such as [Source('texts.txt', 'text')]; the formats are {', '.join(INPUT_FORMATS)}"
        raise TypeError(f"sources={brief(sources)}; expected a list of Source, {how}.")
    check_keywords(function.__name__, options, {}, settings=known, function=function)


def number_settings(model: Any) -> dict[str, Any]:
    """Return the settings that decide a model's rounding, for a run's manifest; defaults are left out."""
    settings = {} if model.compute_type == "float32" else {"compute_type": model.compute_type}
    return settings if has_bits(model.ops) else {**settings, "products": "NumPy"}


# --- an earlier run, and the inputs -----------------------------------------------------------------------------------


def _compare(theirs: dict[str, Any], mine: dict[str, Any], whose: str, way_on: str) -> None:
    """Raise if a run to resume, finished or not, differs from this one."""
    then, now = _facts(theirs), _facts(json.loads(manifests.as_json(mine)))
    for name in now | then:
        if then.get(name) != now.get(name):
            raise ValueError(f"{whose} has {manifests.difference(name, then, 'this one has', now)}. {way_on}")
    if not manifests.same_probe(theirs["probe"], mine["probe"]):
        raise ValueError(f"{whose} has another model: it gives another vector. {way_on}")


def _facts(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same to resume, by name.

    The version is the first, because another version may have other names and values, and round differently.
    """
    names = [source["name"] for source in manifest["inputs"]]
    checksums = {f"checksum of {name}": checksum for name, checksum in zip(names, manifest["checksums"], strict=True)}
    version = manifest["settings"].get("minibert")
    # An earlier version may not have had all fields. The path is that of the name, but from any folder.
    inputs = [Source(**{**source, "path": ""}) for source in manifest["inputs"]]
    given = {"minibert": version, "input": names, **checksums, "inputs": inputs, **manifest["settings"]}
    return {**given, **manifest.get("fingerprint_parts", {})}


def _named_as(sources: Sequence[Source], run: dict[str, Any]) -> list[Source]:
    """Return the sources with the names that a run has for the same files: ../a.csv may be its a.csv.

    If the run or the sources have several names for one file, these stay: a link and its file are two inputs.
    """
    theirs, given = dict[str, set[str]](), dict[str, set[str]]()
    for names, inputs in ((theirs, run.get("inputs", ())), (given, map(dataclasses.asdict, sources))):
        for one in inputs:
            if one["path"] != "-":
                names.setdefault(os.path.realpath(one["path"]), set()).add(one["name"])
    named = []
    for source in sources:
        file, name = os.path.realpath(source.path), source.name
        own = source.path == "-" or name != printable(source.path)  # a name that the caller has given
        if not own and len(theirs.get(file, ())) == len(given[file]) == 1:
            (name,) = theirs[file]
        named.append(dataclasses.replace(source, name=name))
    return named


def _refuse_inputs(sources: Sequence[Source], outputs: Sequence[str]) -> None:
    """Refuse inputs that cannot be read twice, or that the outputs would overwrite."""
    for source in sources:
        path = source.path
        if path != "-" and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise ValueError(f"{source.name} is a pipe or a device; give it as the standard input, '-'.")
        for output in outputs:
            if os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output):
                raise ValueError(f"{output} is an input too, and would be overwritten; give another output.")


def _absolute(source: Source) -> str:
    return source.path if source.path == "-" else os.path.abspath(source.path)


def _state(source: Source) -> tuple[int, int]:
    status = os.stat(source.path)
    return status.st_size, status.st_mtime_ns
