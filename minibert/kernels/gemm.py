"""The matrix product for BERT's shapes: packed weights, a micro-kernel with its sums in registers, and the epilogue.

What        y (M, N) = activation(x (M, K) weight^T (K, N) + bias) + residual
Layout      x and y are row-major. The weight is packed once, at load, into panels of NR columns. A panel is contiguous,
            in the order in which the micro-kernel reads it::

                weight^T (K, N)              packed weight [ceil(N / NR)][K][NR]
                   NR   NR   NR
                +----+----+----+             panel 0: row 0 of its NR columns, row 1, ..., row K - 1
              K |  0 |  1 |  2 |   ------>   panel 1: ...
                +----+----+----+             the last panel is filled up with zeros

Registers   A micro-tile has up to MR x NR sums. NR is 2 WIDTH, so the sums are 2 MR accumulators. Each step of k loads
            two vectors of the panel and broadcasts MR numbers of x. With 32 registers, the 2 MR totals are in registers
            too
Loop order  blocks of BLOCK_TILES micro-tiles and groups of panels (these are the chunks of work that threads share) ->
            panels -> micro-tiles -> blocks of KC steps -> k
Edges       The rows are divided evenly among the micro-tiles (22 = 6 + 6 + 5 + 5). There is one micro-kernel for each
            number of rows
Epilogue    Bias and residual are added to the sums in their registers. If there is an activation, or the last panel has
            fewer than NR columns, the tile passes through a small buffer that stays in the first cache
Prefetch    While a tile is computed, a part of the next panel is fetched into the second cache, because with few rows
            the processor's own prefetcher is too late. The cache lines of the tile's result are fetched into the first
            cache when the tile begins. Those of its residual are fetched later, because all at once would delay the
            loads of k
Numerics    An output is a sum over blocks of KC products: a chain of fma within a block, then the blocks in order. This
            does not depend on M, the tile or the thread, so a row's result is the same bit for bit in any batch. Blocks
            also have a smaller rounding error than one chain over all of K
Contract    Callers have checked every shape; the code here does not check bounds
Source      Goto and van de Geijn 2008 (ACM TOMS 34(3)); Van Zee and van de Geijn 2015, BLIS (ACM TOMS 41(3))
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from minibert.base.arrays import FloatArray
from minibert.bert.ops import Linear
from minibert.kernels.buffers import Slabs
from minibert.kernels.compilation import function, kernel
from minibert.kernels.memory import floats_at, scratch
from minibert.kernels.simd import (
    REGISTERS,
    WIDTH,
    fma,
    fma_lanes,
    gelu,
    load,
    load_first,
    load_lanes,
    maximum,
    number,
    prefetch,
    prefetch_line,
    splat,
    store,
    store_first,
    store_lanes,
    tanh,
    zero_lanes,
)  # fmt: skip

__all__ = [
    "ACTIVATION_CODES",
    "EPILOGUE",
    "FLOAT",
    "LINEAR",
    "MR",
    "NR",
    "PackedLinear",
    "describe_epilogue",
    "describe_linear",
    "epilogue_chunk",
    "linear_chunk",
    "multiply_tile",
    "pack",
    "prefetch_tile",
]

LINEAR, EPILOGUE = 1, 5  # kinds of tasks

MR = 7 if REGISTERS == 32 else 6  # rows of a micro-tile; registers remain for two vectors of b and one of a
NR = 2 * WIDTH  # columns of a micro-tile and of a panel
KC = 128  # products of one partial sum
UNROLL = 2  # steps of k in one turn of the inner loop
BLOCK_TILES = 7  # micro-tiles of one block; their rows stay in the second cache while all panels are read
FEW_TILES = 20  # up to this number of micro-tiles are one block, because reading each panel once then saves more
FLOAT = 4  # bytes of a float32
EPILOGUE_ROWS = 32  # rows of one chunk if a BLAS computes the product


# --- packed weights --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class PackedLinear:
    """A `Linear` with a packed weight: panels, as the picture at the top of this file shows.

    Parameters
    ----------
    paths : tuple of str
    shape : (N, K)
    panels : ndarray of shape (ceil(N / NR) * K * NR,), float32, read-only
    bias : ndarray of shape (N,), float32, read-only
    """

    paths: tuple[str, ...]
    shape: tuple[int, int]
    panels: FloatArray
    bias: FloatArray

    @property
    def weight(self) -> FloatArray:
        """The weight as the checkpoint has it, (N, K), copied out of the panels."""
        N, K = self.shape
        num_panels = -(-N // NR)
        return self.panels.reshape(num_panels, K, NR).transpose(0, 2, 1).reshape(num_panels * NR, K)[:N]


def pack(slabs: Slabs, linear: Linear) -> PackedLinear:
    """Copy a weight into panels of NR columns, and fill up the last panel with zeros."""
    N, K = linear.weight.shape
    panels = slabs.empty(-(-N // NR), K, NR)
    for p, panel in enumerate(panels):
        rows = linear.weight[p * NR : (p + 1) * NR]
        panel[:, : len(rows)] = rows.T
        panel[:, len(rows) :] = 0.0
    panels.flags.writeable = False
    return PackedLinear(linear.paths, linear.shape, panels.reshape(-1), np.ascontiguousarray(linear.bias))


# --- micro-kernel ----------------------------------------------------------------------------------------------------


def _micro_kernel(rows: int) -> Any:
    """Return the micro-kernel for this number of rows: c[rows, NR] = sum over k of a[rows, k] b[k, NR].

    If `added` is 1, it adds the bias to the sums; if `added` is 2, the bias and the residual. The residual has the
    layout of c.

    The micro-kernel also prefetches. With each k, one of the cache lines at ahead, ahead + pace floats, ... is fetched
    into the second cache. The residual is fetched into the first cache: half of its rows after the first block of k,
    half after the second, if another block follows.

    Arrays are passed as addresses, because 11 integers are cheaper to pass than 5 Numba arrays of 7 fields each.
    """

    @intrinsic
    def micro_kernel(typingctx, a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace):
        def codegen(context, builder, signature, arguments):
            a_, lda_, b_, depth_, c_, ldc_, added_, bias_, residual_, ahead_, pace_ = arguments
            word = depth_.type
            lanes = zero_lanes().type
            sums = range(2 * rows)

            def whole(number):
                return ir.Constant(word, number)

            def pointer(address):
                return builder.inttoptr(address, ir.FloatType().as_pointer())

            def tile(first):
                """Return pointers to the 2 * rows vectors of a tile with the layout of c."""
                offsets = [
                    builder.add(builder.mul(ldc_, whole(i)), whole(j * WIDTH)) for i in range(rows) for j in (0, 1)
                ]
                return [builder.gep(first, [offset]) for offset in offsets]

            a_first, b_first, residual_first, ahead_first = map(pointer, (a_, b_, residual_, ahead_))
            a_rows = [builder.gep(a_first, [builder.mul(lda_, whole(i))]) for i in range(rows)]
            entry = builder.basic_block
            names = ("k.block", "k.added", "bias", "residual", "store")
            block, end_of_block, add_bias, add_residual, store = map(builder.append_basic_block, names)
            steps = [builder.append_basic_block("k.step") for _ in range(UNROLL)]
            builder.branch(block)

            builder.position_at_end(block)
            start = builder.phi(word)
            totals = [builder.phi(lanes) for _ in sums]
            stop = builder.add(start, whole(KC))
            stop = builder.select(builder.icmp_signed("<", stop, depth_), stop, depth_)
            builder.branch(steps[0])

            builder.position_at_end(steps[0])
            first_k = k = builder.phi(word)
            first = accumulators = [builder.phi(lanes) for _ in sums]
            exits = []
            for i, step in enumerate(steps):
                builder.position_at_end(step)
                prefetch_line(builder, builder.gep(ahead_first, [builder.mul(k, pace_)]))
                b_row = builder.gep(b_first, [builder.mul(k, whole(NR))])
                b_lanes = [load_lanes(builder, builder.gep(b_row, [whole(j * WIDTH)])) for j in (0, 1)]
                a_lanes = [splat(builder, builder.load(builder.gep(a_row, [k]))) for a_row in a_rows]
                products = [(x, y) for x in a_lanes for y in b_lanes]
                accumulators = [fma_lanes(builder, *pair, z) for pair, z in zip(products, accumulators, strict=True)]
                exits.append((accumulators, step))
                k = builder.add(k, whole(1))
                builder.cbranch(builder.icmp_signed("<", k, stop), steps[(i + 1) % UNROLL], end_of_block)

            builder.position_at_end(end_of_block)
            grown = []
            for i, total in enumerate(totals):
                sum_ = builder.phi(lanes)
                for values, source in exits:
                    sum_.add_incoming(values[i], source)
                grown.append((total, sum_))
            grown = [builder.fadd(total, sum_) for total, sum_ in grown]
            again, fetch, next_block, finish = map(builder.append_basic_block, ("again", "fetch", "k.next", "finish"))
            builder.cbranch(builder.icmp_signed("<", stop, depth_), again, finish)

            builder.position_at_end(again)
            early = builder.icmp_signed("<", start, whole(2 * KC))
            wanted = builder.and_(early, builder.icmp_signed("==", added_, whole(2)))
            builder.cbranch(wanted, fetch, next_block)

            builder.position_at_end(fetch)
            half = (rows + 1) // 2
            odd = builder.icmp_signed("!=", builder.and_(start, whole(KC)), whole(0))
            offset = builder.select(odd, builder.mul(ldc_, whole(half)), whole(0))
            for _ in range(half):
                for j in range(0, NR, 16):
                    prefetch_line(builder, builder.gep(residual_first, [builder.add(offset, whole(j))]), cache=1)
                offset = builder.add(offset, ldc_)
            builder.branch(next_block)
            builder.position_at_end(next_block)
            builder.branch(block)

            first_k.add_incoming(start, block)
            first_k.add_incoming(k, steps[-1])
            start.add_incoming(whole(0), entry)
            start.add_incoming(stop, next_block)
            for i in sums:
                first[i].add_incoming(zero_lanes(), block)
                first[i].add_incoming(accumulators[i], steps[-1])
                totals[i].add_incoming(zero_lanes(), entry)
                totals[i].add_incoming(grown[i], next_block)

            builder.position_at_end(finish)
            builder.cbranch(builder.icmp_signed("==", added_, whole(0)), store, add_bias)

            builder.position_at_end(add_bias)
            bias_first = pointer(bias_)
            bias_lanes = [load_lanes(builder, builder.gep(bias_first, [whole(j * WIDTH)])) for j in (0, 1)]
            biased = [builder.fadd(total, bias_lanes[i % 2]) for i, total in enumerate(grown)]
            builder.cbranch(builder.icmp_signed("==", added_, whole(1)), store, add_residual)

            builder.position_at_end(add_residual)
            residual_lanes = [load_lanes(builder, address) for address in tile(residual_first)]
            summed = [builder.fadd(x, y) for x, y in zip(biased, residual_lanes, strict=True)]
            builder.branch(store)

            builder.position_at_end(store)
            results = [builder.phi(lanes) for _ in sums]
            for values, source in ((grown, finish), (biased, add_bias), (summed, add_residual)):
                for result, value in zip(results, values, strict=True):
                    result.add_incoming(value, source)
            for result, address in zip(results, tile(pointer(c_)), strict=True):
                store_lanes(builder, result, address)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 11), codegen

    return micro_kernel


# Compiled code cannot choose a function by an index, so each number of rows has a name and a branch.
_1, _2, _3, _4, _5, _6, _7 = (_micro_kernel(rows) for rows in range(1, 8))


@function
def multiply_tile(rows, a, lda, b, depth, c, ldc):
    """Compute c[rows, NR] = a[rows, depth] b[depth, NR] for 1 to MR rows; b is one panel; a, b and c are addresses."""
    multiply_tile_and_add(rows, a, lda, b, depth, c, ldc, 0, b, b, b, 0)


@function
def multiply_tile_and_add(rows, a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace):
    """Compute a micro-tile; add the bias if `added` is 1, and the bias and the residual if `added` is 2."""
    if rows == 7:
        _7(a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace)
    elif rows == 6:
        _6(a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace)
    elif rows == 5:
        _5(a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace)
    elif rows == 4:
        _4(a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace)
    elif rows == 3:
        _3(a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace)
    elif rows == 2:
        _2(a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace)
    elif rows == 1:
        _1(a, lda, b, depth, c, ldc, added, bias, residual, ahead, pace)


# --- epilogue --------------------------------------------------------------------------------------------------------

GELU, GELU_TANH, RELU, SILU, TANH = 1, 2, 3, 4, 5
ACTIVATION_CODES = {None: 0, "gelu": GELU, "gelu_tanh": GELU_TANH, "relu": RELU, "silu": SILU, "tanh": TANH}


@function
def activate(x, code):
    """Compute the activation with this code; reference.py has the formulas."""
    if code == GELU:
        return gelu(x)
    if code == GELU_TANH:
        half = x * 0.5
        inner = x * 0.7978845608028654
        inner = fma(inner * x, x * 0.044715, inner)
        return fma(half, tanh(inner), half)
    if code == RELU:
        return maximum(x, number(0.0))
    if code == SILU:
        half = x * 0.5
        return fma(half, tanh(half), half)
    if code == TANH:
        return tanh(x)
    return x


@function
def apply_epilogue(rows, columns, tile, start, ldt, bias, bias_start, code, residual, y, y_start, ldy, has_residual):
    """Compute y = activation(tile + bias) + residual; tile may be y itself."""
    for i in range(rows):
        for j in range(0, columns, WIDTH):
            target, source, count = y_start + i * ldy + j, start + i * ldt + j, columns - j
            if count >= WIDTH:
                value = activate(load(tile, source) + load(bias, bias_start + j), code)
                if has_residual:
                    value = value + load(residual, target)
                store(y, target, value)
            else:
                value = load_first(tile, source, count) + load_first(bias, bias_start + j, count)
                value = activate(value, code)
                if has_residual:
                    value = value + load_first(residual, target, count)
                store_first(y, target, value, count)


# --- the task --------------------------------------------------------------------------------------------------------


@function
def linear_chunk(task, chunk):
    """Multiply a block of micro-tiles by a group of panels; `describe_linear` writes the fields of `task`."""
    x, panels, bias, residual, y = task[1], task[2], task[3], task[4], task[5]
    M, N, K, code, has_residual = task[6], task[7], task[8], task[9], task[10] != 0
    tiles, block_tiles, group, groups = task[11], task[12], task[13], task[14]

    height, taller = M // tiles, M % tiles  # the first `taller` tiles have one row more
    first_tile = (chunk // groups) * block_tiles
    first_panel = (chunk % groups) * group
    part = K * NR // block_tiles  # numbers of the next panel that each tile prefetches, `pace` of them with each k
    pace = NR // block_tiles + 1
    buffer = scratch(MR * NR)
    for p in range(first_panel, min(first_panel + group, (N + NR - 1) // NR)):
        panel, column, columns = panels + p * K * NR * FLOAT, p * NR, min(NR, N - p * NR)
        ahead = panel + K * NR * FLOAT
        for t in range(first_tile, min(first_tile + block_tiles, tiles)):
            rows, row = height + (t < taller), t * height + min(t, taller)
            a, offset = x + row * K * FLOAT, row * N + column
            c, r = y + offset * FLOAT, residual + offset * FLOAT
            prefetch_tile(rows, c, N)
            if columns == NR and code == 0:
                added = 2 if has_residual else 1
                multiply_tile_and_add(rows, a, K, panel, K, c, N, added, bias + column * FLOAT, r, ahead, pace)
            else:
                multiply_tile_and_add(rows, a, K, panel, K, buffer.ctypes.data, NR, 0, bias, r, ahead, pace)
                apply_epilogue(
                    rows, columns, buffer, 0, NR, floats_at(bias), column, code, floats_at(residual), floats_at(y),
                    offset, N, has_residual
                )  # fmt: skip
            ahead += part * FLOAT


@function
def prefetch_tile(rows, address, stride):
    """Ask the processor to fetch a tile into the first cache while it computes something else."""
    for i in range(rows):
        for j in range(0, NR, 16):
            prefetch(address + (i * stride + j) * FLOAT)


@function
def epilogue_chunk(task, chunk):
    """Apply the epilogue to rows that a BLAS multiplied; `describe_epilogue` writes the fields of `task`."""
    bias, residual, y = floats_at(task[1]), floats_at(task[2]), floats_at(task[3])
    M, N, code, has_residual = task[4], task[5], task[6], task[7] != 0
    first = chunk * EPILOGUE_ROWS
    rows = min(EPILOGUE_ROWS, M - first)
    apply_epilogue(rows, N, y, first * N, N, bias, 0, code, residual, y, first * N, N, has_residual)


@kernel
def describe_epilogue(task, bias, residual, y, code, has_residual):
    """Fill in the task for `epilogue_chunk` and return its number of chunks."""
    M, N = y.shape
    task[0] = EPILOGUE
    task[1] = bias.ctypes.data
    task[2] = residual.ctypes.data
    task[3] = y.ctypes.data
    task[4] = M
    task[5] = N
    task[6] = code
    task[7] = has_residual
    return (M + EPILOGUE_ROWS - 1) // EPILOGUE_ROWS


@kernel
def describe_linear(task, x, panels, bias, residual, y, code, has_residual, num_threads):
    """Fill in the task for `linear_chunk` and return its number of chunks.

    With few rows there is one block of tiles, and the threads share the panels. With many rows there are more blocks,
    and each stays in cache while all panels are read.
    """
    M, N = y.shape
    tiles = (M + MR - 1) // MR
    blocks = 1 if tiles <= FEW_TILES else (tiles + BLOCK_TILES - 1) // BLOCK_TILES
    num_panels = (N + NR - 1) // NR
    block_tiles = (tiles + blocks - 1) // blocks
    # Chunks are so small that no thread waits long for the last one, and so large that taking one costs little.
    wanted = (24 * num_threads + blocks - 1) // blocks if num_threads > 1 else 1
    group = max(1, num_panels // wanted, (8 + block_tiles - 1) // block_tiles)
    groups = (num_panels + group - 1) // group
    task[0] = LINEAR
    task[1] = x.ctypes.data
    task[2] = panels.ctypes.data
    task[3] = bias.ctypes.data
    task[4] = residual.ctypes.data
    task[5] = y.ctypes.data
    task[6] = M
    task[7] = N
    task[8] = x.shape[1]
    task[9] = code
    task[10] = has_residual
    task[11] = tiles
    task[12] = block_tiles
    task[13] = group
    task[14] = groups
    return blocks * groups
