"""The ops as compiled code: `make_ops` returns them. Numba compiles them once for each machine.

Read the files in this order: ops.py (an op, and its work as the threads see it), gemm.py (the matrix
product), attention.py, embed_layer_norm.py, threads.py (how threads share the work of an op), run_task.py (what
the threads run). simd.py has the vector type, tile.py the micro-tile, cache.py the cache on disk. Only
compilation.py and the files that it compiles import Numba.
"""

from __future__ import annotations

from minibert.kernels.ops import make_ops

__all__ = ["make_ops"]
