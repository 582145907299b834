#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0, EsmModel with token_dropout (as in ESM-2).
#
# Guess:  model(inputs_embeds=model.get_input_embeddings()(ids)) is model(ids), as in BERT and its kin. The scale of
#         token_dropout acts where tokens are masked, or in training.
# Seen:   with ids the embeddings are multiplied by 0.88 / (1 - share of masked tokens), in eval mode and without a mask
#         too; with inputs_embeds they are not. So the same tokens give other states. 0.88 times the embeddings gives
#         the bits of model(ids).
# Output seen on 2026-11-29 (random weights, largest difference / largest state):
#         embeddings as they are: 0.089
#         embeddings times 0.88:  0.000
# Who meets it: who explains ESM-2 by gradients of the embeddings, mixes embeddings, or optimises a sequence.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
cat > "$folder/run.py" << 'EOF'
import torch
from transformers import EsmConfig, EsmModel

torch.manual_seed(0)
config = EsmConfig(
    vocab_size=33, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
    position_embedding_type="rotary", token_dropout=True, mask_token_id=32, pad_token_id=1,
)
model = EsmModel(config).eval()
ids = torch.tensor([[0, *range(4, 24), 2]])
with torch.no_grad():
    states = model(ids).last_hidden_state
    embeddings = model.get_input_embeddings()(ids)
    seen = []
    for name, factor in (("as they are:", 1.0), ("times 0.88: ", 0.88)):
        other = model(inputs_embeds=embeddings * factor, attention_mask=torch.ones_like(ids)).last_hidden_state
        seen.append(((states - other).abs().max() / states.abs().max()).item())
        print(f"embeddings {name} {seen[-1]:.3f}")
assert seen[0] > 0.02 and seen[1] < 1e-6, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/run.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
