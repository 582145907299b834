"""Helpers of the integrations: load a model by its name, check the options of `encode`, report a missing library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.sentence.sentence_transformers import SentenceTransformer

__all__ = [
    "DEFAULT_MODEL",
    "Backend",
    "SentenceTransformer",
    "check_option_names",
    "check_options",
    "load_model",
    "name_of",
]


def load_model(
    model: SentenceTransformer | str, encode_options: Mapping[str, Any], **model_options: Any
) -> SentenceTransformer:
    """Check the options of `encode` and return the model; a name is loaded with `model_options`.

    Raises
    ------
    TypeError, ValueError
        An option is not one of `encode`, its value is wrong, or with it the result is not an array of one vector per
        text.
    """
    check_option_names(encode_options)  # before anything is downloaded
    loaded = model if isinstance(model, SentenceTransformer) else SentenceTransformer(model, **model_options)
    check_options(loaded, encode_options)
    return loaded


def name_of(model: SentenceTransformer | str) -> str:
    """Return the given name of a model, or "minibert" for a model object."""
    return "minibert" if isinstance(model, SentenceTransformer) else str(model)


def check_option_names(options: Mapping[str, Any]) -> None:
    """Raise an error for options that `encode` does not have."""
    known = [*signature(SentenceTransformer.encode).parameters]
    names = [name for name in known if name not in ("self", "inputs", "sentences")]
    for name in options:
        if name not in names:
            raise TypeError(f"{name!r} is not an option of encode; expected {', '.join(names)}.")


def check_options(model: SentenceTransformer, options: Mapping[str, Any]) -> None:
    """Raise an error for values with which `encode` fails or does not return an array of one vector per text."""
    vectors = model.encode([], **options)
    if not isinstance(vectors, np.ndarray):
        shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ValueError(f"With {shown} encode does not give an array of one vector per text. Leave that out.")


class Backend:
    """The base class of the backends of BERTopic and KeyBERT; their other base class is the library's BaseEmbedder.

    Parameters
    ----------
    model : SentenceTransformer or str
        A model, or the name of one.
    **encode_options
        Passed to every `encode`, such as ``normalize_embeddings=True``.

    Raises
    ------
    TypeError, ValueError
        An option is not one of `encode`, its value is wrong, or with it the result is not an array of one vector per
        text.
    """

    def __init__(self, model: SentenceTransformer | str = DEFAULT_MODEL, **encode_options: Any) -> None:
        self.embedding_model = load_model(model, encode_options)
        self.word_embedding_model = None
        self.encode_options = encode_options

    def embed(self, documents: Sequence[str], verbose: bool = False) -> FloatArray:
        """Return the vectors of documents or words: (B, width); `verbose` shows a progress bar."""
        options = {"show_progress_bar": verbose, **self.encode_options}
        vectors: FloatArray = self.embedding_model.encode(documents, **options)
        return vectors
