"""LangChain's compressor of documents. Source: langchain_core, documents/compressor.py (BaseDocumentCompressor)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document

from minibert.integrations import load_ranker
from minibert.sentence.cross_encoder import CrossEncoder


class LangChainReranker(BaseDocumentCompressor):
    """A `CrossEncoder` that sorts retrieved documents, for ``ContextualCompressionRetriever(base_compressor=...)``.

    Parameters
    ----------
    model : CrossEncoder or str
        A model, or the name of one.
    top_n : int, optional
        The most documents to return; None: all.
    **predict_options
        Passed to every `rank`, such as ``truncation="silent"``.

    Raises
    ------
    TypeError, ValueError
        An option is wrong, or the model has several labels.
    """

    model: Any
    top_n: int | None = 3
    predict_options: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it

    def __init__(self, model: CrossEncoder | str, top_n: int | None = 3, **predict_options: Any) -> None:
        loaded = load_ranker(model, {"top_k": top_n, **predict_options})
        super().__init__(model=loaded, top_n=top_n, predict_options=predict_options)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        """Return copies of the best documents, the best first, with the score as ``metadata["relevance_score"]``."""
        texts = [document.page_content for document in documents]
        ranked = self.model.rank(query, texts, self.top_n, **self.predict_options)
        scored = [(documents[hit["corpus_id"]], {"relevance_score": hit["score"]}) for hit in ranked]
        return [document.model_copy(update={"metadata": document.metadata | score}) for document, score in scored]
