"""HTML tables for `_repr_html_`, which notebooks show. All text is escaped; there is no script and no style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

__all__ = ["html_table", "token_table"]

# A table of all 512 tokens of a text would be too long to read.
_MAX_ROWS = 40


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], num_rows: int) -> str:
    """Return an HTML table of the first 40 rows, and say how many more there are.

    Parameters
    ----------
    caption : str
        The line above the table, often the object's repr.
    columns : the headers of the columns
    rows : the cells of each row; shown by str(), None as an empty cell
    num_rows : int
        Number of all rows.
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in islice(rows, _MAX_ROWS)
    )
    more = f"<p>... and {num_rows - _MAX_ROWS} more</p>" if num_rows > _MAX_ROWS else ""
    return (
        f'<div><p style="text-align: left"><code>{escape(caption)}</code></p>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>"
    )


def token_table(
    caption: str,
    tokens: Sequence[str],
    ids: Iterable[int],
    offsets: Iterable[Sequence[int]],
    word_ids: Sequence[int | None],
) -> str:
    """Return an HTML table of tokens: index, token, id, characters, word; the last two are empty for special tokens."""
    rows = (
        (number, token, token_id, None if word is None else f"{start}-{end}", word)
        for number, (token, token_id, (start, end), word) in enumerate(zip(tokens, ids, offsets, word_ids, strict=True))
    )
    return html_table(caption, ("", "token", "id", "characters", "word"), rows, len(tokens))
