"""The requests of the protocols as typed structs, and their JSON read with errors that name the place."""

from __future__ import annotations

import functools
import re
from typing import Annotated, Any, Literal, TypeVar

from minibert.serving.libraries import missing
from minibert.serving.settings import ServiceError

try:
    import msgspec
except ImportError as error:
    raise missing(error) from error

__all__ = [
    "CohereEmbedRequest",
    "DecodeRequest",
    "EmbedRequest",
    "EncodeRequest",
    "OllamaEmbedRequest",
    "OllamaOldRequest",
    "OllamaShowRequest",
    "OpenAIEmbeddingRequest",
    "PredictRequest",
    "RerankDocument",
    "RerankRequest",
    "RootRequest",
    "SimilarityInputs",
    "SimilarityRequest",
    "TokenizeRequest",
    "TruncationFields",
    "decode",
    "is_object",
    "read_inputs",
    "read_pairs",
    "read_token_lists",
]

_Texts = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        description="A text, several texts, the token ids of one text, or those of several.",
        extra_json_schema={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ]
        },
    ),
]
_OneOrMore = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class TruncationFields(msgspec.Struct, kw_only=True):
    """What happens to texts that are too long, and which prompt goes before each text."""

    truncate: bool | str | None = None
    truncation_direction: str | None = None
    prompt_name: str | None = None


class _VectorFields(TruncationFields, kw_only=True):
    dimensions: int | None = None
    input_type: str | None = None
    truncate_prompt_tokens: int | None = None
    normalize: bool | None = None
    layers: int | list[int] | None = None
    pooling: str | list[str] | None = None
    add_special_tokens: bool | None = None
    priority: Literal["low", "normal"] | None = None


class OpenAIEmbeddingRequest(_VectorFields, kw_only=True):
    """OpenAI's request for embeddings; the fields beyond OpenAI's are extensions."""

    input: _Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None


class EmbedRequest(_VectorFields, kw_only=True):
    """text-embeddings-inference's request for vectors of texts, or of tokens."""

    inputs: _Texts
    model: str | None = None


class RootRequest(msgspec.Struct):
    """The fields that say what a request to "/" asks for."""

    inputs: msgspec.Raw = msgspec.Raw()
    query: msgspec.Raw = msgspec.Raw()
    model: str | None = None


class SimilarityInputs(msgspec.Struct):
    """A sentence, and those that are compared with it."""

    source_sentence: str
    sentences: list[str]


class SimilarityRequest(TruncationFields, kw_only=True):
    """text-embeddings-inference's request for similarities. The parameters may be beside the inputs."""

    inputs: SimilarityInputs
    parameters: TruncationFields | None = None
    model: str | None = None


class PredictRequest(TruncationFields, kw_only=True):
    """text-embeddings-inference's request for the labels of texts, or of pairs of texts."""

    inputs: Annotated[
        msgspec.Raw,
        msgspec.Meta(
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


class RerankDocument(msgspec.Struct):
    """A text in Cohere's older form."""

    text: str


class RerankRequest(TruncationFields, kw_only=True):
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


class CohereEmbedRequest(msgspec.Struct, kw_only=True):
    """Cohere's request for embeddings."""

    texts: list[str]
    model: str | None = None
    input_type: str | None = None
    embedding_types: list[str] | None = None
    output_dimension: int | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    prompt_name: str | None = None


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    """Ollama's request for embeddings."""

    input: _OneOrMore
    model: str | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    prompt_name: str | None = None


class OllamaOldRequest(msgspec.Struct, kw_only=True):
    """Ollama's older request, for one text."""

    prompt: str
    model: str | None = None


class OllamaShowRequest(msgspec.Struct, kw_only=True):
    """Ollama's request for the description of a model; `name` is its older spelling."""

    model: str | None = None
    name: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """text-embeddings-inference's request for the tokens of texts."""

    inputs: _OneOrMore
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class DecodeRequest(msgspec.Struct, kw_only=True):
    """text-embeddings-inference's request for the text of token ids."""

    ids: Annotated[
        msgspec.Raw,
        msgspec.Meta(
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


class EncodeRequest(msgspec.Struct, kw_only=True):
    """bert-as-service's request; texts are lists of tokens with `is_tokenized`."""

    texts: Annotated[
        msgspec.Raw,
        msgspec.Meta(
            extra_json_schema={
                "anyOf": [
                    {"type": "array", "items": {"type": "string"}},
                    {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
                ]
            }
        ),
    ]
    id: int | str | None = None
    is_tokenized: bool = False
    show_tokens: bool = False
    layers: int | list[int] = -2
    pooling: str | list[str] = "REDUCE_MEAN"


_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_CHOICES = {
    "encoding_format": "float or base64",
    "priority": "low or normal",
    "truncate": "NONE, START or END",
}
_MOST_IGNORED = 100  # names that are reported
_MOST_BYTES = 2**16  # of a body whose values are not counted
_MOST_VALUES = {b"[": 2**16, b"{": 2**16, b":": 2**16, b",": 2**21}
_MOST_STRINGS = 2**20
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


def decode(body: bytes, kind: type[_Struct]) -> tuple[_Struct, tuple[str, ...]]:
    """Read a request; return it, and the names of the fields that it has and `kind` does not.

    Raises
    ------
    ServiceError
        The body is not JSON, or a field has the wrong type.
    """
    _check_values(body)
    content: dict[str, Any] = _decode(body, dict[str, msgspec.Raw], "")
    known = _names(kind)
    ignored = tuple(name for name in content if name not in known)[:_MOST_IGNORED]
    return _decode(body, kind, ""), ignored


def _check_values(body: bytes) -> None:
    """Refuse JSON of very many small values: while the decoder makes them, no other thread can work."""
    quotes = body.count(b'"')
    if len(body) <= _MOST_BYTES or (
        quotes <= 2 * _MOST_STRINGS and all(body.count(mark) <= most for mark, most in _MOST_VALUES.items())
    ):
        return
    parts = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 2 * _MOST_STRINGS)
    outside = b"".join(parts[::2])  # of strings
    if len(parts) > 2 * _MOST_STRINGS or any(outside.count(mark) > most for mark, most in _MOST_VALUES.items()):
        raise ServiceError("too_large", "the body has too many values; send fewer texts, or ids, in each request.")


@functools.cache
def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names of a struct's fields; msgspec evaluates its annotations each time."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def is_object(raw: msgspec.Raw) -> bool:
    """Return whether a value is a JSON object."""
    return _first(raw) == b"{"


def read_inputs(raw: msgspec.Raw, field: str, *, ids: bool = True) -> list[Any]:
    """Read a text, texts, or token ids: the list of texts, or of lists of ids.

    Raises
    ------
    ServiceError
        The value is none of these, or an empty list.
    """
    start = _first(raw)
    if start == b'"':
        return [_decode(raw, str, field)]
    if start != b"[":
        raise ServiceError("invalid", f"{field} is {_name(start)}; expected a text or a list of texts.", param=field)
    inner = bytes(raw).lstrip()[1:].lstrip()[:1]
    if inner == b"]":
        raise ServiceError("empty", f"{field} is an empty list; expected at least one text.", param=field)
    if not ids or inner not in b"[-0123456789":
        texts: list[str] = _decode(raw, list[str], field)
        return texts
    if inner == b"[":
        several: list[list[int]] = _decode(raw, list[list[int]], field)
        return several
    return [_decode(raw, list[int], field)]


def read_pairs(raw: msgspec.Raw, field: str) -> tuple[list[tuple[str, str | None]], bool]:
    """Read a text, a pair, or a list of lists with one text or two; return the list, and whether it was one.

    Raises
    ------
    ServiceError
        The value is something else, or an empty list.
    """
    several = _first(raw) == b"[" and bytes(raw).lstrip()[1:].lstrip()[:1] == b"["
    if several:
        rows: list[list[str]] = _decode(raw, list[list[str]], field)
    else:
        rows = [read_inputs(raw, field, ids=False)]
    for index, row in enumerate(rows):
        if not 1 <= len(row) <= 2:
            where = f"{field}[{index}]" if several else field
            hint = "" if several else f" Send several texts as [[text], [text]]; {field} as a list is a pair."
            raise ServiceError(
                "invalid", f"{where} has {len(row)} texts; expected one, or a pair of two.{hint}", param=field
            )
    return [(row[0], row[1] if len(row) == 2 else None) for row in rows], not several


def read_token_lists(raw: msgspec.Raw, field: str) -> list[list[str]]:
    """Read texts that are given as lists of tokens."""
    tokens: list[list[str]] = _decode(raw, list[list[str]], field)
    if not tokens:
        raise ServiceError("empty", f"{field} is an empty list; expected at least one text.", param=field)
    return tokens


def _decode(body: bytes | msgspec.Raw, kind: Any, field: str) -> Any:
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        place = (field + place.rstrip("`")).removeprefix(".")
        if place.startswith("["):  # a key of the object itself
            place = "the body"
        where = f"{place}: " if place else "the body: "
        if message.startswith("Invalid enum value") and place in _CHOICES:
            message += f", expected {_CHOICES[place]}"
        raise ServiceError(
            "invalid", f"{where}{message.replace('`', '')}.", param=re.sub(r"[\[.].*", "", place)
        ) from None
    except RecursionError:
        raise ServiceError("invalid_json", "the body has too many nested brackets.") from None
    except UnicodeDecodeError:
        raise ServiceError("invalid_json", "the body is not UTF-8.") from None
    except msgspec.DecodeError as error:
        if not bytes(body).strip():
            raise ServiceError("invalid_json", "the body is not JSON: it is empty; expected an object.") from None
        if _HALF_CHARACTER.search(bytes(body)):
            half = " A \\ud800 to \\udfff without its other half is not a character; leave it out."
        else:
            half = ""
        raise ServiceError("invalid_json", f"the body is not JSON: {error}.{half}") from None


def _first(raw: msgspec.Raw) -> bytes:
    return bytes(raw).lstrip()[:1]


def _name(start: bytes) -> str:
    names = {b"{": "an object", b"n": "null", b"t": "true", b"f": "false"}
    return names.get(start, "a number")
