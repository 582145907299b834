"""What the protocols share: routes, parsed requests, JSON, common fields, errors."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
import orjson
from msgspec import Raw, Struct

from minibert._utils.validation import FloatArray
from minibert.serving.engine import Engine
from minibert.serving.served_models import Prepared, Usage, VectorOptions
from minibert.serving.settings import ErrorKind, ServiceError

STATUS: Mapping[ErrorKind, int] = {
    **dict.fromkeys(get_args(ErrorKind), 400),
    **{"too_large": 413, "media_type": 415, "model": 404, "key": 401, "not_found": 404, "method": 405, "slow": 408},
    **{"overloaded": 429, "unavailable": 503, "failed": 500},
}
"""The status of each kind of error. Elasticsearch halves a text after 413, or after 400 for "too_long"."""


@dataclasses.dataclass(frozen=True)
class Errors:
    """The shape of a protocol's errors.

    Parameters
    ----------
    content : callable
        (error) -> the JSON.
    statuses : mapping of str to int
    """

    content: Callable[[ServiceError], dict[str, Any]]
    statuses: Mapping[ErrorKind, int] = dataclasses.field(default_factory=lambda: STATUS)

    def body(self, error: ServiceError, field: str) -> bytes:
        """Return the JSON of an error; `field` is the protocol's name of the field with the texts."""
        if error.param == "input":  # the name that all models use
            error = dataclasses.replace(error, param=field)
        return dump(self.content(error))


@dataclasses.dataclass(frozen=True)
class Work:
    """A request that was parsed.

    Parameters
    ----------
    write : callable
        Makes the body of the answer, in pieces, from the job's value; without a job, from None.
    prepared : Prepared, optional
        Its job, and what was done to its texts.
    ignored : tuple of str
        Fields of the request without an effect.
    write_bytes : callable, optional
        Makes the body for clients that accept raw bytes.
    """

    write: Callable[[Any], Iterable[bytes]]
    prepared: Prepared | None = None
    ignored: tuple[str, ...] = ()
    write_bytes: Callable[[Any], Iterable[bytes]] | None = None


@dataclasses.dataclass(frozen=True)
class Post:
    """A route that takes a body.

    Parameters
    ----------
    field : str
        The name of the field with the texts.
    struct : class
        What its body is.
    answer : callable
        (engine, struct, fields that the struct does not have) -> Work. It runs in a thread that may take its time.
    computes : bool
        Its answers need the engine.
    errors : Errors, optional
        Default: the protocol's.
    """

    field: str
    struct: type[Struct]
    answer: Callable[[Engine, Any, tuple[str, ...]], Work]
    _: dataclasses.KW_ONLY
    computes: bool = True
    errors: Errors | None = None

    def read(self, engine: Engine, body: bytes) -> Work:
        """Read a request; ServiceError if it is wrong."""
        return self.answer(engine, *decode(body, self.struct))


@dataclasses.dataclass(frozen=True)
class Protocol:
    """The routes of a protocol, and the shape of its errors.

    Parameters
    ----------
    errors : Errors
        Of its routes, but for a `Post` that has others.
    posts : mapping of str to Post
        By path.
    gets : mapping of str to callable
        Path -> (the `Service`) -> the bytes of the answer, or what its JSON is made of.
    named : mapping of str to callable
        The start of a path -> (the `Service`, name=the rest of the path) -> the same.
    prefixes : tuple of str
        Other paths that begin so have these errors, too.
    """

    errors: Errors
    posts: Mapping[str, Post]
    gets: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    named: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    prefixes: tuple[str, ...] = ()


# --- fields that several protocols have -------------------------------------------------------------------------------


Texts = str | list[str]
Inputs = str | list[str | int | list[int]]
"""A text, texts, token ids, or lists of token ids."""
Pairs = str | list[str | list[str]]
"""A text, a pair, or lists of one text or two."""


class Fields(Struct, kw_only=True):
    """The fields for the model, for texts that are too long, and for the prompt before each text."""

    model: str | None = None
    truncate: bool | str | None = None
    truncation_direction: str | None = None
    prompt_name: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the options that these fields set."""
        truncation, side = truncation_of(self.truncate), self.truncation_direction
        return {"truncation": truncation, "side": side and side.lower(), "prompt_name": self.prompt_name}


def truncation_of(truncate: bool | str | None) -> str | None:
    """Return what a request asks for by its field `truncate`, in the words of `Settings`."""
    return ("mark" if truncate else "error") if isinstance(truncate, bool) else truncate


class VectorFields(Fields, kw_only=True):
    """The fields of requests for vectors in OpenAI's and text-embeddings-inference's protocols."""

    dimensions: int | None = None
    input_type: str | None = None
    task: str | None = None
    truncate_prompt_tokens: int | None = None
    normalize: bool | None = None
    layers: int | list[int] | None = None
    pooling: str | list[str] | None = None
    add_special_tokens: bool | None = None

    def text_options(self, **more: Any) -> VectorOptions:
        """Return the options that these fields set; `more` overrides them."""
        fields = {name: getattr(self, name) for name in ("normalize", "dimensions", "layers", "pooling")}
        fields["input_type"] = same(input_type=self.input_type, task=self.task)
        fields["max_tokens"] = self.truncate_prompt_tokens
        fields["add_special_tokens"] = bool(self.add_special_tokens)
        return VectorOptions(**{**self.options(), **fields, **more})

    def without_effect(self, inputs: Sequence[Any], default: str) -> tuple[str, ...]:
        """Return the names of the fields that have no effect on these texts or token ids.

        `default` is what happens to a text that is too long if the request does not say it.
        """
        if inputs and not isinstance(inputs[0], str):
            return tuple(name for name in ("prompt_name", "input_type", "task") if getattr(self, name) is not None)
        ignored = ["add_special_tokens"] if self.add_special_tokens is False else []  # texts always get them
        if (self.options()["truncation"] or default) == "split" and self.truncation_direction is not None:
            ignored.append("truncation_direction")
        return tuple(ignored)


def notes_of(usage: Usage, ignored: tuple[str, ...]) -> dict[str, Any]:
    """Return an answer's fields about texts that were cut and about ignored fields, if there are any."""
    notes: dict[str, Any] = {"truncated": usage.truncated} if usage.truncated else {}
    return notes | ({"ignored": ignored} if ignored else {})


def openai_usage(usage: Usage) -> dict[str, int]:
    """Return OpenAI's count of tokens."""
    total = sum(usage.n_tokens)
    return {"prompt_tokens": total, "total_tokens": total}


# --- from JSON --------------------------------------------------------------------------------------------------------

_Struct = TypeVar("_Struct", bound=Struct)

_CHOICES = {"encoding_format": "float or base64", "truncate": "NONE, START or END"}
_MOST_IGNORED = 100  # names that are reported
_MOST_BYTES = 2**16  # of a body whose values are not counted
_MOST_VALUES = {b"[": 2**16, b"{": 2**16, b":": 2**16, b",": 2**21}
_MOST_STRINGS = 2**20
_SLICE = 2**18  # bytes that are looked at at a time
_REST_OF_ESCAPES = re.compile(rb"\\*[\s\S]?")
_NULL = Raw(b"null")
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


def decode(body: bytes, struct: type[_Struct]) -> tuple[_Struct, tuple[str, ...]]:
    """Parse a request; return it, and the names of its fields that `struct` does not have.

    A field that is null is not given, unless `struct` requires it.

    Raises
    ------
    ServiceError
        The body is not JSON, or a field has the wrong type.
    """
    _check_values(body)
    try:
        fields = msgspec.json.decode(body, type=dict[str, Raw])
        # Some clients write null for each field that they do not set.
        sent = {name: raw for name, raw in fields.items() if raw != _NULL or _names(struct).get(name)}
        content = msgspec.json.decode(body if len(sent) == len(fields) else msgspec.json.encode(sent), type=struct)
    except msgspec.ValidationError as error:
        message, _, place = str(error).replace("`", "").partition(" - at $")
        place = place.removeprefix(".")
        if message.startswith("Invalid enum value") and place in _CHOICES:
            message += f", expected {_CHOICES[place]}"
        param = re.sub(r"[\[.].*", "", place)
        raise ServiceError("invalid", f"{place or 'the body'}: {message}.", param=param) from None
    except RecursionError:
        raise ServiceError("invalid_json", "the body has too many nested brackets.") from None
    except UnicodeDecodeError:
        raise ServiceError("invalid_json", "the body is not UTF-8.") from None
    except msgspec.DecodeError as error:
        if "UTF-8" in str(error):  # msgspec 0.23; older versions raise the error above
            raise ServiceError("invalid_json", "the body is not UTF-8.") from None
        reason = f"{error}." if body.strip() else "it is empty; expected an object."
        if _HALF_CHARACTER.search(body):
            reason += " A \\ud800 to \\udfff without its other half is not a character; leave it out."
        raise ServiceError("invalid_json", f"the body is not JSON: {reason}") from None
    return content, tuple(name for name in sent if name not in _names(struct))[:_MOST_IGNORED]


def _check_values(body: bytes) -> None:
    """Refuse JSON of very many small values: while the decoder makes them, no other thread can work."""
    if len(body) <= _MOST_BYTES:
        return
    counts, within, first = Counter[bytes](), False, 0
    while first < len(body):  # in slices, because other threads wait for each of these calls
        last = first + _SLICE
        if body[last - 1 : last] == b"\\" and (rest := _REST_OF_ESCAPES.match(body, last)):
            last = rest.end()
        parts = body[first:last].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[within::2])  # of strings
        counts.update({mark: outside.count(mark) for mark in _MOST_VALUES})
        counts[b'"'] += len(parts) - 1
        if counts[b'"'] > 2 * _MOST_STRINGS or any(counts[mark] > most for mark, most in _MOST_VALUES.items()):
            raise ServiceError("too_large", "the body has too many values; send fewer texts, or ids, in each request.")
        within ^= len(parts) % 2 == 0
        first = last


@functools.cache
def _names(struct: type[Struct]) -> dict[str, bool]:
    """Return a struct's fields: name -> is it required; msgspec evaluates its annotations each time."""
    return {field.encode_name: field.required for field in msgspec.structs.fields(struct)}


def same(**spellings: Any) -> Any:
    """Return the value of a field that has several spellings; None if no spelling is given.

    Raises
    ------
    ServiceError
        Two spellings have different values.
    """
    values = {name: value for name, value in spellings.items() if value is not None}
    value, *others = [*values.values()] or [None]
    if any(other != value for other in others):
        message = f"{' and '.join(values)} are two names of one field, and differ; send one of them."
        raise ServiceError("invalid", message, param=next(iter(values)))
    return value


def not_empty(values: Sequence[Any], field: str) -> None:
    """Raise an error for an empty list."""
    if not values:
        raise ServiceError("empty", f"{field} is an empty list; expected at least one text.", param=field)


def listed(inputs: str | list[Any], field: str) -> list[Any]:
    """Return a text, texts, ids, or lists as a list of texts or of lists.

    Raises
    ------
    ServiceError
        The list is empty, or has items of several types.
    """
    if isinstance(inputs, str):
        return [inputs]
    not_empty(inputs, field)
    other = next((i for i, item in enumerate(inputs) if type(item) is not type(inputs[0])), None)
    if other is not None:
        raise ServiceError("invalid", f"{field}[{other}] is not of the type of {field}[0].", param=field)
    return [inputs] if isinstance(inputs[0], int) else inputs


def read_pairs(inputs: Pairs, field: str) -> tuple[list[tuple[str, str | None]], bool]:
    """Return texts and pairs as a list of pairs, and whether it was one item.

    Raises
    ------
    ServiceError
        A list has neither one text nor two, or it is empty.
    """
    rows = listed(inputs, field)
    single = isinstance(rows[0], str)
    for index, row in enumerate([rows] if single else rows):
        if not 1 <= len(row) <= 2:
            where = field if single else f"{field}[{index}]"
            hint = f" Send several texts as [[text], [text]]; {field} as a list is a pair." if single else ""
            message = f"{where} has {len(row)} texts; expected one, or a pair of two.{hint}"
            raise ServiceError("invalid", message, param=field)
    return [(row[0], row[1] if len(row) == 2 else None) for row in ([rows] if single else rows)], single


# --- to bytes ---------------------------------------------------------------------------------------------------------


def dump(value: Any) -> bytes:
    """Return the JSON of a value that may hold NumPy arrays; float32 has the fewest digits that restore it."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def list_of_vectors(vectors: Iterable[FloatArray], start: bytes = b"[", end: bytes = b"]") -> Iterator[bytes]:
    """Yield a JSON list of vectors, or of arrays of vectors, in pieces."""
    return joined(start, map(dump, map(np.ascontiguousarray, vectors)), end)


def array_file(vector: FloatArray) -> bytes:
    """Return the bytes of a vector as little-endian float32."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def joined(start: bytes, pieces: Iterable[bytes], end: bytes) -> Iterator[bytes]:
    """Yield pieces of bytes with commas between them, after `start` and before `end`."""
    yield start
    comma = b""
    for piece in pieces:
        yield comma
        yield piece
        comma = b","
    yield end


def grouped(pieces: Iterable[bytes], first: int, most: int) -> Iterator[bytes]:
    """Yield pieces joined to parts: one of at least `first` bytes, then others of at least `most`, and what is left."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= first:
            yield bytes(part)
            part, first = bytearray(), most
    yield bytes(part)
