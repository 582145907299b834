"""The forward pass compared with transformers (sdpa), onnxruntime (fused BERT graph) and OpenVINO (f32).

    python -m benchmarks.end_to_end [--model FOLDER] [--write]

Every contender gets the same ids and the same number of threads, and a process of its own (contenders.py). Their
results are compared first. Then they run in turn, one at a time, several times, and the median of each is reported.
Only the forward pass is timed: ids in, hidden state out.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.contenders import HIDDEN_STATES, Contender, make_base, start
from benchmarks.readme import publish, table_parser
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate

SHAPES = ((1, 22), (1, 128), (8, 128), (32, 128), (4, 512))


def table(model: str, contenders: dict[str, Contender], runs: int, seconds: float) -> list[str]:
    """Compare, then time, every contender on every shape; return a row for each shape, and a row of their means."""
    generator = np.random.default_rng(0)
    ratios: dict[str, list[float]] = {name: [] for name in contenders}
    rows = []
    for shape in SHAPES:
        ids = generator.integers(1000, 2000, shape)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(runs):
            results = {}
            for name, contender in contenders.items():
                took, results[name] = contender.run(ids, seconds)
                times[name].append(took)
            for name, result in results.items():
                apart = float(np.abs(result - results["transformers sdpa"]).max())
                if not apart <= 1e-4:  # written so that NaN fails too
                    raise RuntimeError(f"{name} differs from transformers by {apart}: it does not compute the same.")
        cells = []
        for name in contenders:
            median = float(np.median(times[name])) * 1e3
            ratios[name].append(float(np.median(np.divide(times[name], times["minibert"]))))
            cells.append(f"{median:.2f}" + ("" if name == "minibert" else f" ({ratios[name][-1]:.2f}x)"))
        rows.append(f"| {model} | {shape[0]} x {shape[1]} | " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    means = [f"{math.exp(np.mean(np.log(values))):.2f}x" for values in list(ratios.values())[1:]]
    rows.append(f"| {model} | geometric mean | | " + " | ".join(means) + " |")
    print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Measure both models, print the table, and write it into README.md if asked."""
    parser = table_parser("end_to_end")
    parser.add_argument("--runs", type=int, default=9, help="number of runs, for the medians (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per run and shape (default: %(default)s)")
    parser.add_argument("--only", default="", help="measure only models whose name contains this")
    parser.add_argument("--model", type=Path, help="the folder of another model, measured alone")
    options = parser.parse_args()
    threads = available_cores()
    lines: list[str] = []
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
            contenders = start(HIDDEN_STATES, folder, threads, scratch)
            if not lines:
                names = " | ".join(contenders)
                lines = [f"| model | texts x tokens | {names} |", "|---|---|" + "--:|" * len(contenders)]
                print("\n".join(lines), flush=True)
            lines += table(model, contenders, options.runs, options.seconds)
            for contender in contenders.values():
                contender.close()
    publish("speed", lines, f"{threads} threads each; medians of {options.runs} runs", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
