"""Our own ops with a mistake of minibert.parity in one of them."""

from __future__ import annotations

import numpy as np

from minibert import BertModel
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.forward import Forward
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


def mutated(model: BertModel, id: str) -> BertModel:
    """Return a model with a mistake in its ops; the ops without it stay as they are."""
    mistake = MISTAKES[id]
    nothing = Padded.of(model.config, {"input_ids": [[0]]})
    forward = Forward(model, nothing, [mistake], dtype=np.float32)
    forward.packed = True
    replaced = {name for name, parts in _OPS_OF_PARTS.items() if parts & mistake.parts.keys()}
    # A residual from another place: all ops have to leave their values.
    if mistake.kind == "C1":
        replaced = set(_OPS_OF_PARTS)
    return model.with_ops(model.ops._replace(**{name: getattr(forward.ops, name) for name in replaced}))
