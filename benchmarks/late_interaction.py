"""Late interaction beside sentence-transformers: encoding, MaxSim, and its memory.

    python -m benchmarks.late_interaction [--write]

The model has the sizes of MiniLM with random weights, and a projection to 128 dimensions. Queries are filled up to 32
tokens, and documents have 180. Each contender runs in a process of its own with the same number of threads. Their
results are compared first; then they run in turn, and each cell is the median of the runs. The memory is what MaxSim
takes in addition to the vectors: the growth of the largest resident size of a process that only scores.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Compute, in_turn, start
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores
from tests.support.random_checkpoints import VOCABULARY, random_checkpoint

QUERIES, DOCUMENTS, TOKENS, WIDTH = 32, 1000, 180, 128
TEXTS = {"queries": (128, 20), "documents": (64, 240)}  # their number, and their words
CASES = ("maxsim", "maxsim, 1 query", "maxsim, int8")


def make_model(folder: Path) -> Path:
    """Save a model in the format of ColBERTv2."""
    from safetensors.numpy import load_file, save_file

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    random_checkpoint(folder, **sizes, max_position_embeddings=512)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    weights = load_file(folder / "model.safetensors")
    weights["linear.weight"] = np.random.default_rng(1).standard_normal((WIDTH, 384)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    metadata = {"query_maxlen": 32, "doc_maxlen": TOKENS, "mask_punctuation": False}
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def vectors(count: int, tokens: int, seed: int) -> list[np.ndarray]:
    """Return random vectors of length 1 for each token of some texts."""
    found = np.random.default_rng(seed).standard_normal((count, tokens, WIDTH)).astype(np.float32)
    return list(found / np.linalg.norm(found, axis=-1, keepdims=True))


def texts(kind: str) -> list[str]:
    """Return random texts."""
    rng, words = np.random.default_rng(2), VOCABULARY[-40:]
    count, length = TEXTS[kind]
    return [" ".join(rng.choice(words, length)) for _ in range(count)]


def _score(name: str, documents: Any, score: Any) -> Compute:
    queries = vectors(QUERIES, 32, 0)
    return lambda _: np.asarray(score(queries[:1] if name == CASES[1] else queries, documents))


def _minibert(name: str, folder: Path, threads: int, scratch: Path) -> Compute:
    from minibert import MultiVectorEncoder
    from minibert.vectors.multi_vectors import MultiVectors, maxsim

    model = MultiVectorEncoder(folder, num_threads=threads)
    if name in TEXTS:
        encode = model.encode_query if name == "queries" else model.encode_document
        return lambda given: np.concatenate(encode(given, truncation="silent"))
    documents = MultiVectors.of("documents", vectors(DOCUMENTS, TOKENS, 1))
    documents = documents.quantized() if name == CASES[2] else documents
    return _score(name, documents, functools.partial(maxsim, ops=model.model.ops))


def _theirs(name: str, folder: Path, threads: int, scratch: Path) -> Compute:
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.util import maxsim

    torch.set_num_threads(threads)
    if name in TEXTS:
        model = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
        encode = model.encode_query if name == "queries" else model.encode_document
        return lambda given: np.concatenate(encode(given, convert_to_numpy=True))
    return _score(name, [torch.from_numpy(one) for one in vectors(DOCUMENTS, TOKENS, 1)], maxsim)


MAKERS = {"minibert": _minibert, "sentence-transformers": _theirs}


def _growth(maker: Any, folder: Path, threads: int, answer: Any) -> None:
    compute = maker(CASES[0], folder, threads, folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    compute(None)
    answer.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def memory(maker: Any, folder: Path, threads: int) -> float:
    """Return the MB that a process grows by when it scores."""
    context = multiprocessing.get_context("spawn")
    answer: Any = context.SimpleQueue()
    process = context.Process(target=_growth, args=(maker, folder, threads, answer))
    process.start()
    found: float = answer.get()
    process.join()
    return found


def loss() -> str:
    """Return how much int8 documents change scores and the order of documents."""
    from minibert.vectors.multi_vectors import MultiVectors, maxsim

    queries, documents = vectors(QUERIES, 32, 0), MultiVectors.of("documents", vectors(DOCUMENTS, TOKENS, 1))
    exact, rounded = (np.asarray(maxsim(queries, some)) for some in (documents, documents.quantized()))
    top = [np.argsort(-scores, axis=1)[:, :10] for scores in (exact, rounded)]
    same = np.mean([len(np.intersect1d(*rows)) / 10 for rows in zip(*top, strict=True)])
    error = np.sqrt(np.mean((rounded - exact) ** 2)) / exact.std()
    return f"int8: RMS error {100 * error:.1f} % of the deviation of the scores, {100 * same:.0f} % of the best 10 kept"


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    parser = table_parser("late_interaction")
    parser.add_argument("--runs", type=int, default=5, help="number of runs, for the medians (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per run and row (default: %(default)s)")
    parser.add_argument("--only", default="", help="measure only rows whose name contains this")
    options = parser.parse_args()
    threads, names = available_cores(), [name for name in (*TEXTS, *CASES) if options.only in name]
    sizes = {name: f"{count} texts of {words} words" for name, (count, words) in TEXTS.items()}
    sizes |= dict.fromkeys(CASES, f"{QUERIES} x 32 tokens, {DOCUMENTS:,} x {TOKENS}")
    table = Table("row", "size", *(f"{name}, ms" for name in MAKERS), "ratio", texts=2)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        folder = make_model(scratch / "model")
        for name in names:
            own = scratch / name
            own.mkdir()
            makers = {one: functools.partial(maker, name) for one, maker in MAKERS.items()}
            given = texts(name) if name in TEXTS else np.zeros(0)
            with start(makers, folder, threads, own) as contenders:
                allowed = 0.3 if name == CASES[2] else 1e-3
                times = in_turn(contenders, given, options.runs, options.seconds, allowed)
            ours, other = (1000 * float(np.median(times[one])) for one in MAKERS)
            size = sizes[name].replace("32 x", "1 x", 1) if name == CASES[1] else sizes[name]
            table.add(name, size, f"{ours:.1f}", f"{other:.1f}", f"{other / ours:.2f}")
        if not options.only:
            ours, other = (memory(maker, folder, threads) for maker in MAKERS.values())
            table.add(
                "memory of maxsim, MB", sizes[CASES[0]], f"{ours:.0f}", f"{other:.0f}", f"{other / max(ours, 1):.1f}"
            )
    measured = f"{threads} threads each; medians of {options.runs} runs; {loss()}"
    publish("late_interaction", table.lines, measured, write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
