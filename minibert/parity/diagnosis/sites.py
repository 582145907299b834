"""Where a mistake is made: the sites that the dump shows, and the words for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.mistake import Mistake
from minibert.parity.symbols import ENTRIES, symbol_of


class Cause(NamedTuple):
    """A mistake that was accepted, the mistakes that would do as well, and the names that contradict it."""

    mistake: Mistake
    alternatives: tuple[Mistake, ...]
    contradicted: frozenset[str]


Site: TypeAlias = tuple[str, int | None]
"""The symbol of a value in trace/layout.py, and its layer."""

_WHERE = {"embeddings": "in the embeddings", "attention": "after attention", "output": "after the feed forward"}
_WHERE |= {f"{block}_sum": where for block, where in _WHERE.items()}
_WHERE |= {e.symbol: f"in {e.path.removeprefix('encoder.layer.{i}.')}" for e in ENTRIES if e.symbol not in _WHERE}


def _sites(mistake: Mistake, names: Iterable[str]) -> set[Site]:
    """Return where a mistake is made in the computation of some names."""
    where = ((name.split("."), symbol_of(name)) for name in names if mistake.acts_at(name))
    return {(symbol, int(path[2]) if path[0] == "encoder" else None) for path, symbol in where}


def _listed(layers: Iterable[int]) -> str:
    numbers = [str(layer) for layer in sorted(layers)]
    return f"layer{'s' if numbers[1:] else ''} {', '.join(numbers)}"


class Sites(NamedTuple):
    """The sites where a mistake was found and where values contradict it; both empty if the layer is unknown."""

    present: frozenset[Site] = frozenset()
    absent: frozenset[Site] = frozenset()

    @classmethod
    def of(cls, segments: Mapping[str, frozenset[str]], cause: Cause, names: Iterable[str]) -> Sites:
        """Find the sites of a cause that explains some names and is contradicted by others."""
        by_name = [_sites(cause.mistake, segments[name]) for name in names] if cause.mistake.parts else []
        if any(len({layer for _, layer in sites}) > 1 for sites in by_name):
            return cls()
        anywhere = dataclasses.replace(cause.mistake, names=None)
        absent = [_sites(anywhere, segments[name]) for name in cause.contradicted]
        every = frozenset[Site]().union(*by_name)
        return cls(every, frozenset[Site]().union(*absent) - every)

    def together(self, other: Sites) -> Sites:
        """Combine the sites of the same mistake that was found twice."""
        present = self.present | other.present
        return Sites(present, (self.absent | other.absent) - present) if self.present and other.present else Sites()

    def text(self, mistake: Mistake, num_layers: int, others: Collection[int | None]) -> str:
        """Say where the mistake is: ", after attention, in layers 3, 4"; other causes explain the layers `others`."""
        if mistake.id in MISTAKES and MISTAKES[mistake.id].names:  # its text says where
            return ""
        layers = {layer for _, layer in self.present}
        beside = {symbol for symbol, layer in self.absent if layer in layers} - {"embeddings"}
        whole = mistake.id not in MISTAKES or mistake.symbols == MISTAKES[mistake.id].symbols
        if whole and not beside:
            return self._in_layers(layers, num_layers, others)
        alike: dict[frozenset[int | None], list[str]] = {}
        for symbol in mistake.symbols:
            of_symbol = frozenset(layer for other, layer in self.present if other == symbol)
            if of_symbol:
                alike.setdefault(of_symbol, []).append(_WHERE.get(symbol, f"in {symbol}"))
        return "".join(
            f", {' and '.join(dict.fromkeys(where))}"
            + (self._in_layers({*of_symbol}, num_layers, others) if of_symbol != {None} else "")
            for of_symbol, where in alike.items()
        )

    def _in_layers(self, places: set[int | None], count: int, others: Collection[int | None]) -> str:
        layers = {layer for layer in places if layer is not None}
        elsewhere = {layer for _, layer in self.absent if layer is not None}
        embeddings = None in places and any(symbol.startswith("embeddings") for symbol, _ in self.present)
        if not layers:
            return ", in the embeddings only" if embeddings and elsewhere else ""
        first = "in the embeddings and " if embeddings else ""
        if len(layers) == count > 1:
            return f", {first}in all {count} layers"
        text = f", {first}in {_listed(layers)}"
        silent = {*range(count)} - layers - elsewhere - {*others}
        if silent:
            return f"{text} (this dump does not say whether it is in {_listed(silent)})"
        return f"{text} only" if len(layers) == 1 < count and not first else text
