"""Classes for other libraries: each one wraps a model and has the methods that its library calls.

`LangChainEmbeddings` and `ChromaEmbeddingFunction` also work where their library is not installed. The modules of the
other classes import their library. No library is imported before its class is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from minibert._utils.system import needs
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer

# Each class with its module, and the package that the module needs.
_CLASSES = {
    "BERTopicBackend": ("bertopic_keybert", "bertopic"),
    "ChromaEmbeddingFunction": ("chroma", "chromadb"),
    "HaystackDocumentEmbedder": ("haystack", "haystack-ai"),
    "HaystackRanker": ("haystack", "haystack-ai"),
    "HaystackTextEmbedder": ("haystack", "haystack-ai"),
    "KeyBERTBackend": ("bertopic_keybert", "keybert"),
    "LangChainEmbeddings": ("langchain", "langchain-core"),
    "LangChainReranker": ("langchain_reranker", "langchain-core"),
}
__all__ = list(_CLASSES)


def __getattr__(name: str) -> Any:
    """Import the module of a class when the class is first used."""
    if name not in _CLASSES:
        raise AttributeError(f"module 'minibert.integrations' has no attribute {name!r}; it has {', '.join(_CLASSES)}.")
    module, package = _CLASSES[name]
    with needs("this part of minibert", package):
        value = getattr(import_module(f"minibert.integrations.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})


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
        listed = ", ".join(f"{name}={value!r}" for name, value in encode_options.items())
        raise ValueError(f"With {listed} encode does not give an array of one vector per text. Leave that out.")
    return loaded


def load_ranker(model: CrossEncoder | str, options: Mapping[str, Any]) -> CrossEncoder:
    """Return the model, and check the options of `CrossEncoder.rank`.

    Raises
    ------
    TypeError, ValueError
        An option is wrong, or the model has several labels.
    """
    loaded = model if isinstance(model, CrossEncoder) else CrossEncoder(model)
    loaded.rank("", [], **options)
    return loaded
