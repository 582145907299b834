"""Haystack's components. Source: haystack, components/embedders/types/protocol.py (TextEmbedder, DocumentEmbedder)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component

from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.integrations import load_model
from minibert.sentence.sentence_transformers import SentenceTransformer


class _Embedder:
    """What both components share.

    Parameters
    ----------
    model : str or SentenceTransformer
        The name of a model, or a model. Haystack can write a pipeline to YAML only if a name is given.
    encode_options : dict, optional
        Passed to every `encode_query` or `encode_document`.
    """

    def __init__(
        self, model: str | SentenceTransformer = DEFAULT_MODEL, encode_options: dict[str, Any] | None = None
    ) -> None:
        self.model, self.encode_options = model, encode_options  # Haystack writes and reads these
        self._options = dict(encode_options or {})
        self._loaded = load_model(model, self._options)


@component
class HaystackTextEmbedder(_Embedder):
    """A `SentenceTransformer` as a component: a query in, its vector out."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Return the vector of a query as ``{"embedding": [...]}``."""
        return {"embedding": self._loaded.encode_query(text, **self._options).tolist()}


@component
class HaystackDocumentEmbedder(_Embedder):
    """A `SentenceTransformer` as a component: documents in, the same documents with their vectors out."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Return ``{"documents": [...]}``: copies of the documents, with `embedding` set."""
        vectors = self._loaded.encode_document([document.content for document in documents], **self._options).tolist()
        pairs = zip(documents, vectors, strict=True)
        return {"documents": [replace(document, embedding=vector) for document, vector in pairs]}
