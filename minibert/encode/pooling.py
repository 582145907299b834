"""The formulas of pooling: the vectors of a text's tokens -> one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray, brief

POOLING_MODES: dict[str, Callable[[FloatArray, IntArray], FloatArray]] = {
    "cls": lambda x, positions: x[0],
    "max": lambda x, positions: x.max(axis=0),
    "mean": lambda x, positions: np.add.reduce(x, 0, np.float64) / len(x),  # x.mean takes twice as long
    "mean_sqrt_len_tokens": lambda x, positions: x.sum(axis=0, dtype=np.float64) / np.sqrt(len(x)),
    "weightedmean": lambda x, positions: ((positions[:, None] + 1.0) * x).sum(axis=0) / (positions + 1.0).sum(),
    "lasttoken": lambda x, positions: x[-1],
}
"""Formulas by sentence-transformers' names: tokens that count, x (S, H), and their positions (S,) in the text -> (H,).

Sums are computed in float64 and rounded once, when the result is stored.

Sources: Reimers and Gurevych 2019 (arXiv 1908.10084), section 3, for cls, max and mean; Muennighoff 2022 (arXiv
2202.08904), section 3, for weightedmean; sentence-transformers 6, sentence_transformer/modules/pooling.py.
"""

_ALIASES: dict[str, tuple[str, ...]] = {
    "mean_max": ("mean", "max"),
    "sep": ("lasttoken",),
    # bert-as-service's names. Source: server/bert_serving/server/graph.py of that project.
    "NONE": ("none",),
    "REDUCE_MEAN": ("mean",),
    "REDUCE_MAX": ("max",),
    "REDUCE_MEAN_MAX": ("mean", "max"),
    "CLS_TOKEN": ("cls",),
    "FIRST_TOKEN": ("cls",),
    "SEP_TOKEN": ("lasttoken",),
    "LAST_TOKEN": ("lasttoken",),
}

# These need more than the token vectors of one hidden state, or do not give one vector. plan.py computes them.
_ALONE = ("first_last", "pooler", "none")


def pooling_modes(pooling: str | Sequence[str], argument: str = "pooling") -> tuple[str, ...]:
    """Turn the argument `pooling` into names of `POOLING_MODES`, or one of "first_last", "pooler", "none".

    Parameters
    ----------
    pooling : str or sequence of str
        One mode, or several whose vectors are concatenated; aliases are "mean_max", "sep" and bert-as-service's NONE,
        REDUCE_MEAN, REDUCE_MAX, REDUCE_MEAN_MAX, CLS_TOKEN, FIRST_TOKEN, SEP_TOKEN, LAST_TOKEN.
    argument : str
        The caller's name of the argument, for messages.

    Raises
    ------
    TypeError, ValueError
        A name is not the name of a mode, or "first_last", "pooler" or "none" is combined with another mode.
    """
    names = [pooling] if isinstance(pooling, str) else pooling
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument}={brief(pooling)}; expected the name of a pooling mode, or a list of names.")
    modes: list[str] = []
    for name in names:
        if name not in (*POOLING_MODES, *_ALONE, *_ALIASES):
            known = ", ".join([*POOLING_MODES, *_ALONE])
            raise ValueError(f"{argument}={brief(name)}; expected {known}, or bert-as-service's names.")
        modes += _ALIASES.get(name, (name,))
    if len(modes) > 1 and (alone := [mode for mode in modes if mode in _ALONE]):
        raise ValueError(f"{argument} {alone[0]!r} cannot be combined with others; got {', '.join(map(repr, modes))}.")
    return tuple(modes)


def pool(
    hidden_state: FloatArray, cu_seqlens: IntArray, modes: Sequence[str], counts: npt.NDArray[np.bool_] | None = None
) -> FloatArray:
    """Pool each sequence of a packed batch; the vectors of several modes are concatenated.

    Parameters
    ----------
    hidden_state : ndarray of shape (T, H), float32
    cu_seqlens : int ndarray of shape (B + 1,)
    modes : names of `POOLING_MODES`
    counts : bool ndarray of shape (T,), optional
        Which tokens count; default: all. "weightedmean" still counts the positions of the others.

    Returns
    -------
    ndarray of shape (B, len(modes) * H), float32
        Zeros for a sequence without a token that counts.
    """
    H = hidden_state.shape[1]
    pooled = np.zeros((len(cu_seqlens) - 1, len(modes) * H), dtype=np.float32)
    for b, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        x = hidden_state[start:end]
        positions = np.arange(end - start) if counts is None else np.flatnonzero(counts[start:end])
        if len(positions) == 0:
            continue
        if counts is not None:
            x = x[positions]
        for i, mode in enumerate(modes):
            pooled[b, i * H : (i + 1) * H] = POOLING_MODES[mode](x, positions)
    return pooled
