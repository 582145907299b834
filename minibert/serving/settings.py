"""The limits and keys of the service, and its error: a message, and a kind that a protocol turns into a status."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import os
import re
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Literal, Self, get_args

from minibert._utils.files import explained, printable
from minibert._utils.validation import brief, check_bool, check_choice, check_int

# The first ones are the client's errors; "failed" is ours.
ErrorKind = Literal[
    "invalid_json", "invalid", "empty", "too_long", "too_many", "too_large", "media_type", "model", "not_found", "key",
    "method", "slow", "overloaded", "unavailable", "unsupported", "failed",
]  # fmt: skip
OverLong = Literal["mark", "error", "split"]


@dataclasses.dataclass(eq=False)
class ServiceError(Exception):
    """An error that is the answer to a request.

    Parameters
    ----------
    kind : ErrorKind
    message : str
        Names the input, what was found and what to do.
    param : str, optional
        The field of the request that is wrong; "input" is the one with the texts, whatever a protocol calls it.
    of_param : bool
        `message` goes on after the name of the field.
    retry_after : float
        For "overloaded" and "unavailable": seconds after which the same request may succeed.
    limit, given : int, optional
        For "too_long": the most tokens of a text, and those that it has.
    """

    kind: ErrorKind
    message: str
    _: dataclasses.KW_ONLY
    param: str | None = None
    of_param: bool = False
    retry_after: float = 1.0
    limit: int | None = None
    given: int | None = None

    def __str__(self) -> str:
        return f"{self.param}{self.message}" if self.of_param else self.message


def wrong(field: str, text: str) -> ServiceError:
    """Return the error about a field of a request; its message is the field's name and `text`."""
    return ServiceError("invalid", f" {text}", param=field, of_param=True)


@contextlib.contextmanager
def blamed_on(param: str, *, of_param: bool = False) -> Iterator[None]:
    """Turn an error of the library into an error about a field of the request."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ServiceError("invalid", str(error), param=param, of_param=of_param) from error


GRACE = 0.2
"""Seconds after the time for a head or a body in which what has arrived is still read, because the process may have
been stopped or busy meanwhile."""

_FOREVER = 1e9  # seconds
_MOST_KEY_BYTES = 2**20  # of the file of keys


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits of the service.

    Parameters
    ----------
    step_seconds : float
        How long the engine computes before it looks at the queue again.
    max_wait : float
        Seconds. A request whose estimated wait is longer is refused with 429.
    max_inputs : int
        Texts of one request.
    max_body_bytes, max_inflight_bytes, max_result_bytes : int
        Of one request's body; of the bodies, the tokens and the numbers of all requests that are not answered; of one
        answer's numbers.
    truncation : {"mark", "error", "split"}
        What happens to a text that is too long if the request does not say it: it is cut and reported, refused, or
        computed in windows.
    default_prompt_name : str, optional
        The prompt of requests for vectors of texts that name none; default: the model's.
    request_timeout, body_timeout : float
        Seconds to compute an answer after the whole body has arrived, and seconds in which the body must arrive.
    send_timeout : float
        Seconds in which a client must read some of its answer.
    shutdown_timeout : float
        Seconds for the requests that have begun when the service ends.
    drain_delay : float
        Seconds after SIGTERM in which /readyz is answered with 503, and new requests as before, so that a balancer has
        the time to send them elsewhere; it may be 0.
    any_model_name : bool
        Answer requests for unknown models with the first model, instead of 404.
    metrics_namespace : str
        The beginning of the names in /metrics; "te" gives several of the names of text-embeddings-inference.
    model_id : str, optional
        What /info says of the first model: the folder or the hub id that it was loaded from. Default: its name.

    Raises
    ------
    TypeError, ValueError
        A value does not have the type above, a time is not above 0, a limit is not at least 1, `truncation` is not
        among those above, or the namespace has another character than letters, digits and "_".
    """

    step_seconds: float = 0.05
    max_wait: float = 60.0
    max_inputs: int = 2048
    max_body_bytes: int = 32 * 2**20
    max_inflight_bytes: int = 256 * 2**20
    max_result_bytes: int = 256 * 2**20
    truncation: str = "mark"
    default_prompt_name: str | None = None
    request_timeout: float = 600.0
    body_timeout: float = 30.0
    send_timeout: float = 60.0
    shutdown_timeout: float = 30.0
    drain_delay: float = 0.0
    any_model_name: bool = False
    metrics_namespace: str = "minibert"
    model_id: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, default = getattr(self, field.name), field.default
            if isinstance(default, bool):
                check_bool(field.name, value)
            elif isinstance(default, int):
                check_int(field.name, value, 1)
            elif isinstance(default, float):
                is_number = isinstance(value, Real) and not isinstance(value, bool)
                if not is_number or not (value == default or 0 < value < _FOREVER):  # NaN is refused, too
                    message = f"{field.name}={brief(value)}; expected a number of seconds above 0, less than 10**9."
                    raise (ValueError if is_number else TypeError)(message)
            elif not isinstance(value, str) and value is not default:
                raise TypeError(f"{field.name}={brief(value)}; expected a str.")
        check_choice("truncation", self.truncation, get_args(OverLong))
        name = self.metrics_namespace
        if not re.fullmatch(r"[a-zA-Z_]\w*", name, re.ASCII):
            raise ValueError(f"metrics_namespace={brief(name)}; expected letters, digits and _, and no digit first.")

    def check_number(self, number: int, n_bytes: int = 0) -> None:
        """Raise an error for a request with too many inputs, or with an answer that needs too much memory."""
        if number > self.max_inputs:
            message = f"the request has {number} inputs; the limit is {self.max_inputs}. Send them in several requests."
            raise ServiceError("too_many", message)
        if n_bytes > self.max_result_bytes:
            numbers = f"the numbers of the {number} inputs take {n_bytes} bytes; the limit is {self.max_result_bytes}"
            raise ServiceError("too_large", f"{numbers}. Send fewer at once.")


class ApiKeys:
    """Keys from the command line and from a file; a request must have one of them.

    Parameters
    ----------
    keys : sequence of str
    path : str, optional
        A file with a key per line. Blank lines, and lines that begin with "#", are not keys.

    Raises
    ------
    TypeError
        `keys` is a str, or bytes.
    ValueError
        A key is empty, or has a space or a control character; there is no key; or the file is not text.
    OSError
        The file cannot be read.
    """

    def __init__(self, keys: Sequence[str] = (), path: str | None = None) -> None:
        if isinstance(keys, str | bytes):  # each of its letters would open the service
            raise TypeError(f"keys is a {type(keys).__name__}; expected a sequence of str, such as [key].")
        self._fixed, self._path = [_digest(key, "a key") for key in keys], path
        self.reload()

    @classmethod
    def of(cls, keys: Sequence[str] | None, path: str | None) -> Self | None:
        """Return the keys that are asked for; None if none are, and every request is answered."""
        if keys is not None and len(keys) == 0:  # such as a variable whose secret is missing
            raise ValueError("api_key is empty; give a key, or leave the option out.")
        return None if keys is path is None else cls(keys or (), path)

    def __len__(self) -> int:
        return len(self._digests)

    def reload(self) -> None:
        """Read the file again. If that fails, the keys stay as they were, and the error is raised."""
        digests = self._fixed + ([] if self._path is None else _keys_in(self._path))
        if not digests:
            raise ValueError(f"{printable(self._path)} has no key; write a key per line." if self._path else "no keys.")
        self._digests = digests

    def accept(self, authorization: bytes) -> bool:
        """Return whether the header Authorization has a valid key, as ``Bearer KEY`` or as the key alone.

        All keys are compared, by their digests and in constant time, so that the time tells nothing about them.
        """
        scheme, _, rest = authorization.strip().partition(b" ")
        sent = hashlib.sha256(rest.strip() if scheme.lower() == b"bearer" else authorization.strip()).digest()
        return sum(hmac.compare_digest(sent, digest) for digest in self._digests) > 0


def _digest(key: str, where: str) -> bytes:
    """Return the digest of a key that a header can hold. The message of the error does not show the key."""
    if not key or not all("!" <= character <= "~" for character in key):
        raise ValueError(f"{where} is empty, or has a space or another character that a key cannot have.")
    return hashlib.sha256(key.encode()).digest()


def _keys_in(path: str) -> list[bytes]:
    with (
        explained(f"the file of keys, {printable(path)}, cannot be read"),
        open(os.path.expanduser(path), "rb") as file,
    ):
        content = file.read(_MOST_KEY_BYTES + 1)
    if len(content) > _MOST_KEY_BYTES:
        raise ValueError(f"{printable(path)} has more than {_MOST_KEY_BYTES} bytes; expected a key per line.")
    try:
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{printable(path)} is not UTF-8; expected a key per line.") from None
    return [
        _digest(line, f"line {number} of {printable(path)}")
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    ]
