"""Read the input lines of files: text, JSON lines, CSV, TSV, CoNLL, each also gzipped, and Parquet.

An input line that cannot be used is yielded too, with its problem and its number. A line that is too long to be held in
memory is such a line; its rest is skipped.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from minibert._utils.files import os_reason
from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief
from minibert.corpus import parquet
from minibert.corpus.conll import as_lines, count_rows, read_sentences
from minibert.corpus.raw_lines import TableLines, as_text, checked, decoded, input_line, numbered, too_long
from minibert.corpus.sources import Columns, InputLine, Source
from minibert.tokenizer.texts import check_text

_GZIP = b"\x1f\x8b"  # gzip data begin with these bytes; UTF-8 text cannot

# How files begin that are not read, what they hold, and what makes something else of it.
_UNREAD = {b"BZh91AY": ("bzip2", "bunzip2"), b"\xfd7zXZ": ("xz", "unxz"), b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd")}
_UNREAD |= {b"PK\3\4": ("zip", "unzip"), b"%PDF-": ("PDF", "pdftotext")}


def read_input_lines(source: Source) -> Iterator[InputLine]:
    """Yield the input lines of a file.

    Raises
    ------
    OSError
        The file cannot be read, or its data are damaged.
    ValueError
        The file is one JSON array, is compressed but not by gzip, or its lines end in carriage returns. A column that
        is asked for is missing, or is there twice. It is unknown where the next row begins: this happens after a broken
        quote in a CSV row of several lines; a broken quote in a row of one line makes only that row a bad line. The
        message names the file and the line.
    """
    standard_input = source.path == "-"
    if standard_input and sys.stdin is None:
        raise ValueError("the standard input is closed.")
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if standard_input else open(source.path, "rb", 0) as raw:
            if source.format == "parquet":
                yield from _read_parquet(source, raw if raw.seekable() else io.BytesIO(raw.read()))
                return
            file = io.BufferedReader(raw, 2**16)  # type: ignore[type-var]
            try:
                begin = file.peek(2**16)
                # The standard input does not have a name with a suffix.
                compressed = source.path.endswith(".gz") or begin.startswith(_GZIP)
                for what, tool in (names for start, names in _UNREAD.items() if begin.startswith(start)):
                    raise ValueError(f"{source.name} holds {what} data, which are not read; convert it with {tool}.")
                if b"\r" in begin.rstrip(b"\r") and b"\n" not in begin and not compressed:
                    what = "lines that end in carriage returns, not in newlines"
                    raise ValueError(f"{source.name} holds {what}, which are not read; convert it first.")
                stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
                readers = {"csv": _read_table, "tsv": _read_table, "conllu": read_sentences, "conll": read_sentences}
                yield from readers.get(source.format, _read_lines)(source, stream)
            finally:
                file.detach()  # else the standard input is closed with it
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:  # the last one of Parquet
        raise OSError(f"{source.name} cannot be read: {os_reason(error)}.") from error


def usable_lines(source: Source) -> list[InputLine]:
    """Return the input lines of a file; raise a ValueError that names the first one that cannot be used.

    Without ids in the file they are numbered as in a run: from 0, in the order of the texts.
    """
    lines = [*read_input_lines(source)]
    for number, line in enumerate(lines):
        line.id = number if source.id_column is None and line.id is None else line.id
        if line.problem is not None and not line.empty:
            raise ValueError(f"{line.file}, line {line.line}, {line.problem}.")
    if message := as_lines(source, count_rows(source, lines), len(lines)):
        warn_caller(f"{message}.")
    return lines


def _read_lines(source: Source, stream: Any) -> Iterator[InputLine]:
    for number, data in numbered(stream):
        if data is None:
            yield too_long(source, number)
            continue
        if number == 1 and source.format == "jsonl" and decoded(data[: 2**16], 1).lstrip().startswith("["):
            how = "Write one object per line, for example with: jq -c '.[]'"
            raise ValueError(f"{source.name} is one JSON array, and not JSON lines. {how}")
        yield input_line(source, number, _line_fields(source, decoded(data, number)))


def _line_fields(source: Source, line: str) -> Iterator[str | int | None]:
    """Yield the id and the text of a line: plain text, or JSON, an object or (if ids are not needed) a text."""
    checked(line)
    if source.format == "text":
        yield None
        yield source.joined([line])
        return
    if not line.strip():
        raise ValueError("is empty; expected a JSON object")
    try:
        value = json.loads(line, object_pairs_hook=tuple)  # a dict would hide a key that is there twice
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from None
    if isinstance(value, str) and source.id_column is None and len(source.text_columns) == 1:
        value = ((source.text_column, value),)
    if not isinstance(value, tuple):
        raise ValueError(f"holds {type(value).__name__}; expected a JSON object")
    yield from _object_fields(source, value)


def _object_fields(source: Source, pairs: Sequence[tuple[str, Any]]) -> Iterator[Any]:
    """Yield the id and the text (it can be null) of the keys and values of an object; of words also the columns."""
    names = [name for name, _ in pairs]
    for name in (source.id_column, *source.text_columns):
        if names.count(str(name)) > 1:
            raise ValueError(f"has {name!r} twice")
    value = dict(pairs)
    line_id = None if source.id_column is None else as_text(value.get(source.id_column))
    if source.id_column is not None and (isinstance(line_id, bool) or not isinstance(line_id, str | int)):
        raise ValueError(f"does not have an id (a string or a whole number) under {source.id_column!r}")
    if isinstance(line_id, str):
        check_text(line_id, "the id")
    yield line_id
    for name in source.text_columns:
        if name not in value:
            raise ValueError(f"does not have {name!r}; it has {brief(names)}")
        if source.words and isinstance(value[name], list):
            words, columns = _word_columns(value, name, source.id_column)
            yield " ".join(words)
            yield words, columns
            return
        if not isinstance(value[name], str | bytes | None):
            kind = "an object" if isinstance(value[name], tuple) else type(value[name]).__name__
            raise ValueError(f"holds {kind} as {name!r}; expected a text")
    text = source.joined(as_text(value[name]) for name in source.text_columns)
    yield None if text is None else check_text(text, "the text")


def _word_columns(value: dict[str, Any], name: str, id_column: str | None) -> tuple[list[str], Columns]:
    """Return the words of an object and, as texts, their other columns: lists as long, and values for all of them."""
    words, columns = [*map(as_text, value[name])], Columns()
    for word in words:
        if not isinstance(word, str) or not word:
            raise ValueError(f"holds {word!r} in {name!r}; expected words")
        check_text(word, "a word")
    for key in (key for key in value if key not in (name, id_column)):
        cells = value[key] if isinstance(value[key], list) else [value[key]] * len(words)
        if all(isinstance(cell, str | int | float | None) for cell in cells):
            if len(cells) != len(words):
                raise ValueError(f"has {len(words)} words, and {len(cells)} of {key!r}")
            columns[key] = [None if cell is None else str(cell) for cell in cells]
    return words, columns


def _read_parquet(source: Source, file: Any) -> Iterator[InputLine]:
    batches = parquet.batches(file, lambda names: _check_columns(source, names))
    for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
        yield input_line(source, number, _object_fields(source, [*row.items()]))


def _check_columns(source: Source, names: Sequence[str]) -> list[str]:
    """Return the columns that are asked for; raise if a table has one of them never or twice."""
    wanted = [name for name in (*source.text_columns, source.id_column) if name is not None]
    for name in wanted:
        if names.count(name) > 1:
            raise ValueError(f"{source.name} has {names.count(name)} columns {name!r}. Give each another name.")
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            end = {"csv": " A column ends at a comma.", "tsv": " A column ends at a tab."}.get(source.format, "")
            how = f"Give text_column= and id_column=.{end}"
            raise ValueError(f"{source.name} has no column {name!r}, but {known}. {how}")
    return [*names] if source.words else wanted


def _read_table(source: Source, stream: Any) -> Iterator[InputLine]:
    lines = TableLines(stream)
    rows = csv.reader(lines, delimiter="\t" if source.format == "tsv" else ",", strict=True)
    try:
        if (first := next(rows, None)) is None:
            return
        header = [checked(name) for name in first]
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{source.name}, line 1: the header is broken: {error}.") from error
    _check_columns(source, header)
    while True:
        line, lines.row_bytes = lines.number + 1, 0
        try:
            row = next(rows, None)
        except csv.Error as error:
            if lines.number > line or lines.ends_in_quotes:  # the start of the next row is unknown
                why = "The row has several lines, and where it ends is unknown: correct it; on_error= cannot skip it."
                raise ValueError(f"{source.name}, line {line}: {error}. {why}") from error
            yield InputLine(None, None, source.name, line, f"is not a row of a table: {error}")
        else:
            if row is None:
                return
            if row:  # an empty line is not a row
                yield input_line(source, line, _row_fields(source, header, row))


def _row_fields(source: Source, header: Sequence[str], row: list[str]) -> Iterator[str | None]:
    if len(row) != len(header):
        raise ValueError(f"has {len(row)} columns, but the header has {len(header)}")
    yield None if source.id_column is None else checked(row[header.index(source.id_column)])
    yield source.joined([checked(row[header.index(name)]) for name in source.text_columns])
