"""Cohere's protocol for vectors. Source: its API reference, "Embed"."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from minibert._utils.validation import FloatArray
from minibert.serving.embedder import TextOptions
from minibert.serving.engine import Engine
from minibert.serving.protocols import base
from minibert.serving.protocols.openai import ERRORS as OPENAI_ERRORS
from minibert.serving.settings import ServiceError
from minibert.vectors.similarity import quantize_embeddings


class CohereEmbedRequest(base.Struct, kw_only=True):
    """Cohere's request for embeddings."""

    texts: list[str]
    model: str | None = None
    input_type: str | None = None
    embedding_types: list[str] | None = None
    output_dimension: int | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    prompt_name: str | None = None


_COHERE_TRUNCATE = {None: (None, None), "NONE": ("error", None), "END": ("mark", "right"), "START": ("mark", "left")}


def _version_1(engine: Engine, body: bytes, accept: str) -> base.Work:
    """Answer by type if `embedding_types` is there, else with floats alone."""
    return _cohere(engine, body, ())


def _version_2(engine: Engine, body: bytes, accept: str) -> base.Work:
    """Answer by type; without `embedding_types`, with floats under their name."""
    return _cohere(engine, body, ("float",))


def _cohere(engine: Engine, body: bytes, default: tuple[str, ...]) -> base.Work:
    request, ignored = base.decode(body, CohereEmbedRequest)
    served = engine.models.embedder(request.model)
    if not request.texts:
        raise ServiceError("empty", "texts is an empty list; expected at least one text.", param="texts")
    kinds = tuple(dict.fromkeys(request.embedding_types or default))  # a repeated one is computed once
    for kind in kinds:
        if kind in ("int8", "uint8"):
            raise ServiceError(
                "unsupported",
                f"embedding_types: {kind} needs the ranges of a corpus, because ranges of one request would make a "
                "vector depend on the other texts. Ask for float, base64, binary or ubinary.",
                param="embedding_types",
            )
        if kind not in ("float", "base64", "binary", "ubinary"):
            raise ServiceError(
                "invalid",
                f"embedding_types: {kind[:50]!r}; expected float, base64, binary or ubinary.",
                param="embedding_types",
            )
    truncation, side = _COHERE_TRUNCATE[request.truncate]
    options = TextOptions(
        truncation=truncation,
        side=side,
        input_type=request.input_type,
        prompt_name=request.prompt_name,
        dimensions=request.output_dimension,
    )
    try:
        prepared = served.prepare(request.texts, options, engine.settings)
    except ServiceError as error:
        if error.param != "dimensions":
            raise
        message = error.message.replace("dimensions", "output_dimension", 1)
        raise ServiceError(error.kind, message, param="output_dimension") from None
    report = prepared.report

    def write(vectors: FloatArray) -> bytes:
        found: dict[str, Any] = {}
        for kind in kinds or ("float",):
            if kind == "float":
                found[kind] = [*vectors]
            elif kind == "base64":
                found[kind] = [base64.b64encode(base.array_file(row)).decode() for row in vectors]
            else:
                found[kind] = [*quantize_embeddings(vectors, kind)]
        answer: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "response_type": "embeddings_by_type" if kinds else "embeddings_floats",
            "embeddings": found if kinds else found["float"],
            "texts": request.texts,
            "meta": {"billed_units": {"input_tokens": sum(report.n_tokens)}},
        }
        answer |= base.notes_of(report, ignored)
        return base.dump(answer)

    return base.work_of(prepared, write, ignored)


_SUMMARY = "Turn texts into vectors, as Cohere"
POSTS: Mapping[str, base.Post] = {
    "/v1/embed": base.Post(OPENAI_ERRORS, "texts", (CohereEmbedRequest,), _version_1, _SUMMARY),
    "/v2/embed": base.Post(OPENAI_ERRORS, "texts", (CohereEmbedRequest,), _version_2, _SUMMARY),
}
