"""`compare_layers`: how similar the hidden states of two layers, or of two models, are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, brief
from minibert.inside.ablation import unit_rows
from minibert.inside.checks import check_layers, check_trace, require
from minibert.trace.trace import Trace

__all__ = ["LayerSimilarity", "compare_layers"]


class LayerSimilarity(NamedTuple):
    """What `compare_layers` found, for m hidden states of the first trace and n of the second; float64.

    Parameters
    ----------
    cka : ndarray of shape (m, n)              linear CKA, 0 to 1
    cosine : ndarray of shape (m, n), or None  mean cosine of the vectors of the same token; None if the sizes differ
    anisotropy_a : ndarray of shape (m,)       mean cosine of the vectors of two different tokens
    anisotropy_b : ndarray of shape (n,)
    """

    cka: FloatArray
    cosine: FloatArray | None
    anisotropy_a: FloatArray
    anisotropy_b: FloatArray


def compare_layers(trace_a: Trace, trace_b: Trace | None = None, *, layers: Any = None) -> LayerSimilarity:
    """Compare each hidden state of a trace with each of another one, or of itself, over all tokens.

    - Linear CKA: Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited" (arXiv 1905.00414),
      section 3: |Y'X|² / (|X'X| |Y'Y|) with Frobenius norms, X and Y centred. It does not depend on rotations or on the
      scale, so it compares models of different widths. With fewer tokens than features it is near 1 for anything: give
      many texts.
    - Anisotropy: Ethayarajh 2019, "How Contextual are Contextualized Word Representations?" (arXiv 1909.00512), section
      3.3: the mean cosine of two different tokens, here over all pairs instead of a sample.

    Parameters
    ----------
    trace_a, trace_b : Trace
        Of the same texts with the same mask, with ``hidden_states.*``; of any two models, such as before and after
        fine-tuning.
    layers : int or ints, optional
        Hidden states, 0 to L, of both; default: all.

    Returns
    -------
    LayerSimilarity

    Raises
    ------
    TypeError, ValueError
    """
    states_a = _states(check_trace("compare_layers", trace_a), layers)
    states_b = states_a if trace_b is None else _states(check_trace("compare_layers", trace_b), layers)
    both = (trace_a, trace_a if trace_b is None else trace_b)
    counts_a, counts_b = (trace.mask.sum(axis=1).tolist() for trace in both)
    if counts_a != counts_b:
        raise ValueError(
            f"compare_layers was given texts of {brief(counts_a)} and {brief(counts_b)} tokens, so they do not "
            "belong together. Give two models the same texts with the same attention mask."
        )
    if len(states_a[0]) < 2:
        raise ValueError(f"compare_layers needs at least 2 tokens; the trace has {len(states_a[0])}. Give more text.")
    centred_a = [x - x.mean(axis=0) for x in states_a]
    centred_b = centred_a if states_b is states_a else [x - x.mean(axis=0) for x in states_b]
    units_a = list(map(unit_rows, states_a))
    units_b = units_a if states_b is states_a else list(map(unit_rows, states_b))
    cosine = None
    if units_a[0].shape == units_b[0].shape:
        cosine = np.array([[float((x * y).sum(axis=1).mean()) for y in units_b] for x in units_a])
    return LayerSimilarity(
        _cka(centred_a, centred_b), cosine, *(np.array(list(map(_anisotropy, units))) for units in (units_a, units_b))
    )


def _states(trace: Trace, layers: Any) -> list[FloatArray]:
    """Return hidden states without padding, (T, H) each, in float64."""
    chosen = check_layers(trace, layers, hidden_states=True)
    require("compare_layers", trace, [f"hidden_states.{i}" for i in chosen], "'hidden_states.*'")
    return [trace[f"hidden_states.{i}"][trace.mask].astype(np.float64) for i in chosen]


def _cka(xs: list[FloatArray], ys: list[FloatArray]) -> FloatArray:
    """Return linear CKA of centred features: with T x T products if there are fewer tokens than features."""
    few = len(xs[0]) <= min(xs[0].shape[1], ys[0].shape[1])

    def inner(x: FloatArray, y: FloatArray) -> float:
        # |Y'X|² is the sum of the products of the numbers of X X' and Y Y'.
        return float(np.vdot(grams[id(x)], grams[id(y)])) if few else float(np.square(y.T @ x).sum())

    grams = {id(x): x @ x.T for x in [*xs, *ys]} if few else {}
    own = {id(x): np.sqrt(inner(x, x)) for x in [*xs, *ys]}
    found = np.zeros((len(xs), len(ys)))
    for i, x in enumerate(xs):
        for j, y in enumerate(ys):
            scale = own[id(x)] * own[id(y)]
            found[i, j] = min(1.0, inner(x, y) / scale) if scale else 0.0  # rounding can give more than 1
    return found


def _anisotropy(units: FloatArray) -> float:
    """Return the mean of u_s . u_t over all pairs of different rows of length 1."""
    n = len(units)
    total = float(np.square(units.sum(axis=0)).sum()) - float(np.square(units).sum())
    return total / (n * (n - 1))
