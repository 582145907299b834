"""A team of threads that share the rows of one array."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from minibert.ops import FloatArray

__all__ = ["Team"]

# Below this many elements handing rows to another thread costs more than it saves.
_MIN_ELEMENTS_PER_THREAD = 1 << 15


class Team:
    """Runs kernels over row ranges, on up to `num_threads` threads; safe to share between threads.

    The helper threads start at the first array large enough, and anew in a forked child, which inherits none.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._pool_process = 0

    def __reduce__(self) -> tuple[type[Team], tuple[int]]:
        return Team, (self._num_threads,)

    def run(self, kernel: Callable[..., None], target: FloatArray, *args: Any) -> None:
        """Call ``kernel(target, *args, first, last)`` on ranges that cover the rows of `target`, and wait."""
        rows = len(target)
        parts = max(1, min(self._num_threads, rows, target.size // _MIN_ELEMENTS_PER_THREAD))
        bounds = [rows * part // parts for part in range(parts + 1)]
        helpers = [self._helpers().submit(kernel, target, *args, first, last) for first, last in pairwise(bounds[1:])]
        kernel(target, *args, 0, bounds[1])
        for helper in helpers:
            helper.result()

    def _helpers(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool_process != os.getpid():
            self._pool = ThreadPoolExecutor(self._num_threads - 1, thread_name_prefix="minibert")
            self._pool_process = os.getpid()
        return self._pool
