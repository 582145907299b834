"""Choose a set of ops from the name of a backend, a number of threads and a compute type."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from threading import TIMEOUT_MAX
from typing import NamedTuple

from minibert._utils.reporting import warn_caller
from minibert._utils.system import available_cores
from minibert._utils.validation import brief, check_choice, check_int
from minibert.bert import low_precision, reference
from minibert.bert.ops import Ops
from minibert.models.options import BACKENDS, COMPUTE_TYPES
from minibert.models.shared_weights import Sharing

# Larger than the number of cores of any machine. A mistyped number must not use up the threads of the system.
_MOST_THREADS = 1024


def choose_ops(
    backend: str | None,
    num_threads: int | None,
    compute_type: str | None = None,
    idle_release: float | None = None,
    sharing: Sharing | None = None,
) -> Ops:
    """Choose a set of ops from four arguments of `BertModel.from_pretrained`, or from environment variables.

    `sharing` is released with the ops when no op has run for `idle_release` seconds.

    Raises
    ------
    TypeError, ValueError
        An argument or a variable has a value that is not described there, or the kernels are asked for and cannot be
        loaded.
    """
    threads = choose_num_threads(num_threads).num_threads
    chosen = choose_backend(backend)
    compute_type = choose_compute_type(compute_type)
    if idle_release is not None and (isinstance(idle_release, bool) or not isinstance(idle_release, int | float)):
        raise TypeError(f"idle_release is {brief(idle_release)}; expected a number of seconds or None.")
    if idle_release is not None and not 0 < idle_release <= TIMEOUT_MAX:
        raise ValueError(f"idle_release={idle_release}; expected a number of seconds above 0.")
    if chosen == "numpy":
        return _numpy_ops(compute_type)
    try:
        from minibert.kernels import make_ops
        from minibert.kernels.processor import is_faster

        if not is_faster(compute_type):
            _warn_slow(compute_type, "this processor does not have the instructions for it")
        also = [] if sharing is None else [sharing.release]
        return make_ops(threads, compute_type=compute_type, idle_release=idle_release, also=also)
    except ImportError as error:
        if chosen is not None:
            raise ValueError(f"the backend is 'kernels', but they cannot be loaded: {error}.") from error
        # Python shows a warning once per line of code and text, so a loop that makes models warns once.
        warn_caller(
            f"{error}, so minibert computes with NumPy alone. This takes about 8 times as long, and the last bits of "
            "the results differ. Give backend='numpy' to silence this warning.",
            RuntimeWarning,
        )
        return _numpy_ops(compute_type)


def choose_backend(backend: str | None = None) -> str | None:
    """Return "kernels", "numpy" or None: the argument, else MINIBERT_BACKEND, else None.

    Raises
    ------
    ValueError
        The argument or the variable is not a name in `BACKENDS`.
    """
    chosen = _choice("backend", backend, BACKENDS)
    return "kernels" if chosen == "numba" else chosen


def choose_compute_type(compute_type: str | None = None) -> str:
    """Return the compute type: the argument, else MINIBERT_COMPUTE_TYPE, else "float32".

    Raises
    ------
    ValueError
        The argument or the variable is not a name in `COMPUTE_TYPES`.
    """
    return _choice("compute_type", compute_type, COMPUTE_TYPES) or "float32"


def _choice(name: str, value: str | None, choices: Sequence[str]) -> str | None:
    """Return an argument, else its environment variable, else None."""
    variable = f"MINIBERT_{name.upper()}"
    chosen = os.environ.get(variable) or None if value is None else value
    if chosen is not None:
        check_choice(variable if value is None else name, chosen, choices)
    return chosen


def choose_sharing(
    shared_weights: bool | None, backend: str | None = None, compute_type: str | None = None
) -> Sharing | None:
    """Return how weights are shared, or None: decided by the argument, else by MINIBERT_SHARED_WEIGHTS, else None.

    Raises
    ------
    TypeError, ValueError
        The argument is not a bool, or the variable is neither 1 nor 0; or the weights are to be shared with a backend
        other than "kernels".
    """
    if shared_weights is not None and not isinstance(shared_weights, bool):
        raise TypeError(f"shared_weights is {brief(shared_weights)}; expected True, False or None.")
    text = os.environ.get("MINIBERT_SHARED_WEIGHTS") or "0"
    if shared_weights is None and text not in ("0", "1"):
        raise ValueError(f"MINIBERT_SHARED_WEIGHTS={brief(text)}; expected 1 or 0.")
    if not (text == "1" if shared_weights is None else shared_weights):
        return None
    chosen = choose_backend(backend)
    if chosen == "numpy":
        asked = "MINIBERT_SHARED_WEIGHTS=1" if shared_weights is None else "shared_weights=True"
        raise ValueError(f"{asked} needs the backend 'kernels', not {chosen!r}: other weights are not packed.")
    name = choose_compute_type(compute_type)
    try:
        from minibert.kernels.packing import PackedLayout

        return Sharing(PackedLayout(name), name)
    except ImportError:  # `choose_ops` warns of it
        return None


def _numpy_ops(compute_type: str) -> Ops:
    if compute_type == "float32":
        return reference.OPS
    _warn_slow(compute_type, "NumPy does not have instructions for it")
    return low_precision.make_ops(compute_type)


def _warn_slow(compute_type: str, reason: str) -> None:
    warn_caller(
        f"compute_type={compute_type!r} is slower than 'float32' here, because {reason}. It takes less memory, and its "
        "error is the same as on every processor. Use compute_type='float32' for speed.",
        RuntimeWarning,
    )


class ThreadChoice(NamedTuple):
    """The number of threads that the kernels use, and the rule that decided it, in words."""

    num_threads: int
    rule: str


def choose_num_threads(num_threads: int | None = None) -> ThreadChoice:
    """Choose the number of threads: the argument, else MINIBERT_NUM_THREADS, else the cores that may be used.

    OMP_NUM_THREADS limits the last rule only. Ray, Spark, Dask and joblib set it for each worker, so that the workers
    of one machine do not each use all cores.

    Raises
    ------
    TypeError, ValueError
        The argument or MINIBERT_NUM_THREADS is not a whole number from 1 to 1,024.
    """
    if num_threads is not None:
        return ThreadChoice(check_int("num_threads", num_threads, 1, _MOST_THREADS), "num_threads=")
    if text := os.environ.get("MINIBERT_NUM_THREADS"):
        match = re.fullmatch(r"\s*0*([1-9]\d{0,3})\s*", text, re.ASCII)
        if not match or int(match[1]) > _MOST_THREADS:
            raise ValueError(f"MINIBERT_NUM_THREADS={brief(text)}; expected a whole number, 1 to {_MOST_THREADS:,}.")
        return ThreadChoice(int(match[1]), f"MINIBERT_NUM_THREADS={text}")
    cores = available_cores()
    # OpenMP allows a list with one number for each level of nested teams; the first number counts here. A value that is
    # not such a list is ignored, as OpenMP ignores it.
    text = os.environ.get("OMP_NUM_THREADS", "")
    match = re.fullmatch(r"\s*0*([1-9]\d{0,8})\s*(,.*)?", text, re.ASCII)
    if match and int(match[1]) < cores:
        return ThreadChoice(int(match[1]), f"OMP_NUM_THREADS={text} caps the {cores} cores that may be used")
    return ThreadChoice(cores, "all cores that may be used")
