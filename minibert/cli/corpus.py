"""``minibert extract``, and the helpers of all verbs that run over files of texts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minibert._utils.files import check_output
from minibert._utils.validation import counted
from minibert.cli.options import add_model_options, add_verb, chosen, load_bert, load_tokenizer
from minibert.cli.output import report_problem, report_written
from minibert.corpus.sources import INPUT_FORMATS, ON_ERROR, Source, input_format
from minibert.corpus.writers import OUTPUT_DTYPES

if TYPE_CHECKING:
    from minibert.corpus.runs import Summary


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = f"""extract: save hidden states of all tokens of a corpus
        Save the hidden states of every token of the texts in files, in bounded memory. The binary format is an .npy
        array (tokens, layers, hidden_size) and an index, .tokens.jsonl; minibert.corpus.extract.TokenFeatures reads
        both. The google format is the JSON lines of extract_features.py, where ' ||| ' separates the two texts of a
        pair. That script's spelling of the options, with underscores, works too. The manifest <output>.manifest.json is
        written beside the output, and --resume continues an interrupted run.
        {inputs(1000)}
        -o, --output, --output_file FILE: the file to write: .npy, or .jsonl with --format google
        --format binary|google = binary: format of the output
        --layers LAYERS = -1,-2,-3,-4: layers, separated by commas: -1 is the last layer; 0 is the embeddings' output as
            in transformers, but the first layer with --format google (default: -1,-2,-3,-4)
        --max-length, --max-seq-length, --max_seq_length N: most tokens of a text; the rest is cut off (default: the
            model's limit; 128 with --format google)
        --batch-size, --batch_size N = 32: texts that are computed together
        --dtype {"|".join(OUTPUT_DTYPES)} = float32: type of the array
        --do-lower-case, --do_lower_case VALUE: compared with the model's tokenizer; it changes nothing
        """
    lower_case = {"nargs": "?", "const": "true", "type": str.lower, "choices": ("true", "1", "false", "0")}
    add_model_options(add_verb(verbs, _extract, text, max_length={"type": int}, do_lower_case=lower_case))


def inputs(shard_size: int = 10_000) -> str:
    """Return the options for files of texts: which files, how they are read, and how a run is saved."""
    return f"""
        -i, --input, --input_file FILE: files of texts: one per line, .jsonl, .csv or .tsv, each also as .gz; "-" is the
            standard input
        --input-format {"|".join(INPUT_FORMATS)}: default: by the suffix of each file's name, else text
        --text-column NAME = text: column or key of the texts
        --id-column NAME: column or key of the ids (default: numbers of the lines)
        --on-error {"|".join(ON_ERROR)} = stop: if lines cannot be used: stop and compute nothing, skip these lines, or
            keep their rows without vectors
        --resume: continue an interrupted run, or start one if there is none
        --shard-size N = {shard_size}: texts that are computed, then saved, together; a crash loses at most these
        """


def has_files(arguments: argparse.Namespace, for_texts: Sequence[str], for_files: Sequence[str]) -> bool:
    """Return whether files are given instead of texts; the names are of options that are only for the one or the other.

    Raises
    ------
    ValueError
        Neither texts nor files are given, or options that do not fit together.
    """
    files = bool(arguments.input)
    if files == bool(arguments.texts):
        both = "texts and --input are both given; give one of them."
        raise ValueError(both if files else "there is no text; give texts, or a file with --input.")
    if files and arguments.output is None:
        raise ValueError("--input needs --output FILE.")
    of_files = ("resume", "input_format", "text_column", "id_column", "on_error", "shard_size")
    for name in for_texts if files else (*for_files, *of_files):
        if str(getattr(arguments, name)) != str(arguments.parser.get_default(name)):
            use = "texts; leave it out with --input." if files else "files of texts; name them with --input."
            raise ValueError(f"--{name.replace('_', '-')} is for {use}")
    return files


def run_over_files(
    arguments: argparse.Namespace, run: Callable[..., Summary | None], *models: Any, what: str, **options: Any
) -> None:
    """Call a function of corpus/ with the files and the options of `inputs`, and report what it did.

    `models` are its first arguments, `options` further ones; `what` is the shape of the output, with names of `Summary`
    in braces.
    """
    output = arguments.output
    summary = run(
        *models,
        _sources(arguments),
        output,
        **chosen(arguments, ("resume", "on_error", "shard_size")),
        settings={
            "model": arguments.model,
            "revision": arguments.revision,
            "backend": arguments.backend or os.environ.get("MINIBERT_BACKEND"),  # backends round differently
        },
        show_progress=sys.stderr is not None and sys.stderr.isatty(),
        report=report_problem,
        **options,
    )
    if summary is None:
        report_written(output, "this run is complete already; there is nothing to resume")
        return
    files = f" in {counted(summary.n_files, 'file')}" if os.path.isdir(output) else ""
    resumed = f", {summary.n_resumed} of them by earlier runs" if summary.n_resumed else ""
    left_out = f", {counted(summary.n_left_out, 'input line')} left out" if summary.n_left_out else ""
    report_written(
        output,
        f"{what.format_map(vars(summary))}{files}; {counted(summary.n_texts, 'text')}{resumed}, "
        f"{counted(summary.n_tokens, 'token')}, {counted(summary.n_cut, 'text')} cut{left_out}, "
        f"{summary.seconds:.1f} seconds",
    )


def _sources(arguments: argparse.Namespace) -> list[Source]:
    """Return the sources that the options of `inputs` name."""
    if arguments.input.count("-") > 1:
        raise ValueError("the standard input is given to --input more than once; give it once.")
    column, ids = arguments.text_column, arguments.id_column
    sources = []
    for path in arguments.input:
        kind, name = arguments.input_format or input_format(path), "standard input" if path == "-" else ""
        sources.append(Source(path, kind, column, None if kind == "text" else ids, name))
    if (column != "text" or ids is not None) and all(source.format == "text" for source in sources):
        raise ValueError(f"--text-column and --id-column name columns; plain text, as {sources[0].name}, has none.")
    return sources


def _extract(arguments: argparse.Namespace) -> None:
    from minibert.corpus.extract import EXTRACT_SUFFIXES, extract_corpus

    if not arguments.input or not arguments.output:
        raise ValueError("extract needs --input FILE and --output FILE.")
    check_output(arguments.output, EXTRACT_SUFFIXES[arguments.format])
    tokenizer = load_tokenizer(arguments)
    asked, own = arguments.do_lower_case, tokenizer.do_lower_case
    if asked is not None and (asked in ("true", "1")) != own:
        raise ValueError(f"--do_lower_case={asked}, but the tokenizer of {arguments.model} has {own}; leave it out.")
    shape = f"vectors ({{n_tokens}}, {len(arguments.layers)}, {{width}}) {arguments.dtype}"
    run_over_files(
        arguments,
        extract_corpus,
        load_bert(arguments),
        tokenizer,
        what=shape if arguments.format == "binary" else "JSON lines",
        **chosen(arguments, ("format", "layers", "max_length", "batch_size", "dtype")),
    )
