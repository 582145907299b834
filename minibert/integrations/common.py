"""What the classes for other libraries share: load a model by its name, and check the options of `encode`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert.sentence.sentence_transformers import SentenceTransformer


def load_model(
    model: SentenceTransformer | str, encode_options: Mapping[str, Any], **model_options: Any
) -> SentenceTransformer:
    """Return the model, and check the options of `encode`; a name is loaded with `model_options`.

    Raises
    ------
    TypeError, ValueError
        An option is not one of `encode`, its value is wrong, or with it the result is not an array of one vector per
        text.
    """
    loaded = model if isinstance(model, SentenceTransformer) else SentenceTransformer(model, **model_options)
    if not isinstance(loaded.encode([], **encode_options), np.ndarray):
        shown = ", ".join(f"{name}={value!r}" for name, value in encode_options.items())
        raise ValueError(f"With {shown} encode does not give an array of one vector per text. Leave that out.")
    return loaded


def name_of(model: SentenceTransformer | str) -> str:
    """Return the given name of a model, or "minibert" for a model object."""
    return "minibert" if isinstance(model, SentenceTransformer) else str(model)
