"""bert-as-service's protocol. Source: bert-as-service 1.10, server/bert_serving/server/http.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert._utils.validation import FloatArray, check_indices
from minibert.serving import protocols as base
from minibert.serving.embedder import Embedder, TextOptions, encoding_of_ids
from minibert.serving.engine import Engine
from minibert.serving.settings import ServiceError


class EncodeRequest(base.Struct, kw_only=True):
    """bert-as-service's request; texts are lists of tokens with `is_tokenized`."""

    texts: base.Raw
    id: int | str | None = None
    is_tokenized: bool = False
    show_tokens: bool = False
    layers: int | list[int] = -2
    pooling: str | list[str] = "REDUCE_MEAN"


def _error(error: ServiceError, field: str, message: str) -> dict[str, Any]:
    return {"status": base.STATUS[error.kind], "error": message}


def _encode(engine: Engine, request: EncodeRequest, ignored: tuple[str, ...]) -> base.Work:
    served = engine.models.of(Embedder)
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
    if request.is_tokenized:
        inputs: list[Any] = [
            [tokenizer.convert_tokens_to_ids(token) for token in row] for row in base.read_lists(request.texts, "texts")
        ]
        base.not_empty(inputs, "texts")
    else:
        inputs = base.read_inputs(request.texts, "texts", ids=False)
    blank = next((i for i, one in enumerate(inputs) if not (one.strip() if isinstance(one, str) else one)), None)
    if blank is not None:
        raise ServiceError("invalid", f"texts[{blank}] is blank; expected some text.", param="texts")
    prepared = served.prepare(inputs, options, engine.settings)
    shown: dict[str, Any] = {"status": 200, "id": request.id}
    if request.show_tokens:
        rows = [
            encoding_of_ids(served.model, i, one, True, "mark").ids.tolist()
            if isinstance(one, list)
            else tokenizer.encode(one, truncation=True, max_length=served.model.max_seq_length)
            for i, one in enumerate(inputs)
        ]
        shown["tokens"] = [tokenizer.convert_ids_to_tokens(row) for row in rows]

    def write(vectors: FloatArray) -> bytes:
        return b'{"result":' + base.list_of_vectors([*vectors]) + b"," + base.dump(shown)[1:]

    return base.Work(write, prepared, ignored)


POSTS: Mapping[str, base.Post] = {"/encode": base.Post(base.Errors("bert", _error), "texts", EncodeRequest, _encode)}
