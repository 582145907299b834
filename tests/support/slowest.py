"""The table of the slowest tests in tests/README.md: `pytest --write-slowest` writes it at the end of a run."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.environment import processor
from benchmarks.readme import write_between
from minibert._utils.system import available_cores

README = Path(__file__).parents[1] / "README.md"
COUNT = 30


def seconds_of(reports: Iterable[Any]) -> dict[str, float]:
    """Return the seconds of each test, with the fixtures that were made for it."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        if hasattr(report, "duration") and hasattr(report, "nodeid"):
            seconds[report.nodeid] += report.duration
    return dict(seconds)


def table(seconds: dict[str, float]) -> str:
    """Return the Markdown table: the slowest tests, and their share of all seconds."""
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:COUNT]
    rows = [f"| {took:.1f} | `{name.removeprefix('tests/').replace('|', chr(92) + '|')}` |" for name, took in slowest]
    share = f"{sum(took for _, took in slowest):.0f} of the {sum(seconds.values()):.0f} seconds of {len(seconds)} tests"
    return "\n".join(["| seconds | test |", "|--:|---|", *rows, "", f"Together {share}."])


def write(reports: Iterable[Any], readme: Path = README) -> None:
    """Write the table between its markers, with the machine and the date."""
    measured = f"Measured on {datetime.date.today().isoformat()} with {available_cores()} cores of {processor()}."
    write_between(readme, "slowest", f"{table(seconds_of(reports))}\n\n{measured}")
