"""The matrix product for BERT's shapes: packed weights, a micro-kernel with its sums in registers, the epilogue.

What        y (M, N) = activation(x (M, K) weight^T (K, N) + bias) + residual
Layout      x and y are row-major. The weight is in panels of NR columns (packing.py has a picture)
Halves      A weight in 16 bits is widened, which is exact: so each result has the bits that the same numbers in float32
            give. A slice of a panel is widened into memory of the thread, once for all micro-tiles of a block, and a
            part of it after each tile of the slice before: so storing does not delay the products
Registers   A micro-tile is MR x NR sums. Each step of k loads one row of the panel, NR numbers, and broadcasts MR
            numbers of x. The totals of a tile are in registers too with AVX-512, else in the first cache
Loop order  chunks (some micro-tiles x some panels; ops.py cuts them) -> slices of k -> panels -> micro-tiles -> blocks
            of k -> k. With a large K there are several slices, so that the x of a block stays in the second cache; the
            totals of one slice wait in the result for the next slice. With few rows, on some processors (ops.py), the
            slices are shorter, and their loop is inside that of the panels (`by_panel`): so the slice of a panel stays
            in the first cache for all micro-tiles, and the next slice is fetched meanwhile
Edges       The rows are divided evenly among the micro-tiles (22 = 6 + 6 + 5 + 5, if MR is 6 or 7). There is one
            micro-kernel for each number of rows
Epilogue    Bias and residual are added to the sums in their registers. An activation of floats is computed from the
            tile in the result, which is still in the first cache. Three kinds of tiles go through a small buffer: tiles
            of words with an activation, tiles of a last panel with fewer than NR columns, and the two tiles of a gated
            product. These two are multiplied there: activation(gate) * up
Prefetch    While a tile is computed, a part of the next panel or slice is fetched into the second cache, because with
            few rows the processor's own prefetcher is too late. The cache lines of the tile's result are fetched into
            the first cache when the tile begins. Those of its residual are fetched later, because all at once would
            delay the loads of k
Numerics    An output is a sum over blocks of KC products (SHORT_KC, if K is at most SHORT): a chain of fma within a
            block, then the blocks in order. This does not depend on M, the tile, the thread or the processor, so a
            row's result is the same bit for bit in any batch. Blocks also have a smaller rounding error than one chain
            over all of K
Contract    Callers have checked every shape; the code here does not check bounds
Source      Goto and van de Geijn 2008 (ACM TOMS 34(3)); Van Zee and van de Geijn 2015, BLIS (ACM TOMS 41(3))

The micro-kernel computes the same bits as these lines of Python, where `fma` rounds once. A test compares them::

    def micro_kernel(a, b):                                    # a (rows, K), b (K, NR)
        totals = np.zeros((rows, NR), np.float32)
        length = KC if K > SHORT else SHORT_KC
        for start in range(0, K, length):
            sums = np.zeros((rows, NR), np.float32)
            for k in range(start, min(start + length, K)):
                sums = fma(a[:, k, None], b[k], sums)          # sums[i, j] += a[i, k] b[k, j]
            totals += sums
        return totals
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from minibert.kernels.activations import activate
from minibert.kernels.amx import amx_multiplier, begin_tiles, end_tiles
from minibert.kernels.compilation import function, inline
from minibert.kernels.ops import HALVES, LINEAR, LINEAR_WORDS
from minibert.kernels.processor import MR, NR, UNROLL, WIDTH, Words, row_layout
from minibert.kernels.simd import (
    floats_at,
    load,
    load_up_to,
    prefetch,
    prefetch_second,
    stack_floats,
    store,
    store_up_to,
    task_at,
    widen_bfloat16,
    widen_float16,
)
from minibert.kernels.threads import FLOAT
from minibert.kernels.tile import add_block, add_products, finish_tile, load_tile, zero_tile

# As int64, because Numba compiles a function again for each Python integer among its arguments.
_ZERO, _NR = np.int64(0), np.int64(NR)
# KC and SHORT were chosen by the error of benchmarks/parity.py; the speed is the same within 1 % for KC from 32 to 128.
KC = 32  # products of one partial sum. The error of 16 is larger for K = 3,072, and the error of 64 for every K
SHORT, SHORT_KC = 128, 16  # up to SHORT products, the error of 16 is smaller
RESUMED = 4  # in `added`: c has the totals of the slices before
LINE_FLOATS = 16  # floats of a cache line


# --- micro-kernel ----------------------------------------------------------------------------------------------------


@function
def prefetch_tile(rows, address, stride):
    """Ask the processor to fetch a tile into the first cache while it computes something else."""
    for i in range(rows):
        for j in range(0, NR, LINE_FLOATS):
            prefetch(address + (i * stride + j) * FLOAT)


@inline
def block_length(depth):
    """Return the number of products in one partial sum, if the whole sum has `depth` products."""
    return KC if depth > SHORT else SHORT_KC


def _layout(words: Words | None) -> tuple[Any, int, int, int]:
    """Return what differs between floats and words.

    - length : function of the depth, which returns the steps of one block of a weight; for words, a block is a group
    - the bytes of the header of a block in a row of x, and in a panel; the bytes of a line of a panel
    """
    if words is None:
        return block_length, 0, 0, NR * FLOAT
    steps = np.int64(words.steps)
    return inline(lambda depth: steps), FLOAT, words.header * NR * FLOAT, words.line


def _micro_kernel(rows: int, words: Words | None) -> Any:
    """Make the micro-kernel for this number of rows; `multiply_tile_and_add` explains its arguments."""
    zeros, first, add, half = zero_tile(rows), zero_tile(rows, words), add_products(words), np.int64((rows + 1) // 2)
    _, x_header, header, line = _layout(words)

    @function
    def micro_kernel(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace):
        totals = zeros(b)
        if added >= RESUMED:
            totals, added = load_tile(totals, c, ldc), added - RESUMED
        for block in range(depth // length):
            sums = first(b)
            x_scales, scales = a, b
            a, b = a + x_header, b + header
            for _ in range(length // UNROLL):
                if pace > LINE_FLOATS:
                    for k in range(UNROLL):
                        prefetch_second(ahead + (k * pace + LINE_FLOATS) * FLOAT)
                for k in range(UNROLL):
                    prefetch_second(ahead + k * pace * FLOAT)
                    sums = add(sums, a + k * FLOAT, lda, b + k * line)
                a, b, ahead = a + UNROLL * FLOAT, b + UNROLL * line, ahead + UNROLL * pace * FLOAT
            totals = add_block(totals, sums, x_scales, lda, scales)
            if added == 2 and block < 2:
                prefetch_tile(half, residual + block * half * ldc * FLOAT, ldc)
        if x_header == 0 and depth % length:  # of floats; a row of words is filled up
            sums = first(b)
            for k in range(depth % length):
                sums = add(sums, a + k * FLOAT, lda, b + k * line)
            totals = add_block(totals, sums, a, lda, b)
        finish_tile(totals, c, ldc, added, bias, residual)

    return micro_kernel


@inline
def _no_kernel(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace):
    """Do nothing: tiles do not have more than MR rows, and a micro-kernel takes long to compile."""


@functools.cache
def tile_multiplier(words: Words | None) -> Any:
    """Make the function that chooses the micro-kernel, for floats or for words."""
    # Compiled code cannot choose a function by an index, so each number of rows has a name and a branch.
    _1, _2, _3, _4, _5, _6, _7 = (_micro_kernel(rows, words) if rows <= MR else _no_kernel for rows in range(1, 8))

    @function
    def multiply_tile_and_add(rows, a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace):
        """Compute c[rows, NR] = a[rows, depth] b[depth, NR] for 1 to MR rows; b is one panel, in blocks of `length`.

        If `added` is 1, it adds the bias to the sums; if `added` is 2, the bias and the residual, which has the layout
        of c. If it is RESUMED more than that, the totals begin with c. With each k, one of the cache lines at ahead,
        ahead + pace floats, ... is fetched into the second cache. The residual is fetched into the first cache in two
        parts, after the first and the second block of k.

        Arrays are addresses, and lda and ldc are the distances of their rows in floats.
        """
        if rows == 7:
            _7(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace)
        elif rows == 6:
            _6(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace)
        elif rows == 5:
            _5(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace)
        elif rows == 4:
            _4(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace)
        elif rows == 3:
            _3(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace)
        elif rows == 2:
            _2(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace)
        elif rows == 1:
            _1(a, lda, b, depth, length, c, ldc, added, bias, residual, ahead, pace)

    return multiply_tile_and_add


multiply_floats = tile_multiplier(None)


# --- epilogue --------------------------------------------------------------------------------------------------------


@function
def apply_epilogue(rows, columns, tile, start, ldt, bias, bias_start, code, residual, y, y_start, ldy, has_residual):
    """Compute y = activation(tile + bias) + residual; tile may be y itself."""
    for i in range(rows):
        for j in range(0, columns, WIDTH):
            target, source, count = y_start + i * ldy + j, start + i * ldt + j, columns - j
            value = activate(load_up_to(tile, source, count) + load_up_to(bias, bias_start + j, count), code)
            if has_residual:
                value = value + load_up_to(residual, target, count)
            store_up_to(y, target, value, count)


@function
def apply_gate(rows, columns, gate, up, bias, column, code, y, row, N):
    """Compute y = activation(gate + bias) * (up + bias) from two tiles; without an activation, both side by side."""
    for i in range(rows):
        for j in range(0, columns, WIDTH):
            place, count = column + j, columns - j
            left = load(gate, i * NR + j) + load_up_to(bias, place, count)
            right = load(up, i * NR + j) + load_up_to(bias, N + place, count)
            if code != 0:
                store_up_to(y, (row + i) * N + place, activate(left, code) * right, count)
            else:
                store_up_to(y, (row + i) * 2 * N + place, left, count)
                store_up_to(y, (row + i) * 2 * N + N + place, right, count)


# --- halves ----------------------------------------------------------------------------------------------------------

_F16 = HALVES.index("F16")


@function
def widen_lines(first, last, source, target, kind):
    """Widen the lines first, ..., last - 1 of a panel in 16 bits to float32 at another address."""
    if kind == _F16:
        for i in range(first * NR, last * NR, WIDTH):
            store(floats_at(target), i, widen_float16(source + i * FLOAT // 2))
    else:
        for i in range(first * NR, last * NR, WIDTH):
            store(floats_at(target), i, widen_bfloat16(source + i * FLOAT // 2))


@function
def widen_part(number, share, lines, source, target, kind):
    """Widen part `number` of the lines, in parts of `share` lines."""
    widen_lines(number * share, min((number + 1) * share, lines), source, target, kind)


# --- chunks ----------------------------------------------------------------------------------------------------------


def make_linear_chunk(words: Words | None) -> Any:
    """Make the function that multiplies the micro-tiles of one block by the panels of one chunk."""
    linear_task = task_at(LINEAR if words is None else LINEAR_WORDS[words.form.name])
    (length_of, *_), sizes = _layout(words), inline(row_layout(words))
    tile_size = np.int64((MR if words is None else words.rows) * NR)
    tile_buffer = stack_floats(2 * int(tile_size))
    if words is not None and words.dot.in_tiles:
        multiply, begin, end = amx_multiplier(words), begin_tiles, end_tiles
    else:
        multiply, begin, end = tile_multiplier(words), do_nothing, do_nothing
    in_result = words is None  # whether an activation is computed in the result

    @function
    def linear_chunk(address, chunk, scratch):
        task = linear_task(address)
        M, N, code, has_residual = task.M, task.N, task.activation, task.residual != 0
        # The rows of this block, in micro-tiles, and the columns of this chunk, in panels.
        tiles, block_tiles = task.tiles, task.block_tiles
        height, taller = M // tiles, M % tiles  # the first `taller` tiles have one row more
        panels = (N + NR - 1) // NR
        chunks_per_block = (panels + task.panels_per_chunk - 1) // task.panels_per_chunk
        first_tile = (chunk // chunks_per_block) * block_tiles
        first_panel = (chunk % chunks_per_block) * task.panels_per_chunk
        depth, lda, size = sizes(task.K)
        # The slices of K: all panels for one slice after another, or all slices of one panel (`by_panel`).
        length, slices = length_of(depth), task.slices
        outer, inner = (1, slices) if task.by_panel != 0 else (slices, 1)
        step = depth // slices
        half = min(task.half, 1)  # 1: two numbers of a panel are in one word
        size >>= half
        gated, group = task.gated != 0, size * (1 + task.gated)  # the panels that one panel of the result needs
        # What is fetched ahead.
        distance = step * NR >> half if task.by_panel != 0 else group  # from this slice to the one that is read next
        part = size // slices // block_tiles  # words of that slice that each tile prefetches, `pace` with each k
        pace = (size + depth * block_tiles - 1) // (depth * block_tiles)
        buffer = tile_buffer()
        upper = buffer + tile_size * FLOAT
        # Of halves: the lines of the panels of one slice, how many of the next one each tile widens, and two buffers.
        lines, last_tile = step * (1 + task.gated), min(first_tile + block_tiles, tiles)
        share = (lines + last_tile - first_tile - 1) // (last_tile - first_tile)
        widened, other, is_widened = scratch, scratch + lines * NR * FLOAT, False
        last_panel = min(first_panel + task.panels_per_chunk, panels)
        begin(height + min(taller, 1))
        for o in range(outer):
            for p in range(first_panel, last_panel):
                column, columns = p * NR, min(NR, N - p * NR)
                for s in range(o * inner, (o + 1) * inner):
                    first, is_last = s * step, s == slices - 1
                    panel = task.panels + (p * group + (first * NR >> half)) * FLOAT
                    following = panel + distance * FLOAT
                    ahead, more_lines = following, np.int64(0)
                    if half != 0:
                        if not is_widened:
                            widen_lines(_ZERO, lines, panel, widened, task.half)
                        panel, widened, other = widened, other, widened
                        is_widened = s + 1 < (o + 1) * inner or p + 1 < last_panel
                        more_lines = share if is_widened else _ZERO
                    b = panel + (size << half) * FLOAT
                    for t in range(first_tile, last_tile):
                        rows, row = height + (t < taller), t * height + min(t, taller)
                        a, offset = task.x + (row * lda + first) * FLOAT, row * N + column
                        c, r, bias = task.y + offset * FLOAT, task.residual + offset * FLOAT, task.bias + column * FLOAT
                        prefetch_tile(rows, c, N)
                        if gated:  # two tiles -> the buffer -> the result
                            multiply(rows, a, lda, panel, step, length, buffer, _NR, _ZERO, bias, r, ahead, pace)
                            more = ahead + size * FLOAT
                            multiply(rows, a, lda, b, step, length, upper, _NR, _ZERO, bias, r, more, pace)
                            gate, up, biases = floats_at(buffer), floats_at(upper), floats_at(task.bias)
                            apply_gate(rows, columns, gate, up, biases, column, code, floats_at(task.y), row, N)
                            ahead += part * FLOAT
                            widen_part(t - first_tile, more_lines, lines, following, widened, task.half)
                            continue
                        # One tile -> the result, or the buffer and then the result.
                        tile, ldt, added = buffer, _NR, _ZERO
                        if columns == NR and (code == 0 or in_result):
                            tile, ldt, added = c, N, np.int64(RESUMED if s > 0 else 0)
                            if is_last and code == 0:
                                added += 1 + has_residual
                        multiply(rows, a, lda, panel, step, length, tile, ldt, added, bias, r, ahead, pace)
                        if is_last and (columns < NR or code != 0):
                            apply_epilogue(
                                rows, columns, floats_at(tile), _ZERO, ldt, floats_at(task.bias), column, code,
                                floats_at(task.residual), floats_at(task.y), offset, N, has_residual
                            )  # fmt: skip
                        ahead += part * FLOAT
                        widen_part(t - first_tile, more_lines, lines, following, widened, task.half)
        end()

    return linear_chunk


@inline
def do_nothing(_=0):
    """Do nothing: only the products with AMX begin and end with a call."""


linear_chunk = make_linear_chunk(None)
