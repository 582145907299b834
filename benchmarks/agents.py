"""Small processes that embed, as the memories of agents start them: one model in each, all at once.

    python -m benchmarks.agents [--write] [--processes 1,4,8] [--children 100] [--threads N]

A process reads lines and prints vectors. N of them start at the same time, each with a line to read:

- first vector: seconds from the start until the last one has printed its first vector;
- CPU: seconds that a process has computed until then, in all its threads, the median;
- PSS: the sum of the memory of all, in which Linux counts a page that k processes hold as 1 / k in each of them;
- idle CPU: milliseconds that all processes compute in a second in which they get no line;
- latency: of a line, while each process gets the next one as soon as it has answered: median and 95 %.

minibert has `shared_weights=True`. onnxruntime runs the fused BERT graph; fastembed loads the same graph as a model of
its user. Each process has the same number of threads. Every program runs once before, so that all caches are filled,
and the vectors are compared. A library that is not installed is left out.

The last row is of children of one process: Python's fork server has loaded the model before, and each child is forked
from it (models/README.md). Its memory counts, the time in which it loads does not.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import numpy as np

from benchmarks.contenders import check_same, on_threads
from benchmarks.forked_agent import FOLDER, THREADS, answer_lines
from benchmarks.readme import Table, publish, table_parser
from benchmarks.runtime import make_graph
from benchmarks.shared_weights import counts
from minibert.checkpoint.files import DEFAULT_MODEL, locate

LINE = "The agent remembers what the user said about the deadline of the project last week."

# Each program defines `embed`, from a text to a vector; `LOOP` follows.
PROGRAMS = {
    "minibert": """
from minibert import SentenceTransformer
embed = SentenceTransformer(folder, shared_weights=True, num_threads=threads).encode
""",
    "onnxruntime and tokenizers": """
import numpy as np, onnxruntime, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.no_padding()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"])
names = [node.name for node in session.get_inputs()]
def embed(text):
    ids = np.array([tokenizer.encode(text).ids])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    vector = session.run(None, {name: feed[name] for name in names})[0][0].mean(0)
    return vector / np.linalg.norm(vector)
""",
    "fastembed": """
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
TextEmbedding.add_custom_model(
    "own/MiniLM", PoolingType.MEAN, True, ModelSource(hf="own/MiniLM"), 384, model_file="model.onnx"
)
model = TextEmbedding("own/MiniLM", specific_model_path=folder, threads=threads)
def embed(text):
    return next(iter(model.embed([text])))
""",
    "sentence-transformers": """
import torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(threads)
embed = SentenceTransformer(folder, device="cpu").encode
""",
}
LOOP = """
import json, sys, time
for line in sys.stdin:
    print(json.dumps([time.process_time(), [float(x) for x in embed(line.strip())]]), flush=True)
"""


class _Process:
    """A process that answers lines."""

    pid: int

    def pss(self) -> int:
        """Return the memory of the process in bytes."""
        return pss_of(self.pid)

    def computed(self) -> int:
        """Return the nanoseconds that the threads of the process have computed."""
        places = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(place.read_text(encoding="utf-8").split()[0]) for place in places)


def pss_of(pid: int | None) -> int:
    """Return the memory of a process in bytes; a page that k processes hold counts as 1 / k."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    return 1024 * int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])


class Agent(_Process):
    """A process of a program, which gets its first line at once."""

    def __init__(self, program: str, folder: Path, threads: int) -> None:
        code = f"folder, threads = {str(folder)!r}, {threads}\n{program}{LOOP}"
        # Without this variable, Python keeps the compiled modules, as it does for most users.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**environment, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path[1:]])},
        )
        self.pid = self.process.pid
        self.send()

    def send(self) -> None:
        """Give the process a line."""
        print(LINE, file=self.process.stdin, flush=True)

    def answer(self) -> tuple[float, np.ndarray]:
        """Return the seconds that the process has computed, and the vector; ImportError if it has ended."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise ImportError("the program ended")
        seconds, vector = json.loads(line)
        return seconds, np.array(vector)

    def close(self) -> None:
        """Wait until the process has ended."""
        self.process.communicate()


class Child(_Process):
    """A child of the fork server, which gets its first line at once."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=answer_lines, args=(other,))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.send()

    def send(self) -> None:
        """Give the process a line."""
        self._pipe.send(LINE)

    def answer(self) -> tuple[float, np.ndarray]:
        """Return the seconds that the process has computed, and the vector."""
        return self._pipe.recv()

    def close(self) -> None:
        """Wait until the process has ended."""
        self._pipe.send(None)
        self._process.join()


def measure(start_one: Callable[[], Agent | Child], count: int, seconds: float) -> tuple[list[float], np.ndarray]:
    """Return the figures of a number of processes, in the order of the columns, and their vector."""
    start = time.perf_counter()
    agents = [start_one() for _ in range(count)]
    try:
        answers = [agent.answer() for agent in agents]
        first = time.perf_counter() - start
        check_same({str(i): vector for i, (_, vector) in enumerate(answers)}, 0.0)
        time.sleep(1)  # what the libraries do after their first call
        before = sum(agent.computed() for agent in agents)
        time.sleep(seconds)
        idle = (sum(agent.computed() for agent in agents) - before) / 1e6 / seconds
        times: list[list[float]] = [[] for _ in agents]
        end = time.perf_counter() + seconds

        def ask(number: int) -> None:
            while (begin := time.perf_counter()) < end:
                agents[number].send()
                agents[number].answer()
                times[number].append(1e3 * (time.perf_counter() - begin))

        on_threads(ask, count)
        memory = sum(agent.pss() for agent in agents) / 1e6
        latency = np.percentile(np.concatenate(times), [50, 95])
        return [first, float(np.median([cpu for cpu, _ in answers])), memory, idle, *latency], answers[0][1]
    finally:
        for agent in agents:
            agent.close()


def add_row(rows: Table, count: int, name: str, rounds: list[list[float]]) -> None:
    """Add the medians of some rounds."""
    first, cpu, memory, idle, *latency = np.median(rounds, axis=0)
    shown = ", ".join(f"{number:.1f}" for number in latency)
    rows.add(count, name, f"{first:.2f}", f"{cpu:.3f}", f"{memory:.0f}", f"{idle:.1f}", shown)


def measure_children(folder: Path, threads: int, count: int, seconds: float) -> list[float]:
    """Return the figures of children of the fork server, which has loaded the model.

    It runs in a process without a main module, because each child would import that.
    """
    os.environ |= {FOLDER: str(folder), THREADS: str(threads)}
    multiprocessing.get_context("forkserver").set_forkserver_preload(["benchmarks.forked_agent_server"])
    measure(Child, 1, 0.1)  # the server starts, and loads
    found, _ = measure(Child, count, seconds)
    found[2] += pss_of(forkserver._forkserver._forkserver_pid) / 1e6  # type: ignore[attr-defined]
    return found


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    parser = table_parser("agents", seconds=2.0)
    parser.add_argument("--processes", type=counts, default=[1, 4, 8], help="default: 1,4,8")
    parser.add_argument("--children", type=int, default=100, help="of the fork server (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, for medians (default: %(default)s)")
    options = parser.parse_args()
    head = ("first vector, s", "CPU, s", "PSS, MB", "idle CPU, ms/s", "latency: p50, p95, ms")
    rows = Table("processes", "", *head, texts=2)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MINIBERT_CACHE_DIR"] = scratch
        folder = Path(shutil.copytree(locate(DEFAULT_MODEL).require("config.json").parent, Path(scratch) / "model"))
        maker = multiprocessing.get_context("spawn").Process(target=make_graph, args=(folder, 1, Path(scratch)))
        maker.start()
        maker.join()
        if (graph := Path(scratch) / "fused.onnx").exists():
            graph.rename(folder / "model.onnx")
        time.sleep(11)  # a digest is noted only of a file that has not changed for 10 seconds
        vectors: dict[str, np.ndarray] = {}
        for name, program in PROGRAMS.items():
            for _ in range(2):  # the second one of minibert notes the digest that the first one computed
                try:
                    vectors[name] = measure(partial(Agent, program, folder, options.threads), 1, 0.1)[1]
                except ImportError:
                    print(f"{name}: left out", file=sys.stderr)
                    break
        check_same(vectors, 1e-4)
        for count in options.processes:
            found: Mapping[str, list[list[float]]] = {name: [] for name in vectors}
            for _ in range(options.rounds):
                for name in vectors:
                    start_one = partial(Agent, PROGRAMS[name], folder, options.threads)
                    found[name].append(measure(start_one, count, options.seconds)[0])
            for name, rounds in found.items():
                add_row(rows, count, name, rounds)
        arguments = f"Path({str(folder)!r}), {options.threads}, {options.children}, {options.seconds}"
        code = f"from benchmarks.agents import *; print(json.dumps(measure_children({arguments})))"
        of_children = [
            json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
            for _ in range(options.rounds)
        ]
        add_row(rows, options.children, "minibert, children of one process", of_children)
    note = f"{options.threads} threads in each process; medians of {options.rounds} rounds"
    publish("agents", rows.lines, note.replace("1 threads", "1 thread"), write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
