"""Input and output of the verbs: read texts, print results to stdout or a file, everything else to stderr."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from minibert._utils.files import check_output, explained, write_whole
from minibert.cli.notation import in_options
from minibert.corpus.input_lines import usable_lines
from minibert.corpus.sources import Source

_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Replace a stderr that was closed before the start (``2>&-``); ignore errors of a full disk or a closed pipe.

    A standard output that was closed ends the process with exit code 1.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (used until the process ends)
    if sys.stdout is None:
        report_problem("the standard output is closed; redirect it, for example to a file.")
        raise SystemExit(1)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # ValueError: Python's own stream was closed
            with contextlib.suppress(OSError, ValueError):  # otherwise Python tries again when the process ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_problem(problem: str, parser: argparse.ArgumentParser | None = None) -> None:
    """Print a problem or a warning on the standard error; one of the library with the options of the verb's parser."""
    with contextlib.suppress(OSError):  # the result does not depend on this message
        print(f"minibert: {in_options(problem, parser)}", file=sys.stderr)


def read_texts(texts: list[str]) -> list[str]:
    """Return the texts with each "-" replaced by the lines of the standard input.

    Raises
    ------
    ValueError
        A line is not UTF-8 (the message names it), or there is no text.
    """
    read = [line for text in texts for line in (read_lines("-") if text == "-" else [text])]
    if not read:
        raise ValueError("the standard input does not hold a text; write one text per line to it.")
    return read


def read_text(name: str, text: str, *, may_be_empty: bool = False) -> str:
    """Return the text of an argument; "-" means the standard input, which must be one line.

    Raises
    ------
    ValueError
        As in `read_texts`; or there are several lines, or no visible character.
    """
    texts = read_texts([text])
    if len(texts) > 1 or not (texts[0].strip() or may_be_empty):
        raise ValueError(f"{name} is {f'{len(texts)} lines' if len(texts) > 1 else 'empty'}; give one text.")
    return texts[0]


def read_lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file without newlines; "-" means the standard input.

    Raises
    ------
    ValueError, OSError
        A line is not UTF-8 (the message names it), or the file cannot be read.
    """
    source = Source(path, "text", name="standard input" if path == "-" else "")
    return [line.text for line in usable_lines(source) if line.text is not None]


def check_file(path: str, suffix: str) -> None:
    """Check the name of a file for `write_file`, before anything is computed.

    The standard output, a pipe or a device may have any name.

    Raises
    ------
    ValueError, OSError
        As in `check_output`.
    """
    if not _is_stream(path):
        check_output(path, (suffix,))


def write_file(path: str, write: Callable[[BinaryIO], object]) -> None:
    """Write a file with `write`. It gets its name only when it is complete; "-" means the standard output.

    A link is followed. A pipe or a device is written to, never replaced.

    Raises
    ------
    OSError
        The file cannot be written. `path` is then as it was before.
    """
    if not _is_stream(path):
        write_whole(path, write)
        return
    whole = io.BytesIO()  # the formats need a file that can be rewound
    write(whole)
    printed = path in _STANDARD_OUTPUT
    place: int | str = sys.stdout.fileno() if printed else path
    with explained(f"{path} cannot be written"), open(place, "wb", closefd=not printed) as file:
        file.write(whole.getbuffer())


def _is_stream(path: str) -> bool:
    """Return whether a path names the standard output, a pipe or a device."""
    if path in _STANDARD_OUTPUT:
        return True
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def report_written(path: str, what: str) -> None:
    """Print what was written; print it on the standard error if the standard output has the file itself."""
    print(f"{path}: {what}", file=sys.stderr if path in _STANDARD_OUTPUT else sys.stdout)


def print_json(**values: Any) -> None:
    """Print one JSON object. Arrays are lists; float32 numbers have the fewest digits that restore them."""
    print(json.dumps(values, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if value.ndim > 1:
        return list(value)
    if value.dtype.kind != "f":
        return value.tolist()
    return [float(str(number)) for number in value] if value.ndim else float(str(value))


_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(part: float, width: int = 20) -> str:
    """Return a bar of `width` characters for a number from 0 to 1; ``#`` if the output cannot show blocks."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    blocks = "█" * full + (_EIGHTHS[rest] if rest else "")
    try:
        blocks.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        blocks = "#" * round(eighths / 8)
    return blocks.ljust(width)


def without_controls(text: str) -> str:
    """Replace each control character and line end in a text by a space."""
    return "".join(c if c.isprintable() else " " for c in text)


def one_line(text: str) -> str:
    """Replace each run of white space, and each control character, in a text by one space."""
    return " ".join(without_controls(text).split())
