"""Sentences as tables of words: CoNLL-U, CoNLL-U Plus, and CoNLL with other columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from minibert._utils.validation import counted
from minibert.corpus import raw_lines
from minibert.corpus.sources import Columns, InputLine, Source

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The columns of CoNLL-U."""

_TOKEN, _EMPTY_NODE = re.compile(r"(\d{1,9})-(\d{1,9})"), re.compile(r"\d+\.\d+")

_CONLLU_ROW = re.compile(r"\d+([-.]\d+)?(\t[^\t]+){9}")


def as_lines(source: Source, rows: int, lines: int) -> str | None:
    """Return a message if a third of the lines of plain text are rows of CoNLL-U, as `count_rows` counts them."""
    if rows <= lines / 3:
        return None
    how = "--input FILE (embed, sparse, rerank, extract) or FILE (search); in Python, Source(file, 'conllu')"
    what = f"{rows} of {counted(lines, 'line')} of {source.name} are rows of CoNLL-U, and each is read as a text"
    return f"{what}. To read sentences, give --input-format conllu with {how}"


def count_rows(source: Source, lines: Iterable[InputLine]) -> int:
    """Return how many lines of plain text are rows of CoNLL-U."""
    return sum(1 for line in lines if source.format == "text" and _CONLLU_ROW.fullmatch((line.text or "").rstrip()))


class RowError(ValueError):
    """A row of a sentence cannot be used; `offset` is the number of lines before it, once it is known."""

    def __init__(self, row: str, expected: str) -> None:
        super().__init__(f"has the row {row[:99]!r}; expected {expected}")
        self.row, self.offset = row, 0


def split_comments(lines: Sequence[str], of_conllu: bool) -> tuple[dict[str, str], list[str]]:
    """Return the comments of a sentence by their keys, and its rows.

    Without `of_conllu` a word can begin with #: a comment is then ``# key = value``, #begin, #end, or a line without a
    tab among others with tabs. -DOCSTART- is not a row.
    """
    tabs, comments, rows = any("\t" in line for line in lines), dict[str, str](), list[str]()
    for line in lines:
        key, mark, value = line[1:].partition("=")
        of_file = line.startswith(("#begin ", "#end ")) or (line.startswith("# ") and " = " in line)
        if line.startswith("#") and (of_conllu or of_file or (tabs and "\t" not in line)):
            comments |= {key.strip(): value.strip()} if mark else {}
        elif not line.startswith("-DOCSTART-"):
            rows.append(line)
    return comments, rows


def read_columns(rows: Sequence[str], names: Sequence[str], word: str) -> Columns:
    """Return the columns of a sentence; without `names` they are column_1, column_2 and so on.

    If there is a column "id", the words are those of CoNLL-U: multiword tokens (1-2) and empty nodes (3.1) are not
    among them, and a column "multiword" has the token of each word that is part of one.

    Parameters
    ----------
    rows, names
    word : str
        The column of the words.

    Raises
    ------
    ValueError
        A row has another number of columns, there is no column or no word, or words are not numbered 1, 2, 3 and so on.
    """
    table, tokens, mark = list[list[str]](), list[tuple[int, int, str]](), "\t" if names or "\t" in rows[0] else None
    names = names or [f"column_{i + 1}" for i in range(len(rows[0].split(mark)))]
    if word not in names:
        raise ValueError(f"does not have a column {word!r}, but {', '.join(names)}")
    for row in rows:
        cells = row.split(mark)
        if len(cells) != len(names):
            what = "tabs" if mark else "spaces"
            raise RowError(row, f"{len(names)} columns with {what} between them")
        id = cells[names.index("id")] if "id" in names else str(len(table) + 1)
        if span := _TOKEN.fullmatch(id):
            tokens.append((int(span[1]), int(span[2]), cells[names.index(word)]))
        elif id == str(len(table) + 1) and cells[names.index(word)]:
            table.append(cells)
        elif not _EMPTY_NODE.fullmatch(id):
            is_next = id == str(len(table) + 1)
            raise RowError(row, f"a word in the column {word!r}" if is_next else f"word {len(table) + 1}")
    for first, last, token in tokens:
        if not 0 < first <= last <= len(table):
            raise ValueError(f"has the token {first}-{last} {token!r}, but {len(table)} words")
    columns: Columns = {name: [cells[i] for cells in table] for i, name in enumerate(names)}
    numbers = range(1, len(table) + 1)
    multiword = [next((token for first, last, token in tokens if first <= i <= last), None) for i in numbers]
    return columns | ({"multiword": multiword} if tokens else {})


def read_sentences(source: Source, stream: Any) -> Iterator[InputLine]:
    """Yield the input lines of a stream in CoNLL-U or CoNLL, one for each sentence."""
    of_conllu, sentence, size, first = source.format == "conllu", list[str](), 0, 1
    names: Sequence[str] = CONLLU if of_conllu else ()
    for number, data in chain(raw_lines.numbered(stream), [(0, b"")]):
        first = first if size else number
        size += raw_lines.LIMIT + 1 if data is None else len(data.strip())
        if data is None or data.strip():
            sentence += [] if data is None or size > raw_lines.LIMIT else [raw_lines.decoded(data, number)]
            continue
        comments, rows = split_comments(sentence, of_conllu)
        names = comments.get("global.columns", "").lower().split() or names  # of CoNLL-U Plus, for the whole file
        if size > raw_lines.LIMIT:
            yield raw_lines.too_long(source, first, " up to the next empty line")
        elif rows or (of_conllu and (source.id_column or "sent_id") in comments):  # also a sentence without words
            line = raw_lines.input_line(source, first, _sentence_fields(source, sentence, names))
            of_default = rows[1:] and not of_conllu and source.text_column == "text"
            if of_default and line.words == [str(i + 1) for i in range(len(rows))]:
                how = "The words are in another column: text_column='column_2'; or the file is input_format='conllu'."
                raise ValueError(f"{source.name}, line {first}: column_1 holds 1, 2 and so on. {how}")
            yield line
        sentence, size = [], 0


def _sentence_fields(source: Source, sentence: Sequence[str], names: Sequence[str]) -> Iterator[Any]:
    """Yield the id, the text, and the words with their other columns, of a sentence in CoNLL."""
    comments, rows = split_comments([*map(raw_lines.checked, sentence)], source.format == "conllu")
    if source.id_column not in (None, *comments):
        raise ValueError(f"does not have a comment # {source.id_column} = ...")
    yield comments.get(source.id_column or "sent_id")
    name = source.text_columns[0]
    if name == "text":
        name = "form" if source.format == "conllu" else "column_1"
    try:
        columns: Any = read_columns(rows, names, name)
    except RowError as error:
        error.offset = next(i for i, line in enumerate(sentence) if line is error.row)
        raise
    words, _ = columns.pop(name), columns.pop("id", None)
    yield (comments.get("text") or " ".join(words)) if words else ""
    yield words, columns
