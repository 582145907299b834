"""The verbs' options for files of texts, and runs over these files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minibert._utils.validation import counted
from minibert.checkpoint.files import absolute
from minibert.cli.options import chosen
from minibert.cli.output import read_texts, report_problem, report_written
from minibert.corpus.runs import RunOptions, Summary
from minibert.corpus.sources import INPUT_FORMATS, ON_EMPTY, ON_ERROR, Source, input_format

OF_COLUMNS = ("input_format", "text_column", "text_separator", "id_column", "html")
OF_FILES = (*OF_COLUMNS, *RunOptions.__dataclass_fields__, "progress")  # of the verbs that also take texts

COLUMNS = f"""--input-format {"|".join(INPUT_FORMATS)}: default: by the suffix of each file's name, else text
        --text-column NAME: column or key of the texts (default: text, form, or column_1); if it is given
            several times, the texts are joined
        --text-separator TEXT: between the texts of several columns; \\n and \\t are a newline and a tab (default: \\n)
        --html: the texts are HTML; take their text
        --id-column NAME: column or key of the ids (default: numbers of the lines, from 0)"""
PROGRESS = """--progress auto|always|never = auto: show the count and the time left: a bar on a terminal, elsewhere a
            line each 30 seconds; with always also one at the end"""
UPDATE = """--update: keep the vectors of all texts that OUT has, compute new and changed ones, and leave removed ones
            out; OUT stays as it was until the new one is complete, and --update continues an interrupted one
        --recompute: with --update: compute all texts again if the model or an option is another one"""


def inputs(shard_size: int = 10_000) -> str:
    """Return the options for files of texts: which files, how they are read, and how a run is saved."""
    return f"""
        -i, --input, --input_file FILE: files of texts: one per line, .jsonl, .csv, .tsv, .conllu or .conll, each also
            as .gz, or .parquet; "-" is the standard input
        {COLUMNS}
        --on-error {"|".join(ON_ERROR)} = stop: if lines cannot be used: stop and compute nothing, skip these lines, or
            keep their rows without vectors
        --on-empty {"|".join(ON_EMPTY)} = keep: if texts are null or without a visible character: compute them as they
            are (null is then an error), keep their rows without vectors, leave them out, or stop and compute nothing
        --resume: continue an interrupted run, or start one if there is none
        --shard-size N = {shard_size}: texts that are computed, then saved, together; a crash loses at most these
        {PROGRESS}
        """


def texts_or_files(
    arguments: argparse.Namespace,
    check_path: Callable[[str], object],
    for_texts: Sequence[str] = (),
    for_files: Sequence[str] = (),
) -> list[str] | None:
    """Return the texts; None if files are given instead, with an output whose path `check_path` accepts.

    The names are of options that are only for texts, or only for files.

    Raises
    ------
    ValueError, OSError
        Neither texts nor files are given, or options that do not fit together; or as in `read_texts`.
    """
    files = bool(arguments.input)
    if files == bool(arguments.texts):
        both = "texts and --input are both given; give one of them."
        raise ValueError(both if files else "there is no text; give texts, or a file with --input.")
    if files and arguments.output is None:
        raise ValueError("--input needs --output FILE.")
    use = "texts; leave it out with --input." if files else "files of texts; name them with --input."
    arguments.parser.refuse(for_texts if files else (*for_files, *OF_FILES), f"is for {use}")
    if not files:
        return read_texts(arguments.texts)
    check_path(arguments.output)
    return None


def run_over_files(
    arguments: argparse.Namespace, run: Callable[..., Summary], *models: Any, what: str, **further: Any
) -> None:
    """Call a function of corpus/ with the files and the options of `inputs`, and report what it did.

    `models` are its first arguments, `further` are others; `what` is the shape of the output, with names of `Summary`
    in braces.
    """
    path, sources = arguments.output, sources_of(arguments, arguments.input)
    settings = {"model": absolute(arguments.model), **chosen(arguments, ("revision", "prompts"))}
    settings["backend"] = arguments.backend or os.environ.get("MINIBERT_BACKEND")  # backends round differently
    further |= {
        "settings": settings,
        "show_progress": arguments.progress,
        **chosen(arguments, RunOptions.__dataclass_fields__),
    }
    report = partial(report_problem, parser=arguments.parser)
    summary = run(*models, sources, path, report=report, **further)
    files = f" in {counted(summary.n_files, 'file')}" if os.path.isdir(path) else ""
    report_written(path, f"{what.format_map(vars(summary))}{files}; {summary}")


def sources_of(arguments: argparse.Namespace, paths: Sequence[str]) -> list[Source]:
    """Return the sources that the paths and the options of `COLUMNS` name."""
    if paths.count("-") > 1:
        raise ValueError("the standard input is given to --input more than once; give it once.")
    sources, ids, columns = list[Source](), arguments.id_column, arguments.text_column or ["text"]
    if len(columns) == 1:
        arguments.parser.refuse(["text_separator"], "is for several --text-column; leave it out.")
    how = {"text_separator": arguments.text_separator, "html": arguments.html}
    for path in paths:
        kind, name = arguments.input_format or input_format(path), "standard input" if path == "-" else ""
        if kind == "text" and (arguments.text_column, ids) != (None, None):
            what = f"name columns; plain text, as {name or path}, has none. Give --input-format if it is a table."
            raise ValueError(f"--text-column and --id-column {what}")
        suffix = os.path.splitext(path.removesuffix(".gz"))[1].lower()
        if kind == "text" and arguments.input_format is None and suffix not in ("", ".txt"):
            what = "is read as plain text, one text per line; --input-format names another format"
            report_problem(f"{path} {what}")
        sources.append(Source(path, kind, columns, ids, name, **how))
    return sources
