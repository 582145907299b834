"""Warnings that name the line of the caller of minibert, from any depth inside minibert."""

from __future__ import annotations

import sys
import warnings

__all__ = ["cut_texts", "warn_caller"]

# minibert, and libraries that may call it for the user. numba calls minibert when it looks for compiled kernels.
# scikit-learn wraps a transformer's methods and runs them through joblib.
_SKIPPED = ("minibert", "numba", "sklearn", "joblib")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the nearest line outside minibert and outside the libraries that call it for the user."""
    caller = sys._getframe(1)
    while caller.f_back is not None and str(caller.f_globals.get("__name__")).partition(".")[0] in _SKIPPED:
        caller = caller.f_back
    warnings.warn_explicit(
        message,
        category,
        filename=caller.f_code.co_filename,
        lineno=caller.f_lineno,
        module=str(caller.f_globals.get("__name__")),
        registry=caller.f_globals.setdefault("__warningregistry__", {}),
    )


def cut_texts(cut: int, total: int, limit: int, first: int, things: str = "texts") -> str:
    """Return the sentence of a warning about texts that were cut at a limit of tokens; `first` is the index of one."""
    if total == 1:
        return f"The {things.removesuffix('s')} has more than {limit} tokens and was cut."
    return f"{cut} of {total} {things} have more than {limit} tokens and were cut (the first is at index {first})."
