"""Cohere's protocol for vectors. Source: its API reference, "Embed"."""

from __future__ import annotations

import base64
import dataclasses
import functools
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from minibert._utils.validation import FloatArray
from minibert.serving.engine import Engine
from minibert.serving.protocols import common
from minibert.serving.protocols.openai import ERRORS as OPENAI_ERRORS
from minibert.serving.served_models import TextEmbedder, VectorOptions
from minibert.serving.settings import ServiceError
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
_WRITTEN: dict[str, Callable[[FloatArray], Any]] = {
    "float": np.ascontiguousarray,
    "base64": lambda vector: base64.b64encode(common.array_file(vector)).decode(),
    "binary": lambda vector: quantize_embeddings(vector, "binary"),
    "ubinary": lambda vector: quantize_embeddings(vector, "ubinary"),
}


def _embed(usual: list[str], engine: Engine, request: CohereEmbedRequest, ignored: tuple[str, ...]) -> common.Work:
    """Answer by type; without `embedding_types` and usual ones with floats alone."""
    served = engine.models.of(TextEmbedder, request.model)
    common.not_empty(request.texts, "texts")
    types = tuple(dict.fromkeys(request.embedding_types or usual))  # a repeated one is computed once
    for name in types:
        if name not in _WRITTEN:
            needs = " (int8 needs the ranges of a corpus)" if name in ("int8", "uint8") else ""
            expected = f"expected float, base64, binary or ubinary{needs}."
            raise ServiceError("invalid", f"embedding_types: {name[:50]!r}; {expected}", param="embedding_types")
    truncation, side = _TRUNCATE[request.truncate]
    prompt: dict[str, Any] = {"input_type": request.input_type, "prompt_name": request.prompt_name}
    options = VectorOptions(truncation=truncation, side=side, dimensions=request.output_dimension, **prompt)
    try:
        prepared = served.prepare(request.texts, options)
    except ServiceError as error:
        own_name = "output_dimension" if error.param == "dimensions" else error.param
        raise dataclasses.replace(error, param=own_name) from None

    def write(vectors: FloatArray) -> Iterator[bytes]:
        answer: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "response_type": "embeddings_by_type" if types else "embeddings_floats",
            "texts": request.texts,
            "meta": {"billed_units": {"input_tokens": sum(prepared.usage.n_tokens)}},
        }
        yield common.dump(answer | common.notes_of(prepared.usage, ignored))[:-1] + b',"embeddings":'
        for i, name in enumerate(types or ("float",)):
            if types:
                yield (b"," if i else b"{") + common.dump(name) + b":"
            yield from common.joined(b"[", (common.dump(_WRITTEN[name](vector)) for vector in vectors), b"]")
        yield b"}}" if types else b"}"

    return common.Work(write, prepared, ignored)


_POSTS = {
    path: common.Post("texts", CohereEmbedRequest, functools.partial(_embed, default))
    for path, default in (("/v1/embed", list[str]()), ("/v2/embed", ["float"]))
}
PROTOCOL = common.Protocol(OPENAI_ERRORS, _POSTS)
