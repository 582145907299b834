"""The forward pass compared with transformers (sdpa), onnxruntime (fused BERT graph) and OpenVINO (f32).

    python -m benchmarks.end_to_end [--model FOLDER | --successors | --families | --halves] [--write]

Every contender gets the same ids and the same number of threads, and a process of its own (contenders.py). Their
results are compared first. Then they run in turn, one at a time, several times, and the median of each is reported.
Only the forward pass is timed: ids in, hidden state out. --successors measures models with the sizes of
nomic-embed-text and ModernBERT-base, up to 8,192 tokens; onnxruntime and OpenVINO run the graph that torch exports.
--families measures other families, with their memory, up to 2,048 tokens if they take as many.
--halves measures minibert with files of float16 and bfloat16, beside a file of the same numbers in float32.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import (
    FAMILIES,
    HIDDEN_STATES,
    OF_KINDS,
    SUCCESSORS,
    Contender,
    cells,
    in_turn,
    make_base,
    ratios,
    start,
    write_kinds,
)
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from tests.support.random_checkpoints import random_successor

SHAPES = ((1, 4), (1, 8), (1, 12), (1, 16), (1, 22), (1, 128), (8, 128), (32, 128), (4, 512))
SHORTER = ((1, 4), (1, 8), (1, 22), (8, 128))
LONGER = ((1, 22), (8, 128), (4, 512), (1, 2048), (1, 8192))


def measure(
    model: str,
    folder: Path,
    shapes: Sequence[tuple[int, int]],
    contenders: dict[str, Contender],
    table: Table,
    options: Any,
) -> None:
    """Compare and time every contender; add a row for each shape, a row of their means, and of memory if it is much."""
    generator = np.random.default_rng(0)
    config_file = folder / "float32/config.json" if options.halves else folder / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    V, most = config["vocab_size"], config.get("max_position_embeddings", 512)
    shapes = [shape for shape in shapes if shape[1] <= min(most, options.longest)]
    found = []
    for shape in shapes:
        long = shape[1] > 512
        runs, seconds = (min(options.runs, 3), None) if long else (options.runs, options.seconds)
        times = in_turn(
            contenders, generator.integers(min(1000, V // 8), min(2000, 3 * V // 4), shape), runs, seconds, 1e-4
        )
        found.append([*ratios(times).values()][1:])
        table.add(model, f"{shape[0]} x {shape[1]:,}", *cells(times))
    logs = np.log(np.where(np.isinf(found), np.nan, found))  # a mean is over the rows that a contender finished
    table.add(model, "geometric mean", "", *(f"{mean:.2f}x" for mean in np.exp(np.nanmean(logs, axis=0))))
    if long or options.halves or options.families:
        table.add(model, "peak memory, MB", *(f"{contender.peak / 1e6:,.0f}" for contender in contenders.values()))


def main() -> int:
    """Measure both models, print the table, and write it into README.md if asked."""
    parser = table_parser("end_to_end", runs=9, seconds=0.5)
    parser.add_argument("--only", default="", help="measure only models whose name contains this")
    parser.add_argument("--model", type=Path, help="the folder of another model, measured alone")
    parser.add_argument("--successors", action="store_true", help="measure models after BERT, and longer texts")
    parser.add_argument("--families", action="store_true", help="measure models of other families")
    parser.add_argument("--halves", action="store_true", help="measure files of 16 bits")
    parser.add_argument("--longest", type=int, default=8192, help="leave out longer texts (default: %(default)s)")
    options = parser.parse_args()
    threads = available_cores()
    table: Table | None = None
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        make: dict[str, Callable[[], Path]]
        if options.model:
            make = {options.model.name: lambda: options.model}
        elif options.halves:
            make = {"bert-base": lambda: write_kinds(scratch / "kinds", make_base(scratch / "base"))}
        elif options.successors:
            make = {name: partial(random_successor, scratch / name, kind) for name, kind in SUCCESSORS.items()}
        elif options.families:
            make = {name: partial(random_successor, scratch / name, k, **own) for name, (k, own) in FAMILIES.items()}
        else:
            minilm = locate(DEFAULT_MODEL).require("config.json").parent
            make = {"MiniLM": lambda: minilm, "bert-base": lambda: make_base(scratch / "base")}
        shapes = LONGER if options.successors else SHORTER if options.halves else SHAPES
        shapes = LONGER[:-1] if options.families else shapes
        for model, make_folder in make.items():
            if options.only not in model:
                continue
            folder = make_folder()
            with start(OF_KINDS if options.halves else HIDDEN_STATES, folder, threads, scratch) as contenders:
                table = table or Table("model", "texts x tokens", *contenders, texts=2)
                measure(model, folder, shapes, contenders, table, options)
    assert table is not None
    note = f"{threads} threads each; medians of {options.runs} runs"
    if options.successors or options.families:
        note += ", of 3 with texts of more than 512 tokens; random weights"
    chosen = [name for name in ("successors", "families", "halves") if getattr(options, name)]
    name = chosen[0] if chosen else "speed"
    publish(name, table.lines, note, write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
