"""Mistakes whose number is fitted to a port: an eps, a scale, a constant of the mask, other ids."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from minibert.parity import fits
from minibert.parity.mistake import Mistake, symbol_of
from minibert.parity.mistakes import MISTAKES
from minibert.parity.mistakes_attention import leak_mistake, scale_mistake
from minibert.parity.mistakes_norms import eps_mistake
from minibert.parity.search import PROMISING, USEFUL, Search

__all__ = ["fitted"]


def fitted(search: Search, target: str) -> list[Mistake]:
    """Return mistakes whose number is fitted: an eps, a scale, a constant of the mask, ids."""
    symbols = {symbol_of(name) for name in search.replay.segments[target]}
    made: list[Mistake] = []
    if "words" in symbols:
        made += _ids(search, target)
    if len(symbols) == 1:
        made += _of_op(search, target, *symbols)
    elif not search.is_wide(target):
        norms, tens = {"embeddings", "attention", "output"}, tuple(range(-8, 0))
        families: list[tuple[set[str], Callable[[float], Mistake], Sequence[float]]] = [
            (norms, lambda t: eps_mistake(_rounded(10**t)), tens),
            (norms, lambda t: eps_mistake(_rounded(10**t), outside=True), tens),
            ({"scores"}, lambda t: _scaled(math.exp(t)), (-4, -3, -2, -1, -0.3, 0.3, 1, 2, 3, 4)),
            ({"probs"}, lambda t: leak_mistake(_rounded(t)), (-16, -12, -8, -6, -4, -2, -0.5, 2)),
        ]
        for needs, make, grid in families:
            found = _nearest(search, target, make, grid) if needs & symbols else None
            if found is not None:
                made.append(found)
    return made


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
        eps = fits.fit_eps(port[f"{path}.LayerNorm.input"][mask], port[target][mask], norm)
        return [] if eps is None else [eps_mistake(_rounded(eps.eps), outside=eps.outside)]
    before = target.rpartition(".")[0]
    if symbol == "scores":
        row = int(mask.sum(axis=1).argmax())
        shown = mask[row]
        query, key = (port[f"{before}.{part}"][row][shown] for part in ("query", "key"))
        scale = fits.fit_scale(query, key, port[target][row][:, shown][:, :, shown], search.model.config)
        if scale is None:
            return []
        named = f" (query key^T times {scale.factor:.6g}{', ' if scale.name else ''}{scale.name})"
        return [_scaled(scale.factor * math.sqrt(search.model.config.head_size), named)]
    if symbol == "probs":
        leak = fits.fit_leak(port[f"{before}.scores"], port[target], mask)
        return [] if leak is None else [leak_mistake(_rounded(leak.constant))]
    return []


def _nearest(search: Search, target: str, make: Callable[[float], Mistake], grid: Sequence[float]) -> Mistake | None:
    """Find the number with the least error: the best of a grid, then golden section around it."""
    before = search.places[target].error
    errors = [search.attempt(target, [make(t)]) for t in grid]
    best = int(np.argmin(errors))
    if not errors[best] < (1 - USEFUL) * before:
        return None
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    golden = (math.sqrt(5) - 1) / 2
    inner = [high - golden * (high - low), low + golden * (high - low)]
    found = [search.attempt(target, [make(t)]) for t in inner]
    for _ in range(24):
        if found[0] <= found[1]:
            high, inner[1], found[1] = inner[1], inner[0], found[0]
            inner[0] = high - golden * (high - low)
            found[0] = search.attempt(target, [make(inner[0])])
        else:
            low, inner[0], found[0] = inner[0], inner[1], found[1]
            inner[1] = low + golden * (high - low)
            found[1] = search.attempt(target, [make(inner[1])])
    t = inner[0] if found[0] <= found[1] else inner[1]
    return make(t) if min(found) <= (1 - PROMISING) * before else None


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
        ids[row, column] = fits.fit_rows(rows, given[row, column][None])[0]
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


def _scaled(factor: float, more: str = "") -> Mistake:
    text = f"attention: the scores are {factor:.6g} times what they must be{more}"
    return scale_mistake("A2.fitted", text, lambda here, size: factor)
