"""Folders of models that several test files use; `random_checkpoint` itself is in random_checkpoints.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from minibert.checkpoint.files import DEFAULT_MODEL, locate
from tests.support.random_checkpoints import SPECIAL_TOKENS, VOCABULARY, random_checkpoint, sizes

__all__ = ["SPECIAL_TOKENS", "VOCABULARY", "locate_minilm", "random_checkpoint", "sentence_model", "sizes"]
__all__ += ["their_vectors"]


def locate_minilm() -> Path:
    """Return the folder of the real model."""
    return locate(DEFAULT_MODEL).require("config.json").parent


def their_vectors(folder: Path, texts: list[str], **options: object) -> np.ndarray:
    """Compute the vectors of these texts with sentence-transformers."""
    from sentence_transformers import SentenceTransformer as Original  # it loads slowly

    model = Original(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    return model.encode(texts, **options)


def listed_modules(kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the content of modules.json; the first module is in the folder itself."""
    return [
        {"idx": i, "name": str(i), "path": f"{i}_{kind.rpartition('.')[2]}" if i else "", "type": kind}
        for i, kind in enumerate(kinds)
    ]


def write_modules(folder: Path, steps: Sequence[tuple[str, Any, Mapping[str, np.ndarray] | None]]) -> Path:
    """Write modules.json and the modules' folders: (type, config or None, tensors or None), the first at the top."""
    listed = listed_modules([kind for kind, *_ in steps])
    for module, (_, config, tensors) in zip(listed, steps, strict=True):
        home = folder / module["path"]
        home.mkdir(exist_ok=True)
        if config is not None:
            (home / "config.json").write_text(json.dumps(config))
        if tensors is not None:
            save_file(dict(tensors), home / "model.safetensors")
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
