"""Classes for other libraries: each one wraps a `SentenceTransformer` and has the methods that its library calls.

`LangChainEmbeddings` and `ChromaEmbeddingFunction` also work where their library is not installed. The modules of the
other classes import their library. No library is imported before its class is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibert.integrations.bertopic import BERTopicBackend
    from minibert.integrations.chroma import ChromaEmbeddingFunction
    from minibert.integrations.haystack import HaystackDocumentEmbedder, HaystackTextEmbedder
    from minibert.integrations.keybert import KeyBERTBackend
    from minibert.integrations.langchain import LangChainEmbeddings
    from minibert.integrations.llama_index import LlamaIndexEmbedding
    from minibert.integrations.mteb import MTEBEncoder

__all__ = [
    "BERTopicBackend",
    "ChromaEmbeddingFunction",
    "HaystackDocumentEmbedder",
    "HaystackTextEmbedder",
    "KeyBERTBackend",
    "LangChainEmbeddings",
    "LlamaIndexEmbedding",
    "MTEBEncoder",
]

_MODULES = ("bertopic", "chroma", "haystack", "keybert", "langchain", "llama_index", "mteb")


def __getattr__(name: str) -> Any:
    """Import the module of a class when the class is first used: the one with whose name that of the class begins."""
    if name not in __all__:
        raise AttributeError(f"module 'minibert.integrations' has no attribute {name!r}; it has {', '.join(__all__)}.")
    module = next(one for one in _MODULES if name.lower().startswith(one.replace("_", "")))
    value = getattr(import_module(f"minibert.integrations.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
