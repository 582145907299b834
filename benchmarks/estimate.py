"""`minibert embed --estimate` beside the runs that it estimates.

    python -m benchmarks.estimate [--write] [--scale 1.0]

Each case runs twice in processes of their own: the estimate, and then `minibert embed` itself, whose time, without the
start of Python and the loading of the model, and whose peak memory are compared with it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.corpus import made_texts
from benchmarks.readme import publish, table_parser
from benchmarks.real_texts import VARIABLE, udhr_lines
from minibert.base.machine import available_cores


class Case(NamedTuple):
    """A run: its title, number of texts, mean number of lines in a text, threads, suffix and further options."""

    title: str
    texts: int
    lines: int
    threads: int
    suffix: str
    options: tuple[str, ...] = ()


CASES = (
    Case("short texts", 20_000, 1, available_cores(), ".npy"),
    Case("long texts, one thread", 2_000, 6, 1, ".npy"),
    Case("int8, JSON lines", 12_000, 2, available_cores(), ".jsonl", ("--compute-type", "int8")),
)

# Prints the summary of the run and the peak memory of the process.
RUN = """
import json, sys
from minibert.base.machine import peak_memory
from minibert.cli import embed, main
kept = []
report = embed.report_run
embed.report_run = lambda output, shape, summary: kept.append(summary)
code = main(sys.argv[1:])
print(json.dumps({**vars(kept[0]), "memory_bytes": peak_memory()}) if code == 0 else "null")
"""


def texts_of(case: Case, count: int) -> list[str]:
    """Make the texts of a case: lines of real texts, if there are some."""
    chance = random.Random(case.title)
    lines = list(udhr_lines()) if os.environ.get(VARIABLE) else made_texts(4000)
    return [" ".join(chance.choices(lines, k=chance.randint(1, 2 * case.lines - 1))) for _ in range(count)]


def _json_of(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.startswith("{"):
        raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row_of(case: Case, scratch: Path, scale: float) -> str:
    """Estimate a run, and run it."""
    texts = texts_of(case, max(100, round(case.texts * scale)))
    source = scratch / "texts.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    verb = ["embed", "-i", str(source), "-o", str(scratch / f"vectors{case.suffix}"), "--threads", str(case.threads)]
    verb += [*case.options, "--truncation", "silent"]
    guess = _json_of([sys.executable, "-m", "minibert", *verb, "--estimate", "--json"])
    truth = _json_of([sys.executable, "-c", RUN, *verb])
    if guess["n_texts"] != truth["n_texts"]:
        raise RuntimeError(f"{case.title}: {guess['n_texts']} texts were estimated, {truth['n_texts']} computed.")
    cells = [
        f"{case.title}, {case.threads} thread{'s' * (case.threads > 1)}",
        f"{guess['n_texts']:,}",
        f"{guess['sample_runs']} runs, {guess['sample_seconds']:.1f} s",
        f"{guess['seconds']:.1f} s",
        f"{guess['seconds_low']:.1f} to {guess['seconds_high']:.1f} s",
        f"{truth['seconds']:.1f} s",
        f"{100 * (guess['seconds'] / truth['seconds'] - 1):+.0f} %",
        f"{guess['memory_bytes'] / 1e6:.0f} MB",
        f"{truth['memory_bytes'] / 1e6:.0f} MB",
        f"{100 * (guess['memory_bytes'] / truth['memory_bytes'] - 1):+.0f} %",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    parser = table_parser("estimate")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the numbers of texts (default: 1)")
    options = parser.parse_args()
    rows = [
        "| run | texts | sample | time, estimate | between | measured | difference | memory, estimate | measured "
        "| difference |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(rows))
    with tempfile.TemporaryDirectory() as name:
        for case in CASES:
            rows.append(row_of(case, Path(name), options.scale))
            print(rows[-1], flush=True)
    what = "lines of the Universal Declaration of Human Rights" if os.environ.get(VARIABLE) else "made texts"
    if options.scale != 1:
        what += f", {options.scale:g} times the usual numbers"
    publish("estimate", rows, f"all-MiniLM-L6-v2. Texts: {what}, in random order and combinations", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
