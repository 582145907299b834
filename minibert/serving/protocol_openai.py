"""OpenAI's protocol. Source: its API reference, "Create embeddings" and "List models"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert.serving import answers, wire
from minibert.serving.classifier import ServedClassifier
from minibert.serving.embedder import ServedModel
from minibert.serving.engine import Engine
from minibert.serving.work import Post, Work, fields_without_effect, notes_of, text_options, work_of

__all__ = ["POSTS", "model_list", "model_object"]


def _openai(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OpenAIEmbeddingRequest)
    served = engine.models.embedder(request.model)
    inputs = wire.read_inputs(request.input, "input")
    prepared = served.prepare(inputs, text_options(request, normalize=request.normalize), engine.settings)
    ignored += fields_without_effect(request, inputs, engine.settings.truncation)
    report = prepared.report
    total = sum(report.n_tokens)
    rest: dict[str, Any] = {"model": served.name, "usage": {"prompt_tokens": total, "total_tokens": total}}
    rest |= notes_of(report, ignored)
    rest |= {"prompt_name": report.prompt_name} if report.prompt_name is not None else {}
    encoding = request.encoding_format or "float"
    return work_of(prepared, lambda vectors: answers.openai_embeddings(vectors, encoding, rest), ignored)


def model_object(served: ServedModel | ServedClassifier) -> dict[str, Any]:
    """Return OpenAI's description of a model."""
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "minibert",
        **served.details(),
    }


def model_list(engine: Engine) -> dict[str, Any]:
    """Return OpenAI's list of models."""
    return {"object": "list", "data": [model_object(served) for served in engine.models.values()]}


_POST = Post("openai", "input", (wire.OpenAIEmbeddingRequest,), _openai, "Turn texts into vectors")
POSTS: Mapping[str, Post] = {
    "/v1/embeddings": _POST,
    "/embeddings": _POST,
}
