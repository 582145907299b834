"""What the verbs share that run over files of texts: the options of a run, their checks, and the report at its end."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from minibert._utils.validation import counted
from minibert.cli.options import option, positive
from minibert.cli.output import report_problem, report_written
from minibert.corpus.sources import Source, input_format

if TYPE_CHECKING:
    from minibert.corpus.runs import Summary


SHARD_SIZE = 10_000
"""The default of --shard-size where a text has one vector or one score."""


def add_inputs(parser: argparse.ArgumentParser, *, shard_size: int) -> None:
    """Add the files of texts, how they are read, and how a run over them is saved and resumed."""
    option(
        parser,
        "-i --input --input_file FILE",
        'files of texts: one per line, .jsonl, .csv or .tsv, each also as .gz; "-" is the standard input',
        nargs="+",
        action="extend",
    )
    option(
        parser,
        "--input-format",
        "default: by the suffix of each file's name, else text",
        choices=("text", "jsonl", "csv", "tsv"),
    )
    option(parser, "--text-column NAME", "column or key of the texts", default="text")
    option(parser, "--id-column NAME", "column or key of the ids (default: numbers of the lines)")
    option(
        parser,
        "--on-error",
        "if lines cannot be used: stop and compute nothing, skip these lines, or keep their rows without vectors "
        "(default: %(default)s)",
        choices=("stop", "skip", "null"),
        default="stop",
    )
    option(parser, "--resume", "continue an interrupted run, or start one if there is none")
    option(
        parser,
        "--shard-size N",
        "texts that are computed, then saved, together; a crash loses at most these",
        type=positive,
        default=shard_size,
    )


def has_files(arguments: argparse.Namespace, of_files: Mapping[str, bool]) -> bool:
    """Return whether files are given instead of texts.

    Parameters
    ----------
    of_files : mapping
        Further options that are only for files -> whether each is given.

    Raises
    ------
    ValueError
        Neither texts nor files are given, or options that do not fit together.
    """
    if arguments.input:
        if arguments.texts:
            raise ValueError("texts and --input are both given; give one of them.")
        if arguments.output is None:
            raise ValueError("--input needs --output FILE.")
        return True
    if not arguments.texts:
        raise ValueError("there is no text; give texts, or a file with --input.")
    given = {
        **of_files,
        "--resume": arguments.resume,
        "--input-format": arguments.input_format is not None,
        "--text-column": arguments.text_column != "text",
        "--id-column": arguments.id_column is not None,
        "--on-error": arguments.on_error != "stop",
        "--shard-size": arguments.shard_size != SHARD_SIZE,
    }
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} is for files of texts; name them with --input.")
    return False


def run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that every run over a corpus has, as the functions of corpus/ take them."""
    return {
        "resume": arguments.resume,
        "on_error": arguments.on_error,
        "shard_size": arguments.shard_size,
        "settings": {
            "model": arguments.model,
            "revision": arguments.revision,
            "backend": arguments.backend or os.environ.get("MINIBERT_BACKEND"),  # backends round differently
        },
        "show_progress": sys.stderr is not None and sys.stderr.isatty(),
        "report": report_problem,
    }


def sources_of(arguments: argparse.Namespace) -> list[Source]:
    """Return the sources that the options of `add_inputs` name."""
    if arguments.input.count("-") > 1:
        raise ValueError("the standard input is given to --input more than once; give it once.")
    sources = []
    for path in arguments.input:
        kind = arguments.input_format or input_format(path)
        id_column = None if kind == "text" else arguments.id_column
        name = "standard input" if path == "-" else path
        sources.append(Source(path, kind, arguments.text_column, id_column, name))
    for flag, given in (
        ("--text-column", arguments.text_column != "text"),
        ("--id-column", arguments.id_column is not None),
    ):
        if given and all(source.format == "text" for source in sources):
            raise ValueError(
                f"{flag} names a column, but {sources[0].name} is read as plain text, which does not have columns; "
                "give --input-format jsonl, csv or tsv."
            )
    return sources


@contextlib.contextmanager
def resumable(output: str) -> Iterator[None]:
    """Report how to continue if a run is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        from minibert.corpus.runs import folder_of, is_unfinished

        if is_unfinished(output):
            report_problem(
                f"finished shards are kept in {folder_of(output)}; the same command with --resume continues."
            )
        raise


def report_run(output: str, what: str, summary: Summary | None) -> None:
    """Report what a run did; `what` is the shape of its output."""
    if summary is None:
        report_written(output, "this run is complete already; there is nothing to resume")
        return
    left_out = f", {counted(summary.n_left_out, 'input line')} left out" if summary.n_left_out else ""
    resumed = f", {summary.n_resumed} of them by earlier runs" if summary.n_resumed else ""
    files = f" in {counted(summary.n_files, 'file')}" if os.path.isdir(output) else ""
    report_written(
        output,
        f"{what}{files}; {counted(summary.n_texts, 'text')}{resumed}, {counted(summary.n_tokens, 'token')}, "
        f"{counted(summary.n_cut, 'text')} cut{left_out}, "
        f"{summary.seconds:.1f} seconds",
    )
