#!/usr/bin/env bash
# transformers 5.24.0, EsmTokenizer, protein sequences with lower-case residues or with J.
#
# Guess:  one token for a residue, <unk> for those that the vocabulary does not have. So state 1 + i is residue i.
# Seen:   a run of residues that the vocabulary does not have is one <unk>, whatever its length. Each state behind it
#         belongs to another residue, and the sequence is shorter than it was. Nothing is said. upper() mends it.
# Output seen on 2026-11-29:
#         MKTAYIAKQR   10 residues, 10 tokens: M K T A Y I A K Q R
#         MKTayiAKQR   10 residues,  8 tokens: M K T <unk> A K Q R
#         mktayiakqr   10 residues,  1 tokens: <unk>
#         MKJJJJAKQR   10 residues,  7 tokens: M K <unk> A K Q R
# Who meets it: who reads soft-masked FASTA files (repeats in lower case) or aligned sequences (insertions in lower
# case, as in A3M) into ESM-2, and takes a state or a mutation's score for each residue.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0
cat > "$folder/run.py" << 'EOF'
import sys
from pathlib import Path

from transformers import EsmTokenizer

# the 33 tokens of ESM-2
tokens = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>".split()
Path(sys.argv[1]).write_text("\n".join(tokens))
tokenizer = EsmTokenizer(sys.argv[1])
lengths = []
for sequence in ("MKTAYIAKQR", "MKTayiAKQR", "mktayiakqr", "MKJJJJAKQR"):
    ids = tokenizer(sequence, add_special_tokens=False)["input_ids"]
    lengths.append(len(ids))
    print(f"{sequence} {len(sequence):4d} residues, {len(ids):2d} tokens:", *tokenizer.convert_ids_to_tokens(ids))
assert lengths == [10, 8, 1, 7], "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" "$folder/vocab.txt" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
