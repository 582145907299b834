"""The forward pass compared with transformers (sdpa), onnxruntime (fused BERT graph) and OpenVINO (f32).

    python -m benchmarks.end_to_end [--model FOLDER] [--write]

Every contender gets the same ids and the same number of threads, and a process of its own (contenders.py). Their
results are compared first. Then they run in turn, one at a time, several times, and the median of each is reported.
Only the forward pass is timed: ids in, hidden state out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.contenders import HIDDEN_STATES, Contender, cells, in_turn, make_base, ratios, start
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate

SHAPES = ((1, 22), (1, 128), (8, 128), (32, 128), (4, 512))


def measure(model: str, contenders: dict[str, Contender], table: Table, runs: int, seconds: float) -> None:
    """Compare and time every contender; add a row for each shape, and a row of their means."""
    generator = np.random.default_rng(0)
    found = []
    for shape in SHAPES:
        times = in_turn(contenders, generator.integers(1000, 2000, shape), runs, seconds, 1e-4)
        found.append([*ratios(times).values()][1:])
        table.add(model, f"{shape[0]} x {shape[1]}", *cells(times))
    table.add(model, "geometric mean", "", *(f"{mean:.2f}x" for mean in np.exp(np.mean(np.log(found), axis=0))))


def main() -> int:
    """Measure both models, print the table, and write it into README.md if asked."""
    parser = table_parser("end_to_end", runs=9, seconds=0.5)
    parser.add_argument("--only", default="", help="measure only models whose name contains this")
    parser.add_argument("--model", type=Path, help="the folder of another model, measured alone")
    options = parser.parse_args()
    threads = available_cores()
    table: Table | None = None
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        if options.model:
            folders = {options.model.name: options.model}
        else:
            base = make_base(scratch / "base")
            folders = {"MiniLM": locate(DEFAULT_MODEL).require("config.json").parent, "bert-base": base}
        for model, folder in folders.items():
            if options.only not in model:
                continue
            with start(HIDDEN_STATES, folder, threads, scratch) as contenders:
                table = table or Table("model", "texts x tokens", *contenders, texts=2)
                measure(model, contenders, table, options.runs, options.seconds)
    assert table is not None
    publish("speed", table.lines, f"{threads} threads each; medians of {options.runs} runs", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
