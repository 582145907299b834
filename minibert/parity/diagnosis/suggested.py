"""Mistakes that are not in the catalogue: a port's values suggest them. search.py tries them like all others.

`suggest` reads other ids, another layer, another pooling; `variants` are tried one by one: other tensors of the
checkpoint, heads in another order, blocks of keys, loops that end too early, and mistakes of the catalogue in some
features or heads only.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, IntArray, counted
from minibert.bert import reference
from minibert.bert.ops import LayerNorm
from minibert.bert.weights import LayerWeights
from minibert.parity.diagnosis import recipes
from minibert.parity.diagnosis.catalogue import MISTAKES, with_words
from minibert.parity.diagnosis.formulas import precision
from minibert.parity.diagnosis.forward import EMBEDDINGS_STAGE, Forward, Here
from minibert.parity.diagnosis.mistake import Mistake, Part, Recipe
from minibert.parity.diagnosis.search import Search, WrongPart, listed
from minibert.parity.symbols import DENSE, ENTRIES, IN_LAYER, LOOK_UPS, NORMS, symbol_of
from minibert.parity.truth import VECTOR, unmasked


def suggest(search: Search, target: str) -> Iterator[Mistake]:
    """Yield mistakes that are read from the port's values."""
    yield from itertools.chain(_ids(search, target), _added(search, target), _pooled(search, target))
    if LOOK_UPS[0] in map(symbol_of, search.replay.segments[target]):
        yield from search.more
        yield from rounded_weights()
    layer = _layer_of(search, target)
    yield from (layer_mistake(i) for i in range(search.model.config.num_hidden_layers) if layer not in (None, i))


def variants(search: Search, target: str) -> Iterator[Mistake]:
    """Yield mistakes in the ops of a layer that compute a name, each with several numbers.

    For more than one op that is hundreds of forwards, so they are yielded for a few names only.
    """
    names = search.replay.segments[target]
    if _layer_of(search, target) is None or not (len(names) == 1 or search.trials_left):
        return
    symbols, heads = [symbol_of(name) for name in names], np.arange(search.model.config.num_attention_heads)
    groups = [group for group in range(2, len(heads) + 1) if len(heads) % group == 0 or group == 2]
    orders = [order for group in groups for order in (heads // group * group, heads % (len(heads) // group))]
    orders += [heads[::-1], np.roll(heads, 1), np.roll(heads, -1)]
    blocks = [2**i for i in range((search.inputs.ids.shape[1] - 1).bit_length())]
    for symbol in symbols:
        if symbol in IN_LAYER:
            yield from _tensors(symbol, {symbol_of(name) for name in search.replay.names.specs})
        if symbol in _WITH_HEADS:
            yield from (reordered(order, symbol, symbol) for order in orders)
        if (what := {"scores": "key", "context": "value"}.get(symbol, symbol)) not in symbols:
            yield from (reordered(order, symbol, what) for order in orders)
        if symbol in _SUMS:
            yield from (shortened(symbol, count) for count in _TAILS)
        if symbol == "probs":
            yield from itertools.starmap(online, itertools.product(blocks, _NOT_RESCALED))
    yield from _in_part(search, target)


def _layer_of(search: Search, target: str) -> int | None:
    """Return the layer of a name, if no other layer is computed for it."""
    spec = search.replay.names.specs.get(target)
    return None if spec is None or search.has_several_layers(target) else spec.layer


_TAILS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)
_NOT_RESCALED = (("sum",), ("values",), ("sum", "values"))


# --- weights ----------------------------------------------------------------------------------------------------------

_MODULES = {entry.symbol: entry.module.removeprefix("encoder.layer.{i}.") for entry in ENTRIES if entry.module}


def _module_of(layer: LayerWeights, symbol: str) -> tuple[Any, int]:
    """Return the linear maps, or the LayerNorm, that compute a value of a layer, and which of the maps; or None."""
    path = f"{layer.path}.{_MODULES[symbol]}"
    found = [(linear, linear.paths.index(path)) for linear in layer.linears if path in linear.paths]
    norms = [(norm, 0) for norm in (layer.attention_norm, layer.output_norm) if norm and norm.path == path]
    return next(iter([*found, *norms]), (None, 0))


def layer_mistake(index: int) -> Mistake:
    """Return the mistake of computing ops with the weights of layer `index`."""

    def part(inner: Part, here: Here, x: FloatArray, _: object, *which: int) -> FloatArray:
        other, _ = _module_of(here.forward.weights.layers[index], symbol_of(here.name))
        return x if other is None else inner(here, x, other, *which)

    mistake = Mistake(IN_LAYER, {"dense": part, "norm": part}, source=index)
    return with_words("W3.layer", mistake, other=index).but(id=f"W3.layer-{index}")


def _tensors(symbol: str, own: set[str]) -> Iterator[Mistake]:
    """Yield the mistakes of one wrong tensor: it belongs to a neighbour layer, or to another op of this layer."""
    alike = [other for other in IN_LAYER if other in own and (other in NORMS) == (symbol in NORMS) and other != symbol]
    for kind in ("weight", "bias"):
        yield from (tensor_mistake(symbol, kind, symbol, offset) for offset in (-1, 1))
        yield from (tensor_mistake(symbol, kind, other, 0) for other in alike)


def tensor_mistake(symbol: str, kind: str, source: str, offset: int) -> Mistake:
    """Return the mistake of one other tensor: the weight or bias (`kind`) of the op `source`, `offset` layers later."""

    def replaced(here: Here, own: dict[str, FloatArray]) -> dict[str, FloatArray]:
        layers, index = here.forward.weights.layers, (here.layer or 0) + offset
        if not 0 <= index < len(layers):
            return own
        module, place = _module_of(layers[index], source)
        tensor = getattr(module, kind, own[kind])
        tensor = tensor if module is None else np.split(tensor, len(getattr(module, "paths", (0,))))[place]
        return own | {kind: tensor.astype(here.forward.dtype)} if tensor.shape == own[kind].shape else own

    def weights(inner: Part, here: Here, *own: FloatArray) -> tuple[FloatArray, ...]:
        return tuple(replaced(here, dict(zip(("weight", "bias"), inner(here, *own), strict=True))).values())

    def norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
        own = replaced(here, {"weight": norm.weight, "bias": norm.bias})
        return inner(here, x, dataclasses.replace(norm, weight=own["weight"], bias=own["bias"]))

    other = "that" if source == symbol else f"{_MODULES[source]}.{kind}"
    whose = {0: "", -1: " of the layer before", 1: " of the layer after"}[offset]
    mistake = Mistake((symbol,), {"norm": norm} if symbol in NORMS else {"weights": weights})
    words = with_words("W4.other", mistake, tensor=f"{_MODULES[symbol]}.{kind}", other=f"{other}{whose}")
    return words.but(id=f"W4.{symbol}")


def rounded_weights() -> Iterator[Mistake]:
    """Yield the mistakes of rounded weights in all tables, and in some, because converters leave tables in float32."""
    words, types, positions = LOOK_UPS
    for mistake in (MISTAKES[f"D2.{name}-weights"] for name in precision.ROUNDINGS):
        yield mistake
        for kept in ((types,), (types, positions), (words, types, positions)):
            symbols = tuple(symbol for symbol in mistake.symbols if symbol not in kept)
            text = f"{mistake.template}; not the tables of {' and '.join(kept)}"
            yield mistake.but(template=text, symbols=symbols)


# --- embeddings and vectors -------------------------------------------------------------------------------------------

_WITH_IDS = ("embeddings.word_embeddings", "embeddings.LayerNorm.input", "embeddings")


def _ids(search: Search, target: str) -> Iterator[Mistake]:
    """Find the ids that the port looked up, from its word embeddings or from the output of embeddings.LayerNorm."""
    inputs, weights = search.inputs, search.model.weights
    if target not in _WITH_IDS or inputs.embeds is not None:
        return
    port, computed = np.asarray(search.replay.port[target], np.float64), search.computed(target)
    limit = 1e-4 * search.replay.size(target, computed)
    differs = inputs.mask & (np.abs(port - computed).max(axis=2, initial=0) > limit)
    if not differs.any() or not np.isfinite(port[differs]).all():
        return
    ids, table = inputs.ids.copy(), weights.word_embeddings.astype(np.float64)
    places = np.argwhere(differs)
    for row, column in places[:64]:
        rows: FloatArray = table
        if target != "embeddings.word_embeddings":
            added = (weights.token_type_embeddings, inputs.types), (weights.position_embeddings, inputs.positions)
            rows = table + sum(rows[ids[row, column]] for rows, ids in added if rows is not None)
        if target == "embeddings" and weights.embeddings_norm is not None:
            rows = reference.layer_norm(rows, weights.embeddings_norm, dtype=np.float64)
        ids[row, column] = np.argmin((rows * rows).sum(axis=1) - 2 * (rows @ port[row, column]))
    row, column = places[0]
    facts = {"count": len(places), "row": row, "column": column}
    facts |= {"theirs": ids[row, column], "ours": inputs.ids[row, column]}
    other = with_words("T1.ids", MISTAKES["T1.unknown"].but(mixes_rows=True), **facts)
    yield other.but(inputs=lambda right, _: dataclasses.replace(right, ids=ids))


def _added(search: Search, target: str) -> Iterator[Mistake]:
    """Find a vector that the port adds to each token, as if the family had token types."""
    mistake, norm = MISTAKES["E7.added"], search.model.weights.embeddings_norm
    if not mistake.is_for(search.model) or target not in _WITH_IDS[1:] or not norm.weight.all():
        return
    mask = search.inputs.mask
    values = Forward(search.model, search.inputs, search.chosen).run(EMBEDDINGS_STAGE)
    total = values["embeddings.LayerNorm.input"][mask]
    port = np.asarray(search.replay.port[target], np.float64)[mask]
    if target == "embeddings":
        # port[t] * sizes[t] = total[t] + vector, without their means: linear in the sizes and the vector.
        port, total = (port - norm.bias) / norm.weight, total - total.mean(axis=1, keepdims=True)
        products = np.diag((port * port).sum(axis=1)) - port @ port.T / len(port)
        sizes = np.linalg.lstsq(products, (port * (total - total.mean(axis=0))).sum(axis=1), rcond=None)[0]
        port = port * sizes[:, None]
    vector = (port - total).mean(axis=0)
    yield mistake.but(parts={"total": lambda inner, here, *rows: inner(here, *rows) + vector.astype(rows[0].dtype)})


_SCALED = {"unit": "scaled to length 1", "none": "not scaled", "twice": "divided by the length twice"}


def _pooled(search: Search, target: str) -> Iterator[Mistake]:
    """Find other tokens that are pooled, or another scale, if this is the vector of a text."""
    right = search.replay.recipe
    if target != VECTOR or right is None:
        return
    forward = Forward(search.model, search.inputs, search.chosen, np.float32)
    values = {name: value for name, value in forward.run_all() if name in (*forward.states, "pooler")}
    values, errors = search.replay.filled(values, forward.dtype), dict[Recipe, float]()
    for recipe in itertools.starmap(Recipe, itertools.product(recipes.POOLINGS, recipes.SCALINGS)):
        if recipe.pooling != "pooler" or "pooler" in values:
            made = recipes.vector(values, forward.inputs, forward.states, recipe)
            errors[recipe] = search.replay.error(VECTOR, made)
    # Some give the same vectors, such as the last column of all or of all but the first: the first one is the simplest.
    best = next(recipe for recipe, error in errors.items() if error <= 2 * min(errors.values()))
    found, wanted = (f"{recipe.pooling}, {_SCALED[recipe.scaling]}" for recipe in (best, right))
    read = MISTAKES["P2.special"].but(vector=lambda _: best)
    yield with_words("P2.read", read, found=found, right=wanted)


# --- heads, blocks and loops ------------------------------------------------------------------------------------------

_WITH_HEADS = ("query", "key", "value", "scores", "probs", "context")


def reordered(order: IntArray, symbol: str, what: str) -> Mistake:
    """Return the mistake of heads with the values of others: the key in scores, the value in context, or the result."""

    def value(x: FloatArray) -> FloatArray:
        return x[:, order] if x.ndim == 4 else x.reshape(len(x), len(order), -1)[:, order].reshape(x.shape)

    moved = np.flatnonzero(order != np.arange(len(order)))
    shared = ", as in grouped-query attention" if (order[order] == order).all() else ""
    parts: dict[str, Part] = {"value": lambda inner, here, x: value(inner(here, x))}
    if what != symbol:
        parts = {("scores" if what == "key" else "weigh"): lambda inner, here, x, y: inner(here, x, value(y))}
    facts = {"value": what, "moved": listed(moved), "others": f"{listed(order[moved])}{shared}"}
    return with_words("A11.heads", Mistake((symbol,), parts), **facts)


def online(block: int, without: Sequence[str]) -> Mistake:
    """Return the mistake of a softmax over blocks of keys that does not rescale "sum" or "values" of those before."""

    def part(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
        largest = np.maximum.reduceat(masked, np.arange(0, masked.shape[-1], block), axis=-1)
        running = np.maximum.accumulate(largest, axis=-1).repeat(block, axis=-1)[..., : masked.shape[-1]]
        right, stale = (np.nan_to_num(np.exp(masked - maximum)) for maximum in (running[..., -1:], running))
        values, total = (stale if name in without else right for name in ("values", "sum"))
        return values / total.sum(axis=-1, keepdims=True)

    facts = {"block": counted(block, "key"), "kept": f"the {' and the '.join(without)}"}
    facts["are"] = "is" if list(without) == ["sum"] else "are"
    return with_words("A12.online", Mistake(("probs",), {"softmax": part}), **facts)


_SUMS = {**dict.fromkeys(DENSE[:6], "product"), "scores": "scores", "probs": "mask", "context": "weigh"}
"""The symbols of values that are sums, or a softmax, and the part of each that adds up."""


def shortened(symbol: str, count: int) -> Mistake:
    """Return the mistake of a sum, or a softmax, without its last terms."""

    def cut(x: FloatArray) -> FloatArray:
        return np.where(np.arange(x.shape[-1]) < x.shape[-1] - count, x, x.dtype.type(0))

    def first(inner: Part, here: Here, x: FloatArray, y: FloatArray) -> FloatArray:
        return inner(here, x, cut(y)) if symbol == "probs" else inner(here, cut(x), y)

    noun, whole = ("key", "softmax") if symbol == "probs" else ("term", f"sum in {symbol}")
    facts = {"terms": counted(count, noun), "whole": whole, "are": "is" if count == 1 else "are"}
    return with_words("L1.tail", Mistake((symbol,), {_SUMS[symbol]: first}), **facts)


# --- a part of a value ------------------------------------------------------------------------------------------------

_UNWRITTEN = with_words("L2.unwritten", Mistake((), {"value": lambda inner, here, value: np.zeros_like(value)}))


def within(part: Part, where: WrongPart) -> Part:
    """Return a part that is made in some features or heads only; elsewhere it is right."""

    def blended(changed: FloatArray, right: FloatArray) -> FloatArray:
        if right.ndim < 4:
            return np.where(where.columns, changed, right)
        return right if where.heads is None else np.where(where.heads[:, None, None], changed, right)

    def partly(inner: Part, here: Here, *arguments: Any) -> Any:
        changed: Any = part(inner, here, *arguments)
        right: Any = inner(here, *arguments)
        if isinstance(right, tuple):  # weight and bias; a row of them belongs to a feature
            return tuple(blended(*(array.T for array in pair)).T for pair in zip(changed, right, strict=True))
        return blended(changed, right)

    return partly


def _in_part(search: Search, target: str) -> Iterator[Mistake]:
    """Yield mistakes that are made only in the features, or heads, where a value is wrong."""
    where, specs = search.part_that_differs(target, search.computed(target)), search.replay.names.specs
    if where is None:
        return
    alike = [name for name in search.replay.segments[target] if specs[name].width == specs[target].width]
    for symbol, mistake in itertools.product(map(symbol_of, alike), [*search.candidates(target), _UNWRITTEN]):
        if mistake.symbols in ((symbol,), NORMS) or (mistake is _UNWRITTEN and symbol == symbol_of(target)):
            parts = {name: within(part, where) for name, part in mistake.parts.items()}
            text = f"{mistake.template}, in {where} only"
            yield mistake.but(template=text, symbols=(symbol,), parts=parts)


# --- dropout ----------------------------------------------------------------------------------------------------------


def dropout(search: Search, remaining: Sequence[str]) -> tuple[list[str], float] | None:
    """Return the names with dropout and its rate: some values are zero, and all others are larger by one factor."""
    exact, rates = search.replay.run(compute=remaining), {}
    for name in remaining:
        if symbol_of(name) not in ("embeddings", "probs", "attention_sum", "output_sum"):
            continue
        wanted, port = exact[name], search.replay.port[name]
        if symbol_of(name).endswith("_sum"):
            dense = f"{name.removesuffix('LayerNorm.input')}dense"
            if dense not in search.replay.port:
                continue
            residual = wanted - search.replay.port[dense]
            wanted, port = search.replay.port[dense], port - residual
            port = np.where(np.abs(port) < 1e-5 * np.abs(residual).max(initial=1), 0, port)
        rate = _rate_of_dropout(unmasked(wanted, search.inputs.mask), unmasked(port, search.inputs.mask))
        if rate is not None:
            rates[name] = rate
    if not rates:
        return None
    # A later hidden state has dropout in it too, but does not show it.
    states = search.replay.states[1:]
    later = [name for name in remaining if name in states and len(search.replay.segments[name]) > 3]
    return list(dict.fromkeys([*rates, *later])), float(np.median([*rates.values()]))


def _rate_of_dropout(wanted: FloatArray, port: FloatArray) -> float | None:
    """Return the rate of dropout (the share of zeros) if all other values are larger by 1 / (1 - rate); else None."""
    live = np.isfinite(port) & (np.abs(wanted) > 1e-6 * np.abs(wanted).max(initial=0))
    if live.sum() < 100:
        return None
    zeros = port[live] == 0
    rate = float(zeros.mean())
    if not 0.005 < rate < 0.9:
        return None
    factors = (port[live] / wanted[live])[~zeros]
    factor = float(np.median(factors))
    steady = np.abs(factors / factor - 1) < 1e-3
    chance = 3 * np.sqrt(rate * (1 - rate) / live.sum())  # a share of zeros differs from the rate by chance
    fits = abs(1 - 1 / factor - rate) < 0.2 * rate + chance
    return 1 - 1 / factor if factor > 1.003 and steady.mean() > 0.9 and fits else None
