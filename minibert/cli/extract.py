"""``minibert extract``: the hidden states of every token of a corpus, in two formats."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from minibert.cli.common import (
    add_inputs,
    add_model_options,
    open_sources,
    positive,
    report_problem,
    report_written,
    several_ints,
    write_file,
)

if TYPE_CHECKING:
    from minibert.corpus import Survey
    from minibert.readers import Record, Source

__all__ = ["add_verbs"]

_TENSORFLOW = ("vocab_file", "bert_config_file", "init_checkpoint")


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    extract = verbs.add_parser(
        "extract",
        help="save hidden states of all tokens of a corpus",
        description="Save the hidden states of every token of the texts in files, in bounded memory. The binary format "
        "is an .npy array (tokens, layers, hidden_size) and an index, .tokens.jsonl, which "
        "minibert.token_features.TokenFeatures reads back; google is the JSON lines of extract_features.py, for which "
        "' ||| ' separates the two texts of a pair. Google's spellings of the options, with underscores, work too.",
    )
    add_inputs(extract)
    extract.add_argument("-o", "--output", "--output_file", metavar="FILE", help="the file to write")
    extract.add_argument(
        "--format", choices=("binary", "google"), default="binary", help="of the output (default: %(default)s)"
    )
    extract.add_argument(
        "--layers",
        type=several_ints,
        default=[-1, -2, -3, -4],
        metavar="LAYERS",
        help="with commas between (write --layers=-1,-2): -1 is the last one; 0 is the embeddings' output, as in "
        "transformers, but the first layer with --format google, as there (default: -1,-2,-3,-4)",
    )
    extract.add_argument(
        "--max-seq-length",
        "--max_seq_length",
        type=int,
        metavar="N",
        help="tokens of a text, the rest is cut off (default: what the model takes; 128 with --format google)",
    )
    extract.add_argument(
        "--batch-size",
        "--batch_size",
        type=positive,
        default=32,
        metavar="N",
        help="texts computed together (default: %(default)s)",
    )
    extract.add_argument(
        "--dtype", choices=("float32", "float16"), default="float32", help="of the array (default: %(default)s)"
    )
    extract.add_argument(
        "--do-lower-case",
        "--do_lower_case",
        nargs="?",
        const=True,
        type=_boolean,
        help="only checked: the model's own tokenizer knows",
    )
    for name in _TENSORFLOW:
        extract.add_argument(f"--{name}", help=argparse.SUPPRESS)
    add_model_options(extract)
    extract.set_defaults(run=_extract)


def _boolean(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return values[text.lower()]


def _extract(arguments: argparse.Namespace) -> None:
    from minibert.corpus import numbered_records, survey
    from minibert.models import BertModel
    from minibert.progress import progress_bar
    from minibert.token_features import write_token_features
    from minibert.tokenizer import BertTokenizer

    for name in _TENSORFLOW:
        if getattr(arguments, name) is not None:
            raise ValueError(
                f"--{name} belongs to a TensorFlow checkpoint, which minibert does not read; give --model, a hub id or "
                "a folder with config.json and model.safetensors."
            )
    if not arguments.input or not arguments.output:
        raise ValueError("extract needs --input FILE and --output FILE.")
    google = arguments.format == "google"
    if not google and not arguments.output.endswith(".npy"):
        raise ValueError(
            f"{arguments.output!r} must end in .npy: the binary format is an array and an index beside it."
        )
    tokenizer = BertTokenizer.from_pretrained(arguments.model, revision=arguments.revision)
    if arguments.do_lower_case not in (None, tokenizer.do_lower_case):
        raise ValueError(
            f"--do_lower_case={arguments.do_lower_case}, but the tokenizer of {arguments.model} was made with "
            f"{tokenizer.do_lower_case}; leave it out."
        )
    model = BertModel.from_pretrained(
        arguments.model, revision=arguments.revision, backend=arguments.backend, add_pooling_layer=False
    )
    with open_sources(arguments, f"{arguments.output}.stdin", keep=lambda: False) as sources:
        found = survey(sources, arguments.on_error)
        show = sys.stderr is not None and sys.stderr.isatty()
        with progress_bar(sum(found.counts), show=show) as bar:
            records = _usable(arguments, sources, found, numbered_records, bar.update)
            if google:
                _write_google(arguments, model, tokenizer, records)
                return
            n_texts, n_tokens, n_cut = write_token_features(
                arguments.output,
                model,
                tokenizer,
                records,
                layers=arguments.layers,
                dtype=arguments.dtype,
                max_length=arguments.max_seq_length,
                batch_size=arguments.batch_size,
            )
    shape = (n_tokens, len(arguments.layers), model.config.hidden_size)
    report_written(arguments.output, f"vectors {shape} {arguments.dtype}; {n_texts} texts, {n_cut} texts cut")


def _write_google(
    arguments: argparse.Namespace, model: Any, tokenizer: Any, records: Iterator[tuple[int, Record]]
) -> None:
    from minibert.google_features import google_lines

    counts = {"texts": 0, "cut": 0}
    limit = min(128, model.config.max_position_embeddings)

    def write(file: BinaryIO) -> None:
        lines = google_lines(
            model,
            tokenizer,
            ((number, record.text) for number, record in records),
            layers=arguments.layers,
            max_seq_length=limit if arguments.max_seq_length is None else arguments.max_seq_length,
            batch_size=arguments.batch_size,
        )
        for line, n_cut in lines:
            file.write(line.encode() + b"\n")
            counts["texts"] += 1
            counts["cut"] += n_cut > 0

    write_file(arguments.output, write)
    report_written(arguments.output, f"{counts['texts']} texts, {counts['cut']} texts cut")


def _usable(
    arguments: argparse.Namespace, sources: list[Source], found: Survey, numbered_records: Any, progress: Any
) -> Iterator[tuple[int, Record]]:
    """The records with a text, and, with --on-error null, the others too."""
    from minibert.corpus import describe_problem

    for number, record in numbered_records(sources, found.checksums):
        progress(1)
        if record.problem is not None:
            if arguments.on_error == "stop":
                raise ValueError(f"{describe_problem(record)}. The file was changed while it was read.")
            report_problem(describe_problem(record))
        if record.problem is None or arguments.on_error == "null":
            yield number, record
