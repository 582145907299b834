"""A run on the actors of a local Ray beside the same run in one process: texts per second from a file to an array.

    python -m benchmarks.cluster [--write] [--texts N] [--rounds N]

Two actors with one thread each, and one process with two threads, so both use two cores. The actors have started, and
have computed a first run, before any time counts; how long they took to start is printed too. The runs take turns. The
files are compared, byte for byte. Needs Ray: pip install ".[ray]".
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.corpus import made_texts
from benchmarks.readme import publish, table_parser
from benchmarks.real_texts import VARIABLE, udhr_lines
from minibert import SentenceTransformer
from minibert.base.arrays import FloatArray
from minibert.checkpoint.hub import DEFAULT_MODEL
from minibert.corpus.embed import embed_corpus
from minibert.corpus.encoders import Encoder, Workers
from minibert.corpus.readers import Source
from minibert.integrations.ray_workers import RayWorkers
from minibert.sentence.options import EncodeOptions

ACTORS = 2


class Started:
    """Workers that are started once and used by several runs with the same options."""

    def __init__(self, workers: RayWorkers) -> None:
        self._workers = workers
        self._encoder: Encoder | None = None

    def start(self, options: EncodeOptions, probe: FloatArray, processor: str) -> Encoder:
        """Start the actors, or return those that are there."""
        self._encoder = self._encoder or self._workers.start(options, probe, processor)
        return self._encoder


def texts_of(count: int) -> list[str]:
    """Return different short texts, made of real ones if there are some."""
    if not os.environ.get(VARIABLE):
        return made_texts(count)
    lines = [" ".join(line.split()) for line in udhr_lines()]
    return [f"{index} {lines[index % len(lines)]}"[:100].strip() for index in range(count)]


def seconds(model: SentenceTransformer, texts: Path, output: Path, workers: Workers | None) -> float:
    """Run once, and return the seconds."""
    start = time.perf_counter()
    embed_corpus(model, [Source(str(texts), "text")], output, truncation="silent", workers=workers, report=print)
    return time.perf_counter() - start


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    parser = table_parser("cluster")
    parser.add_argument("--texts", type=int, default=20_000, help="number of texts (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn (default: %(default)s)")
    options = parser.parse_args()
    model = SentenceTransformer(DEFAULT_MODEL, num_threads=ACTORS)
    with (
        tempfile.TemporaryDirectory() as name,
        RayWorkers(DEFAULT_MODEL, address="local", actors=ACTORS, num_threads=1) as workers,
    ):
        folder, ray = Path(name), Started(workers)
        few, texts = folder / "few.txt", folder / "texts.txt"
        few.write_text("\n".join(texts_of(min(ACTORS * 1024, options.texts))), encoding="utf-8")
        texts.write_text("\n".join(texts_of(options.texts)), encoding="utf-8")
        to_start = seconds(model, few, folder / "few.npy", ray)
        to_start -= seconds(model, few, folder / "few.npy", ray)
        seconds(model, few, folder / "few.npy", None)
        times: dict[str, list[float]] = {"one process, 2 threads": [], "Ray, 2 actors of 1 thread": []}
        for _ in range(options.rounds):
            for (what, found), where in zip(times.items(), (None, ray), strict=True):
                found.append(seconds(model, texts, folder / f"{len(what)}.npy", where))
        alone, theirs = ((folder / f"{len(what)}.npy").read_bytes() for what in times)
        if alone != theirs:
            raise RuntimeError("the run on Ray wrote another array than one process.")
    rows = [f"| {options.texts:,} texts, file to file | texts per second | of one process |", "|---|--:|--:|"]
    ours = times["one process, 2 threads"]
    for what, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(ours, found, strict=True))
        rows.append(f"| {what} | {options.texts / statistics.median(found):.0f} | {ratio:.2f} |")
    print("\n".join(rows))
    what = "beginnings of lines of the Universal Declaration of Human Rights, up to 100 characters"
    what = what if os.environ.get(VARIABLE) else "made texts of 3 to 40 words"
    how = f"all-MiniLM-L6-v2, {what}; medians of {options.rounds} runs"
    publish("cluster", rows, f"{how}. The actors started in {to_start:.0f} seconds, not counted", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
