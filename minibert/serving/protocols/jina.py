"""Jina's protocol for vectors of tokens. Source: its API reference, "Multi-vector" (api.jina.ai/openapi.json)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from minibert._utils.validation import FloatArray
from minibert.serving import protocols as base
from minibert.serving.engine import Engine
from minibert.serving.protocols.openai import ERRORS as OPENAI_ERRORS
from minibert.serving.served_models import TextOptions
from minibert.serving.token_embedder import TokenEmbedder


class MultiVectorRequest(Struct, kw_only=True):
    """Jina's request for a vector of each token."""

    input: base.Texts
    model: str | None = None
    input_type: str | None = None
    dimensions: int | None = None
    embedding_type: Literal["float"] | None = None
    truncate: bool | None = None


def _embed(engine: Engine, request: MultiVectorRequest, ignored: tuple[str, ...]) -> base.Work:
    served = engine.models.of(TokenEmbedder, request.model)
    truncation = base.truncation_of(request.truncate)
    options = TextOptions(input_type=request.input_type, dimensions=request.dimensions, truncation=truncation)
    prepared = served.prepare(base.listed(request.input, "input"), options)
    rest: dict[str, Any] = {"model": served.name, "usage": base.usage_of(prepared.report)}
    rest |= base.notes_of(prepared.report, ignored)

    def write(texts: Iterable[FloatArray]) -> Iterator[bytes]:
        rows = ({"object": "embeddings", "index": i, "embeddings": vectors} for i, vectors in enumerate(texts))
        return base.joined(b'{"object":"list","data":[', map(base.dump, rows), b"]," + base.dump(rest)[1:])

    return base.Work(write, prepared, ignored)


POSTS: Mapping[str, base.Post] = {"/v1/multi-vector": base.Post(OPENAI_ERRORS, "input", MultiVectorRequest, _embed)}
