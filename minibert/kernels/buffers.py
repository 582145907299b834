"""Memory for arrays of floats: where cache lines begin, on large pages, and used again as soon as nobody holds it.

Lines   A vector that lies across two cache lines costs as much as two. The allocator aligns to 16 bytes, a line has 64:
        so weights, scratch (memory.py) and large results begin where a line does (`aligned_empty`). Small results are
        the allocator's, and so is a copied or unpickled weight: they compute the same.
Pages   The weights of a model pass through the processor once in every forward, and it looks up the place of each page
        on the way: with pages of 2 MB (Linux), which need long pieces of memory, 1 to 3 % less time than with those of
        4 KB. So they are cut from `Slabs`.
Again   Fresh pages cost more than what is computed in them. The system clears each one at its first touch: for the
        arrays of a forward that takes about a tenth of the time in which they are computed. So an op's result lies in a
        block that `Buffers` keeps, and gives away again when the last array that looks into it is gone.

An array that looks into another one holds on to the first of them all, and that one to the `_Lease` it was made from:
the block is free when its lease is gone. A weak reference tells, at no moment too early; a reference count does not
(debuggers hold references of their own), and a `__del__` would swallow the Ctrl-C that arrives within it.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque

import numpy as np

from minibert.base.arrays import FloatArray

__all__ = ["Buffers", "Slabs", "aligned_empty"]

_CACHE_LINE, _LARGE_PAGE = 64, 1 << 21  # bytes
_SLAB = 1 << 25  # bytes; what of it is not touched is not there
_MOST_BLOCKS = 12  # a layer has at most six results alive at once
_SMALLEST, _LARGEST = 1 << 16, 1 << 23  # floats; less, the allocator keeps itself; more, no step of a forward takes


def aligned_empty(*shape: int) -> FloatArray:
    """A float32 array of this shape with arbitrary contents, which begins where a cache line does."""
    return np.ndarray(shape, np.float32, _aligned_bytes(4 * math.prod(shape), _CACHE_LINE))


def _aligned_bytes(size: int, alignment: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    raw = np.empty(size + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


class Slabs:
    """Memory for the weights of one model, one behind the other; safe to share between threads.

    NumPy asks the system for large pages where an array is long; it is up to the system to give them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = _aligned_bytes(0, 1)

    def __reduce__(self) -> tuple[type[Slabs], tuple[()]]:
        return Slabs, ()

    def empty(self, *shape: int) -> FloatArray:
        """An array of this shape with arbitrary contents, in memory that no other array uses."""
        size = -(-4 * math.prod(shape) // _CACHE_LINE) * _CACHE_LINE
        with self._lock:
            if len(self._rest) < size:
                self._rest = _aligned_bytes(max(size, _SLAB), _LARGE_PAGE)
            cut, self._rest = self._rest[:size], self._rest[size:]
        return np.ndarray(shape, np.float32, cut)


class _Lease:
    """A block in use; `np.asarray` makes the array that uses it."""

    def __init__(self, block: FloatArray, shape: tuple[int, ...]) -> None:
        self._block = block
        self.__array_interface__ = {**block.__array_interface__, "shape": shape}


class Buffers:
    """Blocks of float32 memory for the results of ops; safe to share between threads, to interrupt, and to fork.

    No lock: whoever looks at a block has taken it out of the deque, in one step that Python does not interrupt, and
    puts it back. A block that is lost in between is merely not used again.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[FloatArray, weakref.ref[_Lease]]] = deque()

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def empty(self, *shape: int) -> FloatArray:
        """An array of this shape with arbitrary contents, in memory that no other array uses."""
        size = math.prod(shape)
        if not _SMALLEST <= size <= _LARGEST:
            return np.empty(shape, dtype=np.float32)
        block = self._take(size)
        if block is None:
            block = aligned_empty(size)
        lease = _Lease(block, shape)
        self._blocks.append((block, weakref.ref(lease)))
        return np.asarray(lease)

    def _take(self, size: int) -> FloatArray | None:
        """Take out a free block that fits; one much larger would make a result that is kept hold too much memory."""
        for _ in range(len(self._blocks)):
            try:
                block, lease = self._blocks.popleft()
            except IndexError:  # other threads are looking at the rest
                return None
            if size <= block.size <= size + size // 4 and lease() is None:
                return block
            if len(self._blocks) < _MOST_BLOCKS:
                self._blocks.append((block, lease))
        return None
