"""text-embeddings-inference's protocol, and rerank requests in the form of Cohere and Jina.

Source: text-embeddings-inference 1.9, router/src/http/types.rs and server.rs.
"""

from __future__ import annotations

import functools
import uuid
from typing import Any

import numpy as np
from msgspec import Raw, Struct

import minibert
from minibert._utils.validation import FloatArray
from minibert.serving.classifier import Classifier, ScoreOptions
from minibert.serving.engine import Engine
from minibert.serving.protocols import common
from minibert.serving.protocols.openai import ERRORS as OPENAI_ERRORS
from minibert.serving.reading import in_turns
from minibert.serving.scheduler import MAX_STEP
from minibert.serving.served_models import TextEmbedder, VectorOptions
from minibert.serving.settings import ServiceError
from minibert.serving.token_embedder import TokenEmbedder
from minibert.tokenizer.encodings import Encoding
from minibert.vectors.similarity import pairwise_cos_sim


class EmbedRequest(common.VectorFields, kw_only=True):
    """text-embeddings-inference's request for vectors of texts, or of tokens."""

    inputs: common.Inputs


class RootRequest(Struct):
    """The fields that say what a request to "/" asks for."""

    inputs: Raw = Raw()
    query: Raw = Raw()
    model: str | None = None


class SimilarityInputs(Struct):
    """A sentence, and the sentences that are compared with it."""

    source_sentence: str
    sentences: list[str]


class SimilarityRequest(common.Fields, kw_only=True):
    """text-embeddings-inference's request for similarities. The parameters may be beside the inputs."""

    inputs: SimilarityInputs
    parameters: common.Fields | None = None


class PredictRequest(common.Fields, kw_only=True):
    """text-embeddings-inference's request for the labels of texts, or of pairs of texts."""

    inputs: common.Pairs
    raw_scores: bool = False


class RerankDocument(Struct):
    """A text in Cohere's older form."""

    text: str


class RerankRequest(common.Fields, kw_only=True):
    """A query and texts: text-embeddings-inference calls them `texts`, Cohere and Jina `documents`."""

    query: str
    texts: list[str] | None = None
    documents: list[str | RerankDocument] | None = None
    raw_scores: bool = False
    return_text: bool | None = None
    return_documents: bool | None = None
    top_n: int | None = None


class TokenizeRequest(Struct, kw_only=True):
    """text-embeddings-inference's request for the tokens of texts."""

    inputs: common.Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class DecodeRequest(Struct, kw_only=True):
    """text-embeddings-inference's request for the text of token ids."""

    ids: list[int | list[int]]
    skip_special_tokens: bool = True
    model: str | None = None


_TYPES = {"empty": "Empty", "overloaded": "Overloaded", "unavailable": "Unhealthy"}
_TYPES |= {"unsupported": "Backend", "failed": "Backend"}


def _error(error: ServiceError) -> dict[str, Any]:
    message = str(error)
    if error.kind == "too_long":
        message += f" `inputs` must have less than {error.limit} tokens. Given: {error.given}"
    return {"error": message, "error_type": _TYPES.get(error.kind, "Validation")}


_STATUS = {**common.STATUS, "invalid": 422, "too_long": 413, "too_many": 413, "unsupported": 424}
_ERRORS = common.Errors(_error, _STATUS)

_MOST_CHARACTERS = 2**17  # of a request for tokens: each token takes some hundred bytes of JSON
_PART = 2**12  # tokens that are written at a time


def _embed(engine: Engine, request: EmbedRequest, ignored: tuple[str, ...]) -> common.Work:
    inputs = common.listed(request.inputs, "inputs")
    options = request.text_options(normalize=request.normalize is not False)
    prepared = engine.models.of(TextEmbedder, request.model).prepare(inputs, options)
    ignored += request.without_effect(inputs, engine.settings.truncation)
    return common.Work(common.list_of_vectors, prepared, ignored, functools.partial(map, common.array_file))


def _embed_all(engine: Engine, request: EmbedRequest, ignored: tuple[str, ...]) -> common.Work:
    inputs = common.listed(request.inputs, "inputs")
    ignored += tuple(name for name in ("dimensions", "pooling") if getattr(request, name) is not None)
    ignored += request.without_effect(inputs, "mark")
    options = request.text_options(tokens=True, dimensions=None, pooling=None)
    served: Any = engine.models.of((TextEmbedder, TokenEmbedder), request.model)
    return common.Work(common.list_of_vectors, served.prepare(inputs, options), ignored)


def _similarity(engine: Engine, request: SimilarityRequest, ignored: tuple[str, ...]) -> common.Work:
    common.not_empty(request.inputs.sentences, "inputs.sentences")
    for name in common.Fields.__struct_fields__:
        both = {name: getattr(request, name), f"parameters.{name}": getattr(request.parameters, name, None)}
        setattr(request, name, common.same(**both))
    texts = [request.inputs.source_sentence, *request.inputs.sentences]
    prepared = engine.models.of(TextEmbedder, request.model).prepare(texts, VectorOptions(**request.options()))

    def write(vectors: FloatArray) -> list[bytes]:
        source = np.broadcast_to(vectors[:1], vectors[1:].shape)
        return [common.dump(np.asarray(pairwise_cos_sim(source, vectors[1:]), dtype=np.float32))]

    return common.Work(write, prepared, ignored)


def _check_size(rows: list[Any], field: str, engine: Engine) -> None:
    """Refuse too many texts or rows of ids, and too much in them."""
    engine.settings.check_number(len(rows))
    if (size := sum(map(len, rows))) > _MOST_CHARACTERS:
        things = "characters" if isinstance(rows[0], str) else "numbers"
        raise ServiceError("too_large", f"{field} has {size} {things}; the limit of this route is {_MOST_CHARACTERS}.")


def _tokenize(engine: Engine, request: TokenizeRequest, ignored: tuple[str, ...]) -> common.Work:
    texts = common.listed(request.inputs, "inputs")
    served = engine.models.served(request.model)
    _check_size(texts, "inputs", engine)
    prompt = "" if request.prompt_name is None else served.model.prompts[served.check_prompt(request.prompt_name)]
    encode = functools.partial(served.model.tokenizer.encodings, add_special_tokens=request.add_special_tokens)
    rows = (_tokens(text, encode([text])[0]) for text in in_turns([prompt + text for text in texts]))
    # In its turn, because what it is made of takes many times the memory.
    content = b"".join(common.joined(b"[", rows, b"]"))
    return common.Work(lambda _: [content], ignored=ignored)


def _tokens(text: str, encoding: Encoding) -> bytes:
    """Return the JSON of a text's tokens. It is made in parts: as Python objects, all of them take much memory."""

    def part(first: int) -> bytes:
        chosen = slice(first, first + _PART)
        ids, marks = encoding.ids[chosen].tolist(), encoding.special_tokens_mask[chosen].tolist()
        columns = zip(ids, encoding.tokens[chosen], marks, encoding.offsets[chosen].tolist(), strict=True)
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
        return common.dump(rows)[1:-1]

    return b"".join(common.joined(b"[", map(part, range(0, len(encoding.ids), _PART)), b"]"))


def _decode(engine: Engine, request: DecodeRequest, ignored: tuple[str, ...]) -> common.Work:
    rows = common.listed(request.ids, "ids")
    _check_size(rows, "ids", engine)
    tokenizer = engine.models.served(request.model).model.tokenizer
    try:
        texts = tokenizer.batch_decode(rows, skip_special_tokens=request.skip_special_tokens)
    except (TypeError, ValueError) as error:
        raise ServiceError("invalid", f"ids: {error}", param="ids") from error
    return common.Work(lambda _: [common.dump(texts)], ignored=ignored)


def _model_type(served: Any) -> dict[str, Any]:
    if isinstance(served, TextEmbedder | TokenEmbedder):
        modes = served.model.pipeline.pooling if isinstance(served, TextEmbedder) else ("none",)
        return {"embedding": {"pooling": "+".join(modes)}}
    labels: dict[str, Any] = {"id2label": {str(i): name for i, name in enumerate(served.labels)}}
    labels["label2id"] = {name: i for i, name in enumerate(served.labels)}
    return {"reranker" if len(served.labels) == 1 else "classifier": labels}


def _info(service: Any) -> dict[str, Any]:
    """Return text-embeddings-inference's description of the service and its first model."""
    engine: Engine = service.engine
    served, settings = engine.models.served(), engine.settings
    return {
        **dict.fromkeys(("model_sha", "max_concurrent_requests", "max_batch_requests", "sha", "docker_label")),
        "model_id": settings.model_id or served.name,
        "model_dtype": served.compute_type,
        "served_model_name": served.name,
        "model_type": _model_type(served),
        "max_batch_tokens": max(MAX_STEP, served.model.max_seq_length),  # a longer text is a step of its own
        "max_client_batch_size": settings.max_inputs,
        "auto_truncate": settings.truncation == "mark",
        "tokenization_workers": 2,  # one for short requests, one for long ones
        "version": minibert.__version__,
        **served.details(),
        "models": [*engine.models],
    }


def _predict(engine: Engine, request: PredictRequest, ignored: tuple[str, ...]) -> common.Work:
    served = engine.models.of(Classifier, request.model)
    inputs, single = common.read_pairs(request.inputs, "inputs")
    labels = served.labels

    def write(scores: FloatArray) -> list[bytes]:
        rows = [[{"score": row[i], "label": labels[i]} for i in np.argsort(-row, kind="stable")] for row in scores]
        return [common.dump(rows[0] if single else rows)]

    return common.Work(write, served.prepare(inputs, _score_options(request, "labels", "inputs")), ignored)


def _rerank(engine: Engine, request: RerankRequest, ignored: tuple[str, ...]) -> common.Work:
    classes = (Classifier, TokenEmbedder)
    served: Any = engine.models.of(classes, request.model, lambda served: getattr(served.model, "num_labels", 1) == 1)
    documents = request.documents and [item if isinstance(item, str) else item.text for item in request.documents]
    texts = common.same(texts=request.texts, documents=documents)
    if texts is None:
        raise ServiceError("invalid", "the body needs texts or documents.", param="texts")
    theirs = documents is None
    field = "texts" if theirs else "documents"
    common.not_empty(texts, field)
    return_texts = common.same(return_text=request.return_text, return_documents=request.return_documents)
    if request.top_n is not None and request.top_n < 1:
        raise ServiceError("invalid", f"top_n is {request.top_n}; expected a number from 1.", param="top_n")
    options = _score_options(request, "rank", field)
    if isinstance(served, TokenEmbedder):
        prepared = served.prepare_scores(request.query, texts, options)
    else:
        prepared = served.prepare([(request.query, text) for text in texts], options)
    score = "score" if theirs else "relevance_score"

    def result(index: int, scores: FloatArray) -> dict[str, Any]:
        returned: dict[str, Any] = {}
        if return_texts:
            returned = {"text": texts[index]} if theirs else {"document": {"text": texts[index]}}
        return {"index": index, score: scores[index, 0], **returned}

    def write(scores: FloatArray) -> list[bytes]:
        results = [result(i, scores) for i in np.argsort(-scores[:, 0], kind="stable")[: request.top_n]]
        if theirs:
            return [common.dump(results)]
        answer: dict[str, Any] = {"id": uuid.uuid4().hex, "object": "rerank", "results": results, "model": served.name}
        answer |= {"usage": common.openai_usage(prepared.usage), **common.notes_of(prepared.usage, ignored)}
        return [common.dump({**answer, "meta": {"billed_units": {"search_units": 1}}})]

    return common.Work(write, prepared, ignored)


def _score_options(request: PredictRequest | RerankRequest, scores: str, field: str) -> ScoreOptions:
    scores = "raw" if request.raw_scores else scores
    return ScoreOptions(scores=scores, field=field, **request.options())


class _Root(common.Post):
    """What the model is for: the one that the request names, else the first."""

    def read(self, engine: Engine, body: bytes) -> common.Work:
        content, _ = common.decode(body, RootRequest)
        served = engine.models.served(content.model)
        if isinstance(served, Classifier | TokenEmbedder):
            other = "/predict" if isinstance(served, Classifier) else "/embed_all"
            path = "/rerank" if bytes(content.query) else other
        else:
            path = "/similarity" if bytes(content.inputs).lstrip().startswith(b"{") else "/embed"
        return _POSTS[path].read(engine, body)


_ROOT = _Root("inputs", RootRequest, _embed)
_RERANK = common.Post("documents", RerankRequest, _rerank, errors=OPENAI_ERRORS)
_POSTS: dict[str, common.Post] = {
    "/embed": common.Post("inputs", EmbedRequest, _embed),
    "/": _ROOT,
    "/invocations": _ROOT,
    "/embed_all": common.Post("inputs", EmbedRequest, _embed_all),
    "/similarity": common.Post("inputs", SimilarityRequest, _similarity),
    "/tokenize": common.Post("inputs", TokenizeRequest, _tokenize, computes=False),
    "/decode": common.Post("ids", DecodeRequest, _decode, computes=False),
    "/predict": common.Post("inputs", PredictRequest, _predict),
    "/rerank": common.Post("texts", RerankRequest, _rerank),
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
}
_GETS = {
    "/": lambda service: service.front_page(),
    **dict.fromkeys(("/health", "/ping", "/readyz"), lambda service: service.health(ready=True)),
    "/livez": lambda service: service.health(ready=False),
    "/metrics": lambda service: service.metrics.text(),
    "/info": _info,
}
PROTOCOL = common.Protocol(_ERRORS, _POSTS, _GETS)
