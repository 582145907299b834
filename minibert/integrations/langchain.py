"""LangChain's embeddings. Source: langchain_core, embeddings/embeddings.py (Embeddings)."""

from __future__ import annotations

import asyncio
from typing import Any

from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.integrations import load_model
from minibert.sentence.sentence_transformers import SentenceTransformer


class LangChainEmbeddings:
    """A `SentenceTransformer` with LangChain's interface: it returns lists of floats and has separate query methods.

    Where LangChain is installed, objects are instances of its `Embeddings`.

    Parameters
    ----------
    model : SentenceTransformer or str
        A model, or the name of one.
    **encode_options
        Passed to every `encode_query` and `encode_document`, such as ``normalize_embeddings=True``.

    Raises
    ------
    TypeError, ValueError
        An option is not one of `encode`, its value is wrong, or with it the result is not a list of floats per text.

    Attributes
    ----------
    model_name : str
        The given name of the model, or "minibert" for a model object.
    """

    def __init__(self, model: SentenceTransformer | str = DEFAULT_MODEL, **encode_options: Any) -> None:
        self.model = load_model(model, encode_options)
        self.encode_options = encode_options
        # llama-index's LangchainEmbedding reads it.
        self.model_name = "minibert" if isinstance(model, SentenceTransformer) else str(model)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector per text, with the model's prompt for documents."""
        return self.model.encode_document(texts, **self.encode_options).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of one text, with the model's prompt for queries."""
        return self.model.encode_query(text, **self.encode_options).tolist()

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the result of `embed_documents`, computed in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Return the result of `embed_query`, computed in a thread."""
        return await asyncio.to_thread(self.embed_query, text)


# FAISS, retrievers and every pydantic field ask isinstance. The class is registered, and does not inherit, so that it
# also works without LangChain.
try:
    from langchain_core.embeddings import Embeddings
except ImportError:
    pass
else:
    Embeddings.register(LangChainEmbeddings)
