"""Ollama's protocol. Source: Ollama, docs/api.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert._utils.validation import FloatArray
from minibert.serving import answers, wire
from minibert.serving.embedder import ServedModel, TextOptions
from minibert.serving.engine import Engine
from minibert.serving.settings import ServiceError
from minibert.serving.work import Post, Work, notes_of, work_of

__all__ = ["POSTS", "model_list"]

_TAG = "latest"


def _ollama(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OllamaEmbedRequest)
    served = _model(engine, request.model)
    shown = {"model": request.model or served.name}
    if bytes(request.input).split() in ([b"[]"], [b"[", b"]"], [b'""']):  # a program asks so whether a model is there
        return Work(lambda _: answers.dump({**shown, "embeddings": []}), ignored=ignored)
    inputs = wire.read_inputs(request.input, "input", ids=False)
    truncation = None if request.truncate is None else "mark" if request.truncate else "error"
    options = TextOptions(truncation=truncation, dimensions=request.dimensions, prompt_name=request.prompt_name)
    prepared = served.prepare(inputs, options, engine.settings)

    def write(vectors: FloatArray) -> bytes:
        seconds = prepared.job.queue_seconds + prepared.job.compute_seconds
        rest = {
            **shown,
            "total_duration": round(1e9 * seconds),
            "load_duration": 0,
            "prompt_eval_count": sum(prepared.report.n_tokens),
        }
        rest |= notes_of(prepared.report, ignored)
        return b'{"embeddings":' + answers.list_of_vectors([*vectors]) + b"," + answers.dump(rest)[1:]

    return work_of(prepared, write, ignored)


def _ollama_old(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OllamaOldRequest)
    prepared = _model(engine, request.model).prepare([request.prompt], TextOptions(), engine.settings)
    rest = notes_of(prepared.report, ignored)
    return work_of(prepared, lambda vectors: answers.dump({"embedding": vectors[0], **rest}), ignored)


def _show(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OllamaShowRequest)
    details = _model(engine, request.model or request.name).details()
    info = {"general.architecture": "bert", "bert.embedding_length": details["embedding_dimension"]}
    info["bert.context_length"] = details["max_input_length"]
    shown = {"details": {"family": "bert", "format": "safetensors"}, "model_info": info, "capabilities": ["embedding"]}
    return Work(lambda _: answers.dump(shown), ignored=ignored)


def _model(engine: Engine, name: str | None) -> ServedModel:
    """Return a model by Ollama's name: one without a tag has the tag "latest", and another tag is another model."""
    models = engine.models
    if name is None or models.knows(name):
        return models.embedder(name)
    untagged, _, tag = name.rpartition(":")
    same = untagged if tag == _TAG else f"{name}:{_TAG}"
    if models.knows(same):
        return models.embedder(same)
    try:
        return models.embedder(name)
    except ServiceError as error:
        if error.kind == "model" and untagged and models.knows(untagged):
            message = f"{error.message} A name with another tag than :{_TAG} is another model."
            raise ServiceError("model", message, param="model") from None
        raise


def model_list(engine: Engine) -> dict[str, Any]:
    """Return Ollama's list of models, whose names have tags; programs look there for the name with its tag."""
    names = [name if ":" in name.rpartition("/")[2] else f"{name}:{_TAG}" for name in engine.models]
    return {"models": [{"name": name, "model": name, "size": 0, "digest": "", "details": {}} for name in names]}


POSTS: Mapping[str, Post] = {
    "/api/embed": Post("ollama", "input", (wire.OllamaEmbedRequest,), _ollama, "Turn texts into vectors, as Ollama"),
    "/api/embeddings": Post("ollama", "prompt", (wire.OllamaOldRequest,), _ollama_old, "Turn a text into a vector"),
    "/api/show": Post("ollama", "model", (wire.OllamaShowRequest,), _show, "Describe a model, as Ollama", False),
}
