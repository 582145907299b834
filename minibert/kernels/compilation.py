"""How every kernel is compiled: one place for Numba's options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["kernel"]

# No fastmath anywhere: a result must not depend on how a loop was compiled. nogil: other threads go on meanwhile.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}


def kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function at its first call and keep the machine code for later processes where that is possible.

    Numba keeps it beside the source file, or in the user's cache folder; where neither can be written (a read-only
    container), it is compiled anew in each process. That cache only notices changes of the file that holds the
    kernel, so a kernel neither calls compiled code nor uses constants of another file.
    """
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # "no locator available": nowhere to keep the code
        return numba.njit(**_OPTIONS)(function)
