"""MaxSim, the score of late interaction: the sum over a query's tokens of the largest product with a document's token.

What        y[d, q] = sum over tokens i of query q, of max over tokens j of document d, of x_j . w_i
Layout      x (T, K) has the tokens of the documents, row by row; those of the queries are in panels, as in a packed
            weight. A chunk is one document
Loop order  panels -> micro-tiles of the document -> k. After each micro-tile, the largest product of each column so far
            is kept in scratch memory, so no array has the products of all pairs
Numerics    A product is computed as in gemm.py. The maximum is exact. The sum is computed in float64, in the order of
            the tokens. So a score depends on its query and its document only. NaN and infinity give NaN
Contract    A document has at least one token. Callers have checked every shape
"""

from __future__ import annotations

import numpy as np

from minibert.kernels.compilation import function
from minibert.kernels.gemm import block_length, multiply_floats
from minibert.kernels.ops import MAX_SIMILARITY
from minibert.kernels.processor import MR, NR, WIDTH
from minibert.kernels.simd import floats_at, load, longs_at, maximum, stack_floats, store, task_at
from minibert.kernels.threads import FLOAT

_task, _tile = task_at(MAX_SIMILARITY), stack_floats(MR * NR)
_ZERO, _NR = np.int64(0), np.int64(NR)


@function
def max_similarity_chunk(address, chunk, scratch):
    """Compute the scores of all queries with one document."""
    task = _task(address)
    K, size = task.K, task.K * NR
    first = longs_at(task.offsets)[chunk]
    count = longs_at(task.offsets)[chunk + 1] - first
    tiles = (count + MR - 1) // MR
    height, taller = count // tiles, count % tiles  # the first `taller` tiles have one row more
    memory, best = _tile(), floats_at(scratch)
    tile = floats_at(memory)
    for p in range((task.N + NR - 1) // NR):
        panel = task.panels + p * size * FLOAT
        for t in range(tiles):
            rows, row = height + (t < taller), first + t * height + min(t, taller)
            x = task.x + row * K * FLOAT
            multiply_floats(
                rows, x, K, panel, K, block_length(K), memory, _NR, _ZERO, _ZERO, _ZERO, panel + t * NR * FLOAT, _ZERO
            )
            for j in range(0, NR, WIDTH):
                largest = load(tile, j) if t == 0 else load(best, p * NR + j)
                for i in range(rows):
                    product = load(tile, i * NR + j)
                    # A product of 0 and NaN or infinity is NaN, and `maximum` keeps NaN that is on its left.
                    largest = maximum(largest, product) + product * 0.0
                store(best, p * NR + j, largest)
    ends, y = longs_at(task.query_offsets), floats_at(task.y)
    for q in range(task.num_queries):
        total = 0.0
        for n in range(ends[q], ends[q + 1]):
            total += best[n]
        y[chunk * task.num_queries + q] = total
