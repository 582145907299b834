"""The lines of a file, and what becomes an input line. A line that is too long is not held in memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

from minibert.corpus.sources import InputLine, Source

# Most bytes of a line, or characters of a CSV row, without its end. The csv module limits a field to 131,072; a
# book has more. Without a limit a quote that is never closed would read the rest of the file into memory.
# A line that never ends would do the same, and a small gzip file can hold one.
LIMIT = 2**24

_BLOCK = 2**16  # bytes or characters that are skipped at a time


def numbered(stream: Any) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and the bytes of each line; None for one that is too long."""
    for number, line in enumerate(iter(lambda: stream.readline(LIMIT + len(b"\r\n")), b""), 1):
        data = line.removesuffix(b"\n").removesuffix(b"\r")
        too_long = len(data) > LIMIT
        while too_long and line and not line.endswith(b"\n"):
            line = stream.readline(_BLOCK)
        yield number, None if too_long else data


class TableLines(Iterator[str]):
    """The lines of a table for the csv module. A row that is too long raises csv.Error.

    Attributes
    ----------
    number : int
        Number of the line that was read last, from 1.
    row_bytes : int
        Bytes of the present row that were read; a new row begins with 0.
    ends_in_quotes : bool
        Whether a line that was too long ends within quotes, so that its row continues in the next line.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self.number, self.row_bytes, self.ends_in_quotes = stream, 0, 0, False
        csv.field_size_limit(max(csv.field_size_limit(), LIMIT))  # this limit is global to the process

    def __next__(self) -> str:
        data = self._stream.readline(max(1, LIMIT + len(b"\r\n") - self.row_bytes))
        if not data:
            raise StopIteration
        self.number += 1
        self.row_bytes += len(data)
        if self.row_bytes - len(data) + len(data.rstrip(b"\r\n")) > LIMIT:
            quotes = data.count(b'"')
            while data and not data.endswith(b"\n"):
                data = self._stream.readline(_BLOCK)
                quotes += data.count(b'"')
            self.ends_in_quotes = quotes % 2 == 1
            raise csv.Error(f"it has more than {LIMIT:,} bytes")
        return decoded(data, self.number)


def decoded(data: bytes, number: int) -> str:
    """Decode a line; bytes that are not UTF-8 become lone surrogates, so that `checked` finds their field."""
    return data.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")


def checked(field: str) -> str:
    """Return a field; a ValueError says why it is no text."""
    try:
        field.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is not UTF-8: byte 0x{ord(field[error.start]) & 0xFF:02x}") from None
    if "\0" in field:
        raise ValueError("holds a NUL byte, and text has none; perhaps the file is damaged, or UTF-16")
    return field


def as_text(value: Any) -> Any:
    """Return the bytes of a Parquet column as a text, any other value as it is."""
    return checked(value.decode("utf-8", "surrogateescape")) if isinstance(value, bytes) else value


def too_long(source: Source, number: int, until: str = "") -> InputLine:
    """Return an input line that has more than `LIMIT` bytes."""
    return InputLine(None, None, source.name, number, f"has more than {LIMIT:,} bytes{until}")


def input_line(source: Source, number: int, fields: Iterator[Any]) -> InputLine:
    """Return the input line of an iterator that yields the id, the text, and perhaps the words and their columns.

    Its ValueError says why it cannot.
    """
    line = InputLine(None, None, source.name, number)
    try:
        line.id = next(fields)
        line.text = next(fields)
        line.words, line.columns = next(fields, (None, {}))
        if line.text is None:
            line.problem = f"holds null as {source.text_column!r}; expected a text"
        line.empty = line.text is None or not any(map(str.isprintable, line.text.replace(" ", "")))
    except RecursionError:
        line.problem = "is nested too deeply"
    except ValueError as error:
        line.problem = str(error).removesuffix(".")
        line.line += getattr(error, "offset", 0)  # of a row of a sentence
    return line
