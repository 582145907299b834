"""minibert compared with other libraries on the same machine: a busy core, many callers, the first vector, memory.

    python -m benchmarks.runtime [--write]

MiniLM, 8 texts of 128 tokens, beside transformers (sdpa) and onnxruntime (fused BERT graph), each in a process of its
own with the same number of threads. Their results are compared first. Then they run in turn, one at a time, and each
figure is the median of the rounds:

- busy core: forwards per second while another process keeps one core busy, as a share of those without it;
- many callers: forwards per second of 8 Python threads that share one model, as a share of those of one thread;
- first vector: seconds from the start of a process to the sentence vector of one text, with all caches filled;
- peak memory: of the whole process, with MiniLM and with a model of bert-base's sizes (12 x 768).
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.contenders import HIDDEN_STATES, check_same, make_base, on_threads, session, start_process
from benchmarks.environment import peak_memory
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate

SHAPE = (8, 128)
CALLERS = 8
FIGURES = ("idle", "busy core", "many callers", "first vector", "peak memory", "peak memory, bert-base")
NAMES = ("minibert", "transformers sdpa", "onnxruntime fused")

Forward = Callable[[np.ndarray], np.ndarray]

# The programs that compute one sentence vector; `first_vector` adds the line that prints it.
FIRST_VECTOR = {
    "minibert": """
from minibert import SentenceTransformer
vector = SentenceTransformer(folder).encode(["hello"])[0]
""",
    "transformers sdpa": """
import torch, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False).eval()
with torch.inference_mode():
    vector = model(**tokenizer("hello", return_tensors="pt")).last_hidden_state[0].mean(0)
vector = (vector / vector.norm()).numpy()
""",
    "onnxruntime fused": """
import numpy as np, onnxruntime, tokenizers
ids = np.array([tokenizers.Tokenizer.from_file(folder + "/tokenizer.json").encode("hello").ids])
ids = ids[:, : int((ids != 0).sum())]
session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
vector = session.run(None, {node.name: feed[node.name] for node in session.get_inputs()})[0][0].mean(0)
vector = vector / np.linalg.norm(vector)
""",
}


def load(name: str, folder: Path, threads: int, graph: Path) -> Forward:
    """Load a contender's forward; onnxruntime's is loaded from `graph`, so that its process never imports torch."""
    return (
        session(graph, threads) if name == "onnxruntime fused" else HIDDEN_STATES[name](folder, threads, graph.parent)
    )


def make_graph(folder: Path, threads: int, scratch: Path) -> None:
    """Write onnxruntime's fused graph to `scratch`; this runs in a process of its own."""
    warnings.simplefilter("ignore")
    HIDDEN_STATES["onnxruntime fused"](folder, threads, scratch)


def rate(forward: Forward, ids: np.ndarray, seconds: float, callers: int) -> float:
    """Measure the forwards per second of this number of threads at once."""
    counts = [0] * callers
    start = time.perf_counter()

    def call(number: int) -> None:
        while time.perf_counter() < start + seconds:
            forward(ids)
            counts[number] += 1

    on_threads(call, callers)
    return sum(counts) / (time.perf_counter() - start)


def serve(name: str, folder: Path, threads: int, graph: Path, pipe: Connection) -> None:
    """Run in a contender's process: answer (seconds, callers) with a rate, "result" and "peak" with theirs."""
    warnings.simplefilter("ignore")
    ids = np.random.default_rng(0).integers(1000, 2000, SHAPE)
    try:
        forward = load(name, folder, threads, graph)
    except ImportError as error:
        pipe.send(f"{name}: left out ({error})")
        return
    result = np.array(forward(ids))
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        if order == "result":
            pipe.send(result)
        elif order == "peak":
            pipe.send(peak_memory() / 1e6)
        else:
            pipe.send(rate(forward, ids, *order))


def keep_busy() -> None:
    """Compute without end, in the process that keeps a core busy."""
    while True:
        sum(range(10_000))


def first_vector(name: str, folder: Path, graph: Path) -> tuple[float, np.ndarray]:
    """Return the seconds from the start of a process to its first vector, and the vector."""
    program = f"folder, graph = {str(folder)!r}, {str(graph)!r}\n{FIRST_VECTOR[name]}"
    program += "import sys\nsys.stdout.write(' '.join(map(str, vector.tolist())) + '\\n')\nsys.stdout.flush()\n"
    # Without this variable, Python keeps the compiled modules, as it does for most users.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**environment, "PYTHONPATH": str(Path(__file__).parent.parent)},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
    return seconds, np.array([float(number) for number in line.split()])


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    parser = table_parser("runtime", seconds=2.0)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, for medians (default: %(default)s)")
    options = parser.parse_args()
    threads, folder = available_cores(), locate(DEFAULT_MODEL).require("config.json").parent
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        graph, pipes = start(folder, threads, Path(scratch) / "MiniLM")
        figures: dict[str, dict[str, list[float]]] = {name: {key: [] for key in FIGURES} for name in pipes}
        for name, pipe in start(make_base(Path(scratch) / "base"), threads, Path(scratch) / "bert-base")[1].items():
            pipe.send("peak")
            figures[name]["peak memory, bert-base"].append(pipe.recv())
            pipe.send(None)

        def ask(name: str, order: object) -> object:
            time.sleep(0.3)  # the threads of the last contender stop waiting for work
            pipes[name].send(order)
            return pipes[name].recv()

        check_same({name: ask(name, "result") for name in pipes}, 1e-4)  # type: ignore[misc]
        for name in pipes:
            figures[name]["peak memory"].append(ask(name, "peak"))  # type: ignore[arg-type]
        for _ in range(options.rounds):
            for name in pipes:
                figures[name]["idle"].append(ask(name, (options.seconds, 1)))  # type: ignore[arg-type]
                figures[name]["many callers"].append(ask(name, (options.seconds, CALLERS)))  # type: ignore[arg-type]
            other = context.Process(target=keep_busy, daemon=True)
            other.start()
            time.sleep(1)
            for name in pipes:
                figures[name]["busy core"].append(ask(name, (options.seconds, 1)))  # type: ignore[arg-type]
            other.terminate()
            other.join()
        for pipe in pipes.values():
            pipe.send(None)
        vectors = {}
        for turn in range(options.rounds + 1):  # the first turn fills the caches
            for name in pipes:
                seconds, vectors[name] = first_vector(name, folder, graph)
                if turn:
                    figures[name]["first vector"].append(seconds)
            check_same(vectors, 1e-4)

    publish(
        "runtime", table(figures), f"{threads} threads each; medians of {options.rounds} rounds", write=options.write
    )
    return 0


def start(folder: Path, threads: int, scratch: Path) -> tuple[Path, dict[str, Connection]]:
    """Start a process for each installed contender; return the path of onnxruntime's graph, and the pipes to them."""
    context = multiprocessing.get_context("spawn")
    scratch.mkdir()
    graph = scratch / "fused.onnx"
    maker = context.Process(target=make_graph, args=(folder, threads, scratch))
    maker.start()
    maker.join()
    pipes: dict[str, Connection] = {}
    for name in NAMES:
        if name == "onnxruntime fused" and not graph.exists():
            print(f"{name}: left out (no graph could be made)", file=sys.stderr)
            continue
        pipe = start_process(serve, name, folder, threads, graph)
        if pipe is not None:
            pipes[name] = pipe
    return graph, pipes


def table(figures: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return the rows of the table, one for each contender."""
    rows = Table("", "forwards/s", "with a busy core", f"{CALLERS} callers", "first vector", *FIGURES[-2:])
    for name, found in figures.items():
        busy, many = (np.median(np.divide(found[key], found["idle"])) for key in ("busy core", "many callers"))
        idle, first, *peaks = (np.median(found[key]) for key in ("idle", "first vector", *FIGURES[-2:]))
        cells = [f"{idle:.1f}", f"{busy:.2f}x", f"{many:.2f}x", f"{first:.2f} s", *(f"{peak:.0f} MB" for peak in peaks)]
        rows.add(name, *cells)
    return rows.lines


if __name__ == "__main__":
    raise SystemExit(main())
