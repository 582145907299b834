"""Models with a list of modules behind BERT, in both generations of the files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.checkpoints import random_checkpoint, write_modules

RNG = np.random.default_rng(11)
OLD, NEW = "sentence_transformers.models", "sentence_transformers"
NEW_HOMES = {"Pooling": "sentence_transformer.modules.pooling", "LayerNorm": "sentence_transformer.modules.layer_norm"}
NEW_HOMES |= {"Dropout": "sentence_transformer.modules.dropout", "Transformer": "base.modules.transformer"}
NEW_HOMES |= {"Dense": "base.modules.dense", "Normalize": "base.modules.normalize"}


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def random_tensors(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    names = {name.replace("_", "."): shape for name, shape in shapes.items()}
    return {name: RNG.standard_normal(shape).astype(np.float32) * np.float32(0.4) for name, shape in names.items()}


def model_with_modules(
    folder: Path, steps: list[tuple[str, Any, dict[str, np.ndarray] | None]], *, new: bool = False
) -> Path:
    """Make a small random BERT with these modules behind it: (kind, config or None, tensors or None)."""
    random_checkpoint(folder, hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=40)
    every = [("Transformer", None, None), *steps]
    named = [(f"{NEW}.{NEW_HOMES[kind]}.{kind}" if new else f"{OLD}.{kind}", *files) for kind, *files in every]
    return write_modules(folder, named)


MEAN = ("Pooling", {"embedding_dimension": 24, "pooling_mode": "mean"}, None)


def dense(inward: int, outward: int, activation: str = "torch.nn.modules.activation.Tanh", **more: Any) -> Any:
    config = {"in_features": inward, "out_features": outward, "bias": True, "activation_function": activation, **more}
    shapes = {"linear_weight": (outward, inward), "linear_bias": (outward,)}
    if not config["bias"]:
        del shapes["linear_bias"]
    if more.get("use_residual") and inward != outward:
        shapes["residual_weight"] = (outward, inward)
    return "Dense", config, random_tensors(**shapes)
