"""Classes with the methods that other libraries call: LangChain's embeddings, Chroma's embedding functions.

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
    """A `SentenceTransformer` with LangChain's interface: lists of floats, different methods for queries and documents.

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
    """

    def __init__(self, model: SentenceTransformer | str = DEFAULT_MODEL, **encode_options: Any) -> None:
        _check_names(encode_options)  # before anything is downloaded
        self.model = model if isinstance(model, SentenceTransformer) else SentenceTransformer(model)
        _check_options(self.model, encode_options)
        self.encode_options = encode_options
        self._name = "minibert" if isinstance(model, SentenceTransformer) else str(model)

    @property
    def model_name(self) -> str:
        """The given name of the model, or "minibert" for a model object; llama-index's LangchainEmbedding reads it."""
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
        """Return the result of `embed_documents`, computed in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Return the result of `embed_query`, computed in a thread."""
        return await asyncio.to_thread(self.embed_query, text)


def _written(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{brief(name)}: {brief(value)}" for name, value in config.items())


class ChromaEmbeddingFunction:
    """A `SentenceTransformer` with Chroma's interface: it is called with documents, and can be rebuilt from its config.

    Parameters
    ----------
    model_name_or_path : str
    encode_options : dict, optional
        Passed to every `encode_query` and `encode_document`. Chroma stores them in its config, so they must be JSON
        values.
    **model_options
        Passed to `SentenceTransformer`, such as ``prompts="builtin"``. Chroma stores them too, so `token` is refused.

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
        """Return one vector per document; Chroma requires the name of the argument."""
        return list(self._model.encode_document(input, **self._config["encode_options"]))

    def embed_query(self, input: Sequence[str]) -> list[FloatArray]:
        """Return one vector per query."""
        return list(self._model.encode_query(input, **self._config["encode_options"]))

    @staticmethod
    def name() -> str:
        """Return the name under which Chroma stores the configuration."""
        return "minibert"

    def get_config(self) -> dict[str, Any]:
        """Return the argument of `build_from_config`, as JSON values."""
        return {**self._config, "encode_options": dict(self._config["encode_options"])}

    @staticmethod
    def build_from_config(config: Mapping[str, Any]) -> ChromaEmbeddingFunction:
        """Make the function whose `get_config` returned this configuration."""
        return ChromaEmbeddingFunction(**config)

    def validate_config_update(self, old_config: Mapping[str, Any], new_config: Mapping[str, Any]) -> None:
        """Raise a ValueError if the new configuration differs from the one that a collection was made with."""
        for config in (old_config, new_config):
            self.validate_config(config)
        old, new = dict(old_config), dict(new_config)
        if old != new:
            raise ValueError(
                f"the collection's vectors come from {_written(old)}, not from {_written(new)}. Use the same "
                "configuration, or make a new collection."
            )

    @staticmethod
    def validate_config(config: Mapping[str, Any]) -> None:
        """Raise a ValueError for a configuration that `build_from_config` cannot use."""
        if not isinstance(config, Mapping) or not isinstance(config.get("model_name_or_path"), str):
            raise ValueError(f"the configuration {brief(config)} names no model; expected model_name_or_path, a str.")

    def is_legacy(self) -> bool:
        """Return False, because Chroma stores the name and the configuration."""
        return False

    def default_space(self) -> str:
        """Return Chroma's name of the distance that matches the model's similarity function."""
        return {"cosine": "cosine", "dot": "ip"}.get(self._model.similarity_fn_name, "l2")

    def supported_spaces(self) -> list[str]:
        """Return Chroma's names of the distances that these vectors can be compared with."""
        return ["cosine", "l2", "ip"]


def _check_names(options: Mapping[str, Any]) -> None:
    """Refuse options that `encode` does not have."""
    known = [*signature(SentenceTransformer.encode).parameters]
    names = [name for name in known if name not in ("self", "inputs", "sentences")]
    for name in options:
        if name not in names:
            raise TypeError(f"{name!r} is not an option of encode; expected {', '.join(names)}.")


def _check_options(model: SentenceTransformer, options: Mapping[str, Any]) -> None:
    """Refuse values that `encode` refuses, and values with which it does not return an array of one vector per text."""
    vectors = model.encode([], **options)
    if not isinstance(vectors, np.ndarray):
        shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ValueError(f"With {shown} encode does not give an array of one vector per text. Leave that out.")
