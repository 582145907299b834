"""How everything in kernels/ is compiled, and where the machine code is kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

__all__ = ["function", "inline", "kernel"]

# No fastmath anywhere: a result must not depend on how a loop was compiled. nogil: other threads go on meanwhile.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}


def kernel(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, at its first call; keep the machine code for later processes."""
    folder = _cache_folder()
    if folder is None:
        return numba.njit(**_OPTIONS)(body)
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)  # Numba reads it while it wraps the function
    try:
        return numba.njit(cache=True, **_OPTIONS)(body)
    except RuntimeError:  # no place to keep it
        return numba.njit(**_OPTIONS)(body)
    finally:
        numba.config.CACHE_DIR = before


def function(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that only kernels call."""
    return numba.njit(**_OPTIONS)(body)


def inline(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function into each place that calls it."""
    return numba.njit(inline="always", **_OPTIONS)(body)


def _cache_folder() -> Path | None:
    """Where this version of kernels/ keeps its machine code.

    Numba compares a cached function only with the file it stands in; a change of simd.py would go unnoticed in gemm.py.
    So the folder is named after the contents of all files here: other contents, another folder.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(here.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    if numba.config.CACHE_DIR:
        base = Path(numba.config.CACHE_DIR)
    elif os.access(here, os.W_OK):
        base = here / "__pycache__"
    else:
        try:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minibert"
        except RuntimeError:  # a user without a home
            return None
    return base / f"kernels-{digest.hexdigest()[:16]}"
