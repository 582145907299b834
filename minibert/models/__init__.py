"""`BertModel` and the parts around it: outputs, the embedding layer, checks of inputs, loading, the choice of ops."""

from __future__ import annotations

from typing import Any

from minibert._utils.foreign import refuse_name

__all__: list[str] = []

MODULES_ARE_READ = "minibert reads the modules of a model from its files: SentenceTransformer(folder)."
"""Instead of the classes of sentence_transformers.models."""


def __getattr__(name: str) -> Any:
    """Say what to do instead of ``from sentence_transformers import models``, whose classes build a model."""
    if not name[:1].isupper():
        raise AttributeError(f"module 'minibert.models' has no attribute {name!r}.")
    refuse_name(
        "minibert.models",
        f"minibert.models has no {name}. {MODULES_ARE_READ} To build a model from single modules use "
        "sentence-transformers, save it with save_pretrained(folder), and load the folder here.",
    )
