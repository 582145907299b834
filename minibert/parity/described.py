"""What is seen in a port's values beside the mistakes that are simulated: facts, leaking attention, dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from minibert.parity import fits
from minibert.parity.finding import Finding
from minibert.parity.mistake import Mistake, symbol_of
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
    before = f"{name}.dense"
    if symbol_of(name) == "intermediate" and before in search.replay.port:
        points = (visible(search.replay.port[before], mask), visible(given, mask))
        curve = fits.fit_activation(*points)
        if curve is not None and curve[1] < 0.05 * place.size:
            facts.append(f"the nearest curve is {curve[0]}")
    precision = fits.precision_of(visible(given, mask))
    if precision in ("float16", "bfloat16"):
        facts.append(f"all its values are {precision} numbers")
    return "; ".join(facts)


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
