"""text-embeddings-inference's protocol for vectors and tokens; protocol_scores.py has its scores.

Source: text-embeddings-inference 1.9, router/src/http/types.rs and server.rs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.serving import answers, wire
from minibert.serving.classifier import ServedClassifier
from minibert.serving.embedder import TextOptions
from minibert.serving.engine import Engine
from minibert.serving.prepared import check_number
from minibert.serving.protocol_scores import predict, rerank
from minibert.serving.reading import in_turns
from minibert.serving.scheduler import MAX_STEP
from minibert.serving.settings import ServiceError
from minibert.serving.work import Post, Work, fields_without_effect, text_options, truncation_of, work_of
from minibert.vectors.similarity import pairwise_cos_sim

__all__ = ["POSTS", "info"]

_MOST_CHARACTERS = 2**17  # of a request for tokens: each token takes some hundred bytes of JSON


def _embed(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.EmbedRequest)
    return _embed_request(engine, request, ignored, accept)


def _embed_request(engine: Engine, request: wire.EmbedRequest, ignored: tuple[str, ...], accept: str) -> Work:
    inputs = wire.read_inputs(request.inputs, "inputs")
    options = text_options(request, normalize=True if request.normalize is None else request.normalize)
    prepared = engine.models.embedder(request.model).prepare(inputs, options, engine.settings)
    ignored += fields_without_effect(request, inputs, engine.settings.truncation)
    if "application/octet-stream" in accept:
        return work_of(prepared, answers.array_file, ignored, "application/octet-stream")
    return work_of(prepared, answers.list_of_vectors, ignored)


def _embed_all(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.EmbedRequest)
    inputs = wire.read_inputs(request.inputs, "inputs")
    for name in ("dimensions", "pooling"):
        if getattr(request, name) is not None:
            ignored = (*ignored, name)
    ignored += fields_without_effect(request, inputs, "mark")
    options = dataclasses.replace(
        text_options(request, normalize=request.normalize), tokens=True, dimensions=None, pooling=None
    )
    prepared = engine.models.embedder(request.model).prepare(inputs, options, engine.settings)
    return work_of(prepared, answers.list_of_vectors, ignored)


def _root(engine: Engine, body: bytes, accept: str) -> Work:
    """Do what the model is for: the one that the request names, else the first."""
    content, _ = wire.decode(body, wire.RootRequest)
    if isinstance(engine.models.served(content.model), ServedClassifier):
        return (rerank if bytes(content.query) else predict)(engine, body, accept)
    return (_similarity if wire.is_object(content.inputs) else _embed)(engine, body, accept)


def _similarity(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.SimilarityRequest)
    if not request.inputs.sentences:
        raise ServiceError("empty", "inputs.sentences is an empty list; expected at least one text.", param="inputs")
    given = request.parameters or wire.TruncationFields()
    for name in ("truncate", "truncation_direction", "prompt_name"):
        if getattr(given, name) is None:
            setattr(given, name, getattr(request, name))
    texts = [request.inputs.source_sentence, *request.inputs.sentences]
    prepared = engine.models.embedder(request.model).prepare(
        texts, TextOptions(**truncation_of(given)), engine.settings
    )

    def write(vectors: FloatArray) -> bytes:
        source = np.broadcast_to(vectors[:1], vectors[1:].shape)
        return answers.dump(np.asarray(pairwise_cos_sim(source, vectors[1:]), dtype=np.float32))

    return work_of(prepared, write, ignored)


def _tokenize(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.TokenizeRequest)
    texts = wire.read_inputs(request.inputs, "inputs", ids=False)
    served = engine.models.served(request.model)
    check_number(len(texts), engine.settings)
    if sum(map(len, texts)) > _MOST_CHARACTERS:
        raise ServiceError(
            "too_large",
            f"inputs have {sum(map(len, texts))} characters; the limit of this route is {_MOST_CHARACTERS}.",
        )
    prompt = ""
    if request.prompt_name is not None:
        prompt = served.model.prompts[served.check_prompt(request.prompt_name)]
    whole = [prompt + text for text in texts]
    encode = functools.partial(served.model.tokenizer.encodings, add_special_tokens=request.add_special_tokens)
    rows = []
    for text, encoding in ((text, encode([text])[0]) for text in in_turns(whole)):
        columns = zip(
            encoding.ids.tolist(),
            encoding.tokens,
            encoding.special_tokens_mask.tolist(),
            encoding.offsets.tolist(),
            strict=True,
        )
        rows.append(
            [
                {
                    "id": token_id,
                    "text": token if special else text[start:stop],
                    "special": bool(special),
                    "start": None if special else start,
                    "stop": None if special else stop,
                }
                for token_id, token, special, (start, stop) in columns
            ]
        )
    return Work(lambda _: answers.dump(rows), ignored=ignored)


def _decode(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.DecodeRequest)
    rows = wire.read_inputs(request.ids, "ids")
    if not all(isinstance(row, list) for row in rows):
        raise ServiceError("invalid", "ids must be numbers, or lists of numbers.", param="ids")
    check_number(len(rows), engine.settings)
    if sum(map(len, rows)) > _MOST_CHARACTERS:
        raise ServiceError("too_large", f"ids has {sum(map(len, rows))} numbers; the limit is {_MOST_CHARACTERS}.")
    try:
        texts = engine.models.served(request.model).model.tokenizer.batch_decode(
            rows, skip_special_tokens=request.skip_special_tokens
        )
    except (TypeError, ValueError) as error:
        raise ServiceError("invalid", f"ids: {error}", param="ids") from error
    return Work(lambda _: answers.dump(texts), ignored=ignored)


def info(engine: Engine, version: str) -> dict[str, Any]:
    """Return text-embeddings-inference's description of the service and its first model."""
    served, settings = engine.models.served(), engine.settings
    return {
        "model_id": served.name,
        "model_sha": None,
        "model_dtype": served.compute_type,
        "served_model_name": served.name,
        "model_type": served.model_type(),
        "max_concurrent_requests": None,
        "max_batch_tokens": MAX_STEP,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_inputs,
        "auto_truncate": settings.truncation == "mark",
        "tokenization_workers": 2,  # one for short requests, one for long ones
        "version": version,
        "sha": None,
        "docker_label": None,
        **served.details(),
        "models": [*engine.models],
    }


_ROOT = Post(
    "tei",
    "inputs",
    (wire.EmbedRequest, wire.SimilarityRequest, wire.PredictRequest, wire.RerankRequest),
    _root,
    "What the model is for: vectors, similarities, scores of labels, or ranks",
)
POSTS: Mapping[str, Post] = {
    "/embed": Post("tei", "inputs", (wire.EmbedRequest,), _embed, "Turn texts into vectors"),
    "/": _ROOT,
    "/invocations": _ROOT,
    "/embed_all": Post("tei", "inputs", (wire.EmbedRequest,), _embed_all, "Turn texts into vectors of their tokens"),
    "/similarity": Post("tei", "inputs", (wire.SimilarityRequest,), _similarity, "Compare a sentence with others"),
    "/tokenize": Post("tei", "inputs", (wire.TokenizeRequest,), _tokenize, "Turn texts into tokens", False),
    "/decode": Post("tei", "ids", (wire.DecodeRequest,), _decode, "Turn token ids into texts", False),
}
