"""Packed weights: a weight of the checkpoint in the order in which the micro-kernel of gemm.py reads it.

What        `pack` is `Ops.prepare`: it packs a weight once, at load
Layout      Panels of NR columns. A panel is contiguous::

                weight^T (K, N)              packed weight [ceil(N / NR)][K][NR]
                   NR   NR   NR
                +----+----+----+             panel 0: row 0 of its NR columns, row 1, ..., row K - 1
              K |  0 |  1 |  2 |   ------>   panel 1: ...
                +----+----+----+             the last panel is filled up with zeros

Contract    This file does not import numba
Source      Goto and van de Geijn 2008 (ACM TOMS 34(3)), section 5
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from minibert.base.arrays import FloatArray
from minibert.bert.ops import Linear
from minibert.kernels.buffers import aligned_empty
from minibert.kernels.processor import NR

__all__ = ["PackedLinear", "pack"]


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

    def __reduce__(self) -> tuple[Callable[..., PackedLinear], tuple[Any, ...]]:
        # As the checkpoint has it, because another processor may have another NR.
        return pack, (aligned_empty, Linear(self.paths, self.weight, self.bias))


def pack(empty: Callable[..., FloatArray], linear: Linear) -> PackedLinear:
    """Copy a weight into panels of NR columns, and fill up the last panel with zeros; `empty` allocates the panels."""
    N, K = linear.weight.shape
    panels = empty(-(-N // NR), K, NR)
    for p, panel in enumerate(panels):
        rows = linear.weight[p * NR : (p + 1) * NR]
        panel[:, : len(rows)] = rows.T
        panel[:, len(rows) :] = 0.0
    panels.flags.writeable = False
    return PackedLinear(linear.paths, linear.shape, panels.reshape(-1), np.ascontiguousarray(linear.bias, np.float32))
