"""Packed weights: weights of the checkpoint, in the order in which the micro-kernel of gemm.py reads them.

What        `pack` is `Ops.prepare`: it packs a weight once, at load
Layout      Panels of NR columns. A panel is contiguous::

                weight^T (K, N)              packed weight [ceil(N / NR)][K][NR]
                   NR   NR   NR
                +----+----+----+             panel 0: row 0 of its NR columns, row 1, ..., row K - 1
              K |  0 |  1 |  2 |   ------>   panel 1: ...
                +----+----+----+             the last panel is filled up with zeros

            In low precision, a panel is what processor.py describes. If a weight is gated, the panels of its gate
            alternate with those that the gate multiplies. A weight that the checkpoint has in 16 bits has them here,
            too, in the same order: two numbers in four bytes
Contract    This file does not import numba
Source      Goto and van de Geijn 2008 (ACM TOMS 34(3)), section 5
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.low_precision import Format, QuantisedLinear, format_of
from minibert.bert.ops import Linear, PreparedLinear, rows_of
from minibert.kernels.buffers import aligned_empty
from minibert.kernels.libraries import level_of, sources
from minibert.kernels.processor import NR, Words, words_of


@dataclasses.dataclass(frozen=True, eq=False)
class PackedLinear:
    """A `Linear` with a packed weight, in the panels that the picture at the top of this file shows.

    Parameters
    ----------
    paths : tuple of str
    shape : (N, K)
    panels : ndarray of shape (ceil(N / NR) * numbers of a panel,), float32, read-only
        In low precision, each number is a word of any kind.
    bias : ndarray of shape (N,), float32, read-only
    format : Format or None     None: the weight is in float32
    gated : bool
    half : str                  "F16" or "BF16": the panels have 16 bits of this kind for each number
    """

    paths: tuple[str, ...]
    shape: tuple[int, int]
    panels: FloatArray
    bias: FloatArray
    format: Format | None = None
    gated: bool = False
    half: str = ""

    @property
    def weight(self) -> FloatArray:
        """The weight as in the checkpoint, or as it is rounded, (N, K); copied from the panels, so it is read-only."""
        weight = self._unpacked().weight
        weight.flags.writeable = False  # a change of the copy would change no result, and nobody would notice
        return weight

    def part(self, first: int, last: int) -> PackedLinear:
        """Return the maps first, ..., last - 1 of those stacked; in the same memory, if their panels are one block."""
        rows, (N, K) = rows_of(self, first, last), self.shape
        if self.gated or N // len(self.paths) % NR:
            return pack(aligned_empty, self._unpacked().part(first, last))
        panels = self.panels.reshape(N // NR, -1)[rows.start // NR : rows.stop // NR].reshape(-1)
        shape, paths = (rows.stop - rows.start, K), self.paths[first:last]
        return dataclasses.replace(self, paths=paths, shape=shape, panels=panels, bias=self.bias[rows])

    def _unpacked(self) -> Linear | QuantisedLinear:
        (N, K), rows_of_panels = self.shape, _rows_of_panels(self)
        if self.format is None:
            weight = np.empty((N, K), np.float32)
            for panel, rows in zip(_numbers(self.panels, self.half).reshape(-1, K, NR), rows_of_panels, strict=True):
                weight[rows] = _widen(panel.T[: rows.stop - rows.start])
            return Linear(self.paths, weight, self.bias, self.gated, self.half)
        words, (groups, size) = words_of(self.format.name), words_of(self.format.name).panel_shape(K)
        panels = self.panels.reshape(-1, groups, size)
        numbers = _whole_numbers(_lines(panels, words), words).reshape(len(panels), NR, groups, -1)
        scales = np.empty((N, groups), np.float32)
        whole = np.empty((N, groups, self.format.group), numbers.dtype)
        for panel, integers, rows in zip(panels, numbers, rows_of_panels, strict=True):
            scales[rows], whole[rows] = (part[: rows.stop - rows.start] for part in (panel[:, :NR].T, integers))
        return QuantisedLinear(self.paths, self.shape, whole, scales, self.bias, self.format, self.gated)

    def __reduce__(self) -> tuple[Callable[..., PackedLinear], tuple[Any, ...]]:
        # As the checkpoint has it, because another processor may have other panels.
        return pack, (aligned_empty, self._unpacked())


def pack(empty: Callable[..., FloatArray], linear: Linear | QuantisedLinear) -> PackedLinear:
    """Copy a weight into panels of NR columns, and fill up the last panel with zeros; `empty` allocates the panels."""
    rows_of_panels, form, half = _rows_of_panels(linear), None, ""
    if isinstance(linear, QuantisedLinear):
        form = linear.format
        panels = _word_panels(empty, linear, rows_of_panels)
    else:
        half = linear.half
        panels = empty(len(rows_of_panels), linear.shape[1], NR // 2 if half else NR)
        for panel, rows in zip(_numbers(panels, half), rows_of_panels, strict=True):
            count = rows.stop - rows.start
            panel[:, :count] = _narrow(linear.weight[rows].T, half)
            panel[:, count:] = 0
    panels.flags.writeable = False
    bias = np.ascontiguousarray(linear.bias, np.float32)
    return PackedLinear(linear.paths, linear.shape, panels.reshape(-1), bias, form, linear.gated, half)


def _numbers(panels: FloatArray, half: str) -> np.ndarray:
    """Return the numbers of panels, a view; those of BF16 are the upper halves of float32, as uint16."""
    return panels.view({"": np.float32, "F16": np.float16, "BF16": np.uint16}[half])


def _narrow(weight: FloatArray, half: str) -> np.ndarray:
    """Return numbers of a weight that fit into 16 bits as `_numbers` has them."""
    if half == "BF16":
        return (weight.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return weight.astype(np.float16) if half else weight


def _widen(numbers: np.ndarray) -> FloatArray:
    """Return the float32 of what `_narrow` returned."""
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return numbers.astype(np.float32, copy=False)


def _rows_of_panels(linear: PreparedLinear) -> list[slice]:
    """Return the rows of the weight that each panel has; a gate's alternate with those that it multiplies."""
    N = linear.shape[0]
    half = N // 2 if linear.gated else N
    return [slice(f + i, min(f + i + NR, f + half)) for i in range(0, half, NR) for f in range(0, N, half)]


# --- panels of words -------------------------------------------------------------------------------------------------


def _word_panels(empty: Callable[..., FloatArray], linear: QuantisedLinear, rows_of_panels: list[slice]) -> FloatArray:
    words = words_of(linear.format.name)
    panels = empty(len(rows_of_panels), *words.panel_shape(linear.shape[1]))
    panels[...] = 0.0
    for panel, rows in zip(panels, rows_of_panels, strict=True):
        whole, count = linear.whole[rows], rows.stop - rows.start
        panel[:, :count] = linear.scales[rows].T
        if words.dot.offset:
            panel[:, NR : NR + count].view(np.int32)[...] = -words.dot.offset * whole.sum(axis=2, dtype=np.int32).T
        _lines(panel, words)[:, :, :count] = _lines_of(whole, words)
    return panels


def _lines(panels: FloatArray, words: Words) -> IntArray:
    """Return the lines of panels, a view of shape (..., groups, lines of a group, NR, numbers or bytes of a word)."""
    lines = panels[..., words.header * NR :].view("u1" if words.dot.in_tiles else f"i{words.dot.w_bytes}")
    return lines.reshape(*panels.shape[:-1], words.steps, NR, -1)


def _lines_of(whole: IntArray, words: Words) -> IntArray:
    """Return the lines of integers: (columns, groups, group) -> (groups, lines, columns, numbers or bytes)."""
    columns, groups, group = whole.shape
    if words.dot.in_tiles:
        bytes_of = np.ascontiguousarray(whole).view(np.uint8).reshape(columns, groups, group // _WORD, _WORD, -1)
        return bytes_of.transpose(1, 4, 2, 0, 3).reshape(groups, words.steps, columns, _WORD)
    return whole.reshape(columns, groups, words.steps, -1).transpose(1, 2, 0, 3)


def _whole_numbers(lines: IntArray, words: Words) -> IntArray:
    """Return the integers of lines: (panels, groups, lines, NR, ...) -> (panels, NR, groups, ...)."""
    if words.dot.in_tiles:
        planes = lines.reshape(*lines.shape[:2], words.dot.w_bytes, -1, NR, _WORD)
        return np.ascontiguousarray(planes.transpose(0, 4, 1, 3, 5, 2)).view(f"i{words.dot.w_bytes}")
    return lines.transpose(0, 3, 1, 2, 4)


_WORD = 4  # bytes


class PackedLayout:
    """The layout of packed weights in files, for one compute type on this processor.

    Attributes
    ----------
    key : str
        Everything that the panels depend on, besides the weights.
    """

    def __init__(self, compute_type: str) -> None:
        self.key = repr((sources(), level_of(compute_type).name, compute_type))
        self._compute_type = compute_type

    def restore(
        self,
        paths: tuple[str, ...],
        shape: tuple[int, int],
        panels: FloatArray,
        bias: FloatArray,
        gated: bool = False,
        half: str = "",
    ) -> PackedLinear:
        """Return the result of `prepare` again, from its panels and its bias."""
        form = format_of(Linear(paths, panels, bias), self._compute_type)  # which reads the paths only
        return PackedLinear(paths, shape, panels, bias, form, gated, half)
