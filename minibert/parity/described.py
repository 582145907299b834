"""What is seen in a port's values beside the mistakes that are simulated: facts, leaking attention, dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.parity import fits
from minibert.parity.finding import Finding
from minibert.parity.mistake import DENSE, Mistake, symbol_of
from minibert.parity.mistakes import MISTAKES
from minibert.parity.search import Search
from minibert.parity.subject import visible
from minibert.parity.vectors import mask_of, state_name

__all__ = ["dropout", "facts", "with_mass"]


def facts(search: Search, name: str, rows: Sequence[str]) -> str:
    """Say which rows, heads and features of an unexplained name differ, and how; `rows` says what each row is."""
    place = search.places[name]
    exact = search.replay.run(search.chosen, [search.span_of(name)], compute=[name])[name]
    given, mask = search.replay.port[name], mask_of(name, search.inputs.mask)
    values = visible(given, mask)
    if not np.isfinite(values).all():
        return f"it holds {int((~np.isfinite(values)).sum())} of {values.size} values that are not finite"
    found = _rows(search, name, exact, rows)
    with np.errstate(all="ignore"):
        differs = ~(np.abs(given - exact) <= 10 * search.budget * place.unit)
    if exact.ndim == 3:
        tokens = differs.any(axis=2) & mask
        if not found and 0 < tokens.sum() < mask.sum():
            found.append(f"{int(tokens.sum())} of {int(mask.sum())} tokens")
        columns = np.flatnonzero((differs & mask[:, :, None]).any(axis=(0, 1)))
        if 0 < len(columns) < exact.shape[2]:
            found.append(f"{len(columns)} of {exact.shape[2]} features")
        if fits.fit_columns(exact[mask], given[mask]) is not None:
            found.append("its columns are the right ones in another order")
        length = fits.fit_length(exact[mask], given[mask])
        if length is not None and length[1] < 1e-3:
            found.append(f"it is {length[0]:.6g} times the right value")
    elif exact.ndim == 4:
        pairs = differs & (mask[:, None, :, None] & mask[:, None, None, :])
        heads = np.flatnonzero(pairs.any(axis=(0, 2, 3)))
        if 0 < len(heads) < exact.shape[1]:
            found.append(f"heads {', '.join(map(str, heads.tolist()))} only")
        if symbol_of(name) == "probs":
            sums = given.sum(axis=-1)[np.broadcast_to(mask[:, None, :], given.shape[:3])]
            if np.abs(sums - 1).max(initial=0) > 1e-4:
                found.append(f"the probs of a token do not sum to 1, but to {sums.min():.6g} to {sums.max():.6g}")
    found += _bias(search, name, given - exact)
    # Zeros and ones are numbers of every format.
    precision = "" if np.isin(values, (0, 1, -1)).all() else fits.precision_of(values)
    if precision in ("float16", "bfloat16"):
        found.append(f"all its values are {precision} numbers")
    return "; ".join(found)


def _rows(search: Search, name: str, exact: FloatArray, rows: Sequence[str]) -> list[str]:
    """Say which rows are wrong, if others are right."""
    mask, limit = search.inputs.mask, 2 * search.budget * search.places[name].unit
    wrong: list[int] = []
    right: list[int] = []
    for i in range(len(mask)):
        one = [visible(array[i : i + 1], mask_of(name, mask[i : i + 1])) for array in (exact, search.replay.port[name])]
        if one[0].size:
            error = float(np.sqrt(np.mean((one[1] - one[0]) ** 2, dtype=np.float64)))
            (right if error <= limit else wrong).append(i)
    if not wrong or not right:
        return []
    labels = [f"{i} ({rows[i]})" if i < len(rows) and rows[i] else str(i) for i in wrong[:8]]
    more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
    shown = ", ".join(map(str, right[:8])) + (f" and {len(right) - 8} more" if len(right) > 8 else "")
    return [
        f"row{'s' if wrong[1:] else ''} {', '.join(labels)}{more} only; row{'s' if right[1:] else ''} {shown} "
        + ("are right" if right[1:] else "is right")
    ]


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


def with_mass(search: Search, mistake: Mistake) -> Mistake:
    """Add to a mistake with the mask how much of the attention hidden places get, if the port's probs say it."""
    for name in search.replay.port if mistake.kind in ("A5", "A6") else ():
        scores = f"{name.removesuffix('probs')}scores"
        if symbol_of(name) == "probs" and scores in search.replay.port:
            leak = fits.fit_leak(search.replay.port[scores], search.replay.port[name], search.inputs.mask)
            if leak is not None:
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
