"""`Source`, a file of texts, and `InputLine`, one text of it; input_lines.py reads them."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Self

from minibert._utils.files import printable
from minibert._utils.keywords import check_keywords
from minibert._utils.validation import check_choice
from minibert.corpus.html_text import html_text

INPUT_FORMATS = ("text", "jsonl", "csv", "tsv", "parquet", "conllu", "conll")
"""text: one text per line. jsonl: one JSON object (or string) per line. csv and tsv: a header line, then rows.
conllu, and conll with any columns: a word per line, a blank line after each sentence."""

Columns = dict[str, list[str | None]]
"""The cells of a sentence's words, by the name of their column."""

ON_ERROR = ("stop", "skip", "null")
"""If an input line cannot be used: compute nothing, leave the line out, or keep its row without a vector."""

ON_EMPTY = ("keep", "null", "skip", "error")
"""If a text is empty: compute it as it is, keep its row without a vector, leave it out, or compute nothing."""

_SUFFIXES = {".ndjson": "jsonl", ".json": "jsonl", ".tab": "tsv", ".conllup": "conllu"} | {
    f".{name}": name for name in INPUT_FORMATS[1:]
}
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

    def __new__(cls, *arguments: Any, **given: Any) -> Self:
        """Refuse a keyword that is not one of these, before a TypeError of Python does."""
        check_keywords("Source", given, {}, settings=cls.__dataclass_fields__)
        return super().__new__(cls)

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


_of_source = inspect.signature(Source.__init__)  # help() would show that of __new__
Source.__signature__ = _of_source.replace(parameters=[*_of_source.parameters.values()][1:])  # type: ignore[attr-defined]


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
