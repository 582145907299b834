"""Warnings that point at the line of whoever called minibert, however deep inside it they arise."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_caller"]

# Ours, and libraries that may stand between us and the caller: numba, which asks for compiled kernels, and
# scikit-learn, which wraps a transformer's methods and runs them through joblib.
_PASSED_OVER = ("minibert", "numba", "sklearn", "joblib")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the nearest line that is neither ours nor a library's that calls us on the caller's behalf."""
    caller = sys._getframe(1)
    while caller.f_back is not None and str(caller.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        caller = caller.f_back
    warnings.warn_explicit(
        message,
        category,
        filename=caller.f_code.co_filename,
        lineno=caller.f_lineno,
        module=str(caller.f_globals.get("__name__")),
        registry=caller.f_globals.setdefault("__warningregistry__", {}),
    )
