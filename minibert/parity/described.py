"""What is seen in a port's values beside the mistakes that are simulated: facts, leaking attention, dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert.reference import ACTIVATION_FUNCTIONS
from minibert.parity import fits
from minibert.parity.finding import Finding
from minibert.parity.mistake import DENSE, Mistake, symbol_of
from minibert.parity.mistakes import MISTAKES
from minibert.parity.padded import visible
from minibert.parity.search import Search
from minibert.parity.vectors import state_name

__all__ = ["dropout", "facts", "with_mass"]


def facts(search: Search, names: Sequence[str]) -> str:
    """Say which rows and heads of the first unexplained name differ."""
    name = names[0]
    place = search.places[name]
    exact = search.replay.run(search.chosen, [search.span_of(name)], compute=[name])[name]
    given = search.replay.port[name]
    broken = ~np.isfinite(visible(given, search.inputs.mask))
    if broken.any():
        return f"it holds {int(broken.sum())} of {broken.size} values that are not finite"
    with np.errstate(all="ignore"):
        differs = ~(np.abs(given - exact) <= 10 * search.budget * place.unit)
    mask = search.inputs.mask
    facts = []
    if exact.ndim == 3:
        tokens = differs.any(axis=2) & mask
        rows = np.flatnonzero(tokens.any(axis=1))
        if 0 < len(rows) < len(mask):
            facts.append(f"rows {', '.join(map(str, rows.tolist()[:8]))} only")
        elif 0 < tokens.sum() < mask.sum():
            facts.append(f"{int(tokens.sum())} of {int(mask.sum())} tokens")
        columns = np.flatnonzero((differs & mask[:, :, None]).any(axis=(0, 1)))
        if 0 < len(columns) < exact.shape[2]:
            facts.append(f"{len(columns)} of {exact.shape[2]} features")
        shown = mask.ravel()
        width = exact.shape[-1]
        order = fits.fit_columns(exact.reshape(-1, width)[shown], given.reshape(-1, width)[shown])
        if order is not None:
            facts.append("its columns are the right ones in another order")
        length = fits.fit_length(exact[mask], given[mask])
        if length is not None and length[1] < 1e-3:
            facts.append(f"it is {length[0]:.6g} times the right value")
    elif exact.ndim == 4:
        pairs = differs & (mask[:, None, :, None] & mask[:, None, None, :])
        heads = np.flatnonzero(pairs.any(axis=(0, 2, 3)))
        if 0 < len(heads) < exact.shape[1]:
            facts.append(f"heads {', '.join(map(str, heads.tolist()))} only")
    facts += [*_bias(search, name, given - exact), *_curve(search, name)]
    values = visible(given, mask)
    # Zeros and ones are numbers of every format.
    precision = "" if np.isin(values, (0, 1, -1)).all() else fits.precision_of(values)
    if precision in ("float16", "bfloat16"):
        facts.append(f"all its values are {precision} numbers")
    return "; ".join(facts)


def _bias(search: Search, name: str, difference: FloatArray) -> list[str]:
    """Say that the difference of a linear map is the same for every token, and which bias that would be."""
    if symbol_of(name) not in DENSE or difference.ndim != 3:
        return []
    rows = difference[search.inputs.mask]
    mean = rows.mean(axis=0)
    with np.errstate(all="ignore"):
        size = float(np.sqrt(np.mean(mean * mean)))
        if len(rows) < 2 or not float(np.sqrt(np.mean((rows - mean) ** 2))) < 1e-3 * size:
            return []
    text = "the difference is the same for every token, so the bias is wrong"
    layer = search.model.weights.layers[int(name.split(".")[2])]
    linears = (layer.query_key_value, layer.attention_output, layer.intermediate, layer.output)
    biases = {
        path: bias
        for linear in linears
        for path, bias in zip(linear.paths, np.split(linear.bias, len(linear.paths)), strict=True)
    }
    found = biases[name] + mean
    near = [
        path
        for path, bias in biases.items()
        if path != name and bias.shape == found.shape and np.abs(bias - found).max(initial=0) < 1e-3 * size
    ]
    return [f"{text}: it is that of {near[0]}" if near else text]


def _curve(search: Search, name: str) -> list[str]:
    """Say which activation a port applies, or that it applies an unknown one."""
    if symbol_of(name) != "intermediate":
        return []
    before, mask = f"{name}.dense", search.inputs.mask
    known = search.replay.port
    if before not in known:  # its own inputs give it
        known = search.replay.values_of_layer(search.chosen, search.span_of(name), name)
    if before not in known:
        return []
    x, y = visible(known[before], mask), visible(search.replay.port[name], mask)
    curve, size = fits.fit_activation(x, y), search.places[name].size
    if curve is not None and curve[1] < 0.05 * size:
        return [f"the nearest curve is {curve[0]}"]
    order = np.argsort(x, kind="stable")
    x, y = x[order].astype(np.float64), y[order].astype(np.float64)
    if len(x) < 100 or not np.isfinite(y).all():
        return []
    # If y depends on x alone, a value lies between those of the nearest x.
    if np.median(np.abs(y[1:-1] - (y[:-2] + y[2:]) / 2)) > 1e-3 * np.sqrt(np.mean(y * y)):
        return []
    right = ACTIVATION_FUNCTIONS[search.model.config.activation](np.ones(1))[0]
    return [
        f"each value depends on {before} alone, so the activation is wrong: at 1 it is {np.interp(1.0, x, y):.4g}, "
        f"{search.model.config.activation} is {right:.4g} there"
    ]


def with_mass(search: Search, mistake: Mistake) -> Mistake:
    """Add to a mistake with the mask how much of the attention hidden places get, if the port's probs say it."""
    for name in search.replay.port if mistake.kind in ("A5", "A6") else ():
        scores = f"{name.removesuffix('probs')}scores"
        if symbol_of(name) == "probs" and scores in search.replay.port:
            leak = fits.fit_leak(search.replay.port[scores], search.replay.port[name], search.inputs.mask)
            if leak is not None:
                where = name.removesuffix(".probs")
                where = name.removesuffix(".probs")
                text = f"{mistake.text} (in {where}, up to {leak.mass:.0%} of a token's attention)"
                return dataclasses.replace(mistake, text=text)
    return mistake


def dropout(search: Search, remaining: Sequence[str]) -> Finding | None:
    """Find dropout: zeros, and all other values larger by one factor."""
    exact = search.replay.run(compute=remaining)
    mask, hit, rates = search.inputs.mask, [], []
    for name in remaining:
        if symbol_of(name) not in ("embeddings", "probs", "attention_sum", "output_sum"):
            continue
        wanted, given = exact[name], search.replay.port[name]
        if name.endswith("LayerNorm.input") and not name.startswith("embeddings"):
            dense = f"{name.removesuffix('LayerNorm.input')}dense"
            if dense not in search.replay.port:
                continue
            residual = wanted - search.replay.port[dense]
            wanted, given = search.replay.port[dense], given - residual
            given = np.where(np.abs(given) < 1e-5 * np.abs(residual).max(initial=1), 0, given)
        rate = fits.fit_dropout(visible(wanted, mask), visible(given, mask))
        if rate is not None:
            hit.append(name)
            rates.append(rate)
    if not hit:
        return None
    states = {state_name(i + 1) for i in range(search.model.config.num_hidden_layers)}
    # A later hidden state has dropout in it too, but does not show it.
    hit += [name for name in remaining if name in states and name not in hit and len(search.replay.segments[name]) > 3]
    mistake = MISTAKES["D1.dropout"]
    return Finding(
        f"{mistake.text}; about {100 * float(np.median(rates)):.0f} % of {hit[0]} are zero",
        *(mistake.id, tuple(hit), 1.0, mistake.remedy),
    )
