"""Text for people: bars, and marks in colour. Colours are for terminals only, and not if NO_COLOR is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

__all__ = ["bar", "one_line", "painter"]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_WIDTH = 20

# Escape codes of colours; labels get them in the order in which they come.
_COLOURS = (36, 33, 35, 32, 34, 31)


def bar(part: float, width: int = _WIDTH) -> str:
    """Return a bar for a number from 0 to 1, of `width` characters; ``#`` where the output cannot show blocks."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    blocks = "█" * full + (_EIGHTHS[rest] if rest else "")
    try:
        blocks.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        blocks = "#" * round(eighths / 8)
    return blocks.ljust(width)


def painter() -> Callable[[str, str], str]:
    """Return a function (text, label) -> the text in the colour of the label, or as it is if there are no colours."""
    terminal = bool(getattr(sys.stdout, "isatty", lambda: False)())
    if not terminal or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return lambda text, label: text
    labels: dict[str, int] = {}

    def paint(text: str, label: str) -> str:
        colour = _COLOURS[labels.setdefault(label, len(labels)) % len(_COLOURS)]
        return f"\x1b[1;{colour}m{text}\x1b[0m"

    return paint


def one_line(text: str) -> str:
    """Return a text with each run of white space, and each control character, as one space."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())
