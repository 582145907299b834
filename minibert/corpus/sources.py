"""Texts in files -> input lines, one at a time: plain text, JSON lines, CSV and TSV, each also gzipped.

An input line that cannot be used is yielded too, with its problem and its number. A line that is too long to be held in
memory is such a line; its rest is skipped. `survey` is the first reading of a run: it finds these lines before anything
is computed, and computes a checksum of each file.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

from minibert._utils.files import os_reason, printable
from minibert._utils.validation import brief, check_choice, counted
from minibert.tokenizer.texts import check_text
from minibert.tokenizer.windows import in_chunks

INPUT_FORMATS = ("text", "jsonl", "csv", "tsv")
"""text: one text per line. jsonl: one JSON object (or string) per line. csv and tsv: a header line, then rows."""

ON_ERROR = ("stop", "skip", "null")
"""If an input line cannot be used: compute nothing, leave the line out, or keep its row without a vector."""

_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}

_GZIP = b"\x1f\x8b"  # gzip data begin with these bytes; UTF-8 text cannot

# Most bytes of a line, or characters of a CSV row, without its end. The csv module limits a field to 131,072, which is
# less than a book. Without a limit a quote that is never closed would read the rest of the file into memory.
# A line that never ends would do the same, and a small gzip file can hold one.
_LINE_LIMIT = 2**24

_BLOCK = 2**16  # bytes or characters that are skipped at a time
_KEYS_SHOWN = 20

# Most characters of the input lines that are held in memory, not counting the line that was read last.
CHARACTERS_AT_ONCE = 2**25

# A run that stops shows at most this number of bad lines, and counts the others.
_PROBLEMS_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of texts.

    Parameters
    ----------
    path : str
        "-" means the standard input in a run (see runs.py).
    format : {"text", "jsonl", "csv", "tsv"}
    text_column : str
        The column or key of the text; not used for plain text.
    id_column : str, optional
        The column or key of the id; default: input lines are numbered.
    name : str, optional
        Name of the file in messages and in the manifest; default: its path.

    Raises
    ------
    ValueError
        The format is not one of these, or it does not have ids.
    """

    path: str
    format: str
    text_column: str = "text"
    id_column: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name or self.path))
        check_choice("format", self.format, INPUT_FORMATS)
        if self.format == "text" and self.id_column is not None:
            raise ValueError(f"id_column={self.id_column!r}, but plain text does not have columns; expected None.")


@dataclasses.dataclass(frozen=True, slots=True)
class InputLine:
    """One text of a file, or the reason why it has no text. In CSV and TSV it is one row, which can have several lines.

    Parameters
    ----------
    text : str or None
        None if it cannot be read.
    id : str, int or None
        None if the source does not have ids, or this one cannot be read.
    file : str
    line : int
        Number of its first line in the file, from 1.
    problem : str or None
        Why the text cannot be used.
    numbered : bool
        The source does not have ids, so the number of the input line is its id.
    """

    text: str | None
    id: str | int | None
    file: str
    line: int
    problem: str | None = None
    numbered: bool = True


def input_format(path: str) -> str:
    """Return the format that a file's name implies; a name without a known suffix means plain text."""
    return _BY_SUFFIX.get(os.path.splitext(path.removesuffix(".gz"))[1].lower(), "text")


def read_input_lines(source: Source, checksum: hashlib._Hash | None = None) -> Iterator[InputLine]:
    """Yield the input lines of a file.

    Parameters
    ----------
    source : Source
    checksum : hash object of hashlib, optional
        Updated with every byte of the file as it is on the disk.

    Raises
    ------
    OSError
        The file cannot be read, or its gzip data are damaged.
    ValueError
        The header of a table is wrong, or it is unknown where the next row begins. This happens after a broken quote in
        a CSV row of several lines; a broken quote in a row of one line makes only that row a bad line. The message
        names the file and the line.
    """
    try:
        with open(source.path, "rb", buffering=0) as raw:
            file = io.BufferedReader(_Counted(raw, checksum), 2**16)
            # The standard input does not have a name with a suffix.
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
    """A raw stream that updates a checksum with the bytes it passes on."""

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
        line_id: str | int | None = None
        problem = None
        try:
            decoded = data.decode("utf-8-sig" if number == 1 else "utf-8")
            if source.format == "text":
                text = decoded
            else:
                value = _json_value(source, decoded)
                line_id = _json_id(source, value)
                text = _json_text(source, value)
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8: byte 0x{data[error.start]:02x} at {error.start}"
        except (ValueError, RecursionError) as error:
            problem = "is nested too deeply" if isinstance(error, RecursionError) else str(error).removesuffix(".")
        yield InputLine(text, line_id, source.name, number, problem, source.id_column is None)


def _json_value(source: Source, line: str) -> str | dict[str, Any]:
    """Return a line's JSON value: an object, or a text if ids are not needed."""
    if not line.strip():
        raise ValueError("is empty; expected a JSON object")
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from None
    if isinstance(value, dict) or (isinstance(value, str) and source.id_column is None):
        return value
    raise ValueError(f"holds {type(value).__name__}; expected a JSON object")


def _json_id(source: Source, value: str | dict[str, Any]) -> str | int | None:
    if isinstance(value, str) or source.id_column is None:
        return None
    line_id = value.get(source.id_column)
    if isinstance(line_id, bool) or not isinstance(line_id, str | int):
        raise ValueError(f"does not have an id (a string or a whole number) under {source.id_column!r}")
    if isinstance(line_id, str):
        check_text(line_id, "the id")
    return line_id


def _json_text(source: Source, value: str | dict[str, Any]) -> str:
    text: Any = value
    if isinstance(value, dict):
        if source.text_column not in value:
            keys = [brief(key) for key in islice(value, _KEYS_SHOWN)] or ["nothing"]
            keys += ["..."] if len(value) > _KEYS_SHOWN else []
            raise ValueError(f"does not have {source.text_column!r}; it has {', '.join(keys)}")
        text = value[source.text_column]
    if not isinstance(text, str):
        raise ValueError(
            f"holds {'null' if text is None else type(text).__name__} as {source.text_column!r}; expected a text"
        )
    check_text(text, "the text")
    return text


def _read_table(source: Source, stream: Any) -> Iterator[InputLine]:
    lines = _TableLines(stream)
    csv.field_size_limit(max(csv.field_size_limit(), _LINE_LIMIT))  # this limit is global to the process
    rows = csv.reader(lines, delimiter="\t" if source.format == "tsv" else ",", strict=True)
    try:
        header = next(rows, None)
    except csv.Error as error:
        raise ValueError(f"{source.name}, line 1: the header is broken: {error}.") from error
    wanted = [name for name in (source.text_column, source.id_column) if name is not None]
    missing = [name for name in wanted if header is None or name not in header]
    if missing:
        known = ", ".join(map(repr, header or [])) or "none"
        raise ValueError(
            f"{source.name} does not have a column {missing[0]!r}; it has {known}. Give text_column= and id_column=."
        )
    assert header is not None  # else a column would be missing
    text_index = header.index(source.text_column)
    id_index = None if source.id_column is None else header.index(source.id_column)
    while True:
        line = lines.begin_row()
        try:
            row = next(rows, None)
        except csv.Error as error:
            if lines.number > line or lines.ends_in_quotes:  # the start of the next row is unknown
                raise ValueError(
                    f"{source.name}, line {line}: {error}. The row runs over several lines, so it is unknown "
                    "where the next row begins. Correct it; on_error= cannot skip it."
                ) from error
            problem = f"is not a row of a table: {error}"
            yield InputLine(None, None, source.name, line, problem, source.id_column is None)
        else:
            if row is None:
                return
            if row:  # an empty line is not a row
                yield _table_line(source, row, len(header), text_index, id_index, line)


class _TableLines:
    """The lines of a table for the csv module. A row that is too long raises csv.Error.

    Attributes
    ----------
    number : int
        Number of the line that was read last, from 1.
    ends_in_quotes : bool
        Whether a line that was too long ends within quotes, so that its row continues in the next line.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self.number, self._row_bytes, self.ends_in_quotes = stream, 0, 0, False

    def begin_row(self) -> int:
        """Begin a row at the next line, and return the number of that line."""
        self._row_bytes = 0
        return self.number + 1

    def __iter__(self) -> _TableLines:
        return self

    def __next__(self) -> str:
        data = self._stream.readline(max(1, _LINE_LIMIT + len(b"\r\n") - self._row_bytes))
        if not data:
            raise StopIteration
        self.number += 1
        self._row_bytes += len(data)
        if self._row_bytes - len(data) + len(data.rstrip(b"\r\n")) > _LINE_LIMIT:
            quotes = data.count(b'"')
            while data and not data.endswith(b"\n"):
                data = self._stream.readline(_BLOCK)
                quotes += data.count(b'"')
            self.ends_in_quotes = quotes % 2 == 1
            raise csv.Error(f"it has more than {_LINE_LIMIT:,} bytes")
        # Bytes that are not UTF-8 become lone surrogates, so that only the row with them is bad.
        line: str = data.decode("utf-8-sig" if self.number == 1 else "utf-8", "surrogateescape")
        return line


def _table_line(
    source: Source, row: list[str], width: int, text_index: int, id_index: int | None, line: int
) -> InputLine:
    text: str | None = None
    line_id: str | None = None
    problem = None
    try:
        if len(row) != width:
            raise ValueError(f"has {len(row)} columns, but the header has {width}")
        line_id = None if id_index is None else _checked_field(row[id_index])
        text = _checked_field(row[text_index])
    except ValueError as error:
        problem = str(error).removesuffix(".")
    return InputLine(text, line_id, source.name, line, problem, id_index is None)


def _checked_field(field: str) -> str:
    try:
        field.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"is not UTF-8: byte 0x{ord(field[error.start]) & 0xFF:02x}") from None
    return field


# --- the first reading ------------------------------------------------------------------------------------------------


def survey(
    sources: Sequence[Source], *, stop: bool, too_long: Callable[[list[str]], list[str | None]] | None = None
) -> tuple[list[str], int]:
    """Read every input line once to check it, before anything is computed.

    Parameters
    ----------
    sources : sequence of Source
    stop : bool
        Raise if a line cannot be used.
    too_long : callable, optional
        Texts -> for each the problem if it is too long, else None. Such texts cannot be used either.

    Returns
    -------
    checksums : list of str
        Of each file.
    count : int
        Input lines in all files.
    """
    problems, checksums = list[str](), list[str]()
    count = n_problems = 0
    for source in sources:
        checksum = hashlib.sha256()
        for chunk in in_chunks(read_input_lines(source, checksum), 1024, weight, CHARACTERS_AT_ONCE):
            count += len(chunk)
            found = [one for one in chunk if stop and one.problem is not None]
            if stop and too_long is not None:
                usable = [one for one in chunk if one.text is not None]
                reasons = too_long([one.text or "" for one in usable])
                found += [
                    dataclasses.replace(one, problem=reason)
                    for one, reason in zip(usable, reasons, strict=True)
                    if reason is not None
                ]
            n_problems += len(found)
            found.sort(key=lambda one: one.line)
            problems += map(describe, found[: _PROBLEMS_SHOWN - len(problems)])
        checksums.append(checksum.hexdigest())
    if n_problems:
        more = f"\n... and {n_problems - len(problems)} more" if n_problems > len(problems) else ""
        raise ValueError(
            f"{counted(n_problems, 'input line')} cannot be used; nothing was computed:\n"
            + "\n".join(problems)
            + f"{more}\n"
            "Correct them, leave them out (on_error='skip'), or keep their rows without vectors (on_error='null')."
        )
    if not count:
        raise ValueError(f"{', '.join(source.name for source in sources)}: there is no text; give files with texts.")
    return checksums, count


def weight(input_line: InputLine) -> int:
    """Count the characters of an input line."""
    return sum(len(value) for value in (input_line.text, input_line.id, input_line.problem) if isinstance(value, str))


def describe(input_line: InputLine) -> str:
    """Return the file, the line number and the problem of an input line, for a message."""
    return f"{input_line.file}, line {input_line.line}: {input_line.problem}"


def row_of(number: int, input_line: InputLine) -> dict[str, Any]:
    """Return the entry of an input line in an index: its id, file and line, and why it does not have a text.

    Without ids in the source the id is the input line's number. With ids it is None if it cannot be read, because a
    number could be the id of another input line.
    """
    row: dict[str, Any] = {
        "id": number if input_line.numbered else input_line.id,
        "file": input_line.file,
        "line": input_line.line,
    }
    return row if input_line.problem is None else {**row, "null": input_line.problem}


def standard_input() -> BinaryIO:
    """Return the standard input as bytes; raise a ValueError if it is closed."""
    if sys.stdin is None:
        raise ValueError("the standard input is closed.")
    return sys.stdin.buffer
