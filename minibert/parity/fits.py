"""Closed-form fits: which eps, which scale, which curve, how much leaks through the mask, which columns moved.

Each function takes a port's values and returns what fits them, with a number that says how well; None if nothing does.
A fit is a guess. diagnosis.py simulates what was fitted, and accepts it only if the difference disappears.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, Int64Array
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm
from minibert.parity.mistakes_norms import CURVES
from minibert.parity.truth import to_bfloat16

__all__ = [
    "EpsFit",
    "LeakFit",
    "ScaleFit",
    "fit_activation",
    "fit_columns",
    "fit_dropout",
    "fit_eps",
    "fit_leak",
    "fit_length",
    "fit_rows",
    "fit_scale",
    "precision_of",
]

# A fit of a constant is accepted if its values differ by less than this part of it.
_SPREAD = 0.05


@dataclasses.dataclass(frozen=True)
class EpsFit:
    """The eps of a LayerNorm: in the root, beside the variance, or outside of the root."""

    eps: float
    outside: bool
    spread: float


@dataclasses.dataclass(frozen=True)
class ScaleFit:
    """The factor between query key^T and the scores, and the expression it equals within 1e-4, "" if none."""

    factor: float
    name: str
    spread: float


@dataclasses.dataclass(frozen=True)
class LeakFit:
    """What a port's softmax gives to hidden keys: the mass, and the constant added to their scores."""

    mass: float
    constant: float
    spread: float


def fit_eps(x: FloatArray, y: FloatArray, norm: LayerNorm) -> EpsFit | None:
    """Fit the eps of a LayerNorm from its input and output.

    Parameters
    ----------
    x, y : float64 arrays of shape (N, H)
    norm : LayerNorm        its weight and bias

    Notes
    -----
    The output says by which root each row was divided. Its square minus the variance is constant over the rows if eps
    is in the root, and the root minus the standard deviation is constant if it is outside.
    """
    usable = np.abs(norm.weight) > 1e-3 * np.abs(norm.weight).max(initial=0)
    if len(x) < 2 or not usable.any():
        return None
    centered = x - x.mean(axis=1, keepdims=True)
    variance = (centered * centered).mean(axis=1)
    weight, bias = norm.weight[usable].astype(np.float64), norm.bias[usable]
    scaled = (y[:, usable] - bias) / weight
    some = centered[:, usable]
    # Weighted by the LayerNorm's own weight, because a small weight makes the rounding of y large.
    products = (some * scaled * weight**2).sum(axis=1)
    with np.errstate(all="ignore"):
        root = (some * some * weight**2).sum(axis=1) / products
        inside, outside = root**2 - variance, root - np.sqrt(variance)
        fits = [
            EpsFit(float(np.median(values)), place, float(np.std(values) / abs(np.median(values))))
            for values, place in ((inside, False), (outside, True))
        ]
    fits = [fit for fit in fits if np.isfinite(fit.spread) and fit.eps > 0]
    best = min(fits, key=lambda fit: fit.spread, default=None)
    return best if best is not None and best.spread < _SPREAD else None


def fit_scale(query: FloatArray, key: FloatArray, scores: FloatArray, config: BertConfig) -> ScaleFit | None:
    """Fit the factor between query key^T and scores.

    Parameters
    ----------
    query, key : float64 arrays of shape (S, H), of one sequence
    scores : float64 array of shape (A, S, S)
    """
    A, D = config.num_attention_heads, config.head_size
    q, k = (x.reshape(len(x), A, D).transpose(1, 0, 2) for x in (query, key))
    products = q @ k.transpose(0, 2, 1)
    square = float((products * products).sum())
    if not square or not np.isfinite(scores).all():
        return None
    factor = float((products * scores).sum()) / square
    rest = scores - factor * products
    spread = math.sqrt(float((rest * rest).sum()) / max(float((scores * scores).sum()), 1e-300))
    if spread > 1e-3 or not factor:
        return None
    known = {
        "1": 1.0,
        "1 / sqrt(D)": D**-0.5,
        "1 / D": 1 / D,
        "1 / sqrt(hidden_size)": config.hidden_size**-0.5,
        "1 / sqrt(num_attention_heads)": A**-0.5,
        "1 / hidden_size": 1 / config.hidden_size,
        "1 / num_attention_heads": 1 / A,
        "sqrt(D)": D**0.5,
    }
    near = [name for name, value in known.items() if abs(factor / value - 1) < 1e-4]
    return ScaleFit(factor, near[0] if near else "", spread)


def fit_activation(before: FloatArray, after: FloatArray) -> tuple[str, float] | None:
    """Return the curve of `CURVES` that is nearest to the points (before, after), and its RMS error."""
    finite = np.isfinite(before) & np.isfinite(after)
    if not finite.any():
        return None
    x, y = before[finite].astype(np.float64), after[finite]
    with np.errstate(all="ignore"):
        errors = {name: float(np.sqrt(np.mean((curve(x) - y) ** 2))) for name, curve in CURVES.items()}
    name = min(errors, key=lambda one: errors[one])
    return name, errors[name]


def fit_leak(scores: FloatArray, probs: FloatArray, mask: npt.NDArray[np.bool_]) -> LeakFit | None:
    """Fit what a port gives to hidden keys.

    Parameters
    ----------
    scores, probs : float64 arrays of shape (B, A, S, S)
    mask : bool array of shape (B, S)

    Returns
    -------
    LeakFit or None
        None if hidden keys have no mass. The constant is log(prob) - score of hidden keys minus that of visible keys.
    """
    queries = mask[:, None, :, None]
    hidden = np.broadcast_to(queries & ~mask[:, None, None, :], probs.shape)
    shown = np.broadcast_to(queries & mask[:, None, None, :], probs.shape)
    with np.errstate(all="ignore"):
        mass = np.where(hidden, probs, 0).sum(axis=-1)
        excess = np.log(probs) - scores
        usable = shown & np.isfinite(excess)
        level = np.where(usable, excess, 0).sum(axis=-1, keepdims=True) / usable.sum(axis=-1, keepdims=True)
        constants = (excess - level)[hidden & np.isfinite(excess - level) & (probs > 1e-30)]
    largest = float(np.nanmax(mass, initial=0.0))
    if not largest > 1e-7 or not len(constants):
        return None
    return LeakFit(largest, float(np.median(constants)), float(np.std(constants)))


def fit_columns(wanted: FloatArray, given: FloatArray) -> Int64Array | None:
    """Return the order of columns with which `wanted` (N, H) becomes `given`, or None if it is not a permutation.

    ``wanted[:, order]`` is near `given`. Columns are matched by correlation; the order as it is counts as no fit.
    """
    if len(wanted) < 3 or not (np.isfinite(wanted).all() and np.isfinite(given).all()):
        return None

    def unit(x: FloatArray) -> FloatArray:
        centered = x - x.mean(axis=0)
        lengths = np.sqrt((centered * centered).sum(axis=0))
        scaled: FloatArray = centered / np.where(lengths > 0, lengths, 1)
        return scaled

    correlation = unit(given).T @ unit(wanted)
    order = correlation.argmax(axis=1)
    best = np.take_along_axis(correlation, order[:, None], axis=1)
    if best.min() < 0.9999 or len(set(order.tolist())) < len(order) or (order == np.arange(len(order))).all():
        return None
    return order.astype(np.int64)


def fit_length(wanted: FloatArray, given: FloatArray) -> tuple[float, float] | None:
    """Return the factor between rows of the same direction, its median and its relative spread; None if they differ."""
    with np.errstate(all="ignore"):
        lengths = [np.sqrt((x * x).sum(axis=-1)) for x in (wanted, given)]
        cosine = (wanted * given).sum(axis=-1) / (lengths[0] * lengths[1])
        factors = lengths[1] / lengths[0]
    if not np.isfinite(factors).all() or not len(factors) or cosine.min() < 1 - 1e-6:
        return None
    middle = float(np.median(factors))
    return (middle, float(np.std(factors)) / middle) if middle > 0 else None


def fit_dropout(wanted: FloatArray, given: FloatArray) -> float | None:
    """Return the rate of dropout: the share of zeros, if all other values are larger by 1 / (1 - rate); else None."""
    live = np.isfinite(given) & (np.abs(wanted) > 1e-6 * np.abs(wanted).max(initial=0))
    if live.sum() < 100:
        return None
    zeros = given[live] == 0
    rate = float(zeros.mean())
    if not 0.005 < rate < 0.9:
        return None
    factors = (given[live] / wanted[live])[~zeros]
    factor = float(np.median(factors))
    steady = np.abs(factors / factor - 1) < 1e-3
    return 1 - 1 / factor if factor > 1 and steady.mean() > 0.9 and abs(1 - 1 / factor - rate) < 0.1 else None


def fit_rows(table: FloatArray, given: FloatArray) -> Int64Array:
    """Return the row of a table (V, H) that is nearest to each of the given vectors (N, H)."""
    squares = (table * table).sum(axis=1)
    return np.array([int(np.argmin(squares - 2 * (table @ row))) for row in given], dtype=np.int64)


def precision_of(values: FloatArray) -> str:
    """Return the narrowest format that holds all values exactly: "float16", "bfloat16", "float32" or "float64"."""
    x = values[np.isfinite(values)].astype(np.float64)
    # First bfloat16, because its 8 bits fit into the 11 of float16.
    if np.array_equal(to_bfloat16(x), x):
        return "bfloat16"
    with np.errstate(over="ignore"):
        if np.array_equal(x.astype(np.float16).astype(np.float64), x):
            return "float16"
        return "float32" if np.array_equal(x.astype(np.float32).astype(np.float64), x) else "float64"
