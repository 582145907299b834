"""A route of minibert's own: the hidden states of all tokens of texts, with the tokens, their places and words."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from minibert._utils.validation import FloatArray
from minibert.encode.static import StaticModel
from minibert.serving.engine import Engine
from minibert.serving.protocols import common
from minibert.serving.protocols.openai import ERRORS
from minibert.serving.served_models import TextEmbedder, VectorOptions
from minibert.serving.settings import ServiceError
from minibert.vectors.layers import resolve_layers


class HiddenStatesRequest(Struct, kw_only=True):
    """A request for hidden states. A text that is too long is refused, and no prompt is put before the texts."""

    inputs: common.Texts
    model: str | None = None
    layers: int | list[int] = -1
    encoding_format: Literal["float", "base64"] | None = None


def _answer(engine: Engine, request: HiddenStatesRequest, ignored: tuple[str, ...]) -> common.Work:
    served = engine.models.of(TextEmbedder, request.model)
    if isinstance(served.model.model, StaticModel):
        raise ServiceError("invalid", f"{served.name} is static and has no hidden states. Ask for its vectors: /embed.")
    options = VectorOptions(layers=request.layers, tokens=True, truncation="error", prompted=False)
    prepared = served.prepare(common.listed(request.inputs, "inputs"), options)
    layers = resolve_layers(request.layers, served.model.model.config.num_hidden_layers)
    rest = {"model": served.name, "layers": layers, "usage": common.openai_usage(prepared.usage)}
    rest |= common.notes_of(prepared.usage, ignored)

    def states_of(text: FloatArray) -> Iterator[bytes]:
        for state in np.split(text, len(layers), axis=1):  # (T, H) of each layer
            if request.encoding_format == "base64":
                yield common.dump(base64.b64encode(common.array_file(state)).decode())
            else:
                yield b"".join(common.list_of_vectors(state))

    def write(texts: Iterable[FloatArray]) -> Iterator[bytes]:
        for index, (text, encoding) in enumerate(zip(texts, prepared.encodings, strict=True)):
            shape = [len(layers), len(text), text.shape[1] // len(layers)]
            about = {"index": index, "tokens": encoding.tokens, "offsets": encoding.offsets, "words": encoding.word_ids}
            yield b'{"data":[' if index == 0 else b","
            yield common.dump({**about, "shape": shape})[:-1] + b',"hidden_states":'
            yield from common.joined(b"[", states_of(text), b"]}")
        yield b"]," + common.dump(rest)[1:]

    return common.Work(write, prepared, ignored)


_POST = common.Post("inputs", HiddenStatesRequest, _answer)
PROTOCOL = common.Protocol(ERRORS, {"/hidden_states": _POST})
