"""Fit numbers to a port: an eps, a scale, a curve, a constant of the mask, an order of columns, ids.

The functions `fit_...` take a port's values and return what fits them in closed form, None if nothing does. A fit is a
guess: search.py simulates what was fitted, and accepts it only if the difference disappears.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, Int64Array
from minibert.bert.ops import LayerNorm
from minibert.parity.diagnosis.catalogue import MISTAKES, eps_mistake, layer_mistake, leak_mistake, scale_mistake
from minibert.parity.diagnosis.forward import Mistake, symbol_of

if TYPE_CHECKING:
    from minibert.parity.diagnosis.search import Search


# A number is fitted further if the best one of a grid removes this part of the error, and accepted with the second.
_USEFUL, _PROMISING = 0.05, 0.4

# A fit of a constant is accepted if its values differ by less than this part of it.
_SPREAD = 0.05


def fit_eps(x: FloatArray, y: FloatArray, norm: LayerNorm) -> tuple[float, bool] | None:
    """Fit the eps of a LayerNorm from its input and output: the eps, and whether it is outside of the root.

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
            (float(np.std(values) / np.median(values)), float(np.median(values)), values is outside)
            for values in (inside, outside)
        ]
    spread, eps, is_outside = min((fit for fit in fits if fit[0] >= 0 and fit[1] > 0), default=(np.inf, 0.0, False))
    return (eps, is_outside) if spread < _SPREAD else None


def fit_scale(query: FloatArray, key: FloatArray, scores: FloatArray, num_heads: int) -> float | None:
    """Fit the factor between query key^T and scores: of one sequence, (S, H), (S, H) and (A, S, S)."""
    q, k = (x.reshape(len(x), num_heads, -1).transpose(1, 0, 2) for x in (query, key))
    products = q @ k.transpose(0, 2, 1)
    square = float((products * products).sum())
    if not square or not np.isfinite(scores).all():
        return None
    factor = float((products * scores).sum()) / square
    rest = scores - factor * products
    spread = math.sqrt(float((rest * rest).sum()) / max(float((scores * scores).sum()), 1e-300))
    return factor if spread <= 1e-3 and factor else None


def fit_leak(scores: FloatArray, probs: FloatArray, mask: npt.NDArray[np.bool_]) -> float | None:
    """Fit the constant that a port adds to the scores (B, A, S, S) of hidden keys; None if they have no mass.

    It is log(prob) - score of hidden keys minus that of visible keys.
    """
    queries = mask[:, None, :, None]
    hidden = np.broadcast_to(queries & ~mask[:, None, None, :], probs.shape)
    shown = np.broadcast_to(queries & mask[:, None, None, :], probs.shape)
    with np.errstate(all="ignore"):
        excess = np.log(probs) - scores
        usable = shown & np.isfinite(excess)
        level = np.where(usable, excess, 0).sum(axis=-1, keepdims=True) / usable.sum(axis=-1, keepdims=True)
        constants = (excess - level)[hidden & np.isfinite(excess - level) & (probs > 1e-30)]
        mass = np.nanmax(np.where(hidden, probs, 0).sum(axis=-1), initial=0.0)
    return float(np.median(constants)) if mass > 1e-7 and len(constants) else None


def fit_columns(wanted: FloatArray, given: FloatArray) -> Int64Array | None:
    """Return the permutation of columns that turns `wanted` (N, H) into `given`; None if there is no such permutation.

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
    """Return the factor between rows of equal direction, as median and relative spread; None if directions differ."""
    with np.errstate(all="ignore"):
        lengths = [np.sqrt((x * x).sum(axis=-1)) for x in (wanted, given)]
        cosine = (wanted * given).sum(axis=-1) / (lengths[0] * lengths[1])
        factors = lengths[1] / lengths[0]
    if not np.isfinite(factors).all() or not len(factors) or cosine.min() < 1 - 1e-6:
        return None
    middle = float(np.median(factors))
    return (middle, float(np.std(factors)) / middle) if middle > 0 else None


def fit_dropout(wanted: FloatArray, given: FloatArray) -> float | None:
    """Return the rate of dropout (the share of zeros) if all other values are larger by 1 / (1 - rate); else None."""
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
    chance = 3 * np.sqrt(rate * (1 - rate) / live.sum())  # a share of zeros differs from the rate by chance
    fits = abs(1 - 1 / factor - rate) < 0.2 * rate + chance
    return 1 - 1 / factor if factor > 1.003 and steady.mean() > 0.9 and fits else None


def fit_rows(table: FloatArray, given: FloatArray) -> Int64Array:
    """Return, for each of the vectors (N, H), the index of the nearest row of a table (V, H)."""
    squares = (table * table).sum(axis=1)
    return np.array([int(np.argmin(squares - 2 * (table @ row))) for row in given], dtype=np.int64)


# --- mistakes with these numbers --------------------------------------------------------------------------------------


def fitted_mistakes(search: Search, target: str) -> list[Mistake]:
    """Return mistakes with fitted numbers: an eps, a scale, a constant of the mask, ids."""
    symbols = {symbol_of(name) for name in search.replay.segments[target]}
    made: list[Mistake] = []
    if "words" in symbols:
        made += _ids(search, target)
    if len(symbols) == 1:
        made += _of_op(search, target, *symbols)
    elif not search.has_several_layers(target):
        norms, tens = {"embeddings", "attention", "output"}, tuple(range(-8, 0))
        families: list[tuple[set[str], Callable[[float], Mistake], Sequence[float]]] = [
            (norms, lambda t: eps_mistake(_rounded(10**t)), tens),
            (norms, lambda t: eps_mistake(_rounded(10**t), outside=True), tens),
            ({"scores"}, lambda t: scale_mistake(math.exp(t)), (-4, -3, -2, -1, -0.3, 0.3, 1, 2, 3, 4)),
            ({"probs"}, lambda t: leak_mistake(_rounded(t)), (-16, -12, -8, -6, -4, -2, -0.5, 2)),
        ]
        for needs, make, grid in families:
            found = _nearest(search, target, make, grid) if needs & symbols else None
            if found is not None:
                made.append(found)
    return made + _of_other_layers(search, target)


def _of_other_layers(search: Search, target: str) -> list[Mistake]:
    """Find the layer whose weights were used instead."""
    layer = search.replay.names.specs[target].layer if target in search.replay.names.specs else None
    if layer is None or search.has_several_layers(target):
        return []
    made = [layer_mistake(i) for i in range(search.model.config.num_hidden_layers) if i != layer]
    errors = [search.attempt(target, [one]) if search.replay.affected(one, [target]) else math.inf for one in made]
    limit = (1 - _PROMISING) * search.measured[target].error
    return [one for one, error in zip(made, errors, strict=True) if error <= min(limit, min(errors))]


def _of_op(search: Search, target: str, symbol: str) -> list[Mistake]:
    """Fit a number in closed form from the input and output of one op."""
    port, mask = search.replay.port, search.inputs.mask
    if symbol in ("embeddings", "attention", "output"):
        weights = search.model.weights
        path = target if symbol == "embeddings" else f"{target}.output"
        norm = weights.embeddings_norm
        if symbol != "embeddings":
            layer = weights.layers[int(target.split(".")[2])]
            norm = layer.attention_norm if symbol == "attention" else layer.output_norm
        fit = fit_eps(port[f"{path}.LayerNorm.input"][mask], port[target][mask], norm)
        return [] if fit is None else [eps_mistake(_rounded(fit[0]), outside=fit[1])]
    before = target.rpartition(".")[0]
    if symbol == "scores":
        row = int(mask.sum(axis=1).argmax())
        shown = mask[row]
        query, key = (port[f"{before}.{part}"][row][shown] for part in ("query", "key"))
        config = search.model.config
        factor = fit_scale(query, key, port[target][row][:, shown][:, :, shown], config.num_attention_heads)
        return [] if factor is None else [scale_mistake(factor * math.sqrt(config.head_size))]
    if symbol == "probs":
        constant = fit_leak(port[f"{before}.scores"], port[target], mask)
        return [] if constant is None else [leak_mistake(_rounded(constant))]
    return []


def _nearest(search: Search, target: str, make: Callable[[float], Mistake], grid: Sequence[float]) -> Mistake | None:
    """Find the number with the least error: the best of a grid, then golden section around it."""
    before = search.measured[target].error
    errors = [search.attempt(target, [make(t)]) for t in grid]
    best = int(np.argmin(errors))
    if not errors[best] < (1 - _USEFUL) * before:
        return None
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    golden = (math.sqrt(5) - 1) / 2
    error = functools.cache(lambda t: search.attempt(target, [make(t)]))
    left, right = high - golden * (high - low), low + golden * (high - low)
    for _ in range(24):
        if error(left) <= error(right):
            high, right = right, left
            left = high - golden * (high - low)
        else:
            low, left = left, right
            right = low + golden * (high - low)
    t = min(left, right, key=error)
    return make(t) if error(t) <= (1 - _PROMISING) * before else None


def _ids(search: Search, target: str) -> list[Mistake]:
    """Find the ids that the port looked up, from its word embeddings or from the output of embeddings.LayerNorm."""
    if target not in ("embeddings.word_embeddings", "embeddings.LayerNorm.input", "embeddings"):
        return []
    inputs, weights = search.inputs, search.model.weights
    if inputs.embeds is not None:
        return []
    given = np.asarray(search.replay.port[target], np.float64)
    ids = inputs.ids.copy()
    computed = search.replay.run(search.chosen, [0], compute=[target])[target]
    limit = 1e-4 * search.replay.size(target, computed)
    differs = inputs.mask & (np.abs(given - computed).max(axis=2, initial=0) > limit)
    if not differs.any() or not np.isfinite(given[differs]).all():
        return []
    table = weights.word_embeddings.astype(np.float64)
    for row, column in np.argwhere(differs)[:64]:
        rows = table
        if target != "embeddings.word_embeddings":
            rows = table + weights.token_type_embeddings[inputs.types[row, column]]
            rows = rows + weights.position_embeddings[inputs.positions[row, column]]
        if target == "embeddings":
            norm = weights.embeddings_norm
            rows = rows - rows.mean(axis=1, keepdims=True)
            rows = rows / np.sqrt((rows * rows).mean(axis=1, keepdims=True) + norm.eps) * norm.weight + norm.bias
        ids[row, column] = fit_rows(rows, given[row, column][None])[0]
    first = tuple(int(i) for i in np.argwhere(differs)[0])
    text = (
        f"input_ids: the port looked up other ids at {int(differs.sum())} places; at row {first[0]}, column "
        f"{first[1]} it has {int(ids[first])}, the inputs have {int(inputs.ids[first])}"
    )
    remedy = MISTAKES["T1.unknown"].remedy
    return [
        Mistake("T1.ids", text, remedy, ("words",), inputs=lambda given, config: dataclasses.replace(given, ids=ids))
    ]


def _rounded(number: float) -> float:
    """Round a fitted number to four digits, so that 1.0003e-05 is named 1e-05."""
    near = float(f"{number:.1g}")
    return near if abs(number / near - 1) < 2e-3 else float(f"{number:.6g}")
