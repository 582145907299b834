"""llama-index's embedding. Source: llama_index.core, base/embeddings/base.py (BaseEmbedding)."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.integrations.common import load_model, name_of
from minibert.sentence.sentence_transformers import SentenceTransformer


class LlamaIndexEmbedding(BaseEmbedding):
    """A `SentenceTransformer` for ``Settings.embed_model``.

    Parameters
    ----------
    model_name : str or SentenceTransformer
        The name of a model, or a model.
    encode_options : dict, optional
        Passed to every `encode_query` and `encode_document`.
    **fields
        The fields of llama-index's BaseEmbedding, such as ``embed_batch_size=64``.
    """

    encode_options: dict[str, Any] = Field(default_factory=dict)
    _model: SentenceTransformer = PrivateAttr()

    def __init__(
        self,
        model_name: str | SentenceTransformer = DEFAULT_MODEL,
        encode_options: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        options = dict(encode_options or {})
        model = load_model(model_name, options)  # the object has no attributes before the next line
        super().__init__(model_name=name_of(model_name), encode_options=options, **{"embed_batch_size": 512, **fields})
        self._model = model

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._model.encode_query(query, **self.encode_options).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._model.encode_document(text, **self.encode_options).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._model.encode_document(texts, **self.encode_options).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)
