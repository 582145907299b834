"""Texts in files -> input lines, one at a time: text, JSON lines, CSV, TSV, CoNLL, each also gzipped, and Parquet.

An input line that cannot be used is yielded too, with its problem and its number. A line that is too long to be held in
memory is such a line; its rest is skipped. `survey` is the first reading of a run: it finds these lines before anything
is computed, and computes a checksum of each file.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import hashlib
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from minibert._utils.files import os_reason, printable
from minibert._utils.validation import brief, check_choice, counted
from minibert.corpus import parquet
from minibert.corpus.conll import CONLLU, Columns, read_columns, split_comments
from minibert.corpus.html_text import TAG, html_text
from minibert.tokenizer.texts import check_text
from minibert.tokenizer.windows import in_chunks

INPUT_FORMATS = ("text", "jsonl", "csv", "tsv", "parquet", "conllu", "conll")
"""text: one text per line. jsonl: one JSON object (or string) per line. csv and tsv: a header line, then rows.
conllu, and conll with any columns: a word per line, a blank line after each sentence."""

ON_ERROR = ("stop", "skip", "null")
"""If an input line cannot be used: compute nothing, leave the line out, or keep its row without a vector."""

ON_EMPTY = ("keep", "null", "skip", "error")
"""If a text is empty: compute it as it is, keep its row without a vector, leave it out, or compute nothing."""

_SUFFIXES = {".ndjson": "jsonl", ".json": "jsonl", ".tab": "tsv", ".conllup": "conllu"} | {
    f".{name}": name for name in INPUT_FORMATS[1:]
}

_GZIP = b"\x1f\x8b"  # gzip data begin with these bytes; UTF-8 text cannot

# How files begin that are not read, what they hold, and what makes something else of it.
_UNREAD = {b"BZh91AY": ("bzip2", "bunzip2"), b"\xfd7zXZ": ("xz", "unxz"), b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd")}
_UNREAD |= {b"PK\3\4": ("zip", "unzip"), b"%PDF-": ("PDF", "pdftotext")}
_COMPRESSED = re.compile(r"\.(gz|bz2|xz|zst|zip)$", re.IGNORECASE)

# Suffixes of files that are not read, and what to do.
_REFUSED = {
    ".xml .html .htm .xhtml": "write its texts as lines, or as a column of a .csv",
    ".pdf": "take its text out first, for example with pdftotext",
    ".xlsx .xls .ods": "save the sheet as .csv",
    ".docx .doc .odt .rtf": "save it as plain text, .txt",
    ".tar .tgz .7z .rar": "unpack it first",
    ".arrow .feather .orc .avro .sqlite .db .pkl .npy .npz": "write its texts as .parquet, .jsonl or .csv",
}

# Most bytes of a line, or characters of a CSV row, without its end. The csv module limits a field to 131,072; a
# book has more. Without a limit a quote that is never closed would read the rest of the file into memory.
# A line that never ends would do the same, and a small gzip file can hold one.
_LINE_LIMIT = 2**24

_BLOCK = 2**16  # bytes or characters that are skipped at a time

# Most characters of the input lines that are held in memory, not counting the line that was read last.
_CHARACTERS_AT_ONCE = 2**25

SHARD_NUMBERS = 2**22
"""About the most numbers of a shard of lines that have several vectors each; 10,000 vectors of MiniLM have as many."""

# A run that stops shows at most this number of bad lines, and counts the others.
_PROBLEMS_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of texts.

    Parameters
    ----------
    path : str
        "-" means the standard input.
    format : str
        One of `INPUT_FORMATS`.
    text_column : str or sequence of str
        The column or key of the text; not used for plain text. Of several the texts are joined with `text_separator` in
        between; those that are null or empty are left out. If all are null, the text is null. Of CoNLL it is the column
        of the words; default: form, or column_1.
    id_column : str, optional
        The column or key of the id; default: input lines are numbered. Of CoNLL it is the key of a comment; default:
        sent_id, if a sentence has it.
    name : str, optional
        Name of the file in messages and in the manifest; default: its path.
    text_separator : str
    html : bool
        The texts are HTML: the text is what `html_text` makes of it.
    words : bool
        A text may be a list of words; then lists of other columns that are as long are those of the words.

    Raises
    ------
    ValueError
        The format is not one of these, or it does not have ids. A column of the text is named twice. Words are given as
        HTML or in several columns.
    OSError
        The path holds a NUL character.
    """

    path: str
    format: str
    text_column: str | Sequence[str] = "text"
    id_column: str | None = None
    name: str = ""
    text_separator: str = "\n"
    html: bool = False
    words: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.fspath(self.path))
        object.__setattr__(self, "name", printable(self.name or self.path))
        check_choice("format", self.format, INPUT_FORMATS)
        if "\0" in self.path:
            raise OSError(f"{self.name} cannot be read: the name of a file cannot hold a NUL character.")
        if self.format == "text" and self.id_column is not None:
            raise ValueError(f"id_column={self.id_column!r}, but plain text does not have columns; expected None.")
        if len(set(columns := self.text_columns)) < max(1, len(columns)):
            raise ValueError(f"text_column={self.text_column!r}; expected a name, or several different ones.")
        if self.format in ("conllu", "conll") and (self.html or len(columns) > 1):
            raise ValueError(f"{self.name} has words; expected one text_column=, and not html=True.")
        object.__setattr__(self, "text_column", columns[0] if len(columns) == 1 else columns)

    @property
    def numbered(self) -> bool:
        """Whether all ids are numbers of the input lines."""
        return self.id_column is None and self.format not in ("conllu", "conll")

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of the text."""
        return (self.text_column,) if isinstance(self.text_column, str) else tuple(self.text_column)

    def joined(self, texts: Iterable[str | None]) -> str | None:
        """Return the texts of the columns of one row as its text."""
        given = [html_text(text) if self.html else text for text in texts if text is not None]
        return self.text_separator.join(filter(None, given)) if given else None


@dataclasses.dataclass(slots=True)
class InputLine:
    """One text of a file, or the reason why it has no text. In a table it is one row; a row can have several lines.

    Parameters
    ----------
    text : str or None
        None if it cannot be used.
    id : str, int or None
        None if this one cannot be read. Without ids in the source it is `number`, after `numbered_lines` has set it.
    file : str
    line : int
        Number of its first line in the file, or of the row in a Parquet file, from 1.
    problem : str or None
        Why the text cannot be used.
    number : int
        Its number in the whole input, from 0; `numbered_lines` sets it.
    empty : bool
        Whether the text is null, or does not have a visible character: tokens of it are only the special ones.
    words : list of str, optional
        The words of the text, if the file has them.
    columns : dict
        The other columns of the words.
    """

    text: str | None
    id: str | int | None
    file: str
    line: int
    problem: str | None = None
    number: int = 0
    empty: bool = False
    words: list[str] | None = None
    columns: Columns = dataclasses.field(default_factory=dict)

    def describe(self) -> str:
        """Return the file, the line number and the problem, for a message."""
        return f"{self.file}, line {self.line}: {self.problem}"

    def row(self) -> dict[str, Any]:
        """Return the entry in an index: the id, file and line, and why there is no text."""
        row: dict[str, Any] = {"id": self.id, "file": self.file, "line": self.line}
        return row if self.problem is None else {**row, "null": self.problem}


def input_format(path: str) -> str:
    """Return the format that a file's name implies; a name without a known suffix means plain text.

    Raises
    ------
    ValueError
        The suffix is of a format that is not read.
    """
    suffix = os.path.splitext(_COMPRESSED.sub("", path))[1].lower()
    for suffixes, how in _REFUSED.items():
        if suffix in suffixes.split():
            raise ValueError(f"{printable(path)}: {suffix} is not read; {how}. If it is another format: input_format=.")
    return _SUFFIXES.get(suffix, "text")


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
                begin = file.peek(_BLOCK)
                # The standard input does not have a name with a suffix.
                compressed = source.path.endswith(".gz") or begin.startswith(_GZIP)
                for what, tool in (names for start, names in _UNREAD.items() if begin.startswith(start)):
                    raise ValueError(f"{source.name} holds {what} data, which are not read; convert it with {tool}.")
                if b"\r" in begin.rstrip(b"\r") and b"\n" not in begin and not compressed:
                    what = "lines that end in carriage returns, not in newlines"
                    raise ValueError(f"{source.name} holds {what}, which are not read; convert it first.")
                stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
                readers = {"csv": _read_table, "tsv": _read_table, "conllu": _read_sentences, "conll": _read_sentences}
                yield from readers.get(source.format, _read_lines)(source, stream)
            finally:
                file.detach()  # else the standard input is closed with it
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:  # the last one of Parquet
        raise OSError(f"{source.name} cannot be read: {os_reason(error)}.") from error


def _input_line(source: Source, number: int, fields: Iterator[Any]) -> InputLine:
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
    return line


def _decoded(data: bytes, number: int) -> str:
    """Decode a line; bytes that are not UTF-8 become lone surrogates, so that `_checked` finds their field."""
    return data.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")


def _checked(field: str) -> str:
    try:
        field.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is not UTF-8: byte 0x{ord(field[error.start]) & 0xFF:02x}") from None
    if "\0" in field:
        raise ValueError("holds a NUL byte, and text has none; perhaps the file is damaged, or UTF-16")
    return field


def _lines(stream: Any) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and the bytes of each line; None for one that is too long."""
    for number, line in enumerate(iter(lambda: stream.readline(_LINE_LIMIT + len(b"\r\n")), b""), 1):
        data = line.removesuffix(b"\n").removesuffix(b"\r")
        too_long = len(data) > _LINE_LIMIT
        while too_long and line and not line.endswith(b"\n"):
            line = stream.readline(_BLOCK)
        yield number, None if too_long else data


def _read_lines(source: Source, stream: Any) -> Iterator[InputLine]:
    for number, data in _lines(stream):
        if data is None:
            yield InputLine(None, None, source.name, number, f"has more than {_LINE_LIMIT:,} bytes")
            continue
        if number == 1 and source.format == "jsonl" and _decoded(data[:_BLOCK], 1).lstrip().startswith("["):
            how = "Write one object per line, for example with: jq -c '.[]'"
            raise ValueError(f"{source.name} is one JSON array, and not JSON lines. {how}")
        yield _input_line(source, number, _line_fields(source, _decoded(data, number)))


def _read_sentences(source: Source, stream: Any) -> Iterator[InputLine]:
    of_conllu, lines, size, first = source.format == "conllu", list[str](), 0, 1
    names: Sequence[str] = CONLLU if of_conllu else ()
    for number, data in chain(_lines(stream), [(0, b"")]):
        first = first if size else number
        size += _LINE_LIMIT + 1 if data is None else len(data.strip())
        if data is None or data.strip():
            lines += [] if data is None or size > _LINE_LIMIT else [_decoded(data, number)]
            continue
        comments, rows = split_comments(lines, of_conllu)
        names = comments.get("global.columns", "").lower().split() or names  # of CoNLL-U Plus, for the whole file
        if size > _LINE_LIMIT:
            yield InputLine(
                None, None, source.name, first, f"has more than {_LINE_LIMIT:,} bytes up to the next empty line"
            )
        elif rows:
            line = _input_line(source, first, _sentence_fields(source, lines, names))
            if (
                rows[1:]
                and not of_conllu
                and source.text_column == "text"
                and line.words == [str(i + 1) for i in range(len(rows))]
            ):
                how = "The words are in another column: text_column='column_2'; or the file is input_format='conllu'."
                raise ValueError(f"{source.name}, line {first}: column_1 holds 1, 2 and so on. {how}")
            yield line
        lines, size = [], 0


def _sentence_fields(source: Source, lines: Sequence[str], names: Sequence[str]) -> Iterator[Any]:
    """Yield the id, the text, and the words with their other columns, of a sentence in CoNLL."""
    comments, rows = split_comments([*map(_checked, lines)], source.format == "conllu")
    if source.id_column not in (None, *comments):
        raise ValueError(f"does not have a comment # {source.id_column} = ...")
    yield comments.get(source.id_column or "sent_id")
    name = source.text_columns[0]
    if name == "text":
        name = "form" if source.format == "conllu" else "column_1"
    columns: Any = read_columns(rows, names, name)
    words, _ = columns.pop(name), columns.pop("id", None)
    yield comments.get("text") or " ".join(words)
    yield words, columns


def _line_fields(source: Source, line: str) -> Iterator[str | int | None]:
    """Yield the id and the text of a line: plain text, or JSON, an object or (if ids are not needed) a text."""
    _checked(line)
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


def as_text(value: Any) -> Any:
    """Return the bytes of a Parquet column as a text, any other value as it is."""
    return _checked(value.decode("utf-8", "surrogateescape")) if isinstance(value, bytes) else value


def _read_parquet(source: Source, file: Any) -> Iterator[InputLine]:
    batches = parquet.batches(file, lambda names: _check_columns(source, names))
    for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
        yield _input_line(source, number, _object_fields(source, [*row.items()]))


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
    lines = _TableLines(stream)
    csv.field_size_limit(max(csv.field_size_limit(), _LINE_LIMIT))  # this limit is global to the process
    rows = csv.reader(lines, delimiter="\t" if source.format == "tsv" else ",", strict=True)
    try:
        header = [_checked(name) for name in next(rows, ())]
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
                yield _input_line(source, line, _row_fields(source, header, row))


def _row_fields(source: Source, header: Sequence[str], row: list[str]) -> Iterator[str | None]:
    if len(row) != len(header):
        raise ValueError(f"has {len(row)} columns, but the header has {len(header)}")
    yield None if source.id_column is None else _checked(row[header.index(source.id_column)])
    yield source.joined([_checked(row[header.index(name)]) for name in source.text_columns])


class _TableLines(Iterator[str]):
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

    def __next__(self) -> str:
        data = self._stream.readline(max(1, _LINE_LIMIT + len(b"\r\n") - self.row_bytes))
        if not data:
            raise StopIteration
        self.number += 1
        self.row_bytes += len(data)
        if self.row_bytes - len(data) + len(data.rstrip(b"\r\n")) > _LINE_LIMIT:
            quotes = data.count(b'"')
            while data and not data.endswith(b"\n"):
                data = self._stream.readline(_BLOCK)
                quotes += data.count(b'"')
            self.ends_in_quotes = quotes % 2 == 1
            raise csv.Error(f"it has more than {_LINE_LIMIT:,} bytes")
        return _decoded(data, self.number)


def numbered_lines(sources: Sequence[Source], checksums: Sequence[str]) -> Iterator[InputLine]:
    """Yield the input lines of all files, with their numbers; raise if a file differs from the first reading."""
    number = 0
    for source, expected in zip(sources, checksums, strict=True):
        named = set[bool]()
        for line in read_input_lines(source):
            line.number, number = number, number + 1
            if line.problem is None:
                named.add(line.id is not None)
            if len(named) > 1:
                which = "the sentence has a sent_id, and others have none" if line.id else "the sentence has no sent_id"
                raise ValueError(f"{source.name}, line {line.line}: {which}. Give one to each, or to none.")
            if source.id_column is None and line.id is None:
                line.id = line.number
            yield line
        if checksum(source) != expected:
            raise ValueError(f"{source.name} has changed since the run first read it, so run it again.")


def checksum(source: Source) -> str:
    """Return the SHA-256 of a file as it is on the disk."""
    with open(source.path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- the first reading ------------------------------------------------------------------------------------------------


def survey(
    sources: Sequence[Source],
    *,
    stops: Callable[[list[InputLine]], list[InputLine]],
    report: Callable[[str], object] = print,
    progress: Callable[[int], object] = lambda n: None,
) -> tuple[list[str], int]:
    """Read every input line once to check it, before anything is computed.

    Parameters
    ----------
    sources : sequence of Source
    stops : callable
        Gets some input lines, and returns those because of which nothing may be computed.
    report : callable
        Called with a line of text if most texts have HTML tags.
    progress : callable
        Called with the number of input lines read since its last call.

    Returns
    -------
    checksums : list of str
        Of each file.
    count : int
        Input lines in all files.
    """
    problems, checksums, options = list[str](), list[str](), set[str]()
    count = n_problems = n_html = 0
    for source in sources:
        for chunk in in_memory(read_input_lines(source), 1024):
            count += len(chunk)
            n_html += sum(1 for line in chunk if TAG.search(line.text or ""))
            stopping = stops(chunk)
            n_problems += len(stopping)
            problems += [line.describe() for line in stopping[: _PROBLEMS_SHOWN - len(problems)]]
            options |= {"on_empty" if line.empty else "on_error" for line in stopping}
            progress(len(chunk))
        checksums.append(checksum(source))
    if n_problems:
        problems += [f"... and {n_problems - len(problems)} more"] if n_problems > len(problems) else []
        skip, null = (" or ".join(f"{name}={how!r}" for name in sorted(options)) for how in ("skip", "null"))
        what = f"{counted(n_problems, 'input line')} cannot be used; nothing was computed:"
        how = f"Correct them, leave them out ({skip}), or keep their rows without vectors ({null})."
        raise ValueError("\n".join([what, *problems, how]))
    if not count:
        raise ValueError(f"{', '.join(source.name for source in sources)}: there is no text; give files with texts.")
    if n_html > count / 2:
        report(f"{n_html} of {count} texts have HTML tags, which are computed too; html=True takes their text")
    return checksums, count


def texts_of(lines: Sequence[InputLine]) -> list[str]:
    """Return the texts of the input lines that have one."""
    return [line.text for line in lines if line.text is not None]


def in_memory(
    lines: Iterable[InputLine], most: int, numbers: Callable[[InputLine], int] = lambda line: 0
) -> Iterator[list[InputLine]]:
    """Yield input lines in lists of at most this number, and of so many characters that the memory holds them.

    `numbers` says how many numbers are computed of a line: a list ends when it has `SHARD_NUMBERS`.
    """

    def weight(line: InputLine) -> int:
        values = chain((line.text, line.id, line.problem), *line.columns.values())
        characters = sum(len(value) for value in values if isinstance(value, str))
        return characters + numbers(line) * _CHARACTERS_AT_ONCE // SHARD_NUMBERS

    return in_chunks(lines, most, weight, _CHARACTERS_AT_ONCE)
