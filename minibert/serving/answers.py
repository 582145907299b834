"""Vectors and errors as the bytes of a response."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.serving.libraries import missing
from minibert.serving.settings import ServiceError

try:
    import orjson
except ImportError as error:
    raise missing(error) from error

__all__ = ["STATUS", "array_file", "dump", "error_body", "list_of_vectors", "openai_embeddings", "status_of"]

STATUS: dict[str, dict[str, int]] = {
    "openai": {
        "invalid_json": 400,
        "invalid": 400,
        "empty": 400,
        "too_long": 400,
        "too_many": 400,
        "too_large": 413,
        "media_type": 415,
        "model": 404,
        "key": 401,
        "not_found": 404,
        "method": 405,
        "slow": 408,
        "overloaded": 429,
        "unavailable": 503,
        "unsupported": 400,
        "failed": 500,
    },
}
"""The status of each kind of error, by protocol. Elasticsearch halves a text after 413, or after 400 for "too_long"."""

STATUS["bert"] = STATUS["openai"]
STATUS["tei"] = {**STATUS["openai"], "invalid": 422, "too_long": 413, "too_many": 413, "unsupported": 424}

STATUS["ollama"] = {**STATUS["openai"], "overloaded": 503}

_OPENAI_CODES = {
    "too_long": "context_length_exceeded",
    "model": "model_not_found",
    "invalid_json": "invalid_json",
    "key": "invalid_api_key",
    "overloaded": "overloaded",
    "unavailable": "unavailable",
    "unsupported": "unsupported",
    "failed": "server_error",
}
_OLLAMA_WORDS = {"too_long": "the input length exceeds the context length: ", "overloaded": "server busy: "}
_TEI_TYPES = {
    "empty": "Empty",
    "overloaded": "Overloaded",
    "unavailable": "Unhealthy",
    "unsupported": "Backend",
    "failed": "Backend",
}


def dump(value: Any) -> bytes:
    """Return the JSON of a value that may hold NumPy arrays; float32 has the fewest digits that restore it."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def list_of_vectors(vectors: Sequence[FloatArray]) -> bytes:
    """Return a JSON list of vectors, or of arrays of vectors."""
    return _joined(b"[", map(dump, map(np.ascontiguousarray, vectors)), b"]")


def array_file(vectors: FloatArray) -> bytes:
    """Return the bytes of vectors as little-endian float32."""
    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def openai_embeddings(vectors: FloatArray, encoding: str, rest: dict[str, Any]) -> bytes:
    """Return OpenAI's answer; `rest` are its fields after the vectors."""

    def entries() -> Iterator[bytes]:
        for index, vector in enumerate(np.ascontiguousarray(vectors)):
            shown = base64.b64encode(array_file(vector)).decode() if encoding == "base64" else vector
            yield dump({"object": "embedding", "index": index, "embedding": shown})

    return _joined(b'{"object":"list","data":[', entries(), b"]," + dump(rest)[1:])


def _joined(start: bytes, parts: Iterator[bytes], end: bytes) -> bytes:
    return b"".join([start, b",".join(parts), end])


def status_of(error: ServiceError, family: str) -> int:
    """Return the status of an error in a protocol."""
    return STATUS[family][error.kind]


def error_body(error: ServiceError, family: str, field: str) -> bytes:
    """Return the JSON of an error in a protocol: "openai", "tei", "ollama" or "bert".

    Parameters
    ----------
    error : ServiceError
    family : str
    field : str
        What the protocol calls the field with the texts.
    """
    message = re.sub(r"\binputs?(?=\[)", field, error.message)
    if family == "tei":
        if error.kind == "too_long":
            message += f" `inputs` must have less than {error.limit} tokens. Given: {error.given}"
        return dump({"error": message, "error_type": _TEI_TYPES.get(error.kind, "Validation")})
    if family == "ollama":  # clients look for the beginning of these texts
        message = re.sub(r"^the model (.*?) is not served here", r"model \1 not found: it is not served here", message)
        return dump({"error": _OLLAMA_WORDS.get(error.kind, "") + message})
    if family == "bert":
        return dump({"status": status_of(error, family), "error": message})
    if error.kind == "too_long":  # clients look for the end of this text
        message += (
            f" This model's maximum context length is {error.limit} tokens, however you requested {error.given} tokens "
            f"({error.given} in your prompt; 0 for the completion). Please reduce your prompt; or completion length."
        )
    kind = "server_error" if status_of(error, family) >= 500 else "invalid_request_error"
    if error.kind == "overloaded":
        kind = "rate_limit_error"
    param = field if error.param in ("input", "inputs") else error.param
    code = _OPENAI_CODES.get(error.kind)
    return dump({"error": {"message": message, "type": kind, "param": param or None, "code": code}})
