"""The limits of the service."""

from __future__ import annotations

import dataclasses

__all__ = ["GRACE", "Settings"]

GRACE = 0.2
"""Seconds after the time for a head or a body in which what has arrived is still read, because the process may have
been stopped or busy meanwhile."""


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
