"""The ops that compute each token by itself: the sum of embeddings, and LayerNorm.

What        `embed_chunk` and `layer_norm_chunk`; they compute the same as reference.embed and reference.layer_norm
Layout      Arrays are row-major (T, H) float32 arrays, given by their addresses. A chunk of work is ROWS rows
Edges       The last H % WIDTH numbers of a row are a vector too, whose other lanes are 0
Numerics    Both compute in float64 and round once. The sums of LayerNorm have a fixed order, so the result of a row
            depends on that row only, on every processor
Cost        One pass over memory. LayerNorm makes three passes over a row, which is then in cache
Contract    Callers have checked every shape and every id; the code here does not check bounds
Source      Devlin et al. 2018 (arXiv 1810.04805), figure 2; Ba et al. 2016 (arXiv 1607.06450), section 3
"""

from __future__ import annotations

import math

from minibert.kernels.compilation import function, inline
from minibert.kernels.ops import EMBED, LAYER_NORM, ROWS
from minibert.kernels.processor import WIDTH
from minibert.kernels.simd import (
    broadcast,
    doubles_at,
    first_lanes,
    floats_at,
    fma,
    ints_at,
    load_up_to,
    narrow,
    store_up_to,
    sum_lanes,
    task_at,
    widen,
)

_embed_task, _layer_norm_task = task_at(EMBED), task_at(LAYER_NORM)


@inline
def _wide(array, start, count):
    """Load up to WIDTH numbers in float64; the lanes beyond `count` are 0."""
    return widen(load_up_to(array, start, count))


@function
def embed_chunk(address, chunk):
    """Add three look-ups for each of ROWS tokens; if there is a scale, multiply the sum by it."""
    task = _embed_task(address)
    words, ids = floats_at(task.words), ints_at(task.ids)
    type_table, token_types = floats_at(task.type_table), ints_at(task.token_types)
    position_table, positions = floats_at(task.position_table), ints_at(task.positions)
    y, H, scale = floats_at(task.y), task.H, doubles_at(task.scale)
    for t in range(chunk * ROWS, min(task.T, (chunk + 1) * ROWS)):
        factor = scale[t] if task.scale != 0 else 1.0
        word, token_type, position = ids[t] * H, token_types[t] * H, positions[t] * H
        for j in range(0, H, WIDTH):
            count = H - j
            total = _wide(words, word + j, count) + _wide(type_table, token_type + j, count)
            total = (total + _wide(position_table, position + j, count)) * factor
            store_up_to(y, t * H + j, narrow(total), count)


@function
def layer_norm_chunk(address, chunk):
    """Normalise ROWS rows."""
    task = _layer_norm_task(address)
    x, weight, bias, y, H = floats_at(task.x), floats_at(task.weight), floats_at(task.bias), floats_at(task.y), task.H
    for t in range(chunk * ROWS, min(task.T, (chunk + 1) * ROWS)):
        layer_norm_row(x, t * H, weight, bias, task.eps, task.centered, y, H)


@function
def layer_norm_row(x, start, weight, bias, eps, centered, y, H):
    """Compute y = (x - mean) / sqrt(variance + eps) * weight + bias for one row, in float64, rounded once.

    The mean is 0 if `centered` is 0.
    """
    zero = broadcast(0.0)
    total = zero
    for j in range(0, H * centered, WIDTH):
        total = total + _wide(x, start + j, H - j)
    mean = sum_lanes(total) / H

    total = zero
    for j in range(0, H, WIDTH):
        centered = first_lanes(_wide(x, start + j, H - j) - mean, min(WIDTH, H - j), zero)
        total = fma(centered, centered, total)
    variance = sum_lanes(total) / H

    scale = 1.0 / math.sqrt(variance + eps)
    for j in range(0, H, WIDTH):
        normed = (_wide(x, start + j, H - j) - mean) * scale
        y_lanes = fma(normed, _wide(weight, j, H - j), _wide(bias, j, H - j))
        store_up_to(y, start + j, narrow(y_lanes), H - j)
