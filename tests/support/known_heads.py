"""A BERT of two layers made by hand: what each of its attention heads does is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

WORDS = 8
"""Ids 0 to 7; 2 is [CLS] and 3 is [SEP]."""
PLACES = 8
CLS, SEP = 2, 3
TOKENS = {CLS: "[CLS]", SEP: "[SEP]"}

KINDS = np.array([["previous", "itself"], ["following", "[CLS]"]])
"""What each head looks at. Only head 0 of layer 0 writes: it adds the word of the token before. The others write 0."""


def known_heads(folder: Path) -> Path:
    """Save the model. Features 0 to 7 say the word, 8 to 15 the place, as one-hot vectors before LayerNorm."""
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=WORDS + PLACES,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=4,
        max_position_embeddings=PLACES,
    )
    model = transformers.BertModel(config)
    word, place = torch.eye(WORDS + PLACES)[:WORDS], torch.eye(WORDS + PLACES)[WORDS:]
    first = torch.zeros(8, 16)
    first[0] = word[CLS]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1 if name.endswith("LayerNorm.weight") else 0)
        model.embeddings.word_embeddings.weight[:] = word
        model.embeddings.position_embeddings.weight[:] = place
        # Row p of a query is what the token at place p looks for; keys say the place, or that the word is [CLS].
        before, after = torch.roll(place, -1, 0), torch.roll(place, 1, 0)
        before[-1], after[0] = 0, 0
        for layer, queries, keys in ((0, (before, place), (place, place)), (1, (after, place), (place, first))):
            attention = model.encoder.layer[layer].attention.self
            attention.query.weight[:] = 20 * torch.cat(queries)
            attention.key.weight[:] = torch.cat(keys)
        model.encoder.layer[1].attention.self.query.weight[8:] = 0
        model.encoder.layer[1].attention.self.query.bias[8] = 40
        attention = model.encoder.layer[0].attention
        attention.self.value.weight[:8] = word
        attention.output.dense.weight[:, :8] = 0.5 * word.T
    model.save_pretrained(folder)
    return folder
