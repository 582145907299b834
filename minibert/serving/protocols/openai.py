"""OpenAI's protocol. Source: its API reference, "Create embeddings" and "List models"."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.serving import protocols as base
from minibert.serving.engine import Engine
from minibert.serving.served_models import Embedder, ServedModel
from minibert.serving.settings import ServiceError


class OpenAIEmbeddingRequest(base.VectorFields, kw_only=True):
    """OpenAI's request for embeddings; others' fields are extensions: `late_chunking` and `task` are Jina's."""

    input: base.Inputs
    encoding_format: Literal["float", "base64"] | None = None
    late_chunking: bool = False


_CODES = {kind: kind for kind in ("invalid_json", "overloaded", "unavailable", "unsupported")}
_CODES |= {"too_long": "context_length_exceeded", "model": "model_not_found"}
_CODES |= {"key": "invalid_api_key", "failed": "server_error"}


def _error(error: ServiceError) -> dict[str, Any]:
    message = str(error)
    if error.kind == "too_long":  # clients look for the end of this text
        message += (
            f" This model's maximum context length is {error.limit} tokens, however you requested {error.given} tokens "
            f"({error.given} in your prompt; 0 for the completion). Please reduce your prompt; or completion length."
        )
    error_type = "server_error" if base.STATUS[error.kind] >= 500 else "invalid_request_error"
    error_type = "rate_limit_error" if error.kind == "overloaded" else error_type
    code = _CODES.get(error.kind)
    return {"error": {"message": message, "type": error_type, "param": error.param or None, "code": code}}


ERRORS = base.Errors(_error)


def _embed(engine: Engine, request: OpenAIEmbeddingRequest, ignored: tuple[str, ...]) -> base.Work:
    served = engine.models.of(Embedder, request.model)
    inputs = base.listed(request.input, "input")
    prepared = served.prepare(inputs, request.text_options(late_chunking=request.late_chunking))
    ignored += request.without_effect(inputs, engine.settings.truncation)
    report = prepared.report
    rest = {"model": served.name, "usage": base.usage_of(report), **base.notes_of(report, ignored)}
    rest |= {"prompt_name": report.prompt_name} if report.prompt_name is not None else {}

    def entries(vectors: FloatArray) -> Iterator[bytes]:
        in_base64 = request.encoding_format == "base64"
        for index, vector in enumerate(np.ascontiguousarray(vectors)):
            numbers = base64.b64encode(base.array_file(vector)).decode() if in_base64 else vector
            yield base.dump({"object": "embedding", "index": index, "embedding": numbers})

    def write(vectors: FloatArray) -> Iterator[bytes]:
        return base.joined(b'{"object":"list","data":[', entries(vectors), b"]," + base.dump(rest)[1:])

    return base.Work(write, prepared, ignored)


def model_object(served: ServedModel[Any]) -> dict[str, Any]:
    """Return OpenAI's description of a model."""
    same = {"id": served.name, "object": "model", "created": served.created, "owned_by": "minibert"}
    return {**same, **served.details()}


def model_list(engine: Engine) -> dict[str, Any]:
    """Return OpenAI's list of models."""
    return {"object": "list", "data": [model_object(served) for served in engine.models.values()]}


_POST = base.Post(ERRORS, "input", OpenAIEmbeddingRequest, _embed)
POSTS: Mapping[str, base.Post] = {"/v1/embeddings": _POST, "/embeddings": _POST}
