"""Shared weights: the memory of several processes with one model, and the time to load it, beside weights of their own.

    python -m benchmarks.shared_weights [--write] [--model MODEL] [--processes 1,4,8]

Memory: each process loads the model, encodes some texts and waits. The figure is the sum of their PSS, in which Linux
counts a page that k processes hold as 1 / k in each of them. The last column is what it may be: the weights that one
process has when it is alone, and N times the rest of its memory.
Time: from the files of the model to the model, after all imports, the median of several loads in turn. Results are
compared, bit for bit, before anything counts. The files are in a temporary folder, which is empty
before each first load: that one reads the checkpoint for its SHA-256, packs the weights and writes them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.contenders import open_process
from benchmarks.readme import Table, publish, table_parser
from minibert.bert.low_precision import COMPUTE_TYPES
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.models.shared_weights import shared_folder

TEXTS = ["the cat sat on the mat", "people walked home by the river bank"] * 8


def _work(model: str, shared: bool, pipe: Connection) -> None:
    from minibert import SentenceTransformer

    loaded = SentenceTransformer(model, shared_weights=shared, num_threads=1)
    pipe.send(hashlib.sha256(loaded.encode(TEXTS).tobytes()).hexdigest())
    while pipe.recv() is not None:
        total = of_weights = 0
        in_weights = False
        for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
            if not line.split()[0].endswith(":"):  # the name of a mapping
                in_weights = line.endswith(".weights")
            elif line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
                of_weights += int(line.split()[1]) * 1024 * in_weights
        pipe.send((total, of_weights))


def total_pss(model: str, count: int, *, shared: bool) -> tuple[int, int, set[str]]:
    """Return the sum of the PSS of processes with a model, that of the mapped weights in it, and digests of vectors."""
    pipes = [open_process(_work, model, shared) for _ in range(count)]
    digests = {pipe.recv() for pipe in pipes}
    found = []
    for pipe in pipes:  # all of them are alive
        pipe.send("measure")
        found.append(pipe.recv())
    for pipe in pipes:
        pipe.send(None)
    return sum(total for total, _ in found), sum(of_weights for _, of_weights in found), digests


def memory_rows(model: str, counts: Sequence[int]) -> list[str]:
    """Measure the memory for each number of processes."""
    alone, one_copy, expected = total_pss(model, 1, shared=True)
    rest = alone - one_copy
    head = ("weights of their own, MB", "shared, MB", "of which the weights", "of one: weights + N x the rest")
    table = Table("processes", *head, texts=0)
    for count in counts:
        own, _, of_own = total_pss(model, count, shared=False)
        shared, of_weights, of_shared = total_pss(model, count, shared=True)
        if of_own | of_shared != expected:
            raise RuntimeError("shared weights give other vectors.")
        bound = one_copy + count * rest
        cells = (f"{number / 1e6:.0f}" for number in (own, shared, of_weights, bound))
        table.add(count, *cells)
        if shared > 1.1 * bound:
            raise RuntimeError(f"{count} processes hold {shared / 1e6:.0f} MB, more than 10 % above the last column.")
    return table.lines


def time_rows(model: str, runs: int) -> list[str]:
    """Measure the times of loads, in this process."""
    from minibert.models.bert import BertModel
    from minibert.models.loading import find_model

    folder = shared_folder()
    assert folder is not None
    files, options, _ = find_model("benchmark", model, {}, BertModel.from_pretrained)
    files.checkpoint()  # the default model's package is verified here, once
    table = Table("compute type", "usual, ms", "shared, the first load, ms", "shared, later loads, ms", "ratio")

    def seconds(compute_type: str, *, shared: bool) -> float:
        start = time.perf_counter()
        BertModel.from_files(files, options, compute_type=compute_type, shared_weights=shared, add_pooling_layer=False)
        return time.perf_counter() - start

    for compute_type in COMPUTE_TYPES:
        seconds(compute_type, shared=False)  # loads the kernels
        shutil.rmtree(folder, ignore_errors=True)  # the files, and the noted digest of the checkpoint
        first = seconds(compute_type, shared=True)
        usual, later = [], []
        for _ in range(runs):
            usual.append(seconds(compute_type, shared=False))
            later.append(seconds(compute_type, shared=True))
        cells = (1e3 * number for number in (np.median(usual), first, np.median(later)))
        ratio = float(np.median(np.divide(usual, later)))
        table.add(compute_type, *(f"{cell:.0f}" for cell in cells), f"{ratio:.2f}x")
    return table.lines


def counts(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,4,8")
    return found


def main() -> int:
    """Measure, print the tables, and write them into README.md if asked."""
    parser = table_parser("shared_weights", runs=15)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="default: %(default)s")
    parser.add_argument("--processes", type=counts, default=[1, 4, 8], help="default: 1,4,8")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = name
        os.environ.pop("MINIBERT_CACHE_DIR", None)  # it would come before
        rows = memory_rows(options.model, options.processes)
        rows += ["", *time_rows(options.model, options.runs)]
    publish("shared weights", rows, f"{options.model}, float32 in the first table", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
