"""bert-as-service's protocol. Source: bert-as-service 1.10, server/bert_serving/server/http.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from minibert._utils.validation import FloatArray, check_indices
from minibert.serving.engine import Engine
from minibert.serving.protocols import common
from minibert.serving.served_models import TextEmbedder, VectorOptions
from minibert.serving.settings import ServiceError, blamed_on


class EncodeRequest(Struct, kw_only=True):
    """bert-as-service's request; texts are lists of tokens with `is_tokenized`."""

    texts: common.Pairs
    id: int | str | None = None
    is_tokenized: bool = False
    show_tokens: bool = False
    layers: int | list[int] = -2
    pooling: str | list[str] = "REDUCE_MEAN"


def _error(error: ServiceError) -> dict[str, Any]:
    param = {"param": error.param} if error.param else {}  # the client has other names
    return {"status": common.STATUS[error.kind], "error": str(error), **param}


def _encode(engine: Engine, request: EncodeRequest, ignored: tuple[str, ...]) -> common.Work:
    served = engine.models.of(TextEmbedder)
    tokenizer = served.model.tokenizer
    count = served.model.model.config.num_hidden_layers
    with blamed_on("layers"):
        layers = check_indices("layers", request.layers, count, what="layers", expected="an int or several")
    states = [layer + 1 for layer in layers]  # its first layer is 0; here 0 is the embeddings
    options = VectorOptions(layers=states, pooling=request.pooling, modules=False, add_special_tokens=True)
    inputs = common.listed(request.texts, "texts")
    if isinstance(inputs[0], list) != request.is_tokenized:
        message = f"texts[0] does not fit is_tokenized={request.is_tokenized}, which is for lists of tokens."
        raise ServiceError("invalid", message, param="texts")
    if request.is_tokenized:
        inputs = [[tokenizer.convert_tokens_to_ids(token) for token in row] for row in inputs]
    blank = next((i for i, text in enumerate(inputs) if not (text.strip() if isinstance(text, str) else text)), None)
    if blank is not None:
        raise ServiceError("invalid", f"texts[{blank}] is blank; expected some text.", param="texts")
    prepared = served.prepare(inputs, options)
    answer: dict[str, Any] = {"status": 200, "id": request.id}
    if request.show_tokens:
        answer["tokens"] = [tokenizer.convert_ids_to_tokens(encoding.ids.tolist()) for encoding in prepared.encodings]

    def write(vectors: FloatArray) -> Iterator[bytes]:
        return common.list_of_vectors(vectors, b'{"result":[', b"]," + common.dump(answer)[1:])

    return common.Work(write, prepared, ignored)


_ERRORS = common.Errors(_error)
PROTOCOL = common.Protocol(_ERRORS, {"/encode": common.Post("texts", EncodeRequest, _encode)})
