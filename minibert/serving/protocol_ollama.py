"""Ollama's protocol. Source: Ollama, docs/api.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert.base.arrays import FloatArray
from minibert.serving import answers, wire
from minibert.serving.engine import Engine
from minibert.serving.served_model import TextOptions
from minibert.serving.work import Post, Work, work_of

__all__ = ["POSTS", "model_list"]


def _ollama(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OllamaEmbedRequest)
    served = engine.models.embedder(_without_tag(request.model))
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
        rest |= {"truncated": prepared.report.truncated} if prepared.report.truncated else {}
        rest |= {"ignored": ignored} if ignored else {}
        return b'{"embeddings":' + answers.list_of_vectors([*vectors]) + b"," + answers.dump(rest)[1:]

    return work_of(prepared, write, ignored)


def _ollama_old(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OllamaOldRequest)
    prepared = engine.models.embedder(_without_tag(request.model)).prepare(
        [request.prompt], TextOptions(), engine.settings
    )
    return work_of(prepared, lambda vectors: answers.dump({"embedding": vectors[0]}), ignored)


def _without_tag(name: str | None) -> str | None:
    """Return a model's name without Ollama's tag."""
    return None if name is None else name.removesuffix(":latest")


def model_list(engine: Engine) -> dict[str, Any]:
    """Return Ollama's list of models."""
    return {"models": [{"name": name, "model": name, "size": 0, "digest": "", "details": {}} for name in engine.models]}


POSTS: Mapping[str, Post] = {
    "/api/embed": Post("ollama", "input", (wire.OllamaEmbedRequest,), _ollama, "Turn texts into vectors, as Ollama"),
    "/api/embeddings": Post("ollama", "prompt", (wire.OllamaOldRequest,), _ollama_old, "Turn a text into a vector"),
}
