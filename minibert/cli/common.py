"""What the verbs share: the model's options, the texts, files that appear whole or not at all."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from minibert.base.files import write_whole
from minibert.checkpoint.hub import DEFAULT_MODEL
from minibert.corpus.readers import Source, input_format
from minibert.corpus.shards import folder_of, is_unfinished

if TYPE_CHECKING:
    from minibert.corpus.runs import Summary

__all__ = [
    "Parser",
    "add_inputs",
    "add_layer_pooling",
    "add_layers",
    "add_model_options",
    "add_texts",
    "natural",
    "positive",
    "read_lines",
    "read_texts",
    "report_problem",
    "report_run",
    "report_written",
    "resumable",
    "run_options",
    "several_ints",
    "sources_of",
    "standard_streams",
    "write_file",
]

_CLOSED = "the standard output is closed; redirect it to a file"
# An argument in a message: its name, and True, a word in quotes, a number or nothing behind the "=".
_ARGUMENT = re.compile(r"\b(?P<name>[a-z_]+)=(?P<value>True|'[^'\s]+'|-?\d+|)(?=[\s,.;:)]|$)")
_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


class Parser(argparse.ArgumentParser):
    """argparse's parser, which takes ``--layers -1,-2``, and whose help fails where the standard output is closed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # What argparse takes for a value although it begins with "-": it knows single numbers, here also lists of them.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def in_its_words(self, message: str) -> str:
        """Write the arguments that a message of the library names as this parser's options.

        ``resume=True`` becomes ``--resume``, ``truncation='split'`` becomes ``--truncation split``, and ``on_error=``
        becomes ``--on-error``.
        """
        options = {action.dest: action for action in self._actions if action.option_strings}

        def as_option(found: re.Match[str]) -> str:
            action, value = options.get(found["name"]), found["value"]
            if action is None or (value == "True") != (action.nargs == 0):
                return found[0]
            flag = next(flag for flag in action.option_strings if flag.startswith("--"))
            return flag if value in ("", "True") else flag + " " + value.strip("'")

        return _ARGUMENT.sub(as_option, message)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write all of a message, or raise the error that argparse would keep quiet about."""
        if message:
            stream = file or sys.stderr
            stream.write(message)
            stream.flush()

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, even where the standard error cannot be written."""
        with contextlib.suppress(OSError):
            super().error(message)
        sys.exit(2)


class _ClosedOutput(io.TextIOBase):
    """Takes the place of a standard output that was closed before the start: whatever is written there is an error."""

    def write(self, text: str) -> int:
        raise OSError(f"{_CLOSED}.")

    def fileno(self) -> int:
        raise io.UnsupportedOperation(_CLOSED)


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Make writing to a closed stdout an error, and writing to a closed stderr do nothing.

    If a standard stream was closed before the start, Python has None in its place: `print` writes nothing to a closed
    stdout, and writes to stdout what was meant for a closed stderr. Within this context writing to a closed stdout is
    an OSError, and a closed stderr takes everything and keeps nothing. The descriptors 1 and 2 themselves lead nowhere:
    else the next file that is opened would get such a number, and with it whatever a library in C or Rust prints.
    Nothing that could not be written is tried again when the process ends.
    """
    before = sys.stdout, sys.stderr
    _occupy(1)
    _occupy(2)
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (closed below)
    try:
        yield
    finally:
        _discard_unwritable(sys.stdout)
        if before[1] is None:
            sys.stderr.close()
        sys.stdout, sys.stderr = before


def _occupy(descriptor: int) -> None:
    """Let a descriptor that is closed lead nowhere."""
    try:
        os.fstat(descriptor)
    except OSError:
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere == descriptor:
            os.set_inheritable(descriptor, True)
        else:
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def _discard_unwritable(stream: Any) -> None:
    """Flush a stream; if that fails, as with a full disk or a reader that has gone, let the rest lead nowhere."""
    try:
        stream.flush()
    except (OSError, ValueError):  # ValueError: Python's own stream was closed
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def add_model_options(parser: argparse.ArgumentParser, *, backend: bool = True) -> None:
    """Add --model, --revision and, where something is computed, --backend and --threads."""
    parser.add_argument(
        "-m", "--model", default=DEFAULT_MODEL, metavar="MODEL", help="hub id or folder (default: %(default)s)"
    )
    parser.add_argument("--revision", help="branch, tag or commit of the hub repository (default: main)")
    if backend:
        parser.add_argument(
            "--backend",
            choices=("numba", "numba-blas", "numpy"),
            help="who computes (default: MINIBERT_BACKEND, else numba where it can be imported)",
        )
        parser.add_argument(
            "--threads",
            type=positive,
            metavar="N",
            help="default: MINIBERT_NUM_THREADS, else all cores, but at most OMP_NUM_THREADS",
        )


def add_texts(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the positional texts."""
    nargs = "*" if optional else "+"
    parser.add_argument("texts", nargs=nargs, metavar="TEXT", help='a text; "-" for the lines of the standard input')


def add_inputs(parser: argparse.ArgumentParser, *, shard_size: int) -> None:
    """Add the files of texts, how they are read, and how a run over them goes on."""
    parser.add_argument(
        "-i",
        "--input",
        "--input_file",
        nargs="+",
        action="extend",
        metavar="FILE",
        help='files of texts: one per line, .jsonl, .csv or .tsv, each also as .gz; "-" is the standard input',
    )
    parser.add_argument(
        "--input-format",
        choices=("text", "jsonl", "csv", "tsv"),
        help="default: what each file's name says, else text",
    )
    parser.add_argument(
        "--text-column", default="text", metavar="NAME", help="column or key of the texts (default: %(default)s)"
    )
    parser.add_argument("--id-column", metavar="NAME", help="column or key of the ids (default: numbers of the lines)")
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip", "null"),
        default="stop",
        help="about lines that cannot be used: compute nothing before they are corrected, leave them out, or keep "
        "their places empty (default: %(default)s)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with what an interrupted run has left; start, if there is nothing"
    )
    parser.add_argument(
        "--shard-size",
        type=positive,
        default=shard_size,
        metavar="N",
        help="texts that are computed and then saved at a time, the most that a crash can lose (default: %(default)s)",
    )


def add_layers(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --layers: hidden states by number. `default` ends the help."""
    parser.add_argument(
        "--layers",
        type=several_ints,
        metavar="LAYERS",
        help="hidden states by number, with commas between: 0 is the embeddings' output, 1 that of the first layer, -1 "
        f"that of the last; {default}",
    )


def add_layer_pooling(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --layer-pooling: how several hidden states become one."""
    parser.add_argument(
        "--layer-pooling",
        choices=("concat", "sum", "mean"),
        default=default,
        help="how several layers are made one (default: %(default)s)",
    )


def run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that every run over a corpus has, as `embed_corpus` and `extract_corpus` take them."""
    return {
        "dtype": arguments.dtype,
        "resume": arguments.resume,
        "on_error": arguments.on_error,
        "shard_size": arguments.shard_size,
        "settings": {
            "model": arguments.model,
            "revision": arguments.revision,
            "backend": arguments.backend or os.environ.get("MINIBERT_BACKEND"),  # each rounds otherwise
        },
        "show_progress": sys.stderr is not None and sys.stderr.isatty(),
        "report": report_problem,
    }


def sources_of(arguments: argparse.Namespace) -> list[Source]:
    """Return what `add_inputs` asked for."""
    if arguments.input.count("-") > 1:
        raise ValueError("the standard input can be read once only.")
    sources = []
    for path in arguments.input:
        kind = arguments.input_format or input_format(path)
        id_column = None if kind == "text" else arguments.id_column
        name = "standard input" if path == "-" else path
        sources.append(Source(path, kind, arguments.text_column, id_column, name))
    for option, given in (
        ("--text-column", arguments.text_column != "text"),
        ("--id-column", arguments.id_column is not None),
    ):
        if given and all(source.format == "text" for source in sources):
            raise ValueError(
                f"{option} names a column, but {sources[0].name} is read as plain text, which has none; say what it is "
                "by --input-format jsonl, csv or tsv."
            )
    return sources


@contextlib.contextmanager
def resumable(output: str) -> Iterator[None]:
    """Say how to go on where a run is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        if is_unfinished(output):
            report_problem(f"what is done is kept in {folder_of(output)}; the same command with --resume goes on.")
        raise


def report_run(output: str, what: str, summary: Summary | None) -> None:
    """Say what a run did; `what` is the shape of what was written."""
    if summary is None:
        report_written(output, "complete, by this very run; there is nothing to resume")
        return
    left_out = f", {summary.n_left_out} input lines left out" if summary.n_left_out else ""
    resumed = f", {summary.n_resumed} of them by earlier runs" if summary.n_resumed else ""
    report_written(
        output,
        f"{what}; {summary.n_texts} texts{resumed}, {summary.n_tokens} tokens, {summary.n_cut} texts cut{left_out}, "
        f"{summary.seconds:.1f} seconds",
    )


def report_problem(problem: str) -> None:
    """Say on the standard error what is not a result: a problem, a warning."""
    with contextlib.suppress(OSError):  # a result does not depend on it
        print(f"minibert: {problem}", file=sys.stderr)


def several_ints(text: str) -> list[int]:
    """Read numbers with commas between, for argparse."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as -1,-2") from None


def positive(text: str) -> int:
    """Read a whole number of at least 1, for argparse."""
    return _number(text, 1)


def natural(text: str) -> int:
    """Read a whole number of at least 0, for argparse."""
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def read_texts(texts: list[str]) -> list[str]:
    """Return the texts with each "-" replaced by the lines of the standard input.

    Raises
    ------
    ValueError
        A line is not UTF-8; it is named.
    """
    read: list[str] = []
    for text in texts:
        if text != "-":
            read.append(text)
            continue
        read += read_lines("-")
    if not read:
        raise ValueError("the standard input holds no text.")
    return read


def read_lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file without their ends; "-" is the standard input.

    Raises
    ------
    ValueError, OSError
        A line is not UTF-8 (it is named), or the file cannot be read.
    """
    if path == "-":
        if sys.stdin is None:
            raise ValueError("the standard input is closed.")
        name, data = "standard input", sys.stdin.buffer.read()
    else:
        name = path
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
            raise OSError(f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    read: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            read.append(line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}, is not UTF-8: byte 0x{line[error.start]:02x} at {error.start}."
            ) from None
    return read


def write_file(path: str, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a file that takes its name only once it is complete; "-" is the standard output.

    A link is followed, and what is not a regular file (a pipe, a device) is written to, never replaced.

    Raises
    ------
    OSError
        The file cannot be written; nothing is left under `path` that was not there before.
    """
    if not path:
        raise OSError("the name of the file to write is empty.")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder; give the name of a file to write.")
    printed = path in _STANDARD_OUTPUT
    if printed or (os.path.exists(path) and not os.path.isfile(path)):
        whole = io.BytesIO()  # the formats need a file that can be rewound
        write(whole)
        try:
            with open(sys.stdout.fileno() if printed else path, "wb", closefd=not printed) as file:
                file.write(whole.getbuffer())
        except OSError as error:
            raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error
        return
    write_whole(path, write)


def report_written(path: str, what: str) -> None:
    """Say what was written; on the standard error if the standard output has the file itself, or is closed."""
    elsewhere = path in _STANDARD_OUTPUT or isinstance(sys.stdout, _ClosedOutput)
    print(f"{path}: {what}", file=sys.stderr if elsewhere else sys.stdout)
