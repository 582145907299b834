"""Who computes: the name of a backend and a number of threads -> a set of ops."""

from __future__ import annotations

import os

from minibert import reference
from minibert.checks import brief, check_int
from minibert.machine import available_cores
from minibert.ops import Ops
from minibert.warn import warn_caller

__all__ = ["BACKENDS", "choose_ops"]

BACKENDS = ("numba", "numba-blas", "numpy")
"""Who computes: minibert's kernels; the same, but with matrix products by NumPy's BLAS; NumPy alone."""

# More than any machine has cores for; a slip of the finger must not start threads until the system has no more.
_MOST_THREADS = 1024


def choose_ops(backend: str | None, num_threads: int | None) -> Ops:
    """Turn two arguments of `BertModel.from_pretrained`, or the environment, into a set of ops.

    Raises
    ------
    TypeError, ValueError
        One of them is not as described there, or Numba is asked for and cannot be imported.
    """
    threads = _check_num_threads(num_threads)
    source = "backend" if backend is not None else "MINIBERT_BACKEND"
    chosen = backend if backend is not None else os.environ.get("MINIBERT_BACKEND") or None
    if chosen is not None and (not isinstance(chosen, str) or chosen not in BACKENDS):
        raise ValueError(f"{source}={brief(chosen)}; expected {', '.join(map(repr, BACKENDS))}.")
    if chosen == "numpy":
        return reference.OPS
    try:
        from minibert.kernels import make_ops
    except ImportError as error:
        if chosen is not None:
            raise ValueError(
                f"{source}={chosen!r}, but numba cannot be imported ({error}); pip install numba."
            ) from error
        _warn_no_numba(str(error))
        return reference.OPS
    return make_ops(threads, use_blas=chosen == "numba-blas")


def _warn_no_numba(reason: str) -> None:
    # Python shows one warning per place and text, so models made in a loop warn once.
    warn_caller(
        f"numba cannot be imported ({reason}): minibert computes with NumPy alone, slower but equal. "
        "pip install numba, or ask for backend='numpy' to silence this.",
        RuntimeWarning,
    )


def _check_num_threads(num_threads: int | None) -> int:
    name, value = "num_threads", num_threads
    if value is None and (text := os.environ.get("MINIBERT_NUM_THREADS")):
        name = "MINIBERT_NUM_THREADS"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{name}={text!r}; expected a whole number, 1 to {_MOST_THREADS:,}.") from None
    if value is None:
        return available_cores()
    return check_int(name, value, 1, _MOST_THREADS)
