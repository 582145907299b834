"""Classes for other libraries: each one wraps a `SentenceTransformer` and has the methods that its library calls.

`LangChainEmbeddings` and `ChromaEmbeddingFunction` also work where their library is not installed. The modules of the
other classes import their library. No library is imported before its class is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from minibert._utils.system import missing_library

# Each class with its module, and the package that the module needs.
_CLASSES = {
    "BERTopicBackend": ("bertopic_keybert", "bertopic"),
    "ChromaEmbeddingFunction": ("chroma", "chromadb"),
    "HaystackDocumentEmbedder": ("haystack", "haystack-ai"),
    "HaystackTextEmbedder": ("haystack", "haystack-ai"),
    "KeyBERTBackend": ("bertopic_keybert", "keybert"),
    "LangChainEmbeddings": ("langchain", "langchain-core"),
}
__all__ = list(_CLASSES)


def __getattr__(name: str) -> Any:
    """Import the module of a class when the class is first used."""
    if name not in _CLASSES:
        raise AttributeError(f"module 'minibert.integrations' has no attribute {name!r}; it has {', '.join(_CLASSES)}.")
    module, package = _CLASSES[name]
    try:
        value = getattr(import_module(f"minibert.integrations.{module}"), name)
    except ModuleNotFoundError as error:
        raise missing_library("this part of minibert", error, package) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})
