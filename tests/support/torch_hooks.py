"""Models of transformers with hooks on all modules: their intermediate values by minibert's names, read and changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers.models.bert import modeling_bert

Change = Callable[[torch.Tensor], torch.Tensor]
"""Returns the new padded value: (B, S, width), (B, A, S, S) or (B, width)."""


def run_hooked(
    model: torch.nn.Module, inputs: Mapping[str, Any], edits: Mapping[str, Change] | None = None
) -> tuple[dict[str, np.ndarray], Any]:
    """Run a model with eager attention; return all values by name, and its output.

    The name of a module is its output, after the change of `edits`. ``.input`` of a LayerNorm is its input, and
    ``.scores`` and ``.probs`` come from a copy of transformers' eager attention.
    """
    edits, values, removers = dict(edits or {}), dict[str, np.ndarray](), []
    used = set()

    def keep(name: str, value: torch.Tensor) -> torch.Tensor:
        if name in edits:
            used.add(name)
            value = edits[name](value)
        values[name] = value.detach().numpy().copy()
        return value

    def after(name: str) -> Callable[..., Any]:
        def hook(module: Any, arguments: Any, result: Any) -> Any:
            if isinstance(result, tuple):
                return (keep(name, result[0]), *result[1:])
            return keep(name, result) if isinstance(result, torch.Tensor) else None

        return hook

    def before(name: str) -> Callable[..., Any]:
        return lambda module, arguments: (keep(name, arguments[0]), *arguments[1:])

    attention_paths = {}
    for path, module in model.named_modules():
        name = path.removeprefix("bert.")
        if name in ("", "bert", "encoder", "encoder.layer", "cls"):
            continue
        if name.endswith("LayerNorm"):
            removers.append(module.register_forward_pre_hook(before(f"{name}.input")))
        if type(module).__name__ == "BertSelfAttention":
            attention_paths[id(module)] = name
        removers.append(module.register_forward_hook(after(name)))

    def attention(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        path = attention_paths[id(module)]
        scores = keep(f"{path}.scores", torch.matmul(query, key.transpose(2, 3)) * scaling)
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = keep(f"{path}.probs", torch.softmax(scores, dim=-1))
        return torch.matmul(probs, value).transpose(1, 2).contiguous(), probs

    try:
        with torch.no_grad(), mock.patch.object(modeling_bert, "eager_attention_forward", attention):
            output = model(**{name: torch.as_tensor(np.asarray(value)) for name, value in inputs.items()})
    finally:
        for remover in removers:
            remover.remove()
    assert used == set(edits), f"not used: {set(edits) - used}"
    return values, output


def shown(name_shape: tuple[int, ...], value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the numbers of a padded value that belong to tokens that are not masked, as one row."""
    value = np.broadcast_to(value, name_shape)
    visible = mask.astype(bool)
    if len(name_shape) == 4:
        pairs = (visible[:, None, :, None] & visible[:, None, None, :]).repeat(name_shape[1], axis=1)
        return value[pairs]
    return value[visible] if len(name_shape) == 3 else value[visible[:, 0]]
