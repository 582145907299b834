"""OpenAI's protocol. Source: its API reference, "Create embeddings" and "List models"."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.serving.engine import Engine
from minibert.serving.protocols import common
from minibert.serving.served_models import TextEmbedder
from minibert.serving.settings import ServiceError


class OpenAIEmbeddingRequest(common.VectorFields, kw_only=True):
    """OpenAI's request for embeddings; others' fields are extensions: `late_chunking` and `task` are Jina's."""

    input: common.Inputs
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
    error_type = "server_error" if common.STATUS[error.kind] >= 500 else "invalid_request_error"
    error_type = "rate_limit_error" if error.kind == "overloaded" else error_type
    code = _CODES.get(error.kind)
    return {"error": {"message": message, "type": error_type, "param": error.param or None, "code": code}}


ERRORS = common.Errors(_error)


def _embed(engine: Engine, request: OpenAIEmbeddingRequest, ignored: tuple[str, ...]) -> common.Work:
    served = engine.models.of(TextEmbedder, request.model)
    inputs = common.listed(request.input, "input")
    prepared = served.prepare(inputs, request.text_options(late_chunking=request.late_chunking))
    ignored += request.without_effect(inputs, engine.settings.truncation)
    usage = prepared.usage
    rest = {"model": served.name, "usage": common.openai_usage(usage), **common.notes_of(usage, ignored)}
    rest |= {"prompt_name": usage.prompt_name} if usage.prompt_name is not None else {}

    def entries(vectors: FloatArray) -> Iterator[bytes]:
        in_base64 = request.encoding_format == "base64"
        for index, vector in enumerate(np.ascontiguousarray(vectors)):
            numbers = base64.b64encode(common.array_file(vector)).decode() if in_base64 else vector
            yield common.dump({"object": "embedding", "index": index, "embedding": numbers})

    def write(vectors: FloatArray) -> Iterator[bytes]:
        return common.joined(b'{"object":"list","data":[', entries(vectors), b"]," + common.dump(rest)[1:])

    return common.Work(write, prepared, ignored)


def _model(service: Any, name: str) -> dict[str, Any]:
    """Return OpenAI's description of a model."""
    served = service.engine.models.served(name)
    same = {"id": served.name, "object": "model", "created": served.created, "owned_by": "minibert"}
    return {**same, **served.details()}


def _models(service: Any) -> dict[str, Any]:
    """Return OpenAI's list of models."""
    return {"object": "list", "data": [_model(service, name) for name in service.engine.models]}


_POST = common.Post("input", OpenAIEmbeddingRequest, _embed)
PROTOCOL = common.Protocol(
    ERRORS,
    {"/v1/embeddings": _POST, "/embeddings": _POST},
    {"/models": _models, "/v1/models": _models},
    {"/models/": _model, "/v1/models/": _model},
)
