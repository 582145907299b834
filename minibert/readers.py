"""Texts in files -> records, one at a time: plain text, JSON lines, CSV and TSV, each also gzipped.

A record that cannot be used is still a record: it says what is wrong with it, and where. Bytes are counted into a
checksum as they are read, so that a run can tell whether its input is still the same.
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
from typing import Any

from minibert.files import os_reason
from minibert.texts import refuse_lone_surrogate

__all__ = ["INPUT_FORMATS", "Record", "Source", "input_format", "read_records"]

INPUT_FORMATS = ("text", "jsonl", "csv", "tsv")
"""One text per line; one JSON object (or string) per line; a header line, then rows."""

_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}


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
        The one that holds the id; default: records are numbered.
    name : str
        What messages and ids call the file.
    """

    path: str
    format: str
    text_column: str
    id_column: str | None
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One text of a file, or what stands in its place.

    Parameters
    ----------
    text : str or None
        None where there is none to be had.
    id : str, int or None
        None where the source has no ids.
    file : str
    line : int
        Its first line in the file, from 1.
    problem : str or None
        Why there is no text.
    """

    text: str | None
    id: str | int | None
    file: str
    line: int
    problem: str | None = None


def input_format(path: str) -> str:
    """Tell the format from a file's name; what has no known suffix is plain text."""
    return _BY_SUFFIX.get(os.path.splitext(path.removesuffix(".gz"))[1].lower(), "text")


def read_records(source: Source, checksum: hashlib._Hash | None = None) -> Iterator[Record]:
    """Yield the records of a file.

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
        CSV file with a broken quote in a text of several lines; one in a record of one line spoils that record only.
    """
    try:
        with open(source.path, "rb", buffering=0) as raw:
            file = io.BufferedReader(_Counted(raw, checksum), 2**16)
            stream: Any = gzip.GzipFile(fileobj=file) if source.path.endswith(".gz") else file
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


def _read_lines(source: Source, stream: Any) -> Iterator[Record]:
    parse = _parse_text if source.format == "text" else _parse_json
    for number, line in enumerate(stream, 1):
        data = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            decoded = data.decode("utf-8-sig" if number == 1 else "utf-8")
            text, own_id = parse(source, decoded)
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8: byte 0x{data[error.start]:02x} at {error.start}"
            yield Record(None, None, source.name, number, problem)
        except (ValueError, RecursionError) as error:
            problem = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
            yield Record(None, None, source.name, number, problem)
        else:
            yield Record(text, own_id, source.name, number)


def _parse_text(source: Source, line: str) -> tuple[str, None]:
    return line, None


def _parse_json(source: Source, line: str) -> tuple[str, str | int | None]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from None
    if isinstance(value, str) and source.id_column is None:
        refuse_lone_surrogate(value, "the text")
        return value, None
    if not isinstance(value, dict):
        raise ValueError(f"holds no JSON object, but {type(value).__name__}")
    own_id = None
    if source.id_column is not None:
        own_id = value.get(source.id_column)
        if isinstance(own_id, bool) or not isinstance(own_id, str | int):
            raise ValueError(f"has no id, a string or a whole number, under {source.id_column!r}")
    if source.text_column not in value:
        raise ValueError(f"has no {source.text_column!r}; it has {', '.join(map(repr, value)) or 'nothing'}")
    text = value[source.text_column]
    if not isinstance(text, str):
        raise ValueError(f"holds {'null' if text is None else type(text).__name__} as {source.text_column!r}, no text")
    refuse_lone_surrogate(text, "the text")
    return text, own_id


def _read_table(source: Source, stream: Any) -> Iterator[Record]:
    # What is not UTF-8 comes through as lone surrogates, and is found in the one record that has it.
    lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(lines, delimiter="\t" if source.format == "tsv" else ",", strict=True)
    try:
        header = next(rows, None)
    except csv.Error as error:
        raise ValueError(f"{source.name}, line 1: the header is broken: {error}.") from error
    wanted = [name for name in (source.text_column, source.id_column) if name is not None]
    missing = [name for name in wanted if header is None or name not in header]
    if missing:
        known = ", ".join(map(repr, header or [])) or "none"
        raise ValueError(f"{source.name} has no column {missing[0]!r}; it has {known}. See --text-column, --id-column.")
    assert header is not None  # or something would be missing
    text_place = header.index(source.text_column)
    id_place = None if source.id_column is None else header.index(source.id_column)
    line = rows.line_num + 1
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            if rows.line_num > line:  # where the next record begins would be a guess
                raise ValueError(
                    f"{source.name}, line {line}: {error}. The record runs over several lines, so what follows it "
                    "cannot be told apart, whatever --on-error says."
                ) from error
            yield Record(None, None, source.name, line, f"is no row of a table: {error}")
        else:
            if row is None:
                return
            if row:  # an empty line is no record
                yield _table_record(source, row, len(header), text_place, id_place, line)
        line = rows.line_num + 1


def _table_record(
    source: Source, row: list[str], width: int, text_place: int, id_place: int | None, line: int
) -> Record:
    problem = None
    if len(row) != width:
        problem = f"has {len(row)} columns, the header has {width}"
    else:
        try:
            for place in (text_place, *([] if id_place is None else [id_place])):
                row[place].encode("utf-8")
        except UnicodeEncodeError as error:
            problem = f"is not UTF-8: byte 0x{ord(error.object[error.start]) & 0xFF:02x}"
    if problem is not None:
        return Record(None, None, source.name, line, problem)
    return Record(row[text_place], None if id_place is None else row[id_place], source.name, line)
