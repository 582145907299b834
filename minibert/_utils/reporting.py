"""Warnings that name the caller's line, progress bars, and HTML tables for notebooks. Only this module imports tqdm."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

# minibert, and libraries that may call it for the user.
# scikit-learn wraps a transformer's methods and runs them through joblib.
_SKIPPED = ("minibert", "sklearn", "joblib")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the nearest line outside minibert and outside the libraries that call it for the user."""
    caller = sys._getframe(1)
    while caller.f_back is not None and str(caller.f_globals.get("__name__")).partition(".")[0] in _SKIPPED:
        caller = caller.f_back
    warnings.warn_explicit(
        message,
        category,
        filename=caller.f_code.co_filename,
        lineno=caller.f_lineno,
        module=str(caller.f_globals.get("__name__")),
        registry=caller.f_globals.setdefault("__warningregistry__", {}),
    )


LINE_SECONDS = 30.0
"""Seconds between two lines of progress, where there is no terminal."""


def progress_bar(
    total: int | None, *, show: bool | str, initial: int = 0, unit: str = " texts"
) -> contextlib.AbstractContextManager[Callable[[int], object]]:
    """Show a progress bar with count, speed and time left, in a ``with`` block; its value adds n to the count.

    Where there is no terminal, such as in a log file, "auto" and "always" print a line each 30 seconds instead.

    Parameters
    ----------
    total : int, optional
        The count at the end. Without it only the count and the speed are shown.
    show : bool, "auto", "always" or "never"
        If False or "never", nothing is printed and tqdm is not imported. True is a bar in any case. With "always" there
        is a line at the start and at the end too.
    initial : int
        The count at the start.
    unit : str
    """
    if show in (False, "never") or sys.stderr is None:
        return contextlib.nullcontext(lambda n: None)
    from tqdm import tqdm

    how: dict[str, Any] = {"dynamic_ncols": True}
    if isinstance(show, str) and not sys.stderr.isatty():
        delay = 0.0 if show == "always" else LINE_SECONDS
        how = {"file": _Lines(), "mininterval": LINE_SECONDS, "maxinterval": 2 * LINE_SECONDS, "delay": delay}
        how |= {"miniters": 1, "bar_format": "{n_fmt} of {total_fmt}{unit} [{elapsed}<{remaining}, {rate_fmt}]"}
    return _updating(tqdm(total=total, initial=initial, unit=unit, smoothing=0.05, **how))


@contextlib.contextmanager
def _updating(bar: Any) -> Iterator[Callable[[int], object]]:
    with bar:
        yield bar.update


class _Lines(io.TextIOBase):
    """A file that tqdm takes, for logs: it writes each state of the bar as a line of its own."""

    def write(self, text: str) -> int:
        if text.strip():
            sys.stderr.write(f"minibert: {text.strip()}\n")
            sys.stderr.flush()
        return len(text)


def write_line(text: str) -> None:
    """Print a line on the standard output; a progress bar that is shown stays below it."""
    if "tqdm" in sys.modules:
        from tqdm import tqdm

        tqdm.write(text)
    elif sys.stdout is not None:
        sys.stdout.write(f"{text}\n")


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
    from html import escape  # its import takes long

    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    texts = [["" if cell is None else escape(str(cell)) for cell in row] for row in islice(rows, _MAX_ROWS)]
    body = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in row)}</tr>" for row in texts)
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
