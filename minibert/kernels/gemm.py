"""y = x weight^T for BERT's shapes: packed weights, a register-tiled micro-kernel, and the epilogue on the hot tile.

What        y (M, N) = activation(x (M, K) weight^T (K, N) + bias) + residual
Layout      x and y row-major. The weight is packed once, at load, into panels of NR columns; each is a contiguous
            stream in the order in which the micro-kernel reads it::

                weight^T (K, N)              packed weight [ceil(N / NR)][K][NR]
                   NR   NR   NR
                +----+----+----+             panel 0: row 0 of its NR columns, row 1, ..., row K - 1
              K |  0 |  1 |  2 |   ------>   panel 1: ...
                +----+----+----+             the last one filled up with zeros

Registers   a micro-tile of up to MR x NR sums, NR = 2 WIDTH: 2 MR accumulators and as many totals; each step of k loads
            two vectors of the panel and broadcasts MR numbers of x
Loop order  row blocks of about MC rows and groups of panels (the chunks that threads share) -> panels -> micro-tiles ->
            blocks of KC steps -> k
Edges       rows are shared out evenly over micro-tiles (22 = 6 + 6 + 5 + 5), with one micro-kernel for each height; in
            the last panel a tile passes through a small buffer
Numerics    an output is a sum over blocks of KC products: a chain of fma within a block, then the blocks in order. None
            of that depends on M, the tile or the thread: a row's result is the same bit for bit in any batch. Blocks
            also err less than one chain over all of K
Contract    callers checked every shape; nothing here checks bounds
Source      Goto and van de Geijn 2008 (ACM TOMS 34(3)); Van Zee and van de Geijn 2015, BLIS (ACM TOMS 41(3))
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from minibert.kernels.compilation import function, kernel
from minibert.kernels.memory import floats_at
from minibert.kernels.simd import (
    WIDTH,
    element_pointer,
    fma,
    fma_lanes,
    gelu,
    load,
    load_first,
    load_lanes,
    maximum,
    number,
    splat,
    store,
    store_first,
    store_lanes,
    tanh,
    zero_lanes,
)  # fmt: skip
from minibert.ops import FloatArray, Linear

__all__ = [
    "ACTIVATION_CODES",
    "EPILOGUE",
    "LINEAR",
    "MR",
    "NR",
    "PackedLinear",
    "describe_epilogue",
    "describe_linear",
    "epilogue_chunk",
    "linear_chunk",
    "micro_tile",
    "pack",
]

LINEAR, EPILOGUE = 1, 5  # kinds of tasks

MR = 7  # rows of a micro-tile: with 2 MR accumulators and 2 MR totals it just fits the 32 registers of AVX-512 and NEON
NR = 2 * WIDTH  # columns of a micro-tile and of a panel
KC = 128  # products of one partial sum
MC = 96  # rows that stay in the second cache while all panels pass by
EPILOGUE_ROWS = 32  # rows of one chunk where a BLAS multiplies


# --- packed weights --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class PackedLinear:
    """A `Linear` whose weight lies in panels, as gemm.py's layout picture shows; its other arrays are the checkpoint's.

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


def pack(linear: Linear) -> PackedLinear:
    """Lay a weight out in panels of NR columns, the last one filled up with zeros."""
    N, K = linear.weight.shape
    panels = np.zeros((-(-N // NR), K, NR), dtype=np.float32)
    for p, panel in enumerate(panels):
        rows = linear.weight[p * NR : (p + 1) * NR]
        panel[:, : len(rows)] = rows.T
    panels.flags.writeable = False
    return PackedLinear(linear.paths, linear.shape, panels.reshape(-1), linear.bias)


# --- micro-kernel ----------------------------------------------------------------------------------------------------


def _micro_kernel(rows: int) -> Any:
    """c[rows, NR] = sum over k of a[rows, k] b[k, NR]."""

    @intrinsic
    def micro_kernel(typingctx, a, a_start, lda, b, b_start, depth, c, c_start, ldc):
        def codegen(context, builder, signature, arguments):
            a_, a_start_, lda_, b_, b_start_, depth_, c_, c_start_, ldc_ = arguments
            word = depth_.type

            def whole(number):
                return ir.Constant(word, number)

            a_first = element_pointer(context, builder, signature.args[0], a_, a_start_)
            b_first = element_pointer(context, builder, signature.args[3], b_, b_start_)
            c_first = element_pointer(context, builder, signature.args[6], c_, c_start_)
            a_rows = [builder.gep(a_first, [builder.mul(lda_, whole(i))]) for i in range(rows)]
            sums = range(2 * rows)

            entry = builder.basic_block
            block, step, added, done = (
                builder.append_basic_block(name) for name in ("k.block", "k.step", "k.added", "k.done")
            )
            builder.branch(block)

            builder.position_at_end(block)
            start = builder.phi(word)
            totals = [builder.phi(zero_lanes().type) for _ in sums]
            stop = builder.add(start, whole(KC))
            stop = builder.select(builder.icmp_signed("<", stop, depth_), stop, depth_)
            builder.branch(step)

            builder.position_at_end(step)
            k = builder.phi(word)
            accumulators = [builder.phi(zero_lanes().type) for _ in sums]
            b_row = builder.gep(b_first, [builder.mul(k, whole(NR))])
            b_lanes = [load_lanes(builder, builder.gep(b_row, [whole(j * WIDTH)])) for j in range(2)]
            updated = []
            for a_row in a_rows:
                a_lanes = splat(builder, builder.load(builder.gep(a_row, [k])))
                updated += [
                    fma_lanes(builder, a_lanes, b, accumulators[len(updated) + j]) for j, b in enumerate(b_lanes)
                ]
            next_k = builder.add(k, whole(1))
            builder.cbranch(builder.icmp_signed("<", next_k, stop), step, added)

            builder.position_at_end(added)
            grown = [builder.fadd(total, sum_) for total, sum_ in zip(totals, updated, strict=True)]
            builder.cbranch(builder.icmp_signed("<", stop, depth_), block, done)

            k.add_incoming(start, block)
            k.add_incoming(next_k, step)
            start.add_incoming(whole(0), entry)
            start.add_incoming(stop, added)
            for i in sums:
                accumulators[i].add_incoming(zero_lanes(), block)
                accumulators[i].add_incoming(updated[i], step)
                totals[i].add_incoming(zero_lanes(), entry)
                totals[i].add_incoming(grown[i], added)

            builder.position_at_end(done)
            for i in range(rows):
                c_row = builder.gep(c_first, [builder.mul(ldc_, whole(i))])
                for j in range(2):
                    store_lanes(builder, grown[2 * i + j], builder.gep(c_row, [whole(j * WIDTH)]))
            return context.get_dummy_value()

        whole_numbers = (types.intp,) * 2
        return types.void(a, *whole_numbers, b, *whole_numbers, c, *whole_numbers), codegen

    return micro_kernel


_1, _2, _3, _4, _5, _6, _7 = (_micro_kernel(rows) for rows in range(1, MR + 1))


@function
def micro_tile(rows, a, a_start, lda, b, b_start, depth, c, c_start, ldc):
    """c[rows, NR] = a[rows, depth] b[depth, NR] for 1 to MR rows, b being one panel."""
    if rows == 7:
        _7(a, a_start, lda, b, b_start, depth, c, c_start, ldc)
    elif rows == 6:
        _6(a, a_start, lda, b, b_start, depth, c, c_start, ldc)
    elif rows == 5:
        _5(a, a_start, lda, b, b_start, depth, c, c_start, ldc)
    elif rows == 4:
        _4(a, a_start, lda, b, b_start, depth, c, c_start, ldc)
    elif rows == 3:
        _3(a, a_start, lda, b, b_start, depth, c, c_start, ldc)
    elif rows == 2:
        _2(a, a_start, lda, b, b_start, depth, c, c_start, ldc)
    elif rows == 1:
        _1(a, a_start, lda, b, b_start, depth, c, c_start, ldc)


# --- epilogue --------------------------------------------------------------------------------------------------------

GELU, GELU_TANH, RELU, SILU, TANH = 1, 2, 3, 4, 5
ACTIVATION_CODES = {
    None: 0,
    "gelu": GELU,
    "gelu_new": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "gelu_fast": GELU_TANH,
    "relu": RELU,
    "silu": SILU,
    "swish": SILU,
    "tanh": TANH,
}


@function
def activate(x, code):
    """The activation with this code; formulas in reference.py."""
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
def finish_tile(rows, columns, tile, start, ldt, bias, bias_start, code, residual, y, y_start, ldy, has_residual):
    """y = activation(tile + bias) + residual for a tile of up to NR columns; tile may be y itself."""
    for i in range(rows):
        for j in range(0, columns, WIDTH):
            place, source, count = y_start + i * ldy + j, start + i * ldt + j, columns - j
            if count >= WIDTH:
                value = activate(load(tile, source) + load(bias, bias_start + j), code)
                if has_residual:
                    value = value + load(residual, place)
                store(y, place, value)
            else:
                value = load_first(tile, source, count) + load_first(bias, bias_start + j, count)
                value = activate(value, code)
                if has_residual:
                    value = value + load_first(residual, place, count)
                store_first(y, place, value, count)


# --- the task --------------------------------------------------------------------------------------------------------


@function
def linear_chunk(task, chunk):
    """One row block times one group of panels; the fields of `task` are those of `describe_linear`."""
    x, panels, bias = floats_at(task[1]), floats_at(task[2]), floats_at(task[3])
    residual, y = floats_at(task[4]), floats_at(task[5])
    M, N, K, code, has_residual = task[6], task[7], task[8], task[9], task[10] != 0
    block_rows, group, groups = task[11], task[12], task[13]

    first_row = (chunk // groups) * block_rows
    num_rows = min(block_rows, M - first_row)
    tiles = (num_rows + MR - 1) // MR
    height, taller = num_rows // tiles, num_rows % tiles
    first_panel = (chunk % groups) * group
    edge = np.empty(MR * NR, np.float32)
    for p in range(first_panel, min(first_panel + group, (N + NR - 1) // NR)):
        columns = min(NR, N - p * NR)
        row = first_row
        for t in range(tiles):
            rows = height + 1 if t < taller else height
            place = row * N + p * NR
            if columns == NR:
                micro_tile(rows, x, row * K, K, panels, p * K * NR, K, y, place, N)
                finish_tile(rows, columns, y, place, N, bias, p * NR, code, residual, y, place, N, has_residual)
            else:
                micro_tile(rows, x, row * K, K, panels, p * K * NR, K, edge, 0, NR)
                finish_tile(rows, columns, edge, 0, NR, bias, p * NR, code, residual, y, place, N, has_residual)
            row += rows


@function
def epilogue_chunk(task, chunk):
    """The epilogue by itself, on rows that a BLAS multiplied; the fields of `task` are those of `describe_epilogue`."""
    bias, residual, y = floats_at(task[1]), floats_at(task[2]), floats_at(task[3])
    M, N, code, has_residual = task[4], task[5], task[6], task[7] != 0
    first = chunk * EPILOGUE_ROWS
    rows = min(EPILOGUE_ROWS, M - first)
    finish_tile(rows, N, y, first * N, N, bias, 0, code, residual, y, first * N, N, has_residual)


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

    Few rows: one row block, panels shared out. Many rows: blocks of about MC rows that stay in cache while all panels
    pass by. About eight chunks for each thread, so that a thread that is held up leaves its share to the others.
    """
    M, N = y.shape
    K = x.shape[1]
    blocks = (M + MC - 1) // MC
    num_panels = (N + NR - 1) // NR
    wanted = (8 * num_threads + blocks - 1) // blocks if num_threads > 1 else 1
    group = max(1, num_panels // wanted)
    groups = (num_panels + group - 1) // group
    task[0] = LINEAR
    task[1] = x.ctypes.data
    task[2] = panels.ctypes.data
    task[3] = bias.ctypes.data
    task[4] = residual.ctypes.data
    task[5] = y.ctypes.data
    task[6] = M
    task[7] = N
    task[8] = K
    task[9] = code
    task[10] = has_residual
    task[11] = (M + blocks - 1) // blocks
    task[12] = group
    task[13] = groups
    return blocks * groups
