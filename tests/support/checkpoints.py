"""Folders of models that several test files use; `random_checkpoint` itself is in benchmarks/checkpoints.py."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np

from benchmarks.checkpoints import SPECIAL_TOKENS, VOCABULARY, random_checkpoint
from minibert.checkpoint.files import DEFAULT_MODEL, locate

__all__ = ["SPECIAL_TOKENS", "VOCABULARY", "locate_minilm", "random_checkpoint", "sentence_model", "their_vectors"]


def locate_minilm() -> Path:
    """Return the folder of the real model."""
    return locate(DEFAULT_MODEL).require("config.json").parent


def their_vectors(folder: Path, texts: list[str], **options: object) -> np.ndarray:
    """Compute the vectors of these texts with sentence-transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch and transformers themselves
        from sentence_transformers import SentenceTransformer as Original

        model = Original(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
        return model.encode(texts, **options)


def sentence_model(
    folder: Path, modules: list[str] | None = None, pooling: dict[str, object] | None = None, **files: object
) -> Path:
    """Make a sentence-transformers model around a small random BERT."""
    random_checkpoint(folder, hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40)
    kinds = modules or ["models.Transformer", "models.Pooling"]
    paths = ["", *(f"{i}_{kind.rpartition('.')[2]}" for i, kind in enumerate(kinds[1:], 1))]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for path in paths[1:]:
        (folder / path).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps(pooling or {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True})
    )
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
