"""Memory for results, used again as soon as nobody holds them: fresh pages cost more than what is computed in them.

The system gives memory page by page, at the first touch, and clears each page first: for the arrays of a forward that
takes about a tenth of the time in which they are computed. So an op's result lies in a block that `Buffers` keeps; the
block is free again when the last array that looks into it is gone, which Python's reference count tells.
"""

from __future__ import annotations

import math
import sys
from collections import deque

import numpy as np

from minibert.ops import FloatArray

__all__ = ["Buffers"]

_MOST_BLOCKS = 8  # a layer has at most six results alive at once
_SMALLEST = 1 << 16  # floats: less than that, the allocator keeps itself


class Buffers:
    """Blocks of float32 memory for the results of ops; safe to share between threads, to interrupt, and to fork.

    No lock: whoever looks at a block has taken it out of the deque, in one step that Python does not interrupt, and
    puts it back. A block that is lost in between is merely not used again.
    """

    def __init__(self) -> None:
        self._blocks: deque[FloatArray] = deque()

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def empty(self, *shape: int) -> FloatArray:
        """An array of this shape with arbitrary contents, in memory that no other array uses."""
        size = math.prod(shape)
        if size < _SMALLEST:
            return np.empty(shape, dtype=np.float32)
        block = self._take(size)
        if block is None:
            block = np.empty(size, dtype=np.float32)
        result = block[:size].reshape(shape)
        self._blocks.append(block)
        return result

    def _take(self, size: int) -> FloatArray | None:
        """Take out a free block that fits, and is not so large that a small array would keep much memory."""
        for _ in range(len(self._blocks)):
            try:
                block = self._blocks.popleft()
            except IndexError:  # other threads are looking at the rest
                return None
            if size <= block.size <= 2 * size and sys.getrefcount(block) == _REFERENCES_WHEN_FREE:
                return block
            if len(self._blocks) < _MOST_BLOCKS:
                self._blocks.append(block)
        return None


def _references_when_free() -> int:
    """What `sys.getrefcount` says of a block that was taken out and that no array looks into; Pythons differ."""
    blocks = deque([np.empty(0, dtype=np.float32)])
    block = blocks.popleft()
    return sys.getrefcount(block)


_REFERENCES_WHEN_FREE = _references_when_free()
