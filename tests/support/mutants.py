"""Our own ops with a mistake of minibert.parity in one of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from minibert import BertModel
from minibert.bert.ops import AttentionOutput
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.forward import Forward, Here
from minibert.parity.truth import Padded

__all__ = ["MUTANTS", "mutated"]

_OPS_OF_PARTS = {
    "embed": {"rows", "total"},
    "linear": {"weights", "product", "dense", "activation", "add", "value"},
    "attention": {"split", "scores", "mask", "softmax", "weigh", "merge", "value"},
    "layer_norm": {"norm", "value"},
}

# In a packed batch there is no mask, and an op does not know other layers. The next three change nothing, and q8_0
# needs other sizes.
_IMPOSSIBLE = ("A9.no-shift", "G1.erf", "N1.1e-12", "D2.q8_0-weights")

MUTANTS = [
    id
    for id, mistake in MISTAKES.items()
    if mistake.parts and mistake.kind not in ("A5", "A6") and "layer" not in mistake.parts and id not in _IMPOSSIBLE
]
"""The ids of mistakes that our own ops can have."""


class _Packed(Forward):
    """The ops in a packed batch: there is no padding, and each op has its own path."""

    def _here(self, name: str) -> Here:
        parts = name.split(".")
        return Here(name, int(parts[2]) if parts[0] == "encoder" else None, self)

    def _padded(self, flat: np.ndarray) -> np.ndarray:
        return flat

    def attention(self, query: Any, key: Any, value: Any, cu_seqlens: Any, num_heads: int, **options: Any) -> Any:
        path = options["path"]
        found: list[tuple[Any, ...]] = []
        for start, end in pairwise(cu_seqlens.tolist()):
            q, k, v = (x[None, start:end] for x in (query, key, value))
            context = self._attend(q, k, v, np.ones((1, end - start), np.bool_), num_heads, path)
            found.append((context, self.values[f"{path}.scores"][0], self.values[f"{path}.probs"][0]))
        contexts, scores, probs = ([one[i] for one in found] for i in range(3))
        kept = [
            part if options.get(f"return_{name}") else None for name, part in (("scores", scores), ("probs", probs))
        ]
        return AttentionOutput(np.concatenate([query[:0], *contexts]), *kept)


def mutated(model: BertModel, id: str) -> BertModel:
    """Return a model with a mistake in its ops; the ops without it stay as they are."""
    mistake = MISTAKES[id]
    nothing = Padded.of(model.config, {"input_ids": [[0]]})
    forward = _Packed(model, nothing, [mistake], dtype=np.float32)
    replaced = {name for name, parts in _OPS_OF_PARTS.items() if parts & mistake.parts.keys()}
    # A residual from another place: all ops have to leave their values.
    if mistake.kind == "C1":
        replaced = set(_OPS_OF_PARTS)
    return model.with_ops(model.ops._replace(**{name: getattr(forward.ops, name) for name in replaced}))
