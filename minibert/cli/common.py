"""What the verbs share: the model's options, the texts, files that appear whole or not at all."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from typing import BinaryIO

from minibert.hub import DEFAULT_MODEL

__all__ = ["add_model_options", "add_texts", "read_texts", "write_file"]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add --model, --revision and --backend."""
    parser.add_argument(
        "-m", "--model", default=DEFAULT_MODEL, metavar="MODEL", help="hub id or folder (default: %(default)s)"
    )
    parser.add_argument("--revision", help="branch, tag or commit of the hub repository (default: main)")
    parser.add_argument("--backend", choices=("numba", "numpy"), help="who computes (default: numba)")


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
        lines = sys.stdin.buffer.read().split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                read.append(line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"standard input, line {number}, is not UTF-8: byte 0x{line[error.start]:02x} at {error.start}."
                ) from None
    if not read:
        raise ValueError("the standard input holds no text.")
    return read


def write_file(path: str, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a file that takes its name only once it is complete.

    Raises
    ------
    OSError
        The file cannot be written; nothing is left under `path` that was not there before.
    """
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder; give the name of a file to write.")
    try:
        descriptor, partial = tempfile.mkstemp(dir=folder, prefix=".minibert-")
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(partial, 0o666 & ~umask)  # mkstemp's files are private, the user's are as usual
        os.replace(partial, path)
    except BaseException as error:
        os.unlink(partial)
        if isinstance(error, OSError):
            raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error
        raise
