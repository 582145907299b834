#!/usr/bin/env bash
# libllama 0.5.0 (npm's @node-llama-cpp/linux-x64 3.22.1), llama_model_quantize of a BERT with 384 features.
#
# Guess:  a file of the type Q2_K holds matrices in Q2_K, at 2.6 bits a weight.
# Seen:   none: Q2_K needs rows of a multiple of 256 numbers, so the matrices of 384 columns are Q4_0 (4.5 bits), only
#         those of 1536 columns are Q3_K, and the words Q8_0. general.file_type says Q2_K (10) all the same. The same
#         call stores a matrix of one row (XLM-RoBERTa's token types, a reranker's output) with one dimension.
# Output seen on 2026-11-29:
#         file_type 10: 5 x Q4_0, 1 x Q8_0, 1 x Q3_K
#         token_types: 1 dimension
# Who meets it: who reads GGUF files of MiniLM or bge-small with a reader of the named type, or compares their sizes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet gguf==0.19.0
npm pack --silent @node-llama-cpp/linux-x64@3.22.1 > /dev/null
tar xzf node-llama-cpp-linux-x64-3.22.1.tgz
cat > run.py << 'EOP'
import ctypes
from collections import Counter

import gguf
import numpy as np

H, F, rows = 384, 1536, np.random.default_rng(0)
writer = gguf.GGUFWriter("float.gguf", "bert")
writer.add_block_count(1)
writer.add_context_length(64)
writer.add_embedding_length(H)
writer.add_feed_forward_length(F)
writer.add_head_count(12)
writer.add_layer_norm_eps(1e-12)
writer.add_causal_attention(False)
writer.add_file_type(0)
writer.add_token_type_count(1)
writer.add_tokenizer_model("bert")
writer.add_token_list(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "▁b"])
writer.add_token_types([3, 3, 3, 3, 1, 1])
norms = [f"{name}.{part}" for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm")
         for part in ("weight", "bias")]
shapes = dict.fromkeys(norms, (H,)) | {"token_embd.weight": (6, H), "position_embd.weight": (64, H)}
shapes |= {"token_types.weight": (1, H)}
for name, shape in (("attn_q", (H, H)), ("attn_k", (H, H)), ("attn_v", (H, H)), ("attn_output", (H, H)),
                    ("ffn_up", (F, H)), ("ffn_down", (H, F))):
    shapes |= {f"blk.0.{name}.weight": shape, f"blk.0.{name}.bias": shape[:1]}
for name, shape in shapes.items():
    writer.add_tensor(name, rows.normal(0, 0.05, shape).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()


class Parameters(ctypes.Structure):
    _fields_ = [("threads", ctypes.c_int32), ("file_type", ctypes.c_int), ("others", ctypes.c_char * 120)]


for name in ("libggml-base.so", "libggml.v0.5.0.so"):
    ctypes.CDLL(f"package/bins/linux-x64/{name}", ctypes.RTLD_GLOBAL)
llama = ctypes.CDLL("package/bins/linux-x64/libllama.v0.5.0.so")
llama.llama_model_quantize_default_params.restype = Parameters
parameters = llama.llama_model_quantize_default_params()
parameters.threads, parameters.file_type = 1, 10  # LLAMA_FTYPE_MOSTLY_Q2_K
assert llama.llama_model_quantize(b"float.gguf", b"q2_k.gguf", ctypes.byref(parameters)) == 0
reader = gguf.GGUFReader("q2_k.gguf")
kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors if tensor.tensor_type.name != "F32")
kind = reader.fields["general.file_type"].contents()
[types] = [tensor for tensor in reader.tensors if tensor.name == "token_types.weight"]
print(f"file_type {kind}:", ", ".join(f"{number} x {name}" for name, number in kinds.most_common()))
print(f"token_types: {len(types.shape)} dimension")
assert kind == 10 and "Q2_K" not in kinds and len(types.shape) == 1, "the behaviour has changed"
EOP
LD_LIBRARY_PATH=package/bins/linux-x64 venv/bin/python run.py 2> log || { tail -20 log; exit 1; }
