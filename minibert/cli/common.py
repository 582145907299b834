"""The functions that the verbs share: options of the model, reading of texts, writing of whole files."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NoReturn

from minibert._utils.files import check_output, os_reason, printable, write_whole
from minibert.checkpoint.hub import DEFAULT_MODEL

__all__ = [
    "Parser",
    "add_batch_size",
    "add_compute_type",
    "add_layer_pooling",
    "add_layers",
    "add_model_options",
    "add_prompt",
    "add_shared_weights",
    "add_stride",
    "add_texts",
    "check_file",
    "natural",
    "positive",
    "read_lines",
    "read_texts",
    "report_problem",
    "report_written",
    "several_ints",
    "standard_streams",
    "write_file",
]

_CLOSED = "the standard output is closed; redirect it to a file"
# An argument in a message: its name, "=", and then True, a word in quotes, a number or nothing.
_ARGUMENT = re.compile(r"\b(?P<name>[a-z_]+)=(?P<value>True|'[^'\s]+'|-?\d+|)(?=[\s,.;:)]|$)")
_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


class Parser(argparse.ArgumentParser):
    """argparse's parser; it accepts ``--layers -1,-2``, and printing help raises if the standard output is closed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Values that may begin with "-": argparse accepts single negative numbers, this pattern also lists of them.
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


class _ClosedOutput(io.TextIOBase):
    """Replaces a standard output that was closed before the start; writing to it raises an OSError."""

    def write(self, text: str) -> int:
        raise OSError(f"{_CLOSED}.")

    def fileno(self) -> int:
        raise io.UnsupportedOperation(_CLOSED)


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Make writing to a closed stdout an error, and writing to a closed stderr do nothing.

    Python sets a standard stream that was closed before the start to None. Then `print` writes nothing to stdout, and
    writes to stdout the text that is meant for stderr. Within this context writing to a closed stdout raises an
    OSError, and text for a closed stderr is ignored. The closed descriptors 1 and 2 are opened on the null device,
    because a file opened later could get such a number, and with it the output of libraries in C or Rust.
    Text that could not be written is not tried again when the process ends.
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
    """Open a closed descriptor on the null device."""
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null == descriptor:
            os.set_inheritable(descriptor, True)
        else:
            os.dup2(null, descriptor)
            os.close(null)


def _discard_unwritable(stream: Any) -> None:
    """Flush a stream; if that fails (a full disk, a closed pipe), send the rest to the null device."""
    try:
        stream.flush()
    except (OSError, ValueError):  # ValueError: Python's own stream was closed
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


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


def report_problem(problem: str) -> None:
    """Print a problem or a warning on the standard error."""
    with contextlib.suppress(OSError):  # the result does not depend on this message
        print(f"minibert: {problem}", file=sys.stderr)


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


def read_texts(texts: list[str]) -> list[str]:
    """Return the texts with each "-" replaced by the lines of the standard input.

    Raises
    ------
    ValueError
        A line is not UTF-8 (the message names it), or there is no text.
    """
    read: list[str] = []
    for text in texts:
        if text != "-":
            read.append(text)
            continue
        read += read_lines("-")
    if not read:
        raise ValueError("the standard input does not hold a text; write one text per line to it.")
    return read


def read_lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file without newlines; "-" means the standard input.

    Raises
    ------
    ValueError, OSError
        A line is not UTF-8 (the message names it), or the file cannot be read.
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
            reason = os_reason(error) if isinstance(error, OSError) else error
            raise OSError(f"{printable(path)} cannot be read: {reason}.") from error
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


def check_file(path: str, suffix: str) -> None:
    """Check the name of a file for `write_file`, before anything is computed.

    The standard output, a pipe or a device may have any name.

    Raises
    ------
    ValueError, OSError
        As in `check_output`.
    """
    if path not in _STANDARD_OUTPUT and not _is_stream(path):
        check_output(path, (suffix,))


def write_file(path: str, write: Callable[[BinaryIO], None]) -> None:
    """Write a file with `write`. It gets its name only when it is complete; "-" means the standard output.

    A link is followed. A pipe or a device is written to, never replaced.

    Raises
    ------
    OSError
        The file cannot be written. `path` is then as it was before.
    """
    printed = path in _STANDARD_OUTPUT
    if printed or _is_stream(path):
        whole = io.BytesIO()  # the formats need a file that can be rewound
        write(whole)
        try:
            with open(sys.stdout.fileno() if printed else path, "wb", closefd=not printed) as file:
                file.write(whole.getbuffer())
        except OSError as error:
            raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error
        return
    write_whole(path, write)


def _is_stream(path: str) -> bool:
    """Return whether a path is that of a pipe or a device."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def report_written(path: str, what: str) -> None:
    """Print what was written, on the standard error if the standard output has the file itself or is closed."""
    elsewhere = path in _STANDARD_OUTPUT or isinstance(sys.stdout, _ClosedOutput)
    print(f"{path}: {what}", file=sys.stderr if elsewhere else sys.stdout)
