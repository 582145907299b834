"""Time the forward pass on this machine, beside transformers if that is installed: `minibert bench`.

This is a short form of the repository's benchmarks, with the same rules. Both contenders get the same ids, the same
number of threads, and a process each. Their results are compared first. Then they run in turn; medians are reported.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.system import available_cores
from minibert._utils.validation import FloatArray, IntArray, counted
from minibert.bert.low_precision import COMPUTE_TYPES
from minibert.checkpoint.hub import ModelFiles
from minibert.models.bert_model import BertModel

__all__ = ["MOST_TEXTS", "as_table", "measure", "measure_texts"]

SHAPES = ((1, 22), (8, 128), (4, 256))
RUNS = 3
MOST_TEXTS = 1000
TOLERANCE = 1e-4  # far above the rounding of both, far below the difference of another computation

Forward = Callable[[IntArray], FloatArray]


def _minibert(folder: Path, threads: int) -> Forward:
    # The type is named, because MINIBERT_COMPUTE_TYPE may ask for one that does not agree with transformers' float32.
    model = BertModel.from_pretrained(
        folder,
        output_hidden_states=False,
        add_pooling_layer=False,
        backend="numba",
        num_threads=threads,
        compute_type="float32",
    )
    return lambda ids: model(ids)["last_hidden_state"]


def _transformers(folder: Path, threads: int) -> Forward:
    os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")  # only this contender's process
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False)
    model.train(False)

    def forward(ids: IntArray) -> FloatArray:
        with torch.inference_mode():
            return model(input_ids=torch.from_numpy(ids)).last_hidden_state.numpy()

    return forward


_CONTENDERS = {"minibert": _minibert, "transformers sdpa": _transformers}


def _serve(name: str, folder: Path, threads: int, pipe: Connection) -> None:
    """Run a contender in its process: answer (ids, seconds) with the result and the median time of a forward."""
    try:
        forward = _CONTENDERS[name](folder, threads)
    except (ImportError, ValueError) as error:
        pipe.send(str(error))
        return
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        ids, seconds = order
        result, end = np.array(forward(ids)), time.perf_counter() + seconds
        times: list[float] = []
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            forward(ids)
            times.append(time.perf_counter() - start)
        pipe.send((result, float(np.median(times))))


def measure(files: ModelFiles, seconds: float, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Time every contender on every shape.

    Parameters
    ----------
    files : ModelFiles
    seconds : float       time of each run
    say : (str) -> None   called with each contender that is left out, and the reason

    Returns
    -------
    dict
        "threads"; "rows", each with "texts", "tokens" and the "milliseconds" of every contender.

    Raises
    ------
    ValueError
        minibert's kernels cannot be used, or its result differs from that of transformers.
    """
    folder, threads = files.require("config.json").parent, available_cores()
    context = multiprocessing.get_context("spawn")  # a daemon of this context ends with this process
    pipes: dict[str, Connection] = {}
    processes = []
    for name in _CONTENDERS:
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_serve, args=(name, folder, threads, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        try:
            absent = ours.recv()
        except EOFError:
            absent = "its process ended"
        if absent is None:
            pipes[name] = ours
        elif name == "minibert":
            raise ValueError(f"minibert's kernels cannot be timed: {absent}")
        else:
            say(f"{name}: left out ({absent})")
    generator = np.random.default_rng(0)
    rows = []
    for texts, tokens in SHAPES:
        ids = generator.integers(1000, 2000, (texts, tokens))
        times: dict[str, list[float]] = {name: [] for name in pipes}
        for run in range(RUNS + 1):
            results = {}
            for name, pipe in pipes.items():
                time.sleep(0.2)  # until the threads of the last contender stop waiting for work
                pipe.send((ids, seconds if run else 0.0))
                results[name], median = pipe.recv()
                if run:
                    times[name].append(median)
            for name, result in results.items():
                apart = float(np.abs(result - results["minibert"]).max())
                if not apart <= TOLERANCE:
                    raise ValueError(f"{name} and minibert differ by {apart} on {texts} x {tokens} tokens.")
        medians = {name: 1000 * float(np.median(values)) for name, values in times.items()}
        rows.append({"texts": texts, "tokens": tokens, "milliseconds": medians})
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join(10)
    return {"threads": threads, "rows": rows}


def measure_texts(model: str, revision: str | None, texts: list[str]) -> dict[str, Any]:
    """Time every compute type on texts, in turn, and compare its sentence vectors with those of float32.

    Returns
    -------
    dict
        "texts", their number; "rows", each with "compute_type", the median "seconds", "times_faster" than float32,
        "mean_1_minus_cosine" and "largest_1_minus_cosine", between its vectors and those of float32.
    """
    from minibert.sentence.sentence_transformers import SentenceTransformer

    def encode(name: str, chosen: list[str]) -> FloatArray:
        vectors: FloatArray = models[name].encode(chosen, normalize_embeddings=True, truncation="silent")
        return vectors.astype(np.float64)

    models = {
        name: SentenceTransformer(model, revision=revision, backend="numba", compute_type=name)
        for name in COMPUTE_TYPES
    }
    vectors = {name: encode(name, texts) for name in models}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(RUNS):
        for name in models:
            time.sleep(0.05)  # until the threads of the last model stop waiting for work
            start = time.perf_counter()
            encode(name, texts)
            times[name].append(time.perf_counter() - start)
    rows = []
    for name in models:
        seconds = float(np.median(times[name]))
        # From the difference, because 1 - cosine of vectors this close is the rounding error of the cosine.
        apart = np.square(vectors[name] - vectors["float32"]).sum(axis=1) / 2
        rows.append(
            {
                "compute_type": name,
                "seconds": seconds,
                "times_faster": float(np.median(times["float32"])) / seconds,
                "mean_1_minus_cosine": float(apart.mean()),
                "largest_1_minus_cosine": float(apart.max()),
            }
        )
    return {"texts": len(texts), "rows": rows}


def as_table(result: dict[str, Any]) -> str:
    """Return the rows as a table: milliseconds, and the ratio of each time to minibert's."""
    names = list(result["rows"][0]["milliseconds"])
    lines = [f"{'texts x tokens':16}" + "".join(f"{name:>26}" for name in names)]
    for row in result["rows"]:
        cells = []
        for name in names:
            took = row["milliseconds"][name]
            ratio = "" if name == "minibert" else f" ({took / row['milliseconds']['minibert']:.2f}x)"
            cells.append(f"{f'{took:.2f} ms{ratio}':>26}")
        lines.append(f"{'{texts} x {tokens}'.format(**row):16}" + "".join(cells))
    lines.append(f"{result['threads']} threads each; medians of {RUNS} runs")
    if "on_texts" in result:
        texts = result["on_texts"]["texts"]
        lines += [
            f"{row['compute_type']}: mean 1 - cosine {row['mean_1_minus_cosine']:.1e}, at most "
            f"{row['largest_1_minus_cosine']:.1e}, on your {counted(texts, 'text')}, "
            f"{row['times_faster']:.2f} times as fast as float32"
            for row in result["on_texts"]["rows"]
            if row["compute_type"] != "float32"
        ]
    return "\n".join(lines)
