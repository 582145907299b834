#!/usr/bin/env bash
# transformers 5.24.0, AlbertTokenizer, a pair of texts.
#
# Guess:  the tokenizer of ALBERT returns token_type_ids 0 and 1 for a pair, as in transformers 4 and as BERT's does.
# Seen:   a call returns input_ids and attention_mask alone. The types exist: return_token_type_ids=True gives 0 and 1.
#         So model(**tokenizer(a, b)) computes with type 0 for both texts, and a classifier of pairs that was trained
#         with the types of transformers 4 gets another input.
# Output seen on 2026-11-29:
#         AlbertTokenizer ['input_ids', 'attention_mask']
#         BertTokenizer ['input_ids', 'token_type_ids', 'attention_mask']
#         types when asked for: [0, 0, 0, 0, 1, 1, 1]
# Who meets it: who scores pairs with an ALBERT (natural language inference, rerankers), or compares a port with it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0
cat > "$folder/run.py" << 'EOF'
from transformers import AlbertTokenizer, BertTokenizer

pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁a", "▁cat", "▁dog"]
albert = AlbertTokenizer(vocab=[(piece, 0.0 if number < 5 else -1.0) for number, piece in enumerate(pieces)])
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog"]
bert = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
for tokenizer in (albert, bert):
    print(type(tokenizer).__name__, list(tokenizer("a cat", "a dog")))
types = albert("a cat", "a dog", return_token_type_ids=True)["token_type_ids"]
print("types when asked for:", types)
assert "token_type_ids" not in albert("a cat", "a dog"), "the behaviour has changed"
assert "token_type_ids" in bert("a cat", "a dog") and types == [0, 0, 0, 0, 1, 1, 1], "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
