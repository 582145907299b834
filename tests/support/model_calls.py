"""Calls of `BertModel` that the tests of models share: ids, masks, positions, embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[2]
V, H, L, A, F, P = 120, 48, 3, 4, 256, 64

# The largest differences over all calls below (reported at the end of a run), on hidden states up to 4: 3.2e-6 between
# minibert and transformers, 1.7e-6 between transformers' own eager and sdpa, which share their other roundings.
TOLERANCE = 5e-6


def run(theirs: transformers.BertModel, inputs: dict[str, Any], **options: Any) -> Any:
    with torch.no_grad():
        return theirs(**{name: torch.as_tensor(value) for name, value in inputs.items()}, **options)


RANDOM = np.random.default_rng(0)
B, S = 4, 9
IDS = RANDOM.integers(V, size=(B, S))
TOKEN_TYPES = RANDOM.integers(3, size=(B, S))
POSITIONS = RANDOM.integers(P, size=(B, S))
EMBEDS = RANDOM.normal(size=(B, S, H)).astype(np.float32)
RIGHT = (np.arange(S) < np.array([[9], [4], [1], [7]])).astype(np.int64)
LEFT = RIGHT[:, ::-1].copy()

HOLES = np.array(
    [[1, 0, 1, 1, 0, 0, 1, 1, 1], [0, 1, 1, 0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1]]
)

CALLS: dict[str, dict[str, Any]] = {
    "ids alone": {"input_ids": IDS},
    "token types": {"input_ids": IDS, "token_type_ids": TOKEN_TYPES},
    "positions": {"input_ids": IDS, "position_ids": POSITIONS},
    "positions of one row": {"input_ids": IDS, "position_ids": POSITIONS[:1]},
    "all shown": {"input_ids": IDS, "attention_mask": np.ones_like(IDS)},
    "padded on the right": {"input_ids": IDS, "attention_mask": RIGHT},
    "padded on the left": {"input_ids": IDS, "attention_mask": LEFT},
    "holes": {"input_ids": IDS, "attention_mask": HOLES},
    "embeds": {"inputs_embeds": EMBEDS},
    "embeds, holes": {"inputs_embeds": EMBEDS, "attention_mask": HOLES, "token_type_ids": TOKEN_TYPES},
    "everything": {"input_ids": IDS, "attention_mask": HOLES, "token_type_ids": TOKEN_TYPES, "position_ids": POSITIONS},
    "one token": {"input_ids": IDS[:1, :1]},
    "every position": {"input_ids": RANDOM.integers(V, size=(2, P))},
}
