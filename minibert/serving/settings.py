"""The limits of the service, and its error: a message, and a kind that each protocol turns into a status."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from minibert._utils.validation import brief, check_choice, check_int

# The first ones are the client's errors; "failed" is ours.
ErrorKind = Literal[
    "invalid_json", "invalid", "empty", "too_long", "too_many", "too_large", "media_type", "model", "not_found", "key",
    "method", "slow", "overloaded", "unavailable", "unsupported", "failed",
]  # fmt: skip
Truncation = Literal["mark", "error", "split"]


@dataclasses.dataclass(eq=False)
class ServiceError(Exception):
    """An error that is the answer to a request.

    Parameters
    ----------
    kind : ErrorKind
    message : str
        Names the input, what was found and what to do.
    param : str, optional
        The field of the request that is wrong.
    retry_after : float, optional
        Seconds after which the same request may succeed.
    limit, given : int, optional
        For "too_long": the most tokens of a text, and those that it has.
    """

    kind: ErrorKind
    message: str
    _: dataclasses.KW_ONLY
    param: str | None = None
    retry_after: float | None = None
    limit: int | None = None
    given: int | None = None

    def __str__(self) -> str:
        return self.message


GRACE = 0.2
"""Seconds after the time for a head or a body in which what has arrived is still read, because the process may have
been stopped or busy meanwhile."""

_FOREVER = 1e9  # seconds


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
        Of one request's body; of the bodies and the numbers of all requests that are not answered; of one answer's
        numbers.
    truncation : {"mark", "error", "split"}
        What happens to a text that is too long if the request does not say it: it is cut and reported, refused, or
        computed in windows.
    default_prompt_name : str, optional
        The prompt of requests that name none; default: the model's.
    request_timeout, body_timeout : float
        Seconds from the body's end to the answer, and from the first byte of the body to the last.
    any_model_name : bool
        Answer requests for unknown models with the first model, instead of 404.

    Raises
    ------
    TypeError, ValueError
        A time is not a number of seconds above 0, a limit is not an int of at least 1, or `truncation` is not among
        those above.
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
    any_model_name: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                check_int(field.name, value, 1)
            elif field.type == "float" and not 0 < value < _FOREVER:  # NaN is refused, too
                raise ValueError(f"{field.name}={brief(value)}; expected a number of seconds above 0, less than 10**9.")
        check_choice("truncation", self.truncation, get_args(Truncation))
