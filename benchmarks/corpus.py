"""Corpora: peak memory of `minibert embed` as the corpus grows, and its texts per second against the other libraries'.

    python -m benchmarks.corpus [--write] [--texts FILE]

Memory: each size runs in one process on a small random checkpoint; the figure is the peak that Linux reports for it.
Speed: all contenders read the same file of texts and write an array to disk, with all-MiniLM-L6-v2. Each one runs in a
process of its own with the same number of threads. They run one after the other, several times. `encode` has its texts
in memory already, so it is the upper bound. The texts are distinct, because minibert computes equal ones once. Results
are compared before any time counts. contenders.py has the other libraries.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import tempfile
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.contenders import MAX_SEQ_LENGTH, VECTORS, Compute, Maker, in_turn, open_process, ratios, start
from benchmarks.environment import peak_memory
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from tests.support.random_checkpoints import random_checkpoint
from tests.support.real_texts import VARIABLE, udhr_lines

SIZES = (1_000, 10_000, 100_000)
WORDS = ("the", "cat", "sat", "on", "a", "mat", "by", "the", "river", "bank", "while", "people", "walked", "home")

# The numbers of texts for the speed: five contenders compute them three times in some minutes on two cores.
REAL_TEXTS, MADE_TEXTS = 2500, 5000


def made_texts(count: int) -> list[str]:
    """Make distinct texts of 3 to 40 words."""
    chance = random.Random(0)
    return [f"{i} " + " ".join(chance.choices(WORDS, k=chance.randint(3, 40))) for i in range(count)]


def speed_texts(file: Path | None) -> tuple[list[str], str]:
    """Return distinct texts to measure the speed with, and a description of them."""
    if file is not None:
        return list(dict.fromkeys(_read(file))), f"the lines of {file.name}"
    if os.environ.get(VARIABLE):
        texts = list(dict.fromkeys(udhr_lines()))
        random.Random(0).shuffle(texts)
        return texts[:REAL_TEXTS], "lines of the Universal Declaration of Human Rights in 45 languages"
    return made_texts(MADE_TEXTS), "made texts of 3 to 40 words"


# --- memory -----------------------------------------------------------------------------------------------------------


def _embed_and_report(folder: Path, texts: Path, output: Path, pipe: Connection) -> None:
    from minibert.cli import main

    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(["embed", "-m", str(folder), "-i", str(texts), "-o", str(output)])
    pipe.send((code, peak_memory() / 2**20))


def memory_rows(scratch: Path) -> list[str]:
    """Measure the peak memory for each size."""
    folder = random_checkpoint(scratch / "small")
    table = Table("texts", "peak memory of `minibert embed`", texts=0)
    for size in SIZES:
        texts = scratch / "texts.txt"
        texts.write_text("\n".join(made_texts(size)), encoding="utf-8")
        code, peak = open_process(_embed_and_report, folder, texts, scratch / "vectors.npy").recv()
        if code != 0 or np.load(scratch / "vectors.npy", mmap_mode="r").shape[0] != size:
            raise RuntimeError(f"embed of {size} texts ended with exit code {code}, or wrote too few vectors.")
        table.add(f"{size:,}", f"{peak:.0f} MB")
    return table.lines


# --- speed ------------------------------------------------------------------------------------------------------------


def _read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _embed(folder: Path, threads: int, scratch: Path) -> Compute:
    from minibert import SentenceTransformer
    from minibert.corpus.embed import embed_corpus
    from minibert.corpus.sources import Source

    model = SentenceTransformer(folder, num_threads=threads)
    model.max_seq_length = MAX_SEQ_LENGTH

    def run(texts: Path) -> np.ndarray:
        embed_corpus(model, [Source(str(texts), "text")], scratch / "vectors.npy", truncation="silent")
        return np.load(scratch / "vectors.npy", mmap_mode="r")

    return run


def _encode(folder: Path, threads: int, scratch: Path) -> Compute:
    from minibert import SentenceTransformer

    model, held = SentenceTransformer(folder, num_threads=threads), dict[Path, list[str]]()
    model.max_seq_length = MAX_SEQ_LENGTH

    def run(texts: Path) -> np.ndarray:
        held[texts] = held.get(texts) or _read(texts)
        return model.encode(held[texts], truncation="silent")

    return run


def _through_files(make: Maker, folder: Path, threads: int, scratch: Path) -> Compute:
    encode = make(folder, threads, scratch)

    def run(texts: Path) -> np.ndarray:
        vectors = encode(_read(texts))
        np.save(scratch / "vectors.npy", vectors)
        return vectors

    return run


CONTENDERS: dict[str, Maker] = {
    "minibert embed": _embed,
    "minibert encode, in memory": _encode,
    **{name: functools.partial(_through_files, make) for name, make in VECTORS.items() if name != "minibert"},
}


def speed_rows(texts: Path, scratch: Path, threads: int, runs: int) -> list[str]:
    """Compare every contender on one file, then time them in turn."""
    folder = locate(DEFAULT_MODEL).require("config.json").parent
    count = len(_read(texts))
    warm = scratch / "warm.txt"
    warm.write_text("\n".join(_read(texts)[:64]), encoding="utf-8")
    with start(CONTENDERS, folder, threads, scratch) as contenders:
        in_turn(contenders, warm, 1, None)
        times = in_turn(contenders, texts, runs, None, 1e-4)
    table = Table(f"{count:,} texts, file to file", "texts per second", "ratio")
    for name, ratio in ratios(times, faster=True).items():
        table.add(name, f"{count / float(np.median(times[name])):.0f}", f"{ratio:.2f}")
    return table.lines


def main() -> int:
    """Measure, print the tables, and write them into README.md if asked."""
    parser = table_parser("corpus", runs=3)
    what = f"one text per line (default: real texts if {VARIABLE} is set, else made ones)"
    parser.add_argument("--texts", type=Path, help=what)
    options = parser.parse_args()
    threads = available_cores()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rows = memory_rows(scratch)
        texts = scratch / "corpus.txt"
        source, what = speed_texts(options.texts)
        texts.write_text("\n".join(source), encoding="utf-8")
        rows += ["", *speed_rows(texts, scratch, threads, options.runs)]
    length = np.mean([len(text) for text in source])
    note = f"{threads} threads each; medians of {options.runs} runs. Texts: {what}, {length:.0f} characters on average"
    publish("corpus", rows, note, write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
