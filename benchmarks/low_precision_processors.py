"""Compute types that are slower than float32: the time of a layer's products on each processor this one can imitate.

    python -m benchmarks.low_precision_processors [--seconds 2]

MINIBERT_LEVEL chooses the library of a lesser level, so one machine shows what the instructions of another kind give;
how fast they are is that of this machine. The rule `processor.is_faster` must
agree with these ratios. Each processor is a process, in which the types run in turn on one thread: the least time of
the CPU for the four products of a layer of MiniLM, 64 rows, divided by that of float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

from benchmarks.readme import Table
from minibert.bert.low_precision import COMPUTE_TYPES, FORMATS
from minibert.bert.ops import Linear
from minibert.kernels import make_ops
from minibert.kernels.libraries import usable_levels
from minibert.kernels.processor import words_of

H, ROWS = 384, 64
MAPS = {
    "attention.self.query": (3 * H, H),
    "attention.output.dense": (H, H),
    "intermediate.dense": (4 * H, H),
    "output.dense": (H, 4 * H),
}


def measure(seconds: float) -> dict[str, float]:
    """Return the time of the products of each compute type, divided by that of float32."""
    generator = np.random.default_rng(0)
    prepared = {}
    for name in COMPUTE_TYPES:
        ops = make_ops(1, compute_type=name)
        maps = []
        for module, (N, K) in MAPS.items():
            weight = generator.standard_normal((N, K)).astype(np.float32)
            linear = Linear((f"encoder.layer.0.{module}",), weight, np.zeros(N, np.float32))
            maps.append((generator.standard_normal((ROWS, K)).astype(np.float32), ops.prepare(linear)))
        prepared[name] = ops, maps
    least = dict.fromkeys(COMPUTE_TYPES, float("inf"))
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for name, (ops, maps) in prepared.items():
            start = time.thread_time()
            for x, linear in maps:
                ops.linear(x, linear)
            least[name] = min(least[name], time.thread_time() - start)
    return {name: each / least["float32"] for name, each in least.items()}


def main() -> int:
    """Measure on each processor, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of the CPU for each processor")
    parser.add_argument("--one", action="store_true", help="measure on this processor only, and print JSON")
    options = parser.parse_args()
    if options.one:
        instructions = {name: words_of(name).dot.name for name in FORMATS}
        print(json.dumps({"instructions": instructions, "ratios": measure(options.seconds)}))
        return 0
    table = Table("time / float32's", *COMPUTE_TYPES[1:], "instructions")
    command = [sys.executable, "-m", "benchmarks.low_precision_processors", "--one", "--seconds", str(options.seconds)]
    for label in (name for name, level in usable_levels().items() if len(level.compute_types) > 1):
        variables = {**os.environ, "MINIBERT_LEVEL": label}
        printed = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
        found = json.loads(printed.stdout)
        ratios = (f"{found['ratios'][name]:.2f}" for name in COMPUTE_TYPES[1:])
        table.add(label, *ratios, ", ".join(found["instructions"].values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
