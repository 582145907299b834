"""Each op beside its NumPy twin and the peak of the processor: GEMM on BERT's shapes, attention, LayerNorm, embeddings.

    python -m benchmarks.ops [--write]

On a processor with AVX-512, a second process measures everything again with AVX2 alone, which MINIBERT_LEVEL chooses.

The peak is measured in the same run: a loop of fma that uses only registers, on the same number of threads. Results are
compared before anything is timed. Then the contenders of a row run in turn, for several rounds. All rows run again in
several passes. Each ratio is the median of the ratios of single rounds. So a machine whose speed drifts disturbs all
contenders equally, and a disturbance of seconds does not spoil all rounds of one row.

"warm" uses one weight again and again. "cold" uses copies of it in turn. Together they exceed every cache, like the
layers in a forward.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable

# NumPy's BLAS threads wait actively for a while before they free the cores; here for a very short time.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

import numpy as np

from benchmarks.contenders import on_threads
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores
from minibert.bert import reference
from minibert.bert.ops import AttentionInput, LayerNorm, Linear, LookUp
from minibert.kernels import make_ops
from minibert.kernels.compilation import function, load_function
from minibert.kernels.processor import LEVEL, REGISTER_LANES, WIDTH
from minibert.kernels.simd import broadcast, floats_at, fma, number, sum_lanes

Call = Callable[[], object]

# (N, K) of query_key_value, attention output, intermediate, output.
WEIGHTS = {
    "MiniLM": ((1152, 384), (384, 384), (1536, 384), (384, 1536)),
    "bert-base": ((2304, 768), (768, 768), (3072, 768), (768, 3072)),
}
ROWS = (22, 128, 1024)
LENGTHS = ((8, 128), (4, 512))
HEADS = {"MiniLM": (12, 32), "bert-base": (12, 64)}
COLD_BYTES = 256e6


@function
def fma_loop(rounds, address):
    """Compute 12 independent chains of fma in registers, enough to fill every pipeline: 24 WIDTH operations a round."""
    out = floats_at(address)
    x, y = broadcast(out[0]), broadcast(out[1])
    a = b = c = d = e = f = number(0.0)
    g = h = i = j = k = m = number(1.0)
    for _ in range(rounds):
        a, b, c, d = fma(x, y, a), fma(x, y, b), fma(x, y, c), fma(x, y, d)
        e, f, g, h = fma(x, y, e), fma(x, y, f), fma(x, y, g), fma(x, y, h)
        i, j, k, m = fma(x, y, i), fma(x, y, j), fma(x, y, k), fma(x, y, m)
    out[2] = sum_lanes(a + b + c + d + e + f + g + h + i + j + k + m)


@function
def short_fma_loop(rounds, address):
    """Compute the same with 6 chains, for processors where a vector takes two or more of 16 registers."""
    out = floats_at(address)
    x, y = broadcast(out[0]), broadcast(out[1])
    a = b = c = d = e = f = number(0.0)
    for _ in range(2 * rounds):
        a, b, c, d = fma(x, y, a), fma(x, y, b), fma(x, y, c), fma(x, y, d)
        e, f = fma(x, y, e), fma(x, y, f)
    out[2] = sum_lanes(a + b + c + d + e + f)


class Peak:
    """`fma_loop` on all threads at once, long enough for the system to give each thread its own core."""

    ROUNDS = 8_000_000

    def __init__(self, threads: int) -> None:
        self.flops = 24.0 * WIDTH * self.ROUNDS * threads
        self.outs = [np.array([1.0, 1e-6, 0.0], dtype=np.float32) for _ in range(threads)]
        chosen = fma_loop if REGISTER_LANES == WIDTH else short_fma_loop
        self.run = load_function(chosen, 2)

    def __call__(self) -> None:
        on_threads(lambda number: self.run(self.ROUNDS, self.outs[number].ctypes.data), len(self.outs))


def seconds_of(call: Call, least: float) -> float:
    """Return the mean seconds of one call, over calls of at least `least` seconds, after one that wakes the threads."""
    call()
    count, start = 0, time.perf_counter()
    while True:
        call()
        count += 1
        took = time.perf_counter() - start
        if took >= least:
            return took / count


def in_turn(calls: dict[str, Call], rounds: int, least: float) -> dict[str, list[float]]:
    """Return the seconds of each call in each round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds_of(call, least))
    return times


class Bench:
    """The rows of the table: the seconds that each op took in every round so far."""

    def __init__(self, rounds: int, least: float) -> None:
        self.rounds, self.least = rounds, least
        self.threads = available_cores()
        self.ops = make_ops(self.threads)
        self.peak = Peak(self.threads)
        self.generator = np.random.default_rng(0)
        self.work: dict[str, float] = {}  # operations of each row, 0 if it is not compared with the peak
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)  # of each row's contenders, by round

    def floats(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.generator.standard_normal(shape) * scale).astype(np.float32)

    def row(self, name: str, work: float, ours: Call, numpy: Call) -> None:
        """Time a row for some more rounds."""
        calls: dict[str, Call] = {"minibert": ours, "numpy": numpy, **({"peak": self.peak} if work else {})}
        self.work[name] = work
        for contender, seconds in in_turn(calls, self.rounds, self.least).items():
            self.seconds[name, contender] += seconds

    def table(self, avx2: dict[str, str]) -> list[str]:
        """Return the table of the medians of all rounds; `avx2` has the last column."""
        head = ("op, rows x N x K", "microseconds", "NumPy needs", "GFLOP/s", "of the peak", "AVX2 alone: of its peak")
        table = Table(*head)
        for name, work in self.work.items():
            ours, numpy = np.array(self.seconds[name, "minibert"]), np.array(self.seconds[name, "numpy"])
            cells = [name, f"{np.median(ours) * 1e6:,.0f}", f"{np.median(numpy / ours):.2f}x", "", "", ""]
            if work:
                cells[3:] = f"{np.median(work / ours) / 1e9:.0f}", self.share(name), avx2.get(name, "")
            table.add(*cells)
        return table.lines

    def share(self, name: str) -> str:
        """Return the share of the peak that a row reaches."""
        best = self.peak.flops / np.array(self.seconds[name, "peak"])
        return f"{100 * np.median(self.work[name] / np.array(self.seconds[name, 'minibert']) / best):.0f} %"

    def shares(self) -> dict[str, str]:
        """Return the share of the peak of each row that has one."""
        return {name: self.share(name) for name, work in self.work.items() if work}

    def gemm(self, model: str, M: int, N: int, K: int, *, cold: bool) -> None:
        copies = max(1, int(COLD_BYTES / (4 * N * K))) if cold else 1
        weight, bias = self.floats(N, K, scale=K**-0.5), np.zeros(N, np.float32)
        plain = [Linear(("w",), weight.copy(), bias) for _ in range(copies)]
        packed = [self.ops.prepare(linear) for linear in plain]
        x = self.floats(M, K)
        expected = x.astype(np.float64) @ plain[0].weight.astype(np.float64).T
        check(self.ops.linear(x, packed[0]), expected)
        turn = {"ours": 0, "numpy": 0}

        def ours() -> object:
            turn["ours"] += 1
            return self.ops.linear(x, packed[turn["ours"] % copies])

        def numpy() -> object:
            turn["numpy"] += 1
            return x @ plain[turn["numpy"] % copies].weight.T

        name = f"GEMM {model} {M} x {N} x {K}{', cold' if cold else ''}"
        self.row(name, 2.0 * M * N * K, ours, numpy)

    def attention(self, model: str, sequences: int, S: int) -> None:
        heads, D = HEADS[model]
        T, H = sequences * S, heads * D
        query, key, value = np.split(self.floats(T, 3 * H), 3, axis=1)
        inputs = AttentionInput(query, key, value, np.arange(0, T + 1, S, dtype=np.int32), heads)

        def ours() -> np.ndarray:
            return self.ops.attention(inputs).context

        def numpy() -> np.ndarray:
            return reference.attention(inputs).context

        check(ours(), numpy())
        self.row(f"attention {model} {sequences} x {S}", 4.0 * S * T * H, ours, numpy)

    def rowwise(self, model: str, T: int) -> None:
        H = WEIGHTS[model][1][0]
        x, norm = self.floats(T, H), LayerNorm("n", self.floats(H), self.floats(H), 1e-12)
        check(self.ops.layer_norm(x, norm), reference.layer_norm(x, norm))
        calls = (lambda: self.ops.layer_norm(x, norm), lambda: reference.layer_norm(x, norm))
        self.row(f"LayerNorm {model} {T} tokens", 0.0, *calls)
        words, types, positions = self.floats(30522, H), self.floats(2, H), self.floats(512, H)
        ids = self.generator.integers(0, 30522, T).astype(np.int32)
        zeros, place = np.zeros(T, np.int32), np.arange(T, dtype=np.int32) % 512
        tables = (LookUp(words, ids), LookUp(types, zeros), LookUp(positions, place))
        check(self.ops.embed(*tables), reference.embed(*tables))
        calls = (lambda: self.ops.embed(*tables), lambda: reference.embed(*tables))
        self.row(f"embed {model} {T} tokens", 0.0, *calls)


def check(found: np.ndarray, expected: np.ndarray) -> None:
    """Raise if the result that is about to be timed is wrong."""
    apart = float(np.abs(found - expected).max())
    if not apart < 1e-4:
        raise RuntimeError(f"a result differs from NumPy's by {apart}: it does not compute the same.")


def main() -> int:
    """Measure every op, print the table, and write it into README.md if asked."""
    parser = table_parser("ops")
    parser.add_argument("--passes", type=int, default=5, help="passes over all rows (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each row in each pass (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.02, help="seconds of each contender in each round")
    parser.add_argument("--only", choices=("GEMM", "attention", "rowwise"), help="measure only these rows")
    parser.add_argument("--shares", action="store_true", help="print the shares of the peak as JSON, and no table")
    options = parser.parse_args()
    bench = Bench(options.rounds, options.seconds)
    for done in range(options.passes):
        print(f"pass {done + 1} of {options.passes}", file=sys.stderr, flush=True)
        measure(bench, options.only)
    if options.shares:
        print(json.dumps(bench.shares()))
        return 0
    lines = bench.table(shares_with_avx2(sys.argv[1:]) if "avx512f" in LEVEL.features else {})
    rounds = options.passes * options.rounds
    publish("ops", lines, f"{bench.threads} threads; medians of {rounds} rounds", write=options.write)
    return 0


def shares_with_avx2(arguments: list[str]) -> dict[str, str]:
    """Return the shares of the peak that another process reaches with AVX2 alone, with the same arguments."""
    command = [sys.executable, "-m", "benchmarks.ops", "--shares", *(word for word in arguments if word != "--write")]
    chosen = {"MINIBERT_LEVEL": "x86-64-avx2"}
    done = subprocess.run(command, env={**os.environ, **chosen}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def measure(bench: Bench, only: str | None) -> None:
    """Measure all rows once."""
    for model, weights in WEIGHTS.items():
        for M in ROWS:
            for N, K in weights:
                for cold in (False, True):
                    if only in (None, "GEMM") and not (cold and ROWS[0] < M):
                        bench.gemm(model, M, N, K, cold=cold)
        if only in (None, "attention"):
            for sequences, S in LENGTHS:
                bench.attention(model, sequences, S)
        if only in (None, "rowwise"):
            for T in (22, 1024):
                bench.rowwise(model, T)


if __name__ == "__main__":
    raise SystemExit(main())
