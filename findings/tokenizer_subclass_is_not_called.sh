#!/usr/bin/env bash
# transformers 5.24.0 and 4.57.6, a subclass of BertTokenizer with its own _tokenize.
#
# Guess:  tokenize() calls the subclass's _tokenize, as in transformers 4: so the tokenizers for SMILES, DNA, proteins
#         and Japanese of many packages were written. If version 5 does not want that, it raises an error.
# Seen:   version 5 never calls _tokenize and _convert_token_to_id: BertTokenizer there is the Rust tokenizer. The text
#         is cut by WordPiece. With a vocabulary of SMILES most atoms become [UNK]; no error, no warning.
# Output seen on 2026-11-29:
#         4.57.6 ['C', 'C', '(', '=O', ')', 'O', 'Cl']
#         5.24.0 ['[UNK]', '(', '[UNK]', 'O', ')', '[UNK]']
# Who meets it: who keeps such a class when moving to version 5. (The classes of rxnmapper 0.4.3 set `vocab`
# themselves; there version 5 raises an AttributeError.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" << 'EOF'
import re
import sys
from pathlib import Path

import transformers
from transformers import BertTokenizer


class SmilesTokenizer(BertTokenizer):
    def _tokenize(self, text, **options):
        return re.findall(r"Cl|Br|=O|[A-Z]|[()]", text)


tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "O", "=O", "Cl", "(", ")"]
Path(sys.argv[1]).write_text("\n".join(tokens))
seen = SmilesTokenizer(sys.argv[1], do_lower_case=False).tokenize("CC(=O)OCl")
print(transformers.__version__, seen)
unknown = ["[UNK]", "(", "[UNK]", "O", ")", "[UNK]"]
right = ["C", "C", "(", "=O", ")", "O", "Cl"]
assert seen == (right if transformers.__version__ < "5" else unknown), "the behaviour has changed"
EOF
for pinned in transformers==4.57.6 transformers==5.24.0; do
    python3 -m venv "$folder/$pinned"
    "$folder/$pinned/bin/pip" install --quiet "$pinned"
    "$folder/$pinned/bin/python" "$folder/run.py" "$folder/vocab.txt" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
done
