"""What each route does: a request's body -> a job for the engine, and the bytes of its answer. There is no HTTP in it.

Sources: OpenAI's API reference, "Create embeddings"; text-embeddings-inference 1.9, router/src/http/types.rs and
server.rs; bert-as-service 1.10, server/bert_serving/server/http.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minibert.base.arrays import FloatArray
from minibert.serving import answers, wire
from minibert.serving.engine import Engine
from minibert.serving.errors import ServiceError
from minibert.serving.scheduler import Job
from minibert.serving.served_model import Prepared, Report, ServedModel, TextOptions
from minibert.similarity import pairwise_cos_sim

__all__ = ["POSTS", "Post", "Work", "info", "model_list", "model_object"]

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
    family : {"openai", "tei", "bert"}
        The shape of its errors.
    field : str
        The name of the field with the texts.
    kinds : tuple of structs
        What its body may be.
    read : callable
        (engine, body, Accept header) -> Work. It runs in a thread that may take its time.
    summary : str
    """

    family: str
    field: str
    kinds: tuple[type, ...]
    read: Callable[[Engine, bytes, str], Work]
    summary: str


# --- OpenAI -----------------------------------------------------------------------------------------------------------


def _openai(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.OpenAIEmbeddingRequest)
    served = engine.model(request.model)
    inputs = wire.read_inputs(request.input, "input")
    prepared = served.prepare(inputs, _options(request, normalize=request.normalize), engine.settings)
    report = prepared.report
    total = sum(report.n_tokens)
    rest: dict[str, Any] = {"model": served.name, "usage": {"prompt_tokens": total, "total_tokens": total}}
    rest |= {"truncated": report.truncated} if report.truncated else {}
    rest |= {"ignored": ignored} if ignored else {}
    rest |= {"prompt_name": report.prompt_name} if report.prompt_name is not None else {}
    encoding = request.encoding_format or "float"
    return _work(prepared, lambda vectors: answers.openai_embeddings(vectors, encoding, rest), ignored)


def model_object(served: ServedModel) -> dict[str, Any]:
    """Return OpenAI's description of a model."""
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "minibert",
        "embedding_dimension": served.model.get_embedding_dimension(),
        "max_input_length": served.model.max_seq_length,
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
    prepared = engine.model().prepare(inputs, options, engine.settings)
    if "application/octet-stream" in accept:
        return _work(prepared, answers.array_file, ignored, "application/octet-stream")
    return _work(prepared, answers.list_of_vectors, ignored)


def _embed_all(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.EmbedRequest)
    inputs = wire.read_inputs(request.inputs, "inputs")
    for name in ("dimensions", "pooling"):
        if getattr(request, name) is not None:
            ignored = (*ignored, name)
    options = dataclasses.replace(
        _options(request, normalize=request.normalize), tokens=True, dimensions=None, pooling=None
    )
    prepared = engine.model().prepare(inputs, options, engine.settings)
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
    prepared = engine.model().prepare(texts, _truncation(given), engine.settings)

    def write(vectors: FloatArray) -> bytes:
        source = np.broadcast_to(vectors[:1], vectors[1:].shape)
        return answers.dump(np.asarray(pairwise_cos_sim(source, vectors[1:]), dtype=np.float32))

    return _work(prepared, write, ignored)


def _tokenize(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.TokenizeRequest)
    texts = wire.read_inputs(request.inputs, "inputs", ids=False)
    served = engine.model()
    _check_number(texts, engine)
    if sum(map(len, texts)) > _MOST_CHARACTERS:
        raise ServiceError(
            "too_large",
            f"inputs have {sum(map(len, texts))} characters; the limit of this route is {_MOST_CHARACTERS}.",
        )
    name = served.prompt_of(request.prompt_name, None, None) if request.prompt_name is not None else None
    prompt = served.model.prompts[name] if name else ""
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
    _check_number(rows, engine)
    if sum(map(len, rows)) > _MOST_CHARACTERS:
        raise ServiceError("too_large", f"ids has {sum(map(len, rows))} numbers; the limit is {_MOST_CHARACTERS}.")
    try:
        texts = engine.model().model.tokenizer.batch_decode(rows, skip_special_tokens=request.skip_special_tokens)
    except (TypeError, ValueError) as error:
        raise ServiceError("invalid", f"ids: {error}", param="ids") from error
    return Work(lambda _: answers.dump(texts), ignored=ignored)


def _needs_head(engine: Engine, body: bytes, accept: str) -> Work:
    raise ServiceError(
        "unsupported",
        f"the model {engine.model().name} gives vectors of texts; this route needs a model that classifies texts.",
    )


def info(engine: Engine, version: str) -> dict[str, Any]:
    """Return text-embeddings-inference's description of the service and its first model."""
    served, settings = engine.model(), engine.settings
    return {
        "model_id": served.name,
        "model_sha": None,
        "model_dtype": "float32",
        "served_model_name": served.name,
        "model_type": {"embedding": {"pooling": "+".join(served.model.pipeline.pooling)}},
        "max_concurrent_requests": None,
        "max_input_length": served.model.max_seq_length,
        "max_batch_tokens": 1024,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_inputs,
        "auto_truncate": settings.truncation == "mark",
        "tokenization_workers": 2,
        "version": version,
        "sha": None,
        "docker_label": None,
        "embedding_dimension": served.model.get_embedding_dimension(),
        "models": [*engine.models],
    }


# --- bert-as-service --------------------------------------------------------------------------------------------------


def _encode(engine: Engine, body: bytes, accept: str) -> Work:
    request, ignored = wire.decode(body, wire.EncodeRequest)
    served = engine.model()
    tokenizer = served.model.tokenizer
    layers = request.layers if isinstance(request.layers, list) else [request.layers]
    options = TextOptions(
        layers=[layer + (layer >= 0) for layer in layers],  # its first layer is 0, which is the embeddings here
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
        rows = [
            one if isinstance(one, list) else tokenizer.encode(one, truncation=True, max_length=limit) for one in inputs
        ]
        shown["tokens"] = [tokenizer.convert_ids_to_tokens(row) for row in rows]

    def write(vectors: FloatArray) -> bytes:
        return b'{"result":' + answers.list_of_vectors([*vectors]) + b"," + answers.dump(shown)[1:]

    return _work(prepared, write, ignored)


# --- parts ------------------------------------------------------------------------------------------------------------


def _options(request: wire.OpenAIEmbeddingRequest | wire.EmbedRequest, *, normalize: bool | None) -> TextOptions:
    """Return the options that OpenAI's and text-embeddings-inference's requests share."""
    return dataclasses.replace(
        _truncation(request),
        normalize=normalize,
        dimensions=request.dimensions,
        max_tokens=request.truncate_prompt_tokens,
        input_type=request.input_type,
        layers=request.layers,
        pooling=request.pooling,
        add_special_tokens=request.add_special_tokens,
        low=request.priority == "low",
    )


def _truncation(request: wire.TruncationFields) -> TextOptions:
    truncate = request.truncate
    if isinstance(truncate, bool):
        truncate = "mark" if truncate else "error"
    side = None if request.truncation_direction is None else request.truncation_direction.lower()
    return TextOptions(truncation=truncate, side=side, prompt_name=request.prompt_name)


def _check_number(inputs: Sequence[Any], engine: Engine) -> None:
    limit = engine.settings.max_inputs
    if len(inputs) > limit:
        raise ServiceError("too_many", f"the request has {len(inputs)} inputs; the limit is {limit}.")


def _work(
    prepared: Prepared, write: Callable[[Any], bytes], ignored: tuple[str, ...], media_type: str = "application/json"
) -> Work:
    return Work(write, prepared.job, prepared.report, ignored, media_type)


_OPENAI = Post("openai", "input", (wire.OpenAIEmbeddingRequest,), _openai, "Turn texts into vectors")

POSTS: Mapping[str, Post] = {
    "/v1/embeddings": _OPENAI,
    "/embeddings": _OPENAI,
    "/embed": Post("tei", "inputs", (wire.EmbedRequest,), _embed, "Turn texts into vectors"),
    "/": Post("tei", "inputs", (wire.EmbedRequest, wire.SimilarityRequest), _root, "Vectors, or similarities"),
    "/embed_all": Post("tei", "inputs", (wire.EmbedRequest,), _embed_all, "Turn texts into vectors of their tokens"),
    "/similarity": Post("tei", "inputs", (wire.SimilarityRequest,), _similarity, "Compare a sentence with others"),
    "/tokenize": Post("tei", "inputs", (wire.TokenizeRequest,), _tokenize, "Turn texts into tokens"),
    "/decode": Post("tei", "ids", (wire.DecodeRequest,), _decode, "Turn token ids into texts"),
    "/predict": Post("tei", "inputs", (), _needs_head, "Not there: it needs a model that classifies"),
    "/rerank": Post("tei", "texts", (), _needs_head, "Not there: it needs a model that classifies"),
    "/encode": Post("bert", "texts", (wire.EncodeRequest,), _encode, "Turn texts into vectors, as bert-as-service"),
}
"""The routes that take a body."""
