"""The two readings of a run: `survey` finds what cannot be used, `numbered_lines` gives what is computed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from minibert._utils.validation import counted
from minibert.corpus.conll import as_lines, count_rows
from minibert.corpus.html_text import TAG
from minibert.corpus.input_lines import read_input_lines
from minibert.corpus.sources import InputLine, Source
from minibert.tokenizer.windows import in_chunks

# Most characters of the input lines that are held in memory, not counting the line that was read last.
_CHARACTERS_AT_ONCE = 2**25

SHARD_NUMBERS = 2**22
"""About the most numbers of a shard of lines that have several vectors each; 10,000 vectors of MiniLM have as many."""

# A run that stops shows at most this number of bad lines, and counts the others.
_PROBLEMS_SHOWN = 20


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
        first, n_rows = count, 0
        for chunk in in_memory(read_input_lines(source), 1024):
            count += len(chunk)
            n_rows += count_rows(source, chunk)
            n_html += sum(1 for line in chunk if TAG.search(line.text or ""))
            stopping = stops(chunk)
            n_problems += len(stopping)
            problems += [line.describe() for line in stopping[: _PROBLEMS_SHOWN - len(problems)]]
            options |= {"on_empty" if line.empty else "on_error" for line in stopping}
            progress(len(chunk))
        checksums.append(checksum(source))
        if message := as_lines(source, n_rows, count - first):
            report(message)
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
