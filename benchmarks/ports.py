"""The distance of correct runtimes from float64, in the units of `minibert.parity`: all must be within the budget.

    python -m benchmarks.ports [--write] [--only NAME ...] [--checkpoints NAME ...] [--keep FILE]

Each runtime that is installed runs three checkpoints on three inputs. The table has the largest RMS error over all
names, and the largest single error. The largest of all set `RMS` and `LARGEST` of parity/comparison.py. A runtime that
is called wrong is diagnosed, and stands in the second table.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contenders import make_base
from benchmarks.foreign_runtimes import FOREIGN_RUNTIMES
from benchmarks.readme import publish, table_parser
from benchmarks.runtimes import RUNTIMES, Inputs, LeftOutError, Runtime
from minibert import BertModel, SentenceTransformer
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from minibert.parity import Report, check, probe
from minibert.parity.comparison import LARGEST, RMS
from minibert.parity.truth import Subject
from tests.support.random_checkpoints import random_checkpoint

ALL: dict[str, Runtime] = {**RUNTIMES, **FOREIGN_RUNTIMES}

CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "MiniLM": lambda scratch: locate(DEFAULT_MODEL).require("config.json").parent,
    "2 x 24": lambda scratch: random_checkpoint(scratch / "small"),
    "3 x 768": lambda scratch: make_base(scratch / "base", 3),
}
PROBES = ("probe", "without holes", "3 x 96")


class Cell(NamedTuple):
    """What one runtime does on one checkpoint and one input."""

    text: str
    ratio: float = 0.0
    worst: float = 0.0
    reason: str = ""
    found: str = ""


def probes(subject: Subject) -> Iterator[dict[str, Any]]:
    """Make the inputs of `PROBES`: the probe, its rows that are visible up to a length, and three longer rows."""
    made = probe(subject)
    yield dict(made.inputs)
    plain = [row for row, shown in enumerate(made.shows) if shown not in ("a hole in the mask", "padding on the left")]
    yield {name: array[plain] for name, array in made.inputs.items()}
    ids = np.random.default_rng(0).integers(5, subject.config.vocab_size, (3, 96))
    mask = (np.arange(96) < np.array([[96], [64], [96]])).astype(np.int64)
    yield {"input_ids": ids, "attention_mask": mask, "token_type_ids": mask * (np.arange(96) > 48)}


def _subject(folder: Path) -> Subject:
    if (folder / "modules.json").is_file():
        return Subject.of(SentenceTransformer(folder, backend="numpy"))
    return Subject(BertModel.from_pretrained(folder, backend="numpy"))


def compare(runtime: Runtime, folder: Path, subject: Subject, inputs: Inputs, scratch: Path) -> Cell:
    """Run a runtime, and check what it computes."""
    try:
        dump = runtime(folder, inputs, scratch)
    except LeftOutError as error:
        return Cell("", reason=str(error))
    except Exception as error:  # a foreign library raises errors of many types
        return Cell("", reason=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}")
    report = check(subject, dump, inputs, diagnosis=False)
    if report.verdict == "wrong":
        report = check(subject, dump, inputs)
    ratio, worst = (max(getattr(row, key) for row in report.names) for key in ("ratio", "worst"))
    number = f"{ratio:.1f}, {worst:.1f}" if ratio < 100 else f"{ratio:,.0f}"
    if report.verdict in ("bits", "float32"):
        return Cell(number, ratio, worst)
    return Cell(f"{report.verdict}: {number}", found=_found(report))


def _found(report: Report) -> str:
    causes = "; ".join(finding.text for finding in report.diagnosis)
    right = next((i for i, row in enumerate(report.names) if row.name == report.first), 0)
    return f"`{report.verdict}` from {report.first} on ({right} of {len(report.names)} names before it). {causes}"


def main() -> None:
    """Print the tables, and write them into README.md if asked to."""
    parser = table_parser("ports")
    parser.add_argument("--only", nargs="*", choices=list(ALL), default=list(ALL))
    parser.add_argument("--checkpoints", nargs="*", choices=list(CHECKPOINTS), default=list(CHECKPOINTS))
    parser.add_argument("--keep", type=Path, help="a JSON file of results; what it has is not run again")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    columns = [(checkpoint, kind) for checkpoint in arguments.checkpoints for kind in PROBES]
    kept = json.loads(arguments.keep.read_text()) if arguments.keep and arguments.keep.is_file() else {}
    cells = {(*key.split("|"),): Cell(*cell) for key, cell in kept.items()}
    with tempfile.TemporaryDirectory() as name:
        for checkpoint in arguments.checkpoints:
            folder = CHECKPOINTS[checkpoint](Path(name))
            subject = _subject(folder)
            scratch = Path(name) / f"{checkpoint} files"
            scratch.mkdir()
            for kind, inputs in zip(PROBES, probes(subject), strict=True):
                for runtime in arguments.only:
                    if (runtime, checkpoint, kind) in cells:
                        continue
                    cell = compare(ALL[runtime], folder, subject, inputs, scratch)
                    cells[runtime, checkpoint, kind] = cell
                    print(f"{checkpoint:8} {kind:14} {runtime:34} {cell.text} {cell.reason} {cell.found}", flush=True)
                    if arguments.keep:
                        arguments.keep.write_text(json.dumps({"|".join(key): cell for key, cell in cells.items()}))
    cells = {key: cells[key] for key in ((r, c, p) for c, p in columns for r in arguments.only)}
    table = ["| runtime | " + " | ".join(f"{checkpoint}, {kind}" for checkpoint, kind in columns) + " |"]
    table.append("|---|" + "--:|" * len(columns))
    reasons: dict[str, int] = {}
    for runtime in arguments.only:
        row = [cells[runtime, *column] for column in columns]
        texts = [cell.text or f"[{reasons.setdefault(cell.reason, len(reasons) + 1)}]" for cell in row]
        table.append(f"| {runtime} | {' | '.join(texts)} |")
    right = [cell for cell in cells.values() if cell.text and not cell.found]
    rms, worst = (max((getattr(cell, key) for cell in right), default=0.0) for key in ("ratio", "worst"))
    table += [
        "",
        f"The largest of those that are right: RMS {rms:.1f} of {RMS:g}, single errors {worst:.1f} of {LARGEST:g}.",
    ]
    table += [f"[{number}]: {reason}." for reason, number in reasons.items()]
    wrong = {key[0]: (key, cell.found) for key, cell in reversed(cells.items()) if cell.found}
    if wrong:
        table += ["", "| called wrong, for the first time on | what the report says |", "|---|---|"]
        table += [f"| {', '.join(key)} | {found} |" for key, found in reversed(wrong.values())]
    print("\n".join(table))
    publish("ports", table, "errors, not times", write=arguments.write)


if __name__ == "__main__":
    main()
