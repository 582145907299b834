"""Sentences as tables of words: CoNLL-U, CoNLL-U Plus, and CoNLL with other columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The columns of CoNLL-U."""

_TOKEN, _EMPTY_NODE = re.compile(r"(\d{1,9})-(\d{1,9})"), re.compile(r"\d+\.\d+")

Columns = dict[str, list[str | None]]
"""The cells of a sentence's words, by the name of their column."""


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
            raise ValueError(f"has the row {row[:99]!r}; expected {len(names)} columns with {what} between them")
        id = cells[names.index("id")] if "id" in names else str(len(table) + 1)
        if span := _TOKEN.fullmatch(id):
            tokens.append((int(span[1]), int(span[2]), cells[names.index(word)]))
        elif id == str(len(table) + 1) and cells[names.index(word)]:
            table.append(cells)
        elif not _EMPTY_NODE.fullmatch(id):
            raise ValueError(f"has the row {row[:99]!r}; expected word {len(table) + 1}")
    for first, last, token in tokens:
        if not 0 < first <= last <= len(table):
            raise ValueError(f"has the token {first}-{last} {token!r}, but {len(table)} words")
    columns: Columns = {name: [cells[i] for cells in table] for i, name in enumerate(names)}
    numbers = range(1, len(table) + 1)
    multiword = [next((token for first, last, token in tokens if first <= i <= last), None) for i in numbers]
    return columns | ({"multiword": multiword} if tokens else {})
