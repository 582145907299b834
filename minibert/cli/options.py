"""The options that verbs share, and the model that they name."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from minibert.checkpoint.files import DEFAULT_MODEL

if TYPE_CHECKING:
    from minibert.checkpoint.files import ModelFiles
    from minibert.models.bert_model import BertModel
    from minibert.sentence.cross_encoder import CrossEncoder
    from minibert.sentence.sentence_transformers import SentenceTransformer
    from minibert.sentence.sparse_encoder import SparseEncoder
    from minibert.tokenizer.bert_tokenizer import BertTokenizer


class Parser(argparse.ArgumentParser):
    """argparse's parser; it accepts ``--layers -1,-2``, and help that cannot be written is an OSError."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Values that may begin with "-": argparse accepts single negative numbers, this pattern also lists of them.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a whole message, or raise the OSError that argparse ignores."""
        if message:
            stream = file or sys.stderr
            stream.write(message)
            stream.flush()

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, even if the standard error cannot be written."""
        with contextlib.suppress(OSError):
            super().error(message)
        sys.exit(2)


def add_model_options(parser: argparse.ArgumentParser, *, backend: bool = True, needs_head: bool = False) -> None:
    """Add --model and --revision, and with `backend` also --backend, --threads and --compute-type.

    With `needs_head` --model must be given, because the default model does not have a head.
    """
    if needs_head:
        parser.add_argument("-m", "--model", required=True, metavar="MODEL", help="hub id or folder")
    else:
        parser.add_argument(
            "-m", "--model", default=DEFAULT_MODEL, metavar="MODEL", help="hub id or folder (default: %(default)s)"
        )
    parser.add_argument("--revision", help="branch, tag or commit of the hub repository (default: main)")
    if backend:
        parser.add_argument(
            "--backend",
            choices=("numba", "numba-blas", "numpy"),
            help="the code that computes (default: MINIBERT_BACKEND, else numba if it can be imported, else numpy)",
        )
        parser.add_argument(
            "--threads",
            dest="num_threads",
            type=positive,
            metavar="N",
            help="default: MINIBERT_NUM_THREADS, else all cores, but at most OMP_NUM_THREADS",
        )
        add_compute_type(parser)
        add_shared_weights(parser)


def add_compute_type(parser: argparse.ArgumentParser) -> None:
    """Add --compute-type."""
    parser.add_argument(
        "--compute-type",
        choices=("float32", "int16", "int8_int16", "int8"),
        help="the numbers that are multiplied (default: MINIBERT_COMPUTE_TYPE, else float32); all but float32 are "
        "faster and need less memory, with a small error",
    )


def add_shared_weights(parser: argparse.ArgumentParser) -> None:
    """Add --shared-weights and --no-shared-weights."""
    parser.add_argument(
        "--shared-weights",
        action=argparse.BooleanOptionalAction,
        help="hold the weights once for all processes of this machine, from a file that is written at the first load "
        "(default: MINIBERT_SHARED_WEIGHTS, else no)",
    )


def add_texts(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the positional texts."""
    nargs = "*" if optional else "+"
    parser.add_argument("texts", nargs=nargs, metavar="TEXT", help='a text; "-" for the lines of the standard input')


def add_prompt(parser: argparse.ArgumentParser, before: str) -> None:
    """Add --prompt-name and --prompt, of which one can be given; `before` says where the text of --prompt goes."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt-name", metavar="NAME", help="name of a prompt of the model, such as query")
    prompt.add_argument("--prompt", metavar="TEXT", help=f"a text to put before {before}")


def add_stride(parser: argparse.ArgumentParser) -> None:
    """Add --stride, for long texts that are split."""
    parser.add_argument(
        "--stride",
        type=natural,
        default=0,
        metavar="N",
        help="tokens that a window repeats from the one before, with --truncation split (default: 0)",
    )


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Add --batch-size."""
    parser.add_argument(
        "--batch-size", type=positive, default=32, metavar="N", help="limits memory; the result does not depend on it"
    )


def add_layers(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --layers: hidden states by number. The help ends with `default`."""
    parser.add_argument(
        "--layers",
        type=several_ints,
        metavar="LAYERS",
        help="hidden states by number, with commas between: 0 is the embeddings' output, 1 that of the first layer, -1 "
        f"that of the last; {default}",
    )


def add_layer_pooling(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --layer-pooling: how several hidden states are combined."""
    parser.add_argument(
        "--layer-pooling",
        choices=("concat", "sum", "mean"),
        default=default,
        help="how several layers are combined (default: %(default)s)",
    )


def several_ints(text: str) -> list[int]:
    """Convert numbers separated by commas, for argparse."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as -1,-2") from None


def positive(text: str) -> int:
    """Convert a whole number of at least 1, for argparse."""
    return _number(text, 1)


def natural(text: str) -> int:
    """Convert a whole number of at least 0, for argparse."""
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


# --- the model that the options name ----------------------------------------------------------------------------------


def locate_model(arguments: argparse.Namespace) -> ModelFiles:
    """Find the files of the model. Short ids such as paraphrase-MiniLM-L6-v2 are those of sentence-transformers."""
    from minibert.checkpoint.files import locate
    from minibert.sentence.settings import full_name

    return locate(full_name(arguments.model), revision=arguments.revision)


def load_tokenizer(arguments: argparse.Namespace) -> BertTokenizer:
    """Load the tokenizer of the model."""
    from minibert.tokenizer.bert_tokenizer import BertTokenizer

    return BertTokenizer.from_files(locate_model(arguments))


def load_bert(arguments: argparse.Namespace) -> BertModel:
    """Load the encoder without its pooler, with the backend and threads of the command line."""
    from minibert.models.bert_model import BertModel

    files = locate_model(arguments)
    return BertModel.from_files(
        files,
        backend=arguments.backend,
        num_threads=arguments.num_threads,
        compute_type=arguments.compute_type,
        shared_weights=arguments.shared_weights,
        add_pooling_layer=False,
    )


def load_sentence_transformer(arguments: argparse.Namespace, **options: Any) -> SentenceTransformer:
    """Load the model with all its modules; `options` are arguments of `SentenceTransformer`."""
    from minibert.sentence.sentence_transformers import SentenceTransformer

    return SentenceTransformer(arguments.model, **_how(arguments), **options)


def load_cross_encoder(arguments: argparse.Namespace) -> CrossEncoder:
    """Load the model as a `CrossEncoder`."""
    from minibert.sentence.cross_encoder import CrossEncoder

    return CrossEncoder(arguments.model, **_how(arguments))


def load_sparse_encoder(arguments: argparse.Namespace) -> SparseEncoder:
    """Load the model as a `SparseEncoder`."""
    from minibert.sentence.sparse_encoder import SparseEncoder

    return SparseEncoder(arguments.model, **_how(arguments))


def _how(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("revision", "backend", "num_threads", "compute_type", "shared_weights")
    return {name: getattr(arguments, name) for name in names}
