"""The ops in Numba: what people run. Importing this package imports numba.

Today the matrix products, attention and the look-ups are NumPy's, and the kernels do what lies between them: the
epilogues of `linear` (bias, GELU, residual) and LayerNorm.
"""

from __future__ import annotations

import functools

import numpy as np

from minibert import reference
from minibert.kernels import rowwise
from minibert.kernels.threads import Team
from minibert.ops import FloatArray, LayerNorm, Ops, PreparedLinear

__all__ = ["layer_norm", "linear", "make_ops"]


def make_ops(num_threads: int) -> Ops:
    """Return the set of ops whose kernels use up to `num_threads` threads (at least 1)."""
    team = Team(num_threads)
    return reference.OPS._replace(
        linear=functools.partial(linear, team), layer_norm=functools.partial(layer_norm, team)
    )


def linear(
    team: Team,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Twin of `reference.linear`: NumPy's product, then the epilogue in one pass over it."""
    y = reference.matmul(x, linear.weight)
    if activation == "gelu" and residual is None:
        team.run(rowwise.add_bias_gelu, y, linear.bias, reference.ERF_P, reference.ERF_Q)
    elif activation is None and residual is not None:
        team.run(rowwise.add_bias_residual, y, linear.bias, residual)
    else:  # no kernel of its own: a plain bias, or one of the rarer activations
        y += linear.bias
        if activation is not None:
            y = reference.ACTIVATION_FUNCTIONS[activation](y)
        if residual is not None:
            y += residual
    return y


def layer_norm(team: Team, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Twin of `reference.layer_norm`: one kernel, three passes over a row in cache."""
    y = np.empty_like(x)
    team.run(rowwise.layer_norm, y, x, norm.weight, norm.bias, norm.eps)
    return y
