"""Chroma's embedding function. Source: chromadb, api/types.py (EmbeddingFunction).

Importing this module registers the function with Chroma, where chromadb is installed: then collections that were made
with it open again in another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minibert._utils.validation import FloatArray, brief
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.integrations import load_model


class ChromaEmbeddingFunction:
    """A `SentenceTransformer` with Chroma's interface: Chroma calls it with documents and rebuilds it from its config.

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
        if {"token", "use_auth_token"} & model_options.keys():
            raise ValueError("Chroma would store the token with the collection; set HF_TOKEN instead.")
        name, options = str(model_name_or_path), dict(encode_options or {})
        self._config = {"model_name_or_path": name, "encode_options": options, **model_options}
        self._model = load_model(name, options, **model_options)

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
        """Raise a ValueError if the new configuration differs from the one with which a collection was made.

        Raises
        ------
        TypeError, ValueError
            An argument is not a configuration; or the two differ.
        """
        old, new = dict(old_config), dict(new_config)
        other = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        if other:
            raise ValueError(f"the collection was made with another {', '.join(other)}. Make a new collection.")

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


# A collection stores the name "minibert" and the configuration. Chroma finds the class by this name.
try:
    from chromadb.utils.embedding_functions import register_embedding_function
except ImportError:
    pass
else:
    register_embedding_function(ChromaEmbeddingFunction)
