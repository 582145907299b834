"""Memory for float arrays: aligned to cache lines, on large pages, and reused when no array uses it any more.

What        `aligned_empty` is memory for one array, `Slabs` that of the weights of a model, `Buffers` that of results
Lines       A vector that crosses the border of a cache line costs as much as two vectors. The allocator aligns to 16
            bytes, but a line has 64. So weights, scratch memory (threads.py) and large results begin at a cache line.
            Small results have the allocator's alignment; they compute the same
Pages       A forward reads all weights of a model once, and the processor looks up the address of each page. Pages of
            2 MB (Linux) take 1 to 3 % less time than pages of 4 KB, but they need long pieces of memory. So the weights
            are cut from long pieces, the `Slabs`. A block of 1 to 2 MB is a large page of its own, which saves 4 % of a
            forward of MiniLM with 4 texts of 512 tokens (Zen 5). Larger blocks on large pages did not save any time
Reuse       New pages are slow, because the system clears each page at its first use. For the arrays of a forward, this
            takes about a tenth of the time in which they are computed. So the result of an op is in a block of memory
            that `Buffers` keeps. It is used again when the last array in it is gone
Contract    A block is free when the weak reference to its *lease* is dead. The lease is the memoryview that
            `np.frombuffer` makes for each result: a view keeps its base array alive, and the base array its lease.
            Nobody takes memory from the lease itself. A reference count would not be reliable, because debuggers hold
            references too. A `__del__` method would lose a Ctrl-C that arrives while it runs. This file does not import
            numba
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray

CACHE_LINE, _LARGE_PAGE = 64, 1 << 21  # bytes
_SLAB = 1 << 25  # bytes; pages that are not used do not take memory
_MOST_BLOCKS = 12  # a layer has at most six results alive at once
# In floats. The allocator reuses smaller arrays itself; no step of a forward needs larger ones.
_SMALLEST, _LARGEST = 1 << 16, 1 << 23


def aligned_empty(*shape: int) -> FloatArray:
    """Return a float32 array of this shape that begins at a cache line; its contents are arbitrary."""
    return np.ndarray(shape, np.float32, _aligned_bytes(4 * math.prod(shape), CACHE_LINE))


def _large_page(size: int) -> FloatArray:
    """Return a float32 array of this size that begins at a large page; its contents are arbitrary.

    NumPy asks the system for large pages for arrays of at least 4 MB. So the array has 4 MB, and only the first of its
    two pages is used.
    """
    return np.ndarray(size, np.float32, _aligned_bytes(_LARGE_PAGE, _LARGE_PAGE))


def _aligned_bytes(size: int, alignment: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    raw = np.empty(size + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


class Slabs:
    """Memory for the weights of one model, taken from long blocks ("slabs"); safe to share between threads.

    For long arrays, NumPy asks the system for large pages. The system decides whether it gives them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = _aligned_bytes(0, 1)

    def __reduce__(self) -> tuple[type[Slabs], tuple[()]]:
        return Slabs, ()

    def empty(self, *shape: int) -> FloatArray:
        """Return an array of this shape with arbitrary contents, in memory that no other array uses."""
        size = -(-4 * math.prod(shape) // CACHE_LINE) * CACHE_LINE
        with self._lock:
            if len(self._rest) < size:
                self._rest = _aligned_bytes(max(size, _SLAB), _LARGE_PAGE)
            cut, self._rest = self._rest[:size], self._rest[size:]
        return np.ndarray(shape, np.float32, cut)


class Buffers:
    """Blocks of float32 memory for the results of ops; safe to share between threads, to interrupt, and to fork.

    There is no lock. A thread that looks at a block takes it out of the deque, in one step that Python does not
    interrupt, and puts it back. If the thread is interrupted in between, the block is lost: it is not used again.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[memoryview, weakref.ref[Any]]] = deque()

    def empty(self, *shape: int) -> FloatArray:
        """Return an array of this shape with arbitrary contents, in memory that no other array uses."""
        size = math.prod(shape)
        if not _SMALLEST <= size <= _LARGEST:
            return np.empty(shape, dtype=np.float32)
        block = self._take(size)
        if block is None:
            fills_a_page = _LARGE_PAGE // 2 <= 4 * size <= _LARGE_PAGE
            block = memoryview(_large_page(size) if fills_a_page else aligned_empty(size))  # type: ignore[arg-type]
        result: Any = np.frombuffer(block, np.float32, size)
        self._blocks.append((block, weakref.ref(result.base)))
        return result.reshape(shape)

    def release(self) -> None:
        """Forget the blocks; those that arrays use are freed with the arrays."""
        self._blocks.clear()

    def _take(self, size: int) -> memoryview | None:
        """Take out a free block that fits. A much larger one is not used: a result that is kept would waste memory."""
        for _ in range(len(self._blocks)):
            try:
                block, lease = self._blocks.popleft()
            except IndexError:  # other threads have taken out the other blocks
                return None
            if size <= len(block) <= size + size // 4 and lease() is None:
                return block
            if len(self._blocks) < _MOST_BLOCKS:
                self._blocks.append((block, lease))
        return None
