"""Haystack's components. Source: haystack, components/embedders/types/protocol.py (TextEmbedder, DocumentEmbedder)."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from haystack import Document, component

from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.integrations import load_model, load_ranker
from minibert.sentence.cross_encoder import CrossEncoder
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
        """Return ``{"documents": [...]}``: copies with `embedding` set. A document without content is ""."""
        texts = [document.content or "" for document in documents]
        vectors = self._loaded.encode_document(texts, **self._options).tolist()
        pairs = zip(documents, vectors, strict=True)
        return {"documents": [replace(document, embedding=vector) for document, vector in pairs]}


@component
class HaystackRanker:
    """A `CrossEncoder` as a component: a query and documents in, the best documents out.

    Parameters
    ----------
    model : str or CrossEncoder
        The name of a model, or a model. Haystack can write a pipeline to YAML only if a name is given.
    top_k : int, optional
        The most documents to return; None: all.
    score_threshold : float, optional
        Leave out documents with a lower score.
    meta_fields_to_embed : list of str, optional
        Fields of `meta` that are put before the content, each with `embedding_separator` behind it. A field that is
        missing or None is left out, as Haystack does it.
    predict_options : dict, optional
        Passed to every `rank`, such as ``{"truncation": "silent"}``.
    """

    def __init__(
        self,
        model: str | CrossEncoder,
        top_k: int | None = 10,
        score_threshold: float | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        predict_options: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.top_k, self.score_threshold = model, top_k, score_threshold
        self.meta_fields_to_embed, self.embedding_separator = meta_fields_to_embed, embedding_separator
        self.predict_options = predict_options
        self._loaded = load_ranker(model, {"top_k": top_k, **(predict_options or {})})

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None, score_threshold: float | None = None
    ) -> dict[str, Any]:
        """Return ``{"documents": [...]}``: copies with `score` set, the best first.

        Of documents with one id, the first one with the highest score is taken; no score is the lowest.
        """
        groups: dict[str, list[Document]] = {}
        for document in documents:
            groups.setdefault(document.id, []).append(document)
        unique = [max(same, key=lambda one: -inf if one.score is None else one.score) for same in groups.values()]
        most = self.top_k if top_k is None else top_k
        least = self.score_threshold if score_threshold is None else score_threshold
        ranked = self._loaded.rank(query, list(map(self._text, unique)), most, **(self.predict_options or {}))
        scored = [replace(unique[hit["corpus_id"]], score=hit["score"]) for hit in ranked]
        return {"documents": [document for document in scored if least is None or document.score >= least]}

    def _text(self, document: Document) -> str:
        values = [document.meta.get(name) for name in self.meta_fields_to_embed or ()]
        fields = [str(value) for value in values if value is not None]
        return self.embedding_separator.join([*fields, document.content or ""])
