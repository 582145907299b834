"""Texts in files -> input lines, one at a time: plain text, JSON lines, CSV and TSV, each also gzipped.

An input line that cannot be used is still an input line: it says what is wrong with it, and where. So is one that is
too long to be held in memory; its rest is skipped. Every byte that is read goes into a checksum, so that a run can tell
whether its input is still the same.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from minibert.base.checks import brief, check_choice
from minibert.base.files import os_reason
from minibert.tokenizer.texts import refuse_lone_surrogate

__all__ = ["INPUT_FORMATS", "InputLine", "Source", "input_format", "read_input_lines"]

INPUT_FORMATS = ("text", "jsonl", "csv", "tsv")
"""One text per line; one JSON object (or string) per line; a header line, then rows."""

_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}

_GZIP = b"\x1f\x8b"  # what gzip data begin with, and no UTF-8 text

# Bytes of a line, or characters of a CSV row, without its end. The csv module's own limit, of a field, is 131,072,
# less than a book; without one a quote that is never closed would bring the rest of the file into memory, and so would
# a line that never ends, which gzip makes of a small file.
_LINE_LIMIT = 2**24

_BLOCK = 2**16  # of what is passed over
_KEYS_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of texts.

    Parameters
    ----------
    path : str
        "-" is the standard input, where a run reads it (see runs.py).
    format : {"text", "jsonl", "csv", "tsv"}
    text_column : str
        The column, or the key, that holds the text; plain text has none.
    id_column : str, optional
        The one that holds the id; default: input lines are numbered.
    name : str, optional
        What messages and the manifest call the file; default: its path.

    Raises
    ------
    ValueError
        The format is none of these, or has no ids.
    """

    path: str
    format: str
    text_column: str = "text"
    id_column: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.path)
        check_choice("format", self.format, INPUT_FORMATS)
        if self.format == "text" and self.id_column is not None:
            raise ValueError(f"id_column={self.id_column!r}, but plain text has no columns; expected None.")


@dataclasses.dataclass(frozen=True, slots=True)
class InputLine:
    """One text of a file, or what stands in its place.

    Parameters
    ----------
    text : str or None
        None where there is none to be had.
    id : str, int or None
        None where the source has no ids, or this one cannot be read.
    file : str
    line : int
        Its first line in the file, from 1.
    problem : str or None
        Why there is no text.
    numbered : bool
        The source has no ids: an input line is called by its number.
    """

    text: str | None
    id: str | int | None
    file: str
    line: int
    problem: str | None = None
    numbered: bool = True


def input_format(path: str) -> str:
    """Tell the format from a file's name; what has no known suffix is plain text."""
    return _BY_SUFFIX.get(os.path.splitext(path.removesuffix(".gz"))[1].lower(), "text")


def read_input_lines(source: Source, checksum: hashlib._Hash | None = None) -> Iterator[InputLine]:
    """Yield the input lines of a file.

    Parameters
    ----------
    source : Source
    checksum : hash object of hashlib, optional
        Is given every byte of the file (as it is on the disk) by the end.

    Raises
    ------
    OSError
        The file cannot be read, or its gzip data are damaged.
    ValueError
        Its structure is broken, so that the rest of it cannot be told apart: the file and the line are named. So is a
        CSV file with a broken quote in a text of several lines; one in a row of one line spoils that row only.
    """
    try:
        with open(source.path, "rb", buffering=0) as raw:
            file = io.BufferedReader(_Counted(raw, checksum), 2**16)
            # The standard input has no name that could tell.
            compressed = source.path.endswith(".gz") or file.peek(len(_GZIP)).startswith(_GZIP)
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            if source.format in ("csv", "tsv"):
                yield from _read_table(source, stream)
            else:
                yield from _read_lines(source, stream)
    except (OSError, EOFError, zlib.error) as error:
        reason = os_reason(error) if isinstance(error, OSError) else str(error)
        raise OSError(f"{source.name} cannot be read: {reason}.") from error


class _Counted(io.RawIOBase):
    """Hands bytes through, and to a checksum."""

    def __init__(self, raw: Any, checksum: hashlib._Hash | None) -> None:
        self._raw, self._checksum = raw, checksum

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self._raw.readinto(buffer) or 0)
        if self._checksum is not None:
            self._checksum.update(memoryview(buffer)[:count])
        return count


def _read_lines(source: Source, stream: Any) -> Iterator[InputLine]:
    for number, line in enumerate(iter(lambda: stream.readline(_LINE_LIMIT + len(b"\r\n")), b""), 1):
        data = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(data) > _LINE_LIMIT:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_BLOCK)
            too_long = f"has more than {_LINE_LIMIT:,} bytes"
            yield InputLine(None, None, source.name, number, too_long, source.id_column is None)
            continue
        text: str | None = None
        own_id: str | int | None = None
        problem = None
        try:
            decoded = data.decode("utf-8-sig" if number == 1 else "utf-8")
            if source.format == "text":
                text = decoded
            else:
                value = _json_value(source, decoded)
                own_id = _json_id(source, value)
                text = _json_text(source, value)
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8: byte 0x{data[error.start]:02x} at {error.start}"
        except (ValueError, RecursionError) as error:
            problem = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        yield InputLine(text, own_id, source.name, number, problem, source.id_column is None)


def _json_value(source: Source, line: str) -> str | dict[str, Any]:
    """Return what a line holds: an object or, where no ids are asked for, a text."""
    if not line.strip():
        raise ValueError("is empty; expected a JSON object")
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from None
    if isinstance(value, dict) or (isinstance(value, str) and source.id_column is None):
        return value
    raise ValueError(f"holds no JSON object, but {type(value).__name__}")


def _json_id(source: Source, value: str | dict[str, Any]) -> str | int | None:
    if isinstance(value, str) or source.id_column is None:
        return None
    own_id = value.get(source.id_column)
    if isinstance(own_id, bool) or not isinstance(own_id, str | int):
        raise ValueError(f"has no id, a string or a whole number, under {source.id_column!r}")
    if isinstance(own_id, str):
        refuse_lone_surrogate(own_id, "the id")
    return own_id


def _json_text(source: Source, value: str | dict[str, Any]) -> str:
    text: Any = value
    if isinstance(value, dict):
        if source.text_column not in value:
            keys = [brief(key) for key in islice(value, _KEYS_SHOWN)] or ["nothing"]
            keys += ["..."] if len(value) > _KEYS_SHOWN else []
            raise ValueError(f"has no {source.text_column!r}; it has {', '.join(keys)}")
        text = value[source.text_column]
    if not isinstance(text, str):
        raise ValueError(f"holds {'null' if text is None else type(text).__name__} as {source.text_column!r}, no text")
    refuse_lone_surrogate(text, "the text")
    return text


def _read_table(source: Source, stream: Any) -> Iterator[InputLine]:
    # What is not UTF-8 comes through as lone surrogates, and is found in the one row that has it.
    lines = _TableLines(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline=""))
    csv.field_size_limit(max(csv.field_size_limit(), _LINE_LIMIT))  # of the process: there is no other
    rows = csv.reader(lines, delimiter="\t" if source.format == "tsv" else ",", strict=True)
    try:
        header = next(rows, None)
    except csv.Error as error:
        raise ValueError(f"{source.name}, line 1: the header is broken: {error}.") from error
    wanted = [name for name in (source.text_column, source.id_column) if name is not None]
    missing = [name for name in wanted if header is None or name not in header]
    if missing:
        known = ", ".join(map(repr, header or [])) or "none"
        raise ValueError(f"{source.name} has no column {missing[0]!r}; it has {known}. Give text_column=, id_column=.")
    assert header is not None  # or something would be missing
    text_place = header.index(source.text_column)
    id_place = None if source.id_column is None else header.index(source.id_column)
    while True:
        line = lines.begin_row()
        try:
            row = next(rows, None)
        except csv.Error as error:
            if lines.number > line or lines.ends_in_quotes:  # where the next row begins would be a guess
                raise ValueError(
                    f"{source.name}, line {line}: {error}. The row runs over several lines, so what follows it "
                    "cannot be told apart, whatever on_error= says."
                ) from error
            problem = f"is no row of a table: {error}"
            yield InputLine(None, None, source.name, line, problem, source.id_column is None)
        else:
            if row is None:
                return
            if row:  # an empty line is not a row
                yield _table_line(source, row, len(header), text_place, id_place, line)


class _TableLines:
    """Hands lines to the csv module, and refuses those of a row that is too long.

    Attributes
    ----------
    number : int
        Of the line that was read last, from 1.
    ends_in_quotes : bool
        Whether a line that was refused ends within quotes, so that its row goes on in the next line.
    """

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file, self._next = file, ""
        self.number = self._characters = 0
        self.ends_in_quotes = False

    def begin_row(self) -> int:
        """Return the number of the line that comes next, with which a row begins."""
        self._characters = 0
        return self.number + 1

    def __iter__(self) -> _TableLines:
        return self

    def __next__(self) -> str:
        line = self._line(max(1, _LINE_LIMIT + len("\r\n") - self._characters))
        if not line:
            raise StopIteration
        self.number += 1
        if self._characters + len(line.rstrip("\r\n")) > _LINE_LIMIT:
            quotes = line.count('"')
            while line and not line.endswith(("\n", "\r")):
                line = self._line(_BLOCK)
                quotes += line.count('"')
            self.ends_in_quotes = quotes % 2 == 1
            raise csv.Error(f"it has more than {_LINE_LIMIT:,} characters")
        self._characters += len(line)
        return line

    def _line(self, size: int) -> str:
        """Read a line, or what comes first of a longer one; no end of a line is cut in two."""
        line, self._next = self._next, ""
        if not line.endswith("\r"):
            line += self._file.readline(size)
        if line.endswith("\r"):
            self._next = self._file.readline(1)
            if self._next == "\n":
                line, self._next = line + "\n", ""
        return line


def _table_line(
    source: Source, row: list[str], width: int, text_place: int, id_place: int | None, line: int
) -> InputLine:
    text: str | None = None
    own_id: str | None = None
    problem = None
    try:
        if len(row) != width:
            raise ValueError(f"has {len(row)} columns, the header has {width}")
        own_id = None if id_place is None else _checked_field(row[id_place])
        text = _checked_field(row[text_place])
    except ValueError as error:
        problem = str(error)
    return InputLine(text, own_id, source.name, line, problem, id_place is None)


def _checked_field(field: str) -> str:
    try:
        field.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"is not UTF-8: byte 0x{ord(field[error.start]) & 0xFF:02x}") from None
    return field
