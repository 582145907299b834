"""Memory for results, used again as soon as nobody holds them: fresh pages cost more than what is computed in them.

The system gives memory page by page, at the first touch, and clears each page first: for the arrays of a forward that
takes about a tenth of the time in which they are computed. So an op's result lies in a block that `Buffers` keeps; the
block is free again when the last array that looks into it is gone, which Python's reference count tells.
"""

from __future__ import annotations

import math
import sys
import threading

import numpy as np

from minibert.ops import FloatArray

__all__ = ["Buffers"]

_MOST_BLOCKS = 12  # a layer has at most six results alive at once
_SMALLEST = 1 << 16  # floats: less than that, the allocator keeps itself


class Buffers:
    """Blocks of float32 memory for the results of ops; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[FloatArray] = []

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def empty(self, *shape: int) -> FloatArray:
        """An array of this shape with arbitrary contents, in memory that no other array uses."""
        size = math.prod(shape)
        if size < _SMALLEST:
            return np.empty(shape, dtype=np.float32)
        with self._lock:
            for block in self._blocks:
                if size <= block.size <= 2 * size and sys.getrefcount(block) == _REFERENCES_WHEN_FREE:
                    return block[:size].reshape(shape)
            block = np.empty(size, dtype=np.float32)
            if len(self._blocks) == _MOST_BLOCKS:
                self._blocks.pop(0)
            self._blocks.append(block)
            return block.reshape(shape)


def _references_when_free() -> int:
    """What `sys.getrefcount` says of a block in the list above that no array looks into; it depends on the Python."""
    blocks = [np.empty(0, dtype=np.float32)]
    for block in blocks:
        return sys.getrefcount(block)
    raise AssertionError


_REFERENCES_WHEN_FREE = _references_when_free()
