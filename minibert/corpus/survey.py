"""The first reading of a run's input: its checksums, and the input lines that cannot be used."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from minibert._utils.validation import check_choice, counted
from minibert.corpus.readers import InputLine, Source, read_input_lines
from minibert.sentence.batching import in_chunks

__all__ = ["CHARACTERS_AT_ONCE", "ON_ERROR", "BadLines", "Survey", "row_of", "standard_input", "survey", "weight"]

ON_ERROR = ("stop", "skip", "null")
"""If an input line cannot be used: compute nothing, leave the line out, or keep its row without a vector."""

# Most characters of the input lines that are held in memory, not counting the line that was read last.
CHARACTERS_AT_ONCE = 2**25

# A run that stops shows at most this number of bad lines, and counts the others.
_PROBLEMS_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class BadLines:
    """The handling of input lines that cannot be used.

    Parameters
    ----------
    on_error : {"stop", "skip", "null"}
        See `ON_ERROR`.
    report : callable
        Called with each of them, as a line of text.

    Raises
    ------
    ValueError
        `on_error` is not one of these.
    """

    on_error: str
    report: Callable[[str], object]

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)

    def keep(self, input_line: InputLine) -> bool:
        """Report an input line that cannot be used, and return whether its row is kept.

        Raises
        ------
        ValueError
            With "stop": the first reading did not find this bad line, so the file has changed.
        """
        if self.on_error == "stop":
            raise ValueError(
                f"{input_line.file} was changed while it was read: line {input_line.line} {input_line.problem}."
            )
        self.report(_describe(input_line))
        return self.on_error == "null"


@dataclasses.dataclass(frozen=True)
class Survey:
    """The checksum and the number of input lines of each file."""

    checksums: list[str]
    counts: list[int]


def survey(
    sources: Sequence[Source],
    bad_lines: BadLines,
    too_long: Callable[[list[str]], list[str | None]] | None,
    seen: Callable[[list[InputLine]], object] | None = None,
) -> Survey:
    """Read every input line before anything is computed; with "stop" raise if some cannot be used.

    `seen` is called with all input lines, some at a time.
    """
    problems: list[str] = []
    checksums, counts, n_problems = [], [], 0
    for source in sources:
        checksum, count = hashlib.sha256(), 0
        for chunk in in_chunks(read_input_lines(source, checksum), 1024, weight, CHARACTERS_AT_ONCE):
            count += len(chunk)
            if seen is not None:
                seen(chunk)
            if bad_lines.on_error != "stop":
                continue
            if too_long is not None:
                usable = [index for index, input_line in enumerate(chunk) if input_line.text is not None]
                reasons = too_long([chunk[index].text or "" for index in usable])
                for index, reason in zip(usable, reasons, strict=True):
                    chunk[index] = dataclasses.replace(chunk[index], problem=reason)
            for input_line in chunk:
                if input_line.problem is not None:
                    n_problems += 1
                    if len(problems) < _PROBLEMS_SHOWN:
                        problems.append(_describe(input_line))
        checksums.append(checksum.hexdigest())
        counts.append(count)
    if n_problems:
        more = f"\n... and {n_problems - len(problems)} more" if n_problems > len(problems) else ""
        raise ValueError(
            f"{counted(n_problems, 'input line')} cannot be used; nothing was computed:\n"
            + "\n".join(problems)
            + f"{more}\n"
            "Correct them, leave them out (on_error='skip'), or keep their rows without vectors (on_error='null')."
        )
    if not sum(counts):
        raise ValueError(f"{', '.join(source.name for source in sources)}: there is no text; give files with texts.")
    return Survey(checksums, counts)


def weight(input_line: InputLine) -> int:
    """Count the characters of an input line."""
    return sum(len(value) for value in (input_line.text, input_line.id, input_line.problem) if isinstance(value, str))


def _describe(input_line: InputLine) -> str:
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
