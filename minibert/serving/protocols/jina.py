"""Jina's protocol for vectors of tokens. Source: its API reference, "Multi-vector" (api.jina.ai/openapi.json)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct

from minibert._utils.validation import FloatArray
from minibert.serving.engine import Engine
from minibert.serving.protocols import common
from minibert.serving.protocols.openai import ERRORS as OPENAI_ERRORS
from minibert.serving.served_models import VectorOptions
from minibert.serving.token_embedder import TokenEmbedder


class MultiVectorRequest(Struct, kw_only=True):
    """Jina's request for a vector of each token."""

    input: common.Texts
    model: str | None = None
    input_type: str | None = None
    dimensions: int | None = None
    embedding_type: Literal["float"] | None = None
    truncate: bool | None = None


def _embed(engine: Engine, request: MultiVectorRequest, ignored: tuple[str, ...]) -> common.Work:
    served = engine.models.of(TokenEmbedder, request.model)
    truncation = common.truncation_of(request.truncate)
    options = VectorOptions(input_type=request.input_type, dimensions=request.dimensions, truncation=truncation)
    prepared = served.prepare(common.listed(request.input, "input"), options)
    rest: dict[str, Any] = {"model": served.name, "usage": common.openai_usage(prepared.usage)}
    rest |= common.notes_of(prepared.usage, ignored)

    def write(texts: Iterable[FloatArray]) -> Iterator[bytes]:
        rows = ({"object": "embeddings", "index": i, "embeddings": vectors} for i, vectors in enumerate(texts))
        return common.joined(b'{"object":"list","data":[', map(common.dump, rows), b"]," + common.dump(rest)[1:])

    return common.Work(write, prepared, ignored)


_POST = common.Post("input", MultiVectorRequest, _embed)
PROTOCOL = common.Protocol(OPENAI_ERRORS, {"/v1/multi-vector": _POST})
