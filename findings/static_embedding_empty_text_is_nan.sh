#!/usr/bin/env bash
# sentence-transformers 6.2.0 reading a folder of model2vec 0.10.0 with float16 vectors (what distill() saves).
#
# Guess:  a text without a known token has a zero vector, as in model2vec; Normalize divides by at least 1e-12.
# Seen:   the module computes in the float16 of the file, where 1e-12 is 0: 0 / 0. The vector of an empty text is NaN,
#         its score is NaN, and semantic_search returns it as the best hit of every query. The same folder in float32
#         gives zeros.
# Output seen on 2026-11-29:
#         float16: model2vec [0.0, 0.0], sentence-transformers [nan, nan]; first hit for 'cat': '' (nan)
#         float32: model2vec [0.0, 0.0], sentence-transformers [0.0, 0.0]; first hit for 'cat': 'cat' (1.0)
# Who meets it: whose corpus has one empty line, with a distilled model in sentence-transformers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 sentence-transformers==6.2.0 model2vec==0.10.0
cat > "$folder/run.py" << 'EOF'
import sys

import numpy as np
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer, util
from tokenizers import Tokenizer, models, pre_tokenizers

tokenizer = Tokenizer(models.WordPiece({"[PAD]": 0, "[UNK]": 1, "cat": 2, "dog": 3}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
texts, first = ["cat", "", "dog"], {}
for dtype in ("float16", "float32"):
    path = f"{sys.argv[1]}/{dtype}"
    vectors = np.random.default_rng(0).normal(size=(4, 8)).astype(dtype)
    StaticModel(vectors, tokenizer, normalize=True).save_pretrained(path)
    theirs, ours = StaticModel.from_pretrained(path).encode(texts), SentenceTransformer(path, device="cpu")
    hit = util.semantic_search(ours.encode(["cat"]), ours.encode(texts), top_k=1)[0][0]
    first[dtype] = texts[hit["corpus_id"]]
    print(
        f"{dtype}: model2vec {theirs[1, :2].tolist()}, sentence-transformers {ours.encode(texts)[1, :2].tolist()};",
        f"first hit for 'cat': {first[dtype]!r} ({hit['score']:.1f})",
    )
assert first == {"float16": "", "float32": "cat"}, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" "$folder" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
