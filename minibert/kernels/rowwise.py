"""The ops that compute each token alone: the sum of embeddings, and LayerNorm.

What        `embed_chunk` and `layer_norm_chunk`; they compute the same as reference.embed and reference.layer_norm
Layout      Arrays are flat views of row-major (T, H) float32 arrays. A chunk of work is ROWS rows
Numerics    LayerNorm computes in float64 and rounds once. Its sums have a fixed order, so the result of a row depends
            on that row only
Cost        One pass over memory. LayerNorm makes three passes over a row, which is then in cache
Contract    Callers have checked every shape and every id; the code here does not check bounds
Source      Devlin et al. 2018 (arXiv 1810.04805), figure 2; Ba et al. 2016 (arXiv 1607.06450), section 3
"""

from __future__ import annotations

import math

import numpy as np

from minibert.kernels.compilation import function, kernel
from minibert.kernels.memory import floats_at, ints_at
from minibert.kernels.simd import WIDTH, broadcast, fma, load, narrow, store, sum_lanes, widen

__all__ = ["EMBED", "LAYER_NORM", "describe_embed", "describe_layer_norm", "embed_chunk", "layer_norm_chunk"]

EMBED, LAYER_NORM = 3, 4  # kinds of tasks
ROWS = 32  # rows of one chunk


@function
def embed_chunk(task, chunk):
    """Add three look-ups for each of ROWS tokens; `describe_embed` writes the fields of `task`."""
    words, ids = floats_at(task[1]), ints_at(task[2])
    type_table, token_types = floats_at(task[3]), ints_at(task[4])
    position_table, positions = floats_at(task[5]), ints_at(task[6])
    y, T, H = floats_at(task[7]), task[8], task[9]
    for t in range(chunk * ROWS, min(T, (chunk + 1) * ROWS)):
        word, token_type, position, row = ids[t] * H, token_types[t] * H, positions[t] * H, t * H
        for j in range(0, H - WIDTH + 1, WIDTH):
            total = load(words, word + j) + load(type_table, token_type + j) + load(position_table, position + j)
            store(y, row + j, total)
        for j in range(H - H % WIDTH, H):
            y[row + j] = words[word + j] + type_table[token_type + j] + position_table[position + j]


@function
def layer_norm_chunk(task, chunk):
    """Normalise ROWS rows; `describe_layer_norm` writes the fields of `task`."""
    x, weight, bias, y = floats_at(task[1]), floats_at(task[2]), floats_at(task[3]), floats_at(task[4])
    T, H, eps = task[5], task[6], task[7:8].view(np.float64)[0]
    for t in range(chunk * ROWS, min(T, (chunk + 1) * ROWS)):
        layer_norm_row(x, t * H, weight, bias, eps, y, H)


@function
def layer_norm_row(x, start, weight, bias, eps, y, H):
    """Compute y = (x - mean) / sqrt(variance + eps) * weight + bias for one row, in float64, rounded once."""
    whole = H - H % WIDTH
    total = broadcast(0.0)
    for j in range(0, whole, WIDTH):
        total = total + widen(load(x, start + j))
    rest = 0.0
    for j in range(whole, H):
        rest += x[start + j]
    mean = (sum_lanes(total) + rest) / H

    total, rest = broadcast(0.0), 0.0
    for j in range(0, whole, WIDTH):
        centered = widen(load(x, start + j)) - mean
        total = fma(centered, centered, total)
    for j in range(whole, H):
        rest += (x[start + j] - mean) ** 2
    variance = (sum_lanes(total) + rest) / H

    scale = 1.0 / math.sqrt(variance + eps)
    for j in range(0, whole, WIDTH):
        normed = (widen(load(x, start + j)) - mean) * scale
        store(y, start + j, narrow(fma(normed, widen(load(weight, j)), widen(load(bias, j)))))
    for j in range(whole, H):
        y[start + j] = np.float32((x[start + j] - mean) * scale * weight[j] + bias[j])


@kernel
def describe_layer_norm(task, x, weight, bias, y, eps):
    """Fill in the task for `layer_norm_chunk` and return its number of chunks."""
    T, H = x.shape
    task[0] = LAYER_NORM
    task[1] = x.ctypes.data
    task[2] = weight.ctypes.data
    task[3] = bias.ctypes.data
    task[4] = y.ctypes.data
    task[5] = T
    task[6] = H
    task[7:8].view(np.float64)[0] = eps
    return (T + ROWS - 1) // ROWS


@kernel
def describe_embed(task, words, ids, type_table, token_types, position_table, positions, y):
    """Fill in the task for `embed_chunk` and return its number of chunks."""
    T, H = y.shape
    task[0] = EMBED
    task[1] = words.ctypes.data
    task[2] = ids.ctypes.data
    task[3] = type_table.ctypes.data
    task[4] = token_types.ctypes.data
    task[5] = position_table.ctypes.data
    task[6] = positions.ctypes.data
    task[7] = y.ctypes.data
    task[8] = T
    task[9] = H
    return (T + ROWS - 1) // ROWS
