"""Call compiled functions from Python; each array is passed as its address."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from minibert.kernels.compilation import function, load_function

__all__ = ["native"]


def native(body: Callable[..., Any]) -> Callable[..., None]:
    """Compile a function of integers; call it with integers, and with arrays for addresses."""
    run = load_function(function(body), len(inspect.signature(body).parameters))

    def call(*arguments: Any) -> None:
        run(*(value.ctypes.data if isinstance(value, np.ndarray) else int(value) for value in arguments))

    return call
