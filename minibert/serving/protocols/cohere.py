"""Cohere's protocol for vectors. Source: its API reference, "Embed"."""

from __future__ import annotations

import base64
import functools
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from minibert._utils.validation import FloatArray
from minibert.serving import protocols as base
from minibert.serving.engine import Engine
from minibert.serving.protocols.openai import ERRORS as OPENAI_ERRORS
from minibert.serving.served_models import Embedder, TextOptions
from minibert.serving.settings import ServiceError, wrong
from minibert.vectors.similarity import quantize_embeddings


class CohereEmbedRequest(Struct, kw_only=True):
    """Cohere's request for embeddings."""

    texts: list[str]
    model: str | None = None
    input_type: str | None = None
    embedding_types: list[str] | None = None
    output_dimension: int | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    prompt_name: str | None = None


_TRUNCATE = {None: (None, None), "NONE": ("error", None), "END": ("mark", "right"), "START": ("mark", "left")}
_WRITTEN: dict[str, Callable[[FloatArray], list[Any]]] = {
    "float": list,
    "base64": lambda vectors: [base64.b64encode(base.array_file(row)).decode() for row in vectors],
    "binary": lambda vectors: [*quantize_embeddings(vectors, "binary")],
    "ubinary": lambda vectors: [*quantize_embeddings(vectors, "ubinary")],
}


def _embed(usual: tuple[str, ...], engine: Engine, request: CohereEmbedRequest, ignored: tuple[str, ...]) -> base.Work:
    """Answer by type; without `embedding_types` and usual ones with floats alone."""
    served = engine.models.of(Embedder, request.model)
    base.not_empty(request.texts, "texts")
    kinds = tuple(dict.fromkeys(request.embedding_types or usual))  # a repeated one is computed once
    for kind in kinds:
        if kind not in _WRITTEN:
            needs = " (int8 needs the ranges of a corpus)" if kind in ("int8", "uint8") else ""
            expected = f"expected float, base64, binary or ubinary{needs}."
            raise ServiceError("invalid", f"embedding_types: {kind[:50]!r}; {expected}", param="embedding_types")
    truncation, side = _TRUNCATE[request.truncate]
    same: dict[str, Any] = {"input_type": request.input_type, "prompt_name": request.prompt_name}
    options = TextOptions(truncation=truncation, side=side, dimensions=request.output_dimension, **same)
    try:
        prepared = served.prepare(request.texts, options)
    except ServiceError as error:
        if error.param != "dimensions":
            raise
        raise wrong("output_dimension", error.message.removeprefix("dimensions ")) from None

    def write(vectors: FloatArray) -> bytes:
        answer: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "response_type": "embeddings_by_type" if kinds else "embeddings_floats",
            "embeddings": {kind: _WRITTEN[kind](vectors) for kind in kinds} if kinds else [*vectors],
            "texts": request.texts,
            "meta": {"billed_units": {"input_tokens": sum(prepared.report.n_tokens)}},
        }
        return base.dump(answer | base.notes_of(prepared.report, ignored))

    return base.Work(write, prepared, ignored)


POSTS: Mapping[str, base.Post] = {
    path: base.Post(OPENAI_ERRORS, "texts", CohereEmbedRequest, functools.partial(_embed, default))
    for path, default in (("/v1/embed", ()), ("/v2/embed", ("float",)))
}
