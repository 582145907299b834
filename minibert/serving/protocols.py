"""What each route does: a request's body -> a job for the engine, and the bytes of its answer. There is no HTTP in it.

Sources: OpenAI's API reference, "Create embeddings"; Cohere's, "Embed" and "Rerank"; Ollama's docs/api.md;
text-embeddings-inference 1.9, router/src/http/types.rs and server.rs; bert-as-service 1.10,
server/bert_serving/server/http.py.
"""

from __future__ import annotations

import base64
import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minibert.base.arrays import FloatArray
from minibert.base.checks import check_indices
from minibert.serving import answers, wire
from minibert.serving.engine import Engine
from minibert.serving.errors import ServiceError
from minibert.serving.given_ids import GivenIds
from minibert.serving.prepared import Prepared, Report, check_number
from minibert.serving.scheduler import Job
from minibert.serving.served_classifier import ScoreOptions, ServedClassifier
from minibert.serving.served_model import ServedModel, TextOptions
from minibert.similarity import pairwise_cos_sim, quantize_embeddings

__all__ = ["POSTS", "Post", "Work", "info", "model_list", "model_object", "ollama_models"]

_MOST_CHARACTERS = 2**20  # of a request for tokens: each token takes some hundred bytes of JSON


@dataclasses.dataclass(frozen=True)
class Work:
    """A request that was read.

    Parameters
    ----------
    write : callable
        Makes the body of the answer from the job's value; without a job, from None.
    job : Job, optional
    report : Report, optional
    ignored : tuple of str
        Fields of the request without an effect.
    media_type : str
    """

    write: Callable[[Any], bytes]
    job: Job | None = None
    report: Report | None = None
    ignored: tuple[str, ...] = ()
    media_type: str = "application/json"


@dataclasses.dataclass(frozen=True)
class Post:
    """A route that takes a body.

    Parameters
    ----------
    family : {"openai", "tei", "ollama", "bert"}
        The shape of its errors.
    field : str
        The name of the field with the texts.
    kinds : tuple of structs
        What its body may be.
    read : callable
        (engine, body, Accept header) -> Work. It runs in a thread that may take its time.
    summary : str
    computes : bool
        Its answers need the engine.
    """

    family: str
    field: str
    kinds: tuple[type, ...]
    read: Callable[[Engine, bytes, str], Work]
    summary: str
    computes: bool = True


# --- OpenAI -----------------------------------------------------------------------------------------------------------


def _openai(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OpenAIEmbeddingRequest)
    served = engine.models.model(request.model)
    inputs = wire.read_inputs(request.input, "input")
    prepared = served.prepare(inputs, _options(request, normalize=request.normalize), engine.settings)
    ignored += _without_effect(request, inputs, engine.settings.truncation)
    report = prepared.report
    total = sum(report.n_tokens)
    rest: dict[str, Any] = {"model": served.name, "usage": {"prompt_tokens": total, "total_tokens": total}}
    rest |= {"truncated": report.truncated} if report.truncated else {}
    rest |= {"ignored": ignored} if ignored else {}
    rest |= {"prompt_name": report.prompt_name} if report.prompt_name is not None else {}
    encoding = request.encoding_format or "float"
    return _work(prepared, lambda vectors: answers.openai_embeddings(vectors, encoding, rest), ignored)


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


# --- text-embeddings-inference ----------------------------------------------------------------------------------------


def _embed(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.EmbedRequest)
    return _embed_request(engine, request, ignored, accept)


def _embed_request(engine: Engine, request: wire.EmbedRequest, ignored: tuple[str, ...], accept: str) -> Work:
    inputs = wire.read_inputs(request.inputs, "inputs")
    options = _options(request, normalize=True if request.normalize is None else request.normalize)
    prepared = engine.models.model(request.model).prepare(inputs, options, engine.settings)
    ignored += _without_effect(request, inputs, engine.settings.truncation)
    if "application/octet-stream" in accept:
        return _work(prepared, answers.array_file, ignored, "application/octet-stream")
    return _work(prepared, answers.list_of_vectors, ignored)


def _embed_all(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.EmbedRequest)
    inputs = wire.read_inputs(request.inputs, "inputs")
    for name in ("dimensions", "pooling"):
        if getattr(request, name) is not None:
            ignored = (*ignored, name)
    ignored += _without_effect(request, inputs, "mark")
    options = dataclasses.replace(
        _options(request, normalize=request.normalize), tokens=True, dimensions=None, pooling=None
    )
    prepared = engine.models.model(request.model).prepare(inputs, options, engine.settings)
    return _work(prepared, answers.list_of_vectors, ignored)


def _root(engine: Engine, body: bytes, accept: str) -> Work:
    content, _ = wire.decode(body, wire.InputsOnly)
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
    prepared = engine.models.model(request.model).prepare(texts, TextOptions(**_truncation(given)), engine.settings)

    def write(vectors: FloatArray) -> bytes:
        source = np.broadcast_to(vectors[:1], vectors[1:].shape)
        return answers.dump(np.asarray(pairwise_cos_sim(source, vectors[1:]), dtype=np.float32))

    return _work(prepared, write, ignored)


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
    rows = []
    for text, encoding in zip(
        whole, served.model.tokenizer.encodings(whole, add_special_tokens=request.add_special_tokens), strict=True
    ):
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


def _predict(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.PredictRequest)
    served = engine.models.classifier(request.model)
    inputs, single = wire.read_pairs(request.inputs, "inputs")
    options = _score_options(request, "raw" if request.raw_scores else "labels", "inputs")
    labels = served.labels

    def write(scores: FloatArray) -> bytes:
        rows = [[{"score": row[i], "label": labels[i]} for i in np.argsort(-row, kind="stable")] for row in scores]
        return answers.dump(rows[0] if single else rows)

    return _work(served.prepare(inputs, options, engine.settings), write, ignored)


def _rerank(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.RerankRequest)
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
            return answers.dump(
                [{"index": i, "score": flat[i], **({"text": texts[i]} if shown else {})} for i in order]
            )
        total = sum(report.n_tokens)
        results = [
            {"index": i, "relevance_score": flat[i], **({"document": {"text": texts[i]}} if shown else {})}
            for i in order
        ]
        rest: dict[str, Any] = {"model": served.name, "usage": {"prompt_tokens": total, "total_tokens": total}}
        rest |= {"truncated": report.truncated} if report.truncated else {}
        rest |= {"ignored": ignored} if ignored else {}
        meta = {"billed_units": {"search_units": 1}}
        return answers.dump({"id": uuid.uuid4().hex, "object": "rerank", "results": results, **rest, "meta": meta})

    return _work(prepared, write, ignored)


def _score_options(request: wire.PredictRequest | wire.RerankRequest, scores: str, field: str) -> ScoreOptions:
    return ScoreOptions(scores=scores, field=field, low=request.priority == "low", **_truncation(request))


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
        "max_batch_tokens": 1024,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_inputs,
        "auto_truncate": settings.truncation == "mark",
        "tokenization_workers": 2,
        "version": version,
        "sha": None,
        "docker_label": None,
        **served.details(),
        "models": [*engine.models],
    }


# --- Cohere -----------------------------------------------------------------------------------------------------------

_COHERE_TRUNCATE = {None: (None, None), "NONE": ("error", None), "END": ("mark", "right"), "START": ("mark", "left")}


def _cohere(engine: Engine, body: bytes, accept: str) -> Work:
    """Answer by type if `embedding_types` is there, as /v2/embed does, else with floats alone, as /v1/embed does."""
    request, ignored = wire.decode(body, wire.CohereEmbedRequest)
    served = engine.models.model(request.model)
    if not request.texts:
        raise ServiceError("empty", "texts is an empty list; expected at least one text.", param="texts")
    for kind in request.embedding_types or ():
        if kind in ("int8", "uint8"):
            raise ServiceError(
                "unsupported",
                f"embedding_types: {kind} needs the ranges of a corpus, because ranges of one request would make a "
                "vector depend on the other texts. Ask for float, base64, binary or ubinary.",
                param="embedding_types",
            )
        if kind not in ("float", "base64", "binary", "ubinary"):
            raise ServiceError(
                "invalid",
                f"embedding_types: {kind[:50]!r}; expected float, base64, binary or ubinary.",
                param="embedding_types",
            )
    truncation, side = _COHERE_TRUNCATE[request.truncate]
    options = TextOptions(
        truncation=truncation,
        side=side,
        input_type=request.input_type,
        prompt_name=request.prompt_name,
        dimensions=request.output_dimension,
    )
    prepared = served.prepare(request.texts, options, engine.settings)
    report = prepared.report

    def write(vectors: FloatArray) -> bytes:
        found: dict[str, Any] = {}
        for kind in request.embedding_types or ("float",):
            if kind == "float":
                found[kind] = [*vectors]
            elif kind == "base64":
                found[kind] = [base64.b64encode(answers.array_file(row)).decode() for row in vectors]
            else:
                found[kind] = [*quantize_embeddings(vectors, kind)]
        answer: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "response_type": "embeddings_by_type" if request.embedding_types else "embeddings_floats",
            "embeddings": found if request.embedding_types else found["float"],
            "texts": request.texts,
            "meta": {"billed_units": {"input_tokens": sum(report.n_tokens)}},
        }
        answer |= {"truncated": report.truncated} if report.truncated else {}
        answer |= {"ignored": ignored} if ignored else {}
        return answers.dump(answer)

    return _work(prepared, write, ignored)


# --- Ollama -----------------------------------------------------------------------------------------------------------


def _ollama(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OllamaEmbedRequest)
    served = engine.models.model(_without_tag(request.model))
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

    return _work(prepared, write, ignored)


def _ollama_old(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OllamaOldRequest)
    prepared = engine.models.model(_without_tag(request.model)).prepare(
        [request.prompt], TextOptions(), engine.settings
    )
    return _work(prepared, lambda vectors: answers.dump({"embedding": vectors[0]}), ignored)


def _without_tag(name: str | None) -> str | None:
    """Return a model's name without Ollama's tag."""
    return None if name is None else name.removesuffix(":latest")


def ollama_models(engine: Engine) -> dict[str, Any]:
    """Return Ollama's list of models."""
    return {"models": [{"name": name, "model": name, "size": 0, "digest": "", "details": {}} for name in engine.models]}


# --- bert-as-service --------------------------------------------------------------------------------------------------


def _encode(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.EncodeRequest)
    served = engine.models.model()
    tokenizer = served.model.tokenizer
    try:
        count = served.model.model.config.num_hidden_layers
        layers = check_indices("layers", request.layers, count, what="layers", expected="an int or several")
    except ValueError as error:
        raise ServiceError("invalid", str(error), param="layers") from None
    options = TextOptions(
        layers=[layer + 1 for layer in layers],  # its first layer is 0, which is the embeddings here
        pooling=request.pooling,
        modules=False,
        add_special_tokens=True,
    )
    inputs: list[Any]
    if request.is_tokenized:
        tokens = wire.read_token_lists(request.texts, "texts")
        inputs = [[tokenizer.convert_tokens_to_ids(token) for token in row] for row in tokens]
    else:
        inputs = wire.read_inputs(request.texts, "texts", ids=False)
    blank = next((i for i, one in enumerate(inputs) if not (one.strip() if isinstance(one, str) else one)), None)
    if blank is not None:
        raise ServiceError("invalid", f"texts[{blank}] is blank; expected some text.", param="texts")
    prepared = served.prepare(inputs, options, engine.settings)
    shown: dict[str, Any] = {"status": 200, "id": request.id}
    if request.show_tokens:
        limit = served.model.max_seq_length
        ids = GivenIds(served.model, limit, True, "mark")
        rows = [
            ids.encoding(i, one).ids.tolist()
            if isinstance(one, list)
            else tokenizer.encode(one, truncation=True, max_length=limit)
            for i, one in enumerate(inputs)
        ]
        shown["tokens"] = [tokenizer.convert_ids_to_tokens(row) for row in rows]

    def write(vectors: FloatArray) -> bytes:
        return b'{"result":' + answers.list_of_vectors([*vectors]) + b"," + answers.dump(shown)[1:]

    return _work(prepared, write, ignored)


# --- parts ------------------------------------------------------------------------------------------------------------


def _options(request: wire.OpenAIEmbeddingRequest | wire.EmbedRequest, *, normalize: bool | None) -> TextOptions:
    """Return the options that OpenAI's and text-embeddings-inference's requests share."""
    return TextOptions(
        **_truncation(request),
        normalize=normalize,
        dimensions=request.dimensions,
        max_tokens=request.truncate_prompt_tokens,
        input_type=request.input_type,
        layers=request.layers,
        pooling=request.pooling,
        add_special_tokens=bool(request.add_special_tokens),
        low=request.priority == "low",
    )


def _without_effect(
    request: wire.OpenAIEmbeddingRequest | wire.EmbedRequest, inputs: Sequence[Any], default: str
) -> tuple[str, ...]:
    """Return the names of the fields that have no effect on these texts or token ids.

    `default` is what happens to a text that is too long if the request does not say it.
    """
    found = []
    if not inputs or isinstance(inputs[0], str):
        if request.add_special_tokens is False:  # texts always get them, as in `encode`
            found.append("add_special_tokens")
        split = (_truncation(request)["truncation"] or default) == "split"
        if split and request.truncation_direction is not None:
            found.append("truncation_direction")
    else:
        found += [name for name in ("prompt_name", "input_type") if getattr(request, name) is not None]
    return tuple(found)


def _truncation(request: wire.TruncationFields) -> dict[str, Any]:
    """Return the fields that all options share: `truncation`, `side` and `prompt_name`."""
    truncate = request.truncate
    if isinstance(truncate, bool):
        truncate = "mark" if truncate else "error"
    side = None if request.truncation_direction is None else request.truncation_direction.lower()
    return {"truncation": truncate, "side": side, "prompt_name": request.prompt_name}


def _work(
    prepared: Prepared, write: Callable[[Any], bytes], ignored: tuple[str, ...], media_type: str = "application/json"
) -> Work:
    return Work(write, prepared.job, prepared.report, ignored, media_type)


_RERANK = Post("openai", "documents", (wire.RerankRequest,), _rerank, "Sort texts by how well they answer a query")
_COHERE = Post("openai", "texts", (wire.CohereEmbedRequest,), _cohere, "Turn texts into vectors, as Cohere")
_OPENAI = Post("openai", "input", (wire.OpenAIEmbeddingRequest,), _openai, "Turn texts into vectors")

POSTS: Mapping[str, Post] = {
    "/v1/embeddings": _OPENAI,
    "/embeddings": _OPENAI,
    "/v1/embed": _COHERE,
    "/v2/embed": _COHERE,
    "/api/embed": Post("ollama", "input", (wire.OllamaEmbedRequest,), _ollama, "Turn texts into vectors, as Ollama"),
    "/api/embeddings": Post("ollama", "prompt", (wire.OllamaOldRequest,), _ollama_old, "Turn a text into a vector"),
    "/embed": Post("tei", "inputs", (wire.EmbedRequest,), _embed, "Turn texts into vectors"),
    "/": Post("tei", "inputs", (wire.EmbedRequest, wire.SimilarityRequest), _root, "Vectors, or similarities"),
    "/embed_all": Post("tei", "inputs", (wire.EmbedRequest,), _embed_all, "Turn texts into vectors of their tokens"),
    "/similarity": Post("tei", "inputs", (wire.SimilarityRequest,), _similarity, "Compare a sentence with others"),
    "/tokenize": Post("tei", "inputs", (wire.TokenizeRequest,), _tokenize, "Turn texts into tokens", False),
    "/decode": Post("tei", "ids", (wire.DecodeRequest,), _decode, "Turn token ids into texts", False),
    "/predict": Post("tei", "inputs", (wire.PredictRequest,), _predict, "Turn texts or pairs into scores of labels"),
    "/rerank": Post("tei", "texts", (wire.RerankRequest,), _rerank, "Sort texts by how well they answer a query"),
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/encode": Post("bert", "texts", (wire.EncodeRequest,), _encode, "Turn texts into vectors, as bert-as-service"),
}
"""The routes that take a body."""
