"""The error of the service: a kind, from which each protocol makes its status, and a message for the client."""

from __future__ import annotations

__all__ = ["KINDS", "ServiceError"]

KINDS = (
    *("invalid_json", "invalid", "empty", "too_long", "too_many", "too_large", "media_type", "model", "not_found"),
    *("key", "method", "slow", "overloaded", "unavailable", "unsupported", "failed"),
)
"""What can be wrong with a request. The first ones are the client's errors; "failed" is ours."""


class ServiceError(Exception):
    """A request that gets an error as its answer.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    message : str
        Names the input, what was found and what to do.
    param : str, optional
        The field of the request that is wrong.
    retry_after : float, optional
        Seconds after which the same request may succeed.
    limit, given : int, optional
        For "too_long": the most tokens of a text, and those that it has.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        limit: int | None = None,
        given: int | None = None,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r}; expected one of {', '.join(KINDS)}.")
        super().__init__(message)
        self.kind, self.message, self.param, self.retry_after = kind, message, param, retry_after
        self.limit, self.given = limit, given
