"""mteb's encoder. Source: mteb, models/abs_encoder.py (AbsEncoder), models/models_protocols.py (EncoderProtocol)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minibert._utils.system import missing_library
from minibert._utils.validation import FloatArray
from minibert.integrations.common import DEFAULT_MODEL, SentenceTransformer, load_model, name_of

try:
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder, get_prompt_name
except ModuleNotFoundError as error:
    raise missing_library("this part of minibert", error, "mteb") from error


class MTEBEncoder(AbsEncoder):
    """A `SentenceTransformer` for ``mteb.evaluate``.

    A prompt that the model stores under the name of a task is used for this task; otherwise `encode_query` and
    `encode_document` are called, with their prompts.

    Parameters
    ----------
    model_name : str or SentenceTransformer
        The name of a model, or a model. mteb files the results under this name.
    revision, device
        As in `SentenceTransformer`; mteb's command line gives them.
    **encode_options
        Passed to every `encode_query` and `encode_document`.
    """

    def __init__(
        self,
        model_name: str | SentenceTransformer = DEFAULT_MODEL,
        revision: str | None = None,
        device: str | None = None,
        **encode_options: Any,
    ) -> None:
        self.model = load_model(model_name, encode_options, revision=revision, device=device)
        self.encode_options = encode_options
        self.mteb_model_meta = ModelMeta.create_empty({"name": name_of(model_name), "revision": revision})

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        prompt_type: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        **options: Any,
    ) -> FloatArray:
        """Return one vector per text of the batches: (B, width)."""
        texts = [text for batch in inputs for text in batch["text"]]
        encode = getattr(self.model, f"encode_{prompt_type.value}" if prompt_type else "encode")
        name = get_prompt_name(self.model.prompts, task_metadata, prompt_type)
        prompt = {} if name in (None, "query", "document") else {"prompt_name": name}
        vectors: FloatArray = encode(texts, **prompt, **{**self.encode_options, **options})
        return vectors

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Score every vector of one collection with every vector of another."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Score vector i of one collection with vector i of another."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)
