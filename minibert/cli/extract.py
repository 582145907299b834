"""``minibert extract``: the hidden states of every token of a corpus, in two formats."""

from __future__ import annotations

import argparse
from typing import Any

from minibert._utils.files import check_output
from minibert.cli.options import add_model_options, load_bert, load_tokenizer, option, positive, several_ints
from minibert.cli.runs import add_inputs, report_run, resumable, run_options, sources_of


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    extract = verbs.add_parser(
        "extract",
        help="save hidden states of all tokens of a corpus",
        description="Save the hidden states of every token of the texts in files, in bounded memory. The binary format "
        "is an .npy array (tokens, layers, hidden_size) and an index, .tokens.jsonl; "
        "minibert.corpus.extract.TokenFeatures reads both. The google format is the JSON lines of "
        "extract_features.py, where ' ||| ' separates the two texts of a pair. That script's spelling of the options, "
        "with underscores, works too. The manifest <output>.manifest.json is written beside the output, and --resume "
        "continues an interrupted run.",
    )
    add_inputs(extract, shard_size=1000)
    option(extract, "-o --output --output_file FILE", "the file to write: .npy, or .jsonl with --format google")
    option(extract, "--format", "format of the output", choices=("binary", "google"), default="binary")
    option(
        extract,
        "--layers LAYERS",
        "layers, separated by commas: -1 is the last layer; 0 is the embeddings' output as in transformers, but "
        "the first layer with --format google (default: -1,-2,-3,-4)",
        type=several_ints,
        default=[-1, -2, -3, -4],
    )
    option(
        extract,
        "--max-length --max-seq-length --max_seq_length N",
        "most tokens of a text; the rest is cut off (default: the model's limit; 128 with --format google)",
        dest="max_length",
        type=int,
    )
    option(extract, "--batch-size --batch_size N", "texts that are computed together", type=positive, default=32)
    option(extract, "--dtype", "type of the array", choices=("float32", "float16"), default="float32")
    option(
        extract,
        "--do-lower-case --do_lower_case",
        "compared with the model's tokenizer; it changes nothing",
        nargs="?",
        const=True,
        type=_boolean,
    )
    add_model_options(extract)
    extract.set_defaults(run=_extract)


def _boolean(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is not True or False")
    return values[text.lower()]


def _extract(arguments: argparse.Namespace) -> None:
    from minibert.corpus.extract import EXTRACT_SUFFIXES, extract_corpus

    if not arguments.input or not arguments.output:
        raise ValueError("extract needs --input FILE and --output FILE.")
    if arguments.output == "-":
        raise ValueError("--output is the standard output, but extract writes a file that can be resumed; give a file.")
    check_output(arguments.output, EXTRACT_SUFFIXES[arguments.format])
    tokenizer = load_tokenizer(arguments)
    if arguments.do_lower_case not in (None, tokenizer.do_lower_case):
        raise ValueError(
            f"--do_lower_case={arguments.do_lower_case}, but the tokenizer of {arguments.model} has "
            f"do_lower_case={tokenizer.do_lower_case}; leave it out."
        )
    with resumable(arguments.output):
        summary = extract_corpus(
            load_bert(arguments),
            tokenizer,
            sources_of(arguments),
            arguments.output,
            format=arguments.format,
            layers=arguments.layers,
            max_length=arguments.max_length,
            batch_size=arguments.batch_size,
            dtype=arguments.dtype,
            **run_options(arguments),
        )
    shape = "JSON lines"
    if summary is not None and arguments.format == "binary":
        shape = f"vectors ({summary.n_tokens}, {len(arguments.layers)}, {summary.width}) {arguments.dtype}"
    report_run(arguments.output, shape, summary)
