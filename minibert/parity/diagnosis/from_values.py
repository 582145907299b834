"""Mistakes that are read from the port's values: dropout, the ids that were looked up, the layer that lent its weights.

What is read is a guess: search.py simulates it, and accepts it only if the difference disappears.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert import reference
from minibert.bert.ops import LayerNorm, PreparedLinear
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.findings import Finding
from minibert.parity.diagnosis.formulas import IN_LAYER
from minibert.parity.diagnosis.forward import Here, Mistake, Part, part_mistake, state_name, symbol_of
from minibert.parity.diagnosis.replay import Replay
from minibert.parity.truth import visible

if TYPE_CHECKING:
    from minibert.parity.diagnosis.search import Search

# The weights of another layer are tried further if they remove this part of the error.
_PROMISING = 0.4


# --- dropout ----------------------------------------------------------------------------------------------------------


def _rate_of_dropout(wanted: FloatArray, given: FloatArray) -> float | None:
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


def find_dropout(replay: Replay, remaining: Sequence[str]) -> Finding | None:
    """Detect dropout: some values are zero, and all others are larger by one factor."""
    exact = replay.run(compute=remaining)
    mask, hit, rates = replay.inputs.mask, [], []
    for name in remaining:
        if symbol_of(name) not in ("embeddings", "probs", "attention_sum", "output_sum"):
            continue
        wanted, given = exact[name], replay.port[name]
        if symbol_of(name).endswith("_sum"):
            dense = f"{name.removesuffix('LayerNorm.input')}dense"
            if dense not in replay.port:
                continue
            residual = wanted - replay.port[dense]
            wanted, given = replay.port[dense], given - residual
            given = np.where(np.abs(given) < 1e-5 * np.abs(residual).max(initial=1), 0, given)
        rate = _rate_of_dropout(visible(wanted, mask), visible(given, mask))
        if rate is not None:
            hit.append(name)
            rates.append(rate)
    if not hit:
        return None
    # A later hidden state has dropout in it too, but does not show it.
    states = {state_name(i + 1) for i in range(replay.model.config.num_hidden_layers)}
    hit += [name for name in remaining if name in states and name not in hit and len(replay.segments[name]) > 3]
    mistake = MISTAKES["D1.dropout"]
    text = f"{mistake.text}; about {100 * float(np.median(rates)):.0f} % of {hit[0]} are zero"
    return Finding(text, mistake.id, tuple(hit), 1.0, mistake.remedy)


# --- ids and layers ---------------------------------------------------------------------------------------------------


def mistakes_from_values(search: Search, target: str) -> list[Mistake]:
    """Return the mistakes that are read from the port's values: other ids, or the weights of another layer."""
    return [*_ids(search, target), *_of_other_layers(search, target)]


def _of_other_layers(search: Search, target: str) -> list[Mistake]:
    """Find the layer whose weights were used instead."""
    layer = search.replay.names.specs[target].layer if target in search.replay.names.specs else None
    if layer is None or search.has_several_layers(target):
        return []
    made = [layer_mistake(i) for i in range(search.model.config.num_hidden_layers) if i != layer]
    errors = [search.attempt(target, [one]) if search.replay.affected(one, [target]) else math.inf for one in made]
    limit = (1 - _PROMISING) * search.measured[target].error
    return [one for one, error in zip(made, errors, strict=True) if error <= min(limit, min(errors))]


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
        rows: FloatArray = table
        if target != "embeddings.word_embeddings":
            rows = table + weights.token_type_embeddings[inputs.types[row, column]]
            rows = rows + weights.position_embeddings[inputs.positions[row, column]]
        if target == "embeddings":
            rows = reference.layer_norm(rows, weights.embeddings_norm, dtype=np.float64)
        ids[row, column] = np.argmin((rows * rows).sum(axis=1) - 2 * (rows @ given[row, column]))
    first = tuple(int(i) for i in np.argwhere(differs)[0])
    text = (
        f"input_ids: the port looked up other ids at {int(differs.sum())} places; at row {first[0]}, column "
        f"{first[1]} it has {int(ids[first])}, the inputs have {int(inputs.ids[first])}"
    )
    remedy = MISTAKES["T1.unknown"].remedy
    return [
        Mistake("T1.ids", text, remedy, ("words",), inputs=lambda given, config: dataclasses.replace(given, ids=ids))
    ]


_WEIGHTS_OF = {
    **dict.fromkeys(IN_LAYER[:3], "query_key_value"),
    **{"attention_dense": "attention_output", "intermediate_dense": "intermediate", "output_dense": "output"},
    **{"attention": "attention_norm", "output": "output_norm"},
}


LAYER_OF = "W3.layer-"
"""The begin of the id of a `layer_mistake`."""


def layer_mistake(index: int) -> Mistake:
    """Return the mistake of computing ops with the weights of layer `index`."""

    def linear(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, part: int) -> FloatArray:
        other = here.forward.weights.layers[index]
        return inner(here, x, getattr(other, _WEIGHTS_OF[symbol_of(here.name)]), part)

    def norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
        return inner(here, x, getattr(here.forward.weights.layers[index], _WEIGHTS_OF[symbol_of(here.name)]))

    remedy = MISTAKES["W3.first"].remedy
    made = part_mistake(tuple(_WEIGHTS_OF), dense=linear, norm=norm)
    return dataclasses.replace(
        made, id=f"{LAYER_OF}{index}", text=f"weights: those of layer {index} are used", remedy=remedy
    )
