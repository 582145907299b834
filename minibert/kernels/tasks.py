"""Tasks: one op as the threads see it, a kind and named fields, and the chunks into which its work is cut.

What        Python writes a task with `TaskKind.write`. A kernel reads the same fields by name, as a record with the
            dtype of its kind (`task_at` in memory.py). So each name is written down once, here
Layout      A task is a row of numbers of 8 bytes: the kind, then addresses, sizes and options as int64. Only `eps` is a
            float64
Chunks      A chunk is a part of the work of one op. It writes its own part of the result and nothing else, so any
            thread may compute it, in any order. How the work is cut does not change a result
Contract    Callers have checked every shape. This file does not import numba
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from typing import Any, NamedTuple

import numpy as np

from minibert.bert.low_precision import FORMATS
from minibert.kernels.processor import MR, NR

FLOAT = 4  # bytes of a float32
HEADER = 6  # numbers of a state before its task; threads.py says which
MOST_FIELDS = 16  # of any task, with its kind


class TaskKind:
    """A kind of task: its number, and the names of its fields in the order in which `write` takes the values."""

    def __init__(self, number: int, names: str) -> None:
        self.number = number
        types = {name: "f8" if name == "eps" else "i8" for name in names.split()}
        if len(types) >= MOST_FIELDS:
            raise ValueError(f"a task has {len(types)} fields; there is room for {MOST_FIELDS - 1}")
        self.dtype = np.dtype([("kind", "i8"), *types.items()])
        codes = "".join("d" if kind == "f8" else "q" for kind in types.values())
        self._pack = struct.Struct(f"={HEADER}qq{codes}").pack_into

    def write(self, memory: Any, header: tuple[int, ...], values: tuple[float, ...]) -> None:
        """Write the header of a state (threads.py), and a task with these values, to the beginning of `memory`."""
        self._pack(memory, 0, *header, self.number, *values)


# x (M, K), panels and bias (gemm.py), residual and y (M, N), as addresses. `activation` is one of ACTIVATION_CODES, and
# `has_residual` 0 or 1. The next four are those of `LinearChunks`. In low precision, x is words; if `source` is not 0,
# it is the address of the floats that the leader quantises into them before the chunks.
_LINEAR_FIELDS = (
    "x panels bias residual y M N K activation has_residual tiles block_tiles panels_per_chunk chunks_per_block source"
)
LINEAR = TaskKind(1, _LINEAR_FIELDS)
LINEAR_WORDS = {name: TaskKind(6 + 2 * i, _LINEAR_FIELDS) for i, name in enumerate(FORMATS)}
# x (M, K) as floats, and y as the words of a format (words.py)
QUANTISE = {name: TaskKind(7 + 2 * i, "x y M K") for i, name in enumerate(FORMATS)}
# The addresses of query, key and value, whose rows have a distance of `stride` floats; of cu_seqlens (B + 1,) and
# context (T, H). `scores` and `probs` are 0 if they are not wanted; those of sequence b begin at pairs_first[b].
ATTENTION = TaskKind(2, "query key value cu_seqlens context num_heads D stride scores probs pairs_first")
# Three tables and three look-ups into them; y (T, H).
EMBED = TaskKind(3, "words ids type_table token_types position_table positions y T H")
LAYER_NORM = TaskKind(4, "x weight bias y T H eps")

ACTIVATION_CODES = {None: 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "silu": 4, "tanh": 5, "sigmoid": 6}


# In memory an array is Python's object header, then the pointer to its data. This is part of NumPy's binary interface,
# which compiled extensions rely on. Source: PyArrayObject_fields in numpy/ndarraytypes.h.
_DATA = object.__basicsize__
_pointer_at = ctypes.c_size_t.from_address


def address(array: np.ndarray[Any, Any]) -> int:
    """Return the address of the first number of an array."""
    return _pointer_at(id(array) + _DATA).value  # eight times as fast as array.ctypes.data


def _address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


if sys.implementation.name != "cpython" or any(
    address(x) != x.ctypes.data for x in (np.zeros(3), np.zeros((2, 5))[:, 2:])
):
    address = _address


# --- chunks ----------------------------------------------------------------------------------------------------------

# Measured with other values in turn, in one process on two threads (Zen 5, a whole forward of MiniLM; noise: 3 %).
# Numbers of 4 bytes that x has in one block, whose rows stay in the second cache while all panels are read. On a Xeon
# with AMX (bert-base, 8 x 128), 7 micro-tiles for K = 768 and 28 for K = 3,072 are 6 % slower than 28 and 7.
# MiniLM: no difference from 3 to 28 on Zen 5, nor on the Xeon.
BLOCK_NUMBERS = 7 * 7 * 3072
MOST_ROWS = 28 * 7  # of one block. 42 * 7: 7 % slower (the same Xeon)
FEW_TILES = 20  # up to this number of micro-tiles are one block, so each panel is read once. 7 and 14: 5 % (1 x 128)
CHUNKS_PER_THREAD = 24  # of one product; so no thread waits long for the last one. 4 to 96: no difference
LEAST_TILES = 8  # of one chunk; so taking a chunk costs little. 4 and 16: 4 % slower, 32: 11 % (1 x 22)
SMALL = 1 << 16  # numbers of x that the leader quantises alone, because a second op would take longer
ROWS = 32  # rows of one chunk of an op that computes each token alone; not measured with other values


class LinearChunks(NamedTuple):
    """How a product is cut: each chunk multiplies `block_tiles` of the `tiles` micro-tiles by `panels_per_chunk`."""

    tiles: int
    block_tiles: int
    panels_per_chunk: int
    chunks_per_block: int


@functools.lru_cache(maxsize=1024)
def linear_chunks(M: int, N: int, row_size: int, num_threads: int, rows: int = MR) -> tuple[LinearChunks, int]:
    """Return how a product of M rows and N columns is cut, and its number of chunks; a micro-tile has up to `rows`.

    `row_size` is the distance of two rows of x in numbers of 4 bytes.
    With few rows there is one block of tiles, and the threads share the panels. With many rows there are more blocks,
    and each stays in cache while all panels are read.
    """
    tiles = -(-M // rows)
    most_tiles = max(1, min(MOST_ROWS, BLOCK_NUMBERS // max(1, row_size)) // rows)
    blocks = 1 if tiles <= FEW_TILES else -(-tiles // most_tiles)
    num_panels = -(-N // NR)
    block_tiles = -(-tiles // blocks)
    wanted = -(-CHUNKS_PER_THREAD * num_threads // blocks) if num_threads > 1 else 1
    panels_per_chunk = max(1, num_panels // wanted, -(-LEAST_TILES * MR // (rows * max(1, block_tiles))))
    chunks_per_block = -(-num_panels // panels_per_chunk)
    cut = LinearChunks(tiles, block_tiles, panels_per_chunk, chunks_per_block)
    return cut, blocks * chunks_per_block if M else 0


def row_chunks(num_rows: int) -> int:
    """Return the number of chunks of an op that computes each row alone."""
    return -(-num_rows // ROWS)


def attention_scratch(S: int, D: int) -> int:
    """Return how many floats a thread needs for one attention head of S tokens: packed keys and values, scores, ..."""
    columns = -(-S // NR) * NR
    return columns * D + -(-D // NR) * S * NR + MR * (columns + NR + 1)
