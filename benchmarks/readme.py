"""The functions that write the tables of benchmarks/README.md; each benchmark writes its own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environment import environment
from minibert.kernels.processor import LEVEL


def table_parser(benchmark: str, runs: int = 0, seconds: float = 0.0) -> argparse.ArgumentParser:
    """Return the parser that all benchmarks share: the option to write the table, and --runs and --seconds of each."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark}")
    parser.add_argument("--write", action="store_true", help="write the table into benchmarks/README.md")
    if runs:
        parser.add_argument("--runs", type=int, default=runs, help="runs, for the medians (default: %(default)s)")
    if seconds:
        parser.add_argument("--seconds", type=float, default=seconds, help="of each measurement (default: %(default)s)")
    return parser


class Table:
    """A Markdown table, whose rows are printed when they are added.

    Parameters
    ----------
    *columns : str
        The head.
    texts : int
        How many of the first columns hold texts; the others hold numbers.
    """

    def __init__(self, *columns: str, texts: int = 1) -> None:
        self.lines: list[str] = []
        self.add(*columns)
        self.lines.append("|" + "---|" * texts + "--:|" * (len(columns) - texts))

    def add(self, *cells: object) -> None:
        """Add a row."""
        self.lines.append(f"| {' | '.join(map(str, cells))} |")
        print(self.lines[-1], flush=True)


def publish(name: str, table: Sequence[str], measured_with: str, *, write: bool) -> None:
    """Print the versions and the machine of a table; write both between this name's markers in README.md if `write`.

    A table that has more places there is written to "name with AMX" or "name with AVX2", if these are the best
    instructions of this machine's kernels.
    """
    note = f"{environment(' '.join(table))}, {measured_with}."
    print(f"\n{note}")
    if write:
        path = Path(__file__).parent / "README.md"
        kind = "AMX" if "amx-int8" in LEVEL.features else "AVX2" if LEVEL.name == "x86-64-avx2" else ""
        place = f"{name} with {kind}"
        name = place if f"<!-- {place} -->" in path.read_text(encoding="utf-8") else name
        write_between(path, name, "\n".join([*table, "", note]))


def write_between(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers ``<!-- name -->`` and ``<!-- /name -->`` of a file.

    Raises
    ------
    ValueError
        The file does not have each marker exactly once, in this order.
    """
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = path.read_text(encoding="utf-8")
    if old.count(first) != 1 or old.count(last) != 1 or old.index(first) > old.index(last):
        raise ValueError(f"{path.name} must have {first} and then {last}, each once; the table goes between them.")
    before, after = old[: old.index(first) + len(first)], old[old.index(last) :]
    path.write_text(f"{before}\n{text.strip()}\n{after}", encoding="utf-8")
