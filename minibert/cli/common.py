"""What the verbs share: the model's options, the texts, files that appear whole or not at all."""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Callable
from typing import BinaryIO

from minibert.hub import DEFAULT_MODEL

__all__ = ["add_model_options", "add_texts", "read_lines", "read_texts", "report_written", "write_file"]


def add_model_options(parser: argparse.ArgumentParser, *, backend: bool = True) -> None:
    """Add --model, --revision and, where something is computed, --backend."""
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


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Add the positional texts."""
    parser.add_argument("texts", nargs="+", metavar="TEXT", help='a text; "-" for the lines of the standard input')


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
    if path == "-" and sys.stdout is None:
        raise OSError("the standard output is closed.")
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        whole = io.BytesIO()  # the formats need a file that can be rewound
        write(whole)
        try:
            with open(sys.stdout.fileno() if path == "-" else path, "wb", closefd=path != "-") as file:
                file.write(whole.getbuffer())
        except OSError as error:
            raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error
        return
    target = os.path.realpath(path)
    try:
        descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".minibert-")
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(partial, 0o666 & ~umask)  # mkstemp's files are private, the user's are as usual
        os.replace(partial, target)
    except BaseException as error:
        os.unlink(partial)
        if isinstance(error, OSError):
            raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error
        raise


def report_written(path: str, what: str) -> None:
    """Say what was written, on the standard error if the file went to the standard output."""
    print(f"{path}: {what}", file=sys.stderr if path in ("-", "/dev/stdout") else sys.stdout)
