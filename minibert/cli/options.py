"""The options that verbs share, and the model that they name."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import minibert
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.models.options import BACKENDS, COMPUTE_TYPES, LoadOptions

if TYPE_CHECKING:
    from minibert import BertModel, BertTokenizer
    from minibert.checkpoint.files import ModelFiles


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
        """Exit with code 2, even if the standard error cannot be written. Without a verb, print the verbs."""
        with contextlib.suppress(OSError):
            if message.endswith(": VERB"):
                self.print_help(sys.stderr)
            else:
                super().error(message)
        sys.exit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the nearest verb instead of all verbs; argparse can do so from Python 3.14 on."""
        verbs = action.choices
        if isinstance(verbs, dict) and value not in verbs and (near := difflib.get_close_matches(value, verbs, 1)):
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; did you mean {near[0]}?")
        super()._check_value(action, value)


def option(parser: argparse.ArgumentParser | argparse._ActionsContainer, flags: str, text: str, **rest: Any) -> None:
    """Add an option.

    `flags` are its names, then the name of its value, such as ``-k --top-k K``. Without a value it is true if it is
    given. `text` is its help, to which the default is added; `rest` goes to argparse.
    """
    *names, last = flags.split()
    if last.startswith("-"):
        names.append(last)
        if not rest.keys() & {"choices", "type", "action", "nargs"}:
            rest["action"] = "store_true"
    else:
        rest["metavar"] = last
    if rest.get("default") is not None and "default" not in text:
        text += " (default: %(default)s)"
    parser.add_argument(*names, help=text, **rest)


def add_model_options(parser: argparse.ArgumentParser, *, backend: bool = True, needs_head: bool = False) -> None:
    """Add --model and --revision, and with `backend` also --backend, --threads and --compute-type.

    With `needs_head` --model must be given, because the default model does not have a head.
    """
    if needs_head:
        option(parser, "-m --model MODEL", "hub id or folder", required=True)
    else:
        option(parser, "-m --model MODEL", "hub id or folder", default=DEFAULT_MODEL)
    option(parser, "--revision REVISION", "branch, tag or commit of the hub repository (default: main)")
    if backend:
        option(
            parser,
            "--backend",
            "the code that computes (default: MINIBERT_BACKEND, else numba if it can be imported, else numpy)",
            choices=BACKENDS,
        )
        option(
            parser,
            "--threads N",
            "default: MINIBERT_NUM_THREADS, else all cores, but at most OMP_NUM_THREADS",
            dest="num_threads",
            type=positive,
        )
        add_compute_type(parser)
        add_shared_weights(parser)


def add_compute_type(parser: argparse.ArgumentParser) -> None:
    """Add --compute-type."""
    option(
        parser,
        "--compute-type",
        "the numbers that are multiplied (default: MINIBERT_COMPUTE_TYPE, else float32); all but float32 are "
        "faster and need less memory, with a small error",
        choices=COMPUTE_TYPES,
    )


def add_shared_weights(parser: argparse.ArgumentParser) -> None:
    """Add --shared-weights and --no-shared-weights."""
    option(
        parser,
        "--shared-weights",
        "hold the weights once for all processes of this machine, from a file that is written at the first load "
        "(default: MINIBERT_SHARED_WEIGHTS, else no)",
        action=argparse.BooleanOptionalAction,
    )


def add_texts(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the positional texts."""
    nargs = "*" if optional else "+"
    parser.add_argument("texts", nargs=nargs, metavar="TEXT", help='a text; "-" for the lines of the standard input')


def add_prompt(parser: argparse.ArgumentParser, before: str) -> None:
    """Add --prompt-name and --prompt, of which one can be given; `before` says where the text of --prompt goes."""
    prompt = parser.add_mutually_exclusive_group()
    option(prompt, "--prompt-name NAME", "name of a prompt of the model, such as query")
    option(prompt, "--prompt TEXT", f"a text to put before {before}")


def add_stride(parser: argparse.ArgumentParser) -> None:
    """Add --stride, for long texts that are split."""
    option(
        parser,
        "--stride N",
        "tokens that a window repeats from the one before, with --truncation split (default: 0)",
        type=natural,
        default=0,
    )


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Add --batch-size."""
    option(parser, "--batch-size N", "limits memory; the result does not depend on it", type=positive, default=32)


def add_layers(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --layers: hidden states by number. The help ends with `default`."""
    option(
        parser,
        "--layers LAYERS",
        "hidden states by number, with commas between: 0 is the embeddings' output, 1 that of the first layer, -1 "
        f"that of the last; {default}",
        type=several_ints,
    )


def add_layer_pooling(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --layer-pooling: how several hidden states are combined."""
    option(
        parser, "--layer-pooling", "how several layers are combined", choices=("concat", "sum", "mean"), default=default
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


def loading(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the options say about loading, as keywords of the constructors."""
    return {name: value for name, value in vars(arguments).items() if name in LoadOptions.__dataclass_fields__}


def locate_model(arguments: argparse.Namespace) -> ModelFiles:
    """Find the files of the model. Short ids such as paraphrase-MiniLM-L6-v2 are those of sentence-transformers."""
    from minibert.sentence.model import full_name

    return LoadOptions(revision=arguments.revision).locate(full_name(arguments.model))


def load_tokenizer(arguments: argparse.Namespace) -> BertTokenizer:
    """Load the tokenizer of the model."""
    return minibert.BertTokenizer.from_files(locate_model(arguments))


def load_bert(arguments: argparse.Namespace) -> BertModel:
    """Load the encoder without its pooler."""
    return minibert.BertModel.from_files(locate_model(arguments), add_pooling_layer=False, **loading(arguments))


def load_encoder(kind: str, arguments: argparse.Namespace, **options: Any) -> Any:
    """Load a SentenceTransformer, CrossEncoder or SparseEncoder; `options` are further arguments of it."""
    return getattr(minibert, kind)(arguments.model, **loading(arguments), **options)
