"""The memory of the compute types at the sizes of bert-base (random weights), and the time to compile their kernels.

    python -m benchmarks.low_precision_memory [--write]

Each figure is of a process of its own, which loads the model and computes one text of 22 tokens. "Linear weights" are
those of the encoder, as the kernels read them: whole numbers, scales and biases. The tables of embeddings are float32,
and that of words stays in its file. The peak is that of the whole process, as Linux reports it, with machine code on
disk. The time to compile is the CPU time of a process without machine code on disk, minus that of a process with it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.contenders import make_base
from benchmarks.environment import peak_memory
from benchmarks.readme import Table, publish, table_parser
from minibert.bert.low_precision import COMPUTE_TYPES


def report(folder: str, compute_type: str) -> str:
    """Load a model, compute one text, and return the bytes of its linear weights and of its tables, and the peak."""
    import numpy as np

    from minibert import BertModel

    model = BertModel.from_pretrained(folder, compute_type=compute_type, add_pooling_layer=False)
    model(np.arange(1000, 1022).reshape(1, 22))
    weights = model.weights
    maps = [linear for layer in weights.layers for linear in layer.linears]
    size = sum(linear.panels.nbytes + linear.bias.nbytes for linear in maps)
    tables = (weights.words, weights.position_embeddings, weights.token_type_embeddings)
    in_memory = sum(table.nbytes for table in tables if isinstance(table, np.ndarray))
    return f"{size} {in_memory} {peak_memory():.0f}"


def measure(folder: Path, compute_type: str) -> list[float]:
    """Run `report` in a process of its own; return what it found."""
    program = f"from benchmarks.low_precision_memory import report; print(report({str(folder)!r}, {compute_type!r}))"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return [float(number) for number in found.stdout.split()]


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    options = table_parser("low_precision_memory").parse_args()
    columns = []
    with tempfile.TemporaryDirectory() as scratch_name:
        folder = make_base(Path(scratch_name) / "base")
        for name in COMPUTE_TYPES:
            found = measure(folder, name)
            columns.append([found[0], found[0] + found[1], found[2]])
    table = Table("bert-base", *COMPUTE_TYPES)
    for i, label in enumerate(("linear weights", "linear weights and tables in memory", "peak memory")):
        cells = [f"{column[i] / 2**20:.0f} MB ({column[i] / columns[0][i]:.1%})" for column in columns]
        table.add(label, *cells)
    publish("low precision memory", table.lines, "one text of 22 tokens", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
