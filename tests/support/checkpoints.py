"""Folders of models that several test files use; `random_checkpoint` itself is in random_checkpoints.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from minibert.checkpoint.files import DEFAULT_MODEL, locate
from tests.support.random_checkpoints import SPECIAL_TOKENS, VOCABULARY, random_checkpoint

__all__ = ["SPECIAL_TOKENS", "VOCABULARY", "locate_minilm", "random_checkpoint", "sentence_model", "their_vectors"]


def sizes(*, V: int, H: int, L: int, A: int, F: int, P: int, types: int) -> dict[str, int]:
    """Return the fields of a config by the letters of encoder.py."""
    layers = {"hidden_size": H, "num_hidden_layers": L, "num_attention_heads": A, "intermediate_size": F}
    return {"vocab_size": V, "max_position_embeddings": P, "type_vocab_size": types, **layers}


def locate_minilm() -> Path:
    """Return the folder of the real model."""
    return locate(DEFAULT_MODEL).require("config.json").parent


def their_vectors(folder: Path, texts: list[str], **options: object) -> np.ndarray:
    """Compute the vectors of these texts with sentence-transformers."""
    from sentence_transformers import SentenceTransformer as Original  # it loads slowly

    model = Original(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    return model.encode(texts, **options)


def write_modules(folder: Path, steps: Sequence[tuple[str, Any, Mapping[str, np.ndarray] | None]]) -> Path:
    """Write modules.json and the modules' folders: (type, config or None, tensors or None), the first at the top."""
    listed = []
    for i, (kind, config, tensors) in enumerate(steps):
        path = f"{i}_{kind.rpartition('.')[2]}" if i else ""
        listed.append({"idx": i, "name": str(i), "path": path, "type": kind})
        (folder / path).mkdir(exist_ok=True)
        if config is not None:
            (folder / path / "config.json").write_text(json.dumps(config))
        if tensors is not None:
            save_file(dict(tensors), folder / path / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def sentence_model(
    folder: Path, modules: list[str] | None = None, pooling: dict[str, object] | None = None, **files: object
) -> Path:
    """Make a sentence-transformers model around a small random BERT."""
    random_checkpoint(folder, hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40)
    mean = pooling or {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
    kinds = modules or ["models.Transformer", "models.Pooling"]
    configs = [mean if i == 1 else None for i in range(len(kinds))]
    write_modules(
        folder, [(f"sentence_transformers.{kind}", config, None) for kind, config in zip(kinds, configs, strict=True)]
    )
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
