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
import multiprocessing
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.checkpoints import random_checkpoint
from benchmarks.contenders import MAX_SEQ_LENGTH, VECTORS, Maker, start_process
from benchmarks.environment import peak_memory
from benchmarks.readme import publish, table_parser
from benchmarks.real_texts import VARIABLE, udhr_lines
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate

SIZES = (1_000, 10_000, 100_000)
WORDS = ("the", "cat", "sat", "on", "a", "mat", "by", "the", "river", "bank", "while", "people", "walked", "home")

# A contender that is loaded: it turns a file of texts into a file of vectors.
Run = Callable[[Path, Path], None]


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
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        code = main(["embed", "-m", str(folder), "-i", str(texts), "-o", str(output)])
    pipe.send((code, peak_memory() / 2**20))


def memory_rows(scratch: Path) -> list[str]:
    """Measure the peak memory for each size."""
    folder = random_checkpoint(scratch / "small")
    rows = ["| texts | peak memory of `minibert embed` |", "|--:|--:|"]
    for size in SIZES:
        texts = scratch / "texts.txt"
        texts.write_text("\n".join(made_texts(size)), encoding="utf-8")
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_embed_and_report, args=(folder, texts, scratch / "vectors.npy", theirs))
        process.start()
        theirs.close()  # so that recv() raises if the process dies
        code, peak = ours.recv()
        process.join()
        if code != 0 or np.load(scratch / "vectors.npy", mmap_mode="r").shape[0] != size:
            raise RuntimeError(f"embed of {size} texts ended with exit code {code}, or wrote too few vectors.")
        rows.append(f"| {size:,} | {peak:.0f} MB |")
        print(rows[-1], flush=True)
    return rows


# --- speed ------------------------------------------------------------------------------------------------------------


def _read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _embed(folder: Path, threads: int, scratch: Path) -> Run:
    from minibert import SentenceTransformer
    from minibert.corpus.embed import embed_corpus
    from minibert.corpus.sources import Source

    model = SentenceTransformer(folder, num_threads=threads)
    model.max_seq_length = MAX_SEQ_LENGTH

    def run(texts: Path, output: Path) -> None:
        source = Source(str(texts), "text")
        embed_corpus(model, [source], str(output), truncation="silent")

    return run


def _encode(folder: Path, threads: int, scratch: Path) -> Run:
    from minibert import SentenceTransformer

    model, held = SentenceTransformer(folder, num_threads=threads), dict[Path, list[str]]()
    model.max_seq_length = MAX_SEQ_LENGTH

    def run(texts: Path, output: Path) -> None:
        if texts not in held:
            held[texts] = _read(texts)
        vectors = model.encode(held[texts], truncation="silent")
        if not output.exists():
            np.save(output, vectors)

    return run


def _through_files(make: Maker) -> Callable[[Path, int, Path], Run]:
    def make_run(folder: Path, threads: int, scratch: Path) -> Run:
        encode = make(folder, threads, scratch)
        return lambda texts, output: np.save(output, encode(_read(texts)))

    return make_run


CONTENDERS = {
    "minibert embed": _embed,
    "minibert encode, in memory": _encode,
    **{name: _through_files(make) for name, make in VECTORS.items() if name != "minibert"},
}


def _serve(name: str, folder: Path, threads: int, scratch: Path, pipe: Connection) -> None:
    """Run in a contender's process: answer each order (texts, output) with the seconds it took."""
    warnings.simplefilter("ignore")
    try:
        run = CONTENDERS[name](folder, threads, scratch)
    except ImportError as error:
        pipe.send(f"{name}: left out ({error})")
        return
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        start = time.perf_counter()
        run(*order)
        pipe.send(time.perf_counter() - start)


def speed_rows(texts: Path, scratch: Path, threads: int, runs: int) -> list[str]:
    """Compare every contender on one file, then time them in turn."""
    folder = locate(DEFAULT_MODEL).require("config.json").parent
    count = len(_read(texts))
    warm = scratch / "warm.txt"
    warm.write_text("\n".join(_read(texts)[:64]), encoding="utf-8")
    pipes: dict[str, Connection] = {}
    for name in CONTENDERS:
        own = scratch / name
        own.mkdir()
        pipe = start_process(_serve, name, folder, threads, own)
        if pipe is not None:
            pipe.send((warm, own / "warm.npy"))
            pipe.recv()
            pipes[name] = pipe
    times: dict[str, list[float]] = {name: [] for name in pipes}
    for turn in range(runs):
        for name, pipe in pipes.items():
            time.sleep(0.3)  # the threads of the last contender stop waiting for work
            pipe.send((texts, scratch / name / "vectors.npy"))
            times[name].append(pipe.recv())
            if turn == 0:
                vectors = np.load(scratch / name / "vectors.npy")
                if name == "minibert embed":
                    expected = vectors
                elif np.abs(vectors - expected).max() > 1e-4:
                    raise RuntimeError(f"{name} computes other vectors than minibert embed.")
    for pipe in pipes.values():
        pipe.send(None)
    rows = [f"| {count:,} texts, file to file | texts per second | ratio |", "|---|--:|--:|"]
    ours = times["minibert embed"]
    for name, own in times.items():
        ratio = float(np.median(np.divide(ours, own)))
        rows.append(f"| {name} | {count / float(np.median(own)):.0f} | {ratio:.2f} |")
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Measure, print the tables, and write them into README.md if asked."""
    parser = table_parser("corpus")
    parser.add_argument(
        "--texts",
        type=Path,
        help=f"one text per line (default: real texts if {VARIABLE} is set, else made ones)",
    )
    parser.add_argument("--runs", type=int, default=3, help="number of runs, for the medians (default: %(default)s)")
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
