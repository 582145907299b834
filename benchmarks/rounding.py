"""The share of each op in the error: the RMS error of the last hidden state if only one op is minibert's.

    python -m benchmarks.rounding [--write]

In each row one op is minibert's own, and all others are computed in float64 and rounded to float32 once. The first row
has no op of minibert: its error comes only from storing each result as float32, so no float32 implementation that
stores the same results can have a smaller one on average. Errors of different ops are nearly independent, so their
squares add up; the percentage is the part of the square of the whole error that an op adds to that of the first row.

The models and texts are those of benchmarks/parity.py, but the large model has 4 layers. MINIBERT_TEST_DATA must name
the folder with udhr.tsv.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parity import Subject, base_subject, minilm_subject, odd_subject, udhr_texts
from benchmarks.readme import Table, publish, table_parser
from minibert import BertConfig
from minibert._utils.system import available_cores
from minibert.bert import encoder
from minibert.bert.ops import AttentionOutput, Ops
from minibert.checkpoint.files import locate
from minibert.kernels import make_ops
from minibert.models.inputs import pack
from minibert.models.loading import load_weights
from tests.support import definition as float64

PRODUCTS = {
    "linear, query key value": "query",
    "linear, attention output": "attention.output",
    "linear, intermediate and GELU": "intermediate",
    "linear, output": ".output.dense",
}
OPS = ("embed", "attention", "layer_norm", *PRODUCTS)


def rounded(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return an op whose result is rounded to float32."""

    @functools.wraps(op)
    def call(*arguments: Any, **options: Any) -> Any:
        result = op(*arguments, **options)
        if isinstance(result, AttentionOutput):
            return result._replace(context=result.context.astype(np.float32))
        return result.astype(np.float32)

    return call


def product_of(paths: tuple[str, ...]) -> str:
    """Return the name of the product with these paths: the first whose part is in them."""
    return next(name for name, part in PRODUCTS.items() if part in paths[0])


def mixed_ops(own: Ops, chosen: tuple[str, ...]) -> Ops:
    """Return ops of which only the chosen ones are minibert's; the others are exact and rounded once."""
    exact = {name: rounded(getattr(float64.OPS, name)) for name in ("embed", "linear", "attention", "layer_norm")}

    def linear(x: Any, weight: Any, **options: Any) -> Any:
        op = own.linear if product_of(weight.paths) in chosen else exact["linear"]
        return op(x, weight, **options)

    others = {name: getattr(own, name) if name in chosen else exact[name] for name in ("embed", "attention")}
    norm = own.layer_norm if "layer_norm" in chosen else exact["layer_norm"]
    return Ops(prepare=own.prepare, linear=linear, layer_norm=norm, **others)


def last_state(subject: Subject, ops: Ops) -> np.ndarray:
    """Return the last hidden state of all visible tokens."""
    files = locate(subject.folder)
    config = BertConfig.from_files(files)
    weights = load_weights(files, config, ops.prepare)
    parts = []
    for inputs in subject.batches:
        batch = pack(config, inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"])
        *_, last = encoder.forward(weights, batch, ops)
        parts.append(last)
    return np.concatenate(parts)


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    options = table_parser("rounding").parse_args()
    data = os.environ.get("MINIBERT_TEST_DATA")
    if not data or not (Path(data) / "udhr.tsv").is_file():
        print("MINIBERT_TEST_DATA must name the folder with udhr.tsv, the real texts.", file=sys.stderr)
        return 2
    own = make_ops(available_cores())
    with tempfile.TemporaryDirectory() as folder:
        subjects = [
            minilm_subject(udhr_texts()),
            base_subject(Path(folder) / "base", num_layers=4),
            odd_subject(Path(folder) / "odd"),
        ]
        columns = [column(subject, own) for subject in subjects]
    table = Table("computed by minibert", *(subject.name for subject in subjects))
    for name in columns[0]:
        table.add(name, *(column[name] for column in columns))
    publish("rounding", table.lines, "the RMS error of the last hidden state and its share", write=options.write)
    return 0


def column(subject: Subject, own: Ops) -> dict[str, str]:
    """Return the cells of one model: the errors and their shares."""
    exact = last_state(subject, float64.OPS)

    def error(chosen: tuple[str, ...]) -> float:
        return float64.measure(last_state(subject, mixed_ops(own, chosen)), exact).rms

    least, whole = error(()), error(OPS)
    cells = {"nothing: every op exact, then rounded": f"{least:.2e} ({100 * (least / whole) ** 2:.0f} %)"}
    for name in OPS:
        found = error((name,))
        cells[name] = f"{found:.2e} ({100 * (found**2 - least**2) / whole**2:.0f} %)"
    return {**cells, "everything": f"{whole:.2e} (100 %)"}


if __name__ == "__main__":
    sys.exit(main())
