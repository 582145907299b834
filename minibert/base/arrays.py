"""The types of arrays, for all modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FloatArray", "Int64Array", "IntArray"]

FloatArray = npt.NDArray[np.floating[Any]]
"""Numbers: float32, except in a float64 forward."""

IntArray = npt.NDArray[np.integer[Any]]
"""Ids, positions and counts of any integer type."""

Int64Array = npt.NDArray[np.int64]
"""Ids, masks and offsets from a tokenizer."""
