"""The names of the values of all families by symbol, and the names of the hidden states."""

from __future__ import annotations

import functools
import re

from minibert.bert.config import BertConfig
from minibert.parity.truth import Model
from minibert.trace.layout import Layout, Sizes, all_entries
from minibert.trace.names import Names

ENTRIES = all_entries()
"""The values of all families."""

NORMS, DENSE = (tuple(dict.fromkeys(e.symbol for e in ENTRIES if e.kind == kind)) for kind in ("norm", "linear"))
"""The symbols of the outputs of LayerNorms and of linear maps."""

EVERY = tuple(entry.symbol for entry in ENTRIES)
LOOK_UPS = EVERY[:3]
IN_LAYER = tuple(dict.fromkeys(entry.symbol for entry in ENTRIES if entry.module and "{i}" in entry.path))
"""All symbols, those of the look-ups, and those of the modules of a layer."""

_SYMBOLS = {entry.path: entry.symbol for entry in ENTRIES}


@functools.lru_cache(maxsize=4096)
def symbol_of(name: str) -> str:
    """Return the symbol of a name; "" if it is not the name of a value."""
    return _SYMBOLS.get(re.sub(r"^encoder\.layer\.\d+", "encoder.layer.{i}", name), "")


def names_of_layer(layer: int) -> list[str]:
    """Return the names of the values of a layer."""
    return [entry.path.format(i=layer) for entry in ENTRIES if "{i}" in entry.path]


FIRST_STATES = ("embeddings", "embeddings_project")
"""The names of hidden state 0. The second name is for ELECTRA, if its embeddings have another width."""


@functools.lru_cache(maxsize=16)
def states_of(config: BertConfig) -> tuple[str, ...]:
    """Return the names of the L + 1 hidden states."""
    return tuple(Layout.of(Sizes.of(config, pooler=False, head=None)).states())


def both_names(name: str) -> str:
    """Return a hidden state's name with its number: "hidden_states.1 (encoder.layer.0)"; other names do not change."""
    if name not in FIRST_STATES and not re.fullmatch(r"encoder\.layer\.\d+", name):
        return name
    return f"hidden_states.{int(name[14:]) + 1 if name.startswith('encoder') else 0} ({name})"


def names_of(model: Model) -> Names:
    """Return the names of the values that a model computes."""
    return Names.of(Sizes.of(model.config, pooler=model.weights.pooler is not None, head=model.head_name))


def symbols_of(model: Model) -> frozenset[str]:
    """Return the symbols of the values that a model computes."""
    return _symbols_of(names_of(model))


@functools.lru_cache(maxsize=16)
def _symbols_of(names: Names) -> frozenset[str]:
    return frozenset(map(symbol_of, names.specs))
