"""text-embeddings-inference's protocol for vectors and tokens; protocol_scores.py has its scores.

Source: text-embeddings-inference 1.9, router/src/http/types.rs and server.rs.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.serving.classifier import ScoreOptions, ServedClassifier
from minibert.serving.embedder import TextOptions
from minibert.serving.engine import Engine
from minibert.serving.prepared import check_number
from minibert.serving.protocols import base
from minibert.serving.protocols.openai import ERRORS as OPENAI_ERRORS
from minibert.serving.reading import in_turns
from minibert.serving.scheduler import MAX_STEP
from minibert.serving.settings import ServiceError
from minibert.tokenizer.encodings import Encoding
from minibert.vectors.similarity import pairwise_cos_sim


class EmbedRequest(base.VectorFields, kw_only=True):
    """text-embeddings-inference's request for vectors of texts, or of tokens."""

    inputs: base.Texts
    model: str | None = None


class RootRequest(base.Struct):
    """The fields that say what a request to "/" asks for."""

    inputs: base.Raw = base.Raw()
    query: base.Raw = base.Raw()
    model: str | None = None


class SimilarityInputs(base.Struct):
    """A sentence, and those that are compared with it."""

    source_sentence: str
    sentences: list[str]


class SimilarityRequest(base.TruncationFields, kw_only=True):
    """text-embeddings-inference's request for similarities. The parameters may be beside the inputs."""

    inputs: SimilarityInputs
    parameters: base.TruncationFields | None = None
    model: str | None = None


class PredictRequest(base.TruncationFields, kw_only=True):
    """text-embeddings-inference's request for the labels of texts, or of pairs of texts."""

    inputs: Annotated[
        base.Raw,
        base.Meta(
            description="A text, a pair of texts, or a list of lists with one text or two.",
            extra_json_schema={
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
                    {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
                    },
                ]
            },
        ),
    ]
    model: str | None = None
    raw_scores: bool = False
    priority: Literal["low", "normal"] | None = None


class RerankDocument(base.Struct):
    """A text in Cohere's older form."""

    text: str


class RerankRequest(base.TruncationFields, kw_only=True):
    """A query and texts: `texts` as text-embeddings-inference has them, or `documents` as Cohere and Jina have them."""

    query: str
    texts: list[str] | None = None
    documents: list[str | RerankDocument] | None = None
    model: str | None = None
    raw_scores: bool = False
    return_text: bool = False
    return_documents: bool = False
    top_n: int | None = None
    priority: Literal["low", "normal"] | None = None


class TokenizeRequest(base.Struct, kw_only=True):
    """text-embeddings-inference's request for the tokens of texts."""

    inputs: base.OneOrMore
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class DecodeRequest(base.Struct, kw_only=True):
    """text-embeddings-inference's request for the text of token ids."""

    ids: Annotated[
        base.Raw,
        base.Meta(
            extra_json_schema={
                "anyOf": [
                    {"type": "array", "items": {"type": "integer"}},
                    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                ]
            }
        ),
    ]
    skip_special_tokens: bool = True
    model: str | None = None


_TYPES = {
    "empty": "Empty",
    "overloaded": "Overloaded",
    "unavailable": "Unhealthy",
    "unsupported": "Backend",
    "failed": "Backend",
}


def _error(error: ServiceError, field: str, message: str) -> dict[str, Any]:
    if error.kind == "too_long":
        message += f" `inputs` must have less than {error.limit} tokens. Given: {error.given}"
    return {"error": message, "error_type": _TYPES.get(error.kind, "Validation")}


ERRORS = base.Errors(
    "tei",
    _error,
    {"error": {"type": "string"}, "error_type": {"type": "string"}},
    {**base.STATUS, "invalid": 422, "too_long": 413, "too_many": 413, "unsupported": 424},
)


_MOST_CHARACTERS = 2**17  # of a request for tokens: each token takes some hundred bytes of JSON
_PART = 2**12  # tokens that are written at a time


def _embed(engine: Engine, body: bytes, accept: str) -> base.Work:
    request, ignored = base.decode(body, EmbedRequest)
    return _embed_request(engine, request, ignored, accept)


def _embed_request(engine: Engine, request: EmbedRequest, ignored: tuple[str, ...], accept: str) -> base.Work:
    inputs = base.read_inputs(request.inputs, "inputs")
    options = base.text_options(request, normalize=True if request.normalize is None else request.normalize)
    prepared = engine.models.embedder(request.model).prepare(inputs, options, engine.settings)
    ignored += base.fields_without_effect(request, inputs, engine.settings.truncation)
    if "application/octet-stream" in accept:
        return base.work_of(prepared, base.array_file, ignored, "application/octet-stream")
    return base.work_of(prepared, base.list_of_vectors, ignored)


def _embed_all(engine: Engine, body: bytes, accept: str) -> base.Work:
    request, ignored = base.decode(body, EmbedRequest)
    inputs = base.read_inputs(request.inputs, "inputs")
    for name in ("dimensions", "pooling"):
        if getattr(request, name) is not None:
            ignored = (*ignored, name)
    ignored += base.fields_without_effect(request, inputs, "mark")
    options = dataclasses.replace(
        base.text_options(request, normalize=request.normalize), tokens=True, dimensions=None, pooling=None
    )
    prepared = engine.models.embedder(request.model).prepare(inputs, options, engine.settings)
    return base.work_of(prepared, base.list_of_vectors, ignored)


def _root(engine: Engine, body: bytes, accept: str) -> base.Work:
    """Do what the model is for: the one that the request names, else the first."""
    content, _ = base.decode(body, RootRequest)
    if isinstance(engine.models.served(content.model), ServedClassifier):
        return (rerank if bytes(content.query) else predict)(engine, body, accept)
    return (_similarity if base.is_object(content.inputs) else _embed)(engine, body, accept)


def _similarity(engine: Engine, body: bytes, accept: str) -> base.Work:
    request, ignored = base.decode(body, SimilarityRequest)
    if not request.inputs.sentences:
        raise ServiceError("empty", "inputs.sentences is an empty list; expected at least one text.", param="inputs")
    given = request.parameters or base.TruncationFields()
    for name in ("truncate", "truncation_direction", "prompt_name"):
        if getattr(given, name) is None:
            setattr(given, name, getattr(request, name))
    texts = [request.inputs.source_sentence, *request.inputs.sentences]
    prepared = engine.models.embedder(request.model).prepare(
        texts, TextOptions(**base.truncation_of(given)), engine.settings
    )

    def write(vectors: FloatArray) -> bytes:
        source = np.broadcast_to(vectors[:1], vectors[1:].shape)
        return base.dump(np.asarray(pairwise_cos_sim(source, vectors[1:]), dtype=np.float32))

    return base.work_of(prepared, write, ignored)


def _tokenize(engine: Engine, body: bytes, accept: str) -> base.Work:
    request, ignored = base.decode(body, TokenizeRequest)
    texts = base.read_inputs(request.inputs, "inputs", ids=False)
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
    rows = (_tokens(text, encode([text])[0]) for text in in_turns(whole))
    content = base.joined(b"[", rows, b"]")  # in its turn, because what it is made of takes many times the memory
    return base.Work(lambda _: content, ignored=ignored)


def _tokens(text: str, encoding: Encoding) -> bytes:
    """Return the JSON of a text's tokens. It is made in parts: as Python objects, all of them take much memory."""

    def part(first: int) -> bytes:
        chosen = slice(first, first + _PART)
        columns = zip(
            encoding.ids[chosen].tolist(),
            encoding.tokens[chosen],
            encoding.special_tokens_mask[chosen].tolist(),
            encoding.offsets[chosen].tolist(),
            strict=True,
        )
        rows = [
            {
                "id": token_id,
                "text": token if special else text[start:stop],
                "special": bool(special),
                "start": None if special else start,
                "stop": None if special else stop,
            }
            for token_id, token, special, (start, stop) in columns
        ]
        return base.dump(rows)[1:-1]

    return base.joined(b"[", map(part, range(0, len(encoding.ids), _PART)), b"]")


def _decode(engine: Engine, body: bytes, accept: str) -> base.Work:
    request, ignored = base.decode(body, DecodeRequest)
    rows = base.read_inputs(request.ids, "ids")
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
    return base.Work(lambda _: base.dump(texts), ignored=ignored)


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


def predict(engine: Engine, body: bytes, accept: str) -> base.Work:
    """Read a request for the scores of labels."""
    request, ignored = base.decode(body, PredictRequest)
    served = engine.models.classifier(request.model)
    inputs, single = base.read_pairs(request.inputs, "inputs")
    options = _score_options(request, "raw" if request.raw_scores else "labels", "inputs")
    labels = served.labels

    def write(scores: FloatArray) -> bytes:
        rows = [[{"score": row[i], "label": labels[i]} for i in np.argsort(-row, kind="stable")] for row in scores]
        return base.dump(rows[0] if single else rows)

    return base.work_of(served.prepare(inputs, options, engine.settings), write, ignored)


def rerank(engine: Engine, body: bytes, accept: str) -> base.Work:
    """Read a request for the order of texts."""
    request, ignored = base.decode(body, RerankRequest)
    served = engine.models.classifier(request.model, for_ranking=True)
    if (request.texts is None) == (request.documents is None):
        raise ServiceError("invalid", "the body needs texts or documents, and not both.", param="texts")
    theirs = request.texts is not None
    field = "texts" if theirs else "documents"
    texts = request.texts or [one if isinstance(one, str) else one.text for one in request.documents or ()]
    if not texts:
        raise ServiceError("empty", f"{field} is an empty list; expected at least one text.", param=field)
    if request.top_n is not None and request.top_n < 1:
        raise ServiceError("invalid", f"top_n is {request.top_n}; expected a number from 1.", param="top_n")
    options = _score_options(request, "raw" if request.raw_scores else "rank", field)
    prepared = served.prepare([(request.query, text) for text in texts], options, engine.settings)
    shown = request.return_text or request.return_documents
    report = prepared.report

    def write(scores: FloatArray) -> bytes:
        flat = scores[:, 0]
        order = np.argsort(-flat, kind="stable")[: request.top_n]
        if theirs:
            return base.dump([{"index": i, "score": flat[i], **({"text": texts[i]} if shown else {})} for i in order])
        total = sum(report.n_tokens)
        results = [
            {"index": i, "relevance_score": flat[i], **({"document": {"text": texts[i]}} if shown else {})}
            for i in order
        ]
        rest: dict[str, Any] = {"model": served.name, "usage": {"prompt_tokens": total, "total_tokens": total}}
        rest |= base.notes_of(report, ignored)
        meta = {"billed_units": {"search_units": 1}}
        return base.dump({"id": uuid.uuid4().hex, "object": "rerank", "results": results, **rest, "meta": meta})

    return base.work_of(prepared, write, ignored)


def _score_options(request: PredictRequest | RerankRequest, scores: str, field: str) -> ScoreOptions:
    return ScoreOptions(scores=scores, field=field, low=request.priority == "low", **base.truncation_of(request))


_RERANK = base.Post(OPENAI_ERRORS, "documents", (RerankRequest,), rerank, "Sort texts by how well they answer a query")

_ROOT = base.Post(
    ERRORS,
    "inputs",
    (EmbedRequest, SimilarityRequest, PredictRequest, RerankRequest),
    _root,
    "What the model is for: vectors, similarities, scores of labels, or ranks",
)
POSTS: Mapping[str, base.Post] = {
    "/embed": base.Post(ERRORS, "inputs", (EmbedRequest,), _embed, "Turn texts into vectors"),
    "/": _ROOT,
    "/invocations": _ROOT,
    "/embed_all": base.Post(ERRORS, "inputs", (EmbedRequest,), _embed_all, "Turn texts into vectors of their tokens"),
    "/similarity": base.Post(ERRORS, "inputs", (SimilarityRequest,), _similarity, "Compare a sentence with others"),
    "/tokenize": base.Post(ERRORS, "inputs", (TokenizeRequest,), _tokenize, "Turn texts into tokens", False),
    "/decode": base.Post(ERRORS, "ids", (DecodeRequest,), _decode, "Turn token ids into texts", False),
    "/predict": base.Post(ERRORS, "inputs", (PredictRequest,), predict, "Turn texts or pairs into scores of labels"),
    "/rerank": base.Post(ERRORS, "texts", (RerankRequest,), rerank, "Sort texts by how well they answer a query"),
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
}
