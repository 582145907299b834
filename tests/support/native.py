"""Call compiled functions from Python; each array is passed as its address."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from minibert.kernels.cache import link
from minibert.kernels.compilation import compile_to_object, function

__all__ = ["native"]


def native(body: Callable[..., Any]) -> Callable[..., None]:
    """Compile a function of integers; call it with integers, and with arrays for addresses."""
    count = len(inspect.signature(body).parameters)
    compiled = link(compile_to_object(function(body), count), count)

    def call(*arguments: Any) -> None:
        compiled(*(value.ctypes.data if isinstance(value, np.ndarray) else int(value) for value in arguments))

    return call
