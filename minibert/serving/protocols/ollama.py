"""Ollama's protocol. Source: Ollama, docs/api.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

import minibert
from minibert._utils.validation import FloatArray
from minibert.serving.engine import Engine
from minibert.serving.protocols import common
from minibert.serving.served_models import TextEmbedder, VectorOptions
from minibert.serving.settings import ServiceError


class OllamaEmbedRequest(Struct, kw_only=True):
    """Ollama's request for embeddings."""

    input: common.Texts
    model: str | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    prompt_name: str | None = None


class OllamaOldRequest(Struct, kw_only=True):
    """Ollama's older request, for one text."""

    prompt: str
    model: str | None = None


class OllamaShowRequest(Struct, kw_only=True):
    """Ollama's request for the description of a model; `name` is its older spelling."""

    model: str | None = None
    name: str | None = None


# Clients look for the beginning of these texts.
_BEGINNINGS = {"too_long": "the input length exceeds the context length: ", "overloaded": "server busy: "}


def _error(error: ServiceError) -> dict[str, Any]:
    return {"error": _BEGINNINGS.get(error.kind, "") + str(error)}


_ERRORS = common.Errors(_error, {**common.STATUS, "overloaded": 503})

_TAG = ":latest"


def _embed(engine: Engine, request: OllamaEmbedRequest, ignored: tuple[str, ...]) -> common.Work:
    served = _model(engine, request.model)
    answer = {"model": request.model or served.name}
    if not request.input:  # a program asks so whether a model is there
        return common.Work(lambda _: [common.dump({**answer, "embeddings": []})], ignored=ignored)
    truncation = common.truncation_of(request.truncate)
    options = VectorOptions(truncation=truncation, dimensions=request.dimensions, prompt_name=request.prompt_name)
    job, usage, _ = prepared = served.prepare(common.listed(request.input, "input"), options)

    def write(vectors: FloatArray) -> Iterator[bytes]:
        rest = {**answer, **common.notes_of(usage, ignored), "prompt_eval_count": sum(usage.n_tokens)}
        rest |= {"total_duration": round(1e9 * (job.queue_seconds + job.compute_seconds)), "load_duration": 0}
        return common.list_of_vectors(vectors, b'{"embeddings":[', b"]," + common.dump(rest)[1:])

    return common.Work(write, prepared, ignored)


def _embed_one(engine: Engine, request: OllamaOldRequest, ignored: tuple[str, ...]) -> common.Work:
    texts = [request.prompt] if request.prompt else []  # as in `_embed`
    prepared = _model(engine, request.model).prepare(texts, VectorOptions())
    rest = common.notes_of(prepared.usage, ignored)
    return common.Work(lambda vectors: [common.dump({"embedding": vectors.ravel(), **rest})], prepared, ignored)


def _show(engine: Engine, request: OllamaShowRequest, ignored: tuple[str, ...]) -> common.Work:
    name = common.same(model=request.model or None, name=request.name or None)  # the Go client also sends name: ""
    details = _model(engine, name).details()
    info = {"general.architecture": "bert", "bert.embedding_length": details["embedding_dimension"]}
    info["bert.context_length"] = details["max_input_length"]
    answer = {"details": {"family": "bert", "format": "safetensors"}, "model_info": info, "capabilities": ["embedding"]}
    return common.Work(lambda _: [common.dump(answer)], ignored=ignored)


def _model(engine: Engine, name: str | None) -> TextEmbedder:
    """Return a model by Ollama's name: one without a tag has the tag "latest", and another tag is another model."""
    if name is not None and not engine.models.knows(name):
        other_name = name.removesuffix(_TAG) if name.endswith(_TAG) else name + _TAG
        name = other_name if engine.models.knows(other_name) else name
    return engine.models.of(TextEmbedder, name)


def _models(service: Any) -> dict[str, Any]:
    """Return Ollama's list of models. The names have tags, because programs search it for a name with its tag."""
    names = [name if ":" in name.rpartition("/")[2] else name + _TAG for name in service.engine.models]
    return {"models": [{"name": name, "model": name, "size": 0, "digest": "", "details": {}} for name in names]}


_POSTS = {
    "/api/embed": common.Post("input", OllamaEmbedRequest, _embed),
    "/api/embeddings": common.Post("prompt", OllamaOldRequest, _embed_one),
    "/api/show": common.Post("model", OllamaShowRequest, _show, computes=False),
}
_GETS = {"/api/tags": _models, "/api/ps": _models, "/api/version": lambda _: {"version": minibert.__version__}}
PROTOCOL = common.Protocol(_ERRORS, _POSTS, _GETS, prefixes=("/api/",))
