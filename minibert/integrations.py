"""Objects with the methods that other libraries look for: LangChain's embeddings, Chroma's embedding functions.

Neither library is imported. Sources: langchain_core, embeddings/embeddings.py (Embeddings); chromadb, api/types.py
(EmbeddingFunction).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from minibert.base.arrays import FloatArray
from minibert.base.checks import brief
from minibert.checkpoint.hub import DEFAULT_MODEL
from minibert.sentence.sentence_transformer import SentenceTransformer

__all__ = ["ChromaEmbeddingFunction", "LangChainEmbeddings"]


class LangChainEmbeddings:
    """A `SentenceTransformer` as LangChain asks for it: lists of floats, queries apart from documents.

    Parameters
    ----------
    model : SentenceTransformer or str
        A model, or the name of one.
    **encode_options
        Passed to every `encode_query` and `encode_document`, such as ``normalize_embeddings=True``.

    Raises
    ------
    TypeError, ValueError
        An option is not one of `encode`, or its value is wrong, or with it there is no list of floats for each text.
    """

    def __init__(self, model: SentenceTransformer | str = DEFAULT_MODEL, **encode_options: Any) -> None:
        _check_names(encode_options)  # before anything is fetched
        self.model = model if isinstance(model, SentenceTransformer) else SentenceTransformer(model)
        _check_options(self.model, encode_options)
        self.encode_options = encode_options
        self._name = "minibert" if isinstance(model, SentenceTransformer) else str(model)

    @property
    def model_name(self) -> str:
        """The name that was given, or "minibert" for a model; llama-index's LangchainEmbedding reads it."""
        return self._name

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector per text, with the model's prompt for documents."""
        vectors: list[list[float]] = self.model.encode_document(texts, **self.encode_options).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of one text, with the model's prompt for queries."""
        vector: list[float] = self.model.encode_query(text, **self.encode_options).tolist()
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return what `embed_documents` does, computed in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Return what `embed_query` does, computed in a thread."""
        return await asyncio.to_thread(self.embed_query, text)


def _written(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{brief(name)}: {brief(value)}" for name, value in config.items())


class ChromaEmbeddingFunction:
    """A `SentenceTransformer` as Chroma asks for it: called with documents, named, and built anew from its config.

    Parameters
    ----------
    model_name_or_path : str
    encode_options : dict, optional
        Passed to every `encode_query` and `encode_document`; kept in Chroma's config, so JSON values only.
    **model_options
        Passed to `SentenceTransformer`, such as ``prompts="builtin"``; kept likewise. No token belongs here.

    Raises
    ------
    TypeError, ValueError
        An option is not one of `encode` or `SentenceTransformer`, or its value is wrong.
    """

    def __init__(
        self,
        model_name_or_path: str = DEFAULT_MODEL,
        *,
        encode_options: Mapping[str, Any] | None = None,
        **model_options: Any,
    ) -> None:
        _check_names(encode_options or {})
        if "token" in model_options:
            raise ValueError("Chroma would store the token with the collection; set HF_TOKEN instead.")
        self._config = {
            "model_name_or_path": str(model_name_or_path),
            "encode_options": dict(encode_options or {}),
            **model_options,
        }
        self._model = SentenceTransformer(model_name_or_path, **model_options)
        _check_options(self._model, encode_options or {})

    def __call__(self, input: Sequence[str]) -> list[FloatArray]:
        """Return one vector per document; the argument's name is Chroma's."""
        return list(self._model.encode_document(input, **self._config["encode_options"]))

    def embed_query(self, input: Sequence[str]) -> list[FloatArray]:
        """Return one vector per query."""
        return list(self._model.encode_query(input, **self._config["encode_options"]))

    @staticmethod
    def name() -> str:
        """Return the name under which Chroma stores the configuration."""
        return "minibert"

    def get_config(self) -> dict[str, Any]:
        """Return what `build_from_config` needs, as JSON values."""
        return {**self._config, "encode_options": dict(self._config["encode_options"])}

    @staticmethod
    def build_from_config(config: Mapping[str, Any]) -> ChromaEmbeddingFunction:
        """Make the same function again."""
        return ChromaEmbeddingFunction(**config)

    def validate_config_update(self, old_config: Mapping[str, Any], new_config: Mapping[str, Any]) -> None:
        """Refuse, with a ValueError, another configuration than the one a collection was made with."""
        for config in (old_config, new_config):
            self.validate_config(config)
        old, new = dict(old_config), dict(new_config)
        if old != new:
            raise ValueError(f"the collection's vectors come from {_written(old)}, not from {_written(new)}.")

    @staticmethod
    def validate_config(config: Mapping[str, Any]) -> None:
        """Refuse, with a ValueError, what `build_from_config` cannot use."""
        if not isinstance(config, Mapping) or not isinstance(config.get("model_name_or_path"), str):
            raise ValueError(f"the configuration {brief(config)} names no model (model_name_or_path).")

    def is_legacy(self) -> bool:
        """Return False: Chroma stores the name and the configuration."""
        return False

    def default_space(self) -> str:
        """Return the distance that fits the model's own similarity, in Chroma's words."""
        return {"cosine": "cosine", "dot": "ip"}.get(self._model.similarity_fn_name, "l2")

    def supported_spaces(self) -> list[str]:
        """Return the distances that make sense with these vectors."""
        return ["cosine", "l2", "ip"]


def _check_names(options: Mapping[str, Any]) -> None:
    """Refuse options that `encode` does not have."""
    known = [*signature(SentenceTransformer.encode).parameters]
    names = [name for name in known if name not in ("self", "inputs", "sentences")]
    for name in options:
        if name not in names:
            raise TypeError(f"{name!r} is not an option of encode; expected {', '.join(names)}.")


def _check_options(model: SentenceTransformer, options: Mapping[str, Any]) -> None:
    """Refuse values that `encode` refuses, and those with which it does not give an array of one vector per text."""
    vectors = model.encode([], **options)
    if not isinstance(vectors, np.ndarray):
        shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ValueError(f"With {shown} encode does not give an array of one vector per text. Leave that out.")
