"""One text of 22 tokens compared with two lower bounds of its time: reading the weights, and computing the products.

    python -m benchmarks.bounds [--write]

The first bound is the time in which all threads read memory of the size of the encoder's weights (MiniLM: 42.5 MB).
The second is the time in which all threads do the forward's multiplications at the peak of the processor, which a loop
of fma in registers measures (see benchmarks/ops.py). Forward and reading run in turn, the peak in every tenth round,
and each ratio is the median of the ratios of single rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.contenders import on_threads
from benchmarks.ops import Peak
from benchmarks.readme import Table, publish, table_parser
from minibert import BertModel
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.kernels.compilation import function, load_function
from minibert.kernels.processor import WIDTH
from minibert.kernels.simd import floats_at, load, number, sum_lanes

TOKENS = 22
ROUNDS = 60


@function
def read_loop(address, count, out):
    """Add up `count` floats in 8 chains; `count` is a multiple of 8 WIDTH."""
    x = floats_at(address)
    a = b = c = d = e = f = g = h = number(0.0)
    for i in range(0, count, 8 * WIDTH):
        a, b = a + load(x, i), b + load(x, i + WIDTH)
        c, d = c + load(x, i + 2 * WIDTH), d + load(x, i + 3 * WIDTH)
        e, f = e + load(x, i + 4 * WIDTH), f + load(x, i + 5 * WIDTH)
        g, h = g + load(x, i + 6 * WIDTH), h + load(x, i + 7 * WIDTH)
    floats_at(out)[0] = sum_lanes(a + b + c + d + e + f + g + h)


class Reading:
    """All threads read their part of an array of the size of the weights."""

    def __init__(self, num_floats: int, threads: int) -> None:
        self.part = num_floats // threads // (8 * WIDTH) * 8 * WIDTH
        self.memory = np.ones(self.part * threads, dtype=np.float32)
        self.out = np.zeros((threads, WIDTH), dtype=np.float32)
        self.run = load_function(read_loop, 3)

    def __call__(self) -> None:
        """Read everything ten times, so that starting the threads takes a small part of the time."""

        def work(thread: int) -> None:
            first = self.memory.ctypes.data + 4 * self.part * thread
            for _ in range(10):
                self.run(first, self.part, self.out[thread].ctypes.data)

        on_threads(work, len(self.out))


def seconds(call: Callable[[], object], count: int) -> float:
    """Return the mean seconds of one call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def main() -> int:
    """Print the table."""
    arguments = table_parser("bounds").parse_args()
    threads = available_cores()
    model = BertModel.from_pretrained(DEFAULT_MODEL, num_threads=threads, add_pooling_layer=False)
    config = model.config
    H, F, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    num_weights = layers * (4 * H * H + 2 * H * F)
    products = 2.0 * TOKENS * num_weights + layers * 4.0 * TOKENS * TOKENS * H
    ids = np.arange(1000, 1000 + TOKENS)[None]
    reading, peak = Reading(num_weights, threads), Peak(threads)
    rows: list[tuple[float, float, float]] = []
    for turn in range(ROUNDS + 1):
        taken = seconds(lambda: model(ids, output_hidden_states=False), 30)
        read = seconds(reading, 1) / 10
        computed = products / peak.flops * seconds(peak, 1) if turn % 10 == 0 else rows[-1][2]
        rows.append((taken, read, computed))
    forward, read, computed = (1e3 * statistics.median(column) for column in zip(*rows[1:], strict=True))
    ratio = statistics.median(taken / max(read, computed) for taken, read, computed in rows[1:])
    head = ("forward, ms", "reading the weights, ms", "GB/s", "the products, ms", "forward / the larger")
    table = Table("model", "tokens", *head)
    rate = 4e-6 * num_weights / read
    table.add("MiniLM", TOKENS, f"{forward:.2f}", f"{read:.2f}", f"{rate:.1f}", f"{computed:.2f}", f"{ratio:.2f}")
    publish("bounds", table.lines, f"{threads} threads; medians of {ROUNDS} rounds", write=arguments.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
