"""`Mistake`: one thing that ports of BERT do wrong, in a form that can be simulated."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.parity.parts import Part
from minibert.parity.subject import InapplicableError, Padded
from minibert.trace.names import EMBEDDINGS, LAYER, POOLER

__all__ = [
    *("DENSE", "NORMS", "Dump", "Mistake", "Recipe", "Vector"),
    *("names_of_layer", "part_mistake", "square", "symbol_of"),
]

Dump: TypeAlias = Callable[[dict[str, FloatArray], int], dict[str, FloatArray]]
"""Changes the arrays of a dump, by name; the second argument is the number of layers."""

Vector: TypeAlias = Callable[["Recipe"], "Recipe"]
"""Changes how one vector of a text is made."""


class Recipe(NamedTuple):
    """How one vector of a text is made: a key of `vectors.POOLINGS`, and a key of `vectors.SCALINGS`."""

    pooling: str
    scaling: str


_SYMBOLS = {entry.path: entry.symbol for entry in (*EMBEDDINGS, *LAYER, *POOLER)}

NORMS = ("embeddings", "attention", "output")
DENSE = ("query", "key", "value", "attention_dense", "intermediate_dense", "output_dense", "pooler_dense")
"""The symbols of the outputs of LayerNorms and of linear maps, in trace/names.py."""


def names_of_layer(layer: int) -> list[str]:
    """Return the names of the values of a layer."""
    return [entry.path.format(i=layer) for entry in LAYER]


@functools.lru_cache(maxsize=4096)
def symbol_of(name: str) -> str:
    """Return the symbol of a name of trace/names.py, "" for a name without one."""
    return _SYMBOLS.get(re.sub(r"^encoder\.layer\.\d+", "encoder.layer.{i}", name), "")


def _always(config: BertConfig) -> bool:
    """Return True: it does not depend on the model."""
    return True


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One mistake.

    Parameters
    ----------
    id : str
        A letter and a number for the kind of mistake, a dot, and the variant: "N1.1e-5".
    text : str
        What the port does, and what is right. It names the config field or the op.
    remedy : str
        What to change; it names the call in common frameworks.
    symbols : tuple of str
        The values of trace/names.py that are computed differently. Everything after them differs too.
    parts : mapping of str to Part
        What it does in the place of parts of forward.py.
    inputs : function of `Padded` and the config, optional
        How it changes the inputs of the model.
    dump : Dump, optional
        How it changes what is dumped; the numbers are right then, but they have wrong names.
    vector : Vector, optional
        How it makes one vector of a text.
    harmless : str
        Why it cannot change a hidden state by more than rounding; "" if it can.
    rounds : bool
        It rounds numbers. Then float32 and float64 forwards with it differ by more than their own rounding, because a
        number near the middle of two rounded ones may become either.
    harmless_if : function of the config
        Whether `harmless` is true of a model.
    names : frozenset of str, optional
        The only names where it is made; None means wherever its symbols are computed.
    """

    id: str
    text: str
    remedy: str
    symbols: tuple[str, ...]
    parts: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    inputs: Callable[[Padded, BertConfig], Padded] | None = None
    dump: Dump | None = None
    vector: Vector | None = None
    harmless: str = ""
    rounds: bool = False
    harmless_if: Callable[[BertConfig], bool] = _always
    names: frozenset[str] | None = None

    @property
    def kind(self) -> str:
        """The id without the variant."""
        return self.id.split(".", 1)[0]

    def acts_at(self, name: str) -> bool:
        """Return whether the value of a name is computed differently, because of what is before it or not."""
        return (symbol_of(name) or name) in self.symbols and (self.names is None or name in self.names)

    def only(self, names: Iterable[str]) -> Mistake:
        """Return this mistake where it computes one of these names.

        Raises
        ------
        ValueError
            It is a mistake with the inputs or the vector; or none of its values has such a name.
        """
        kept = frozenset(name for name in names if self.acts_at(name))
        if not self.parts or not kept:
            raise ValueError(f"{self.id} is not a mistake inside a layer, so it cannot be made in one layer alone.")
        return dataclasses.replace(self, names=kept)

    def is_harmless(self, config: BertConfig) -> bool:
        """Return whether it cannot change a hidden state of this model by more than rounding."""
        return bool(self.harmless) and self.harmless_if(config)


def part_mistake(
    id: str,
    text: str,
    remedy: str,
    symbols: tuple[str, ...] | str,
    *,
    harmless: str = "",
    rounds: bool = False,
    **parts: Part,
) -> Mistake:
    """Return a mistake that replaces parts where they compute one of the symbols."""
    symbols = (symbols,) if isinstance(symbols, str) else symbols
    return Mistake(id, text, remedy, symbols, parts, harmless=harmless, rounds=rounds)


def square(weight: FloatArray) -> FloatArray:
    """Return a weight if it is square, because only then it can be transposed by mistake.

    Raises
    ------
    InapplicableError
    """
    if weight.shape[0] != weight.shape[1] or np.array_equal(weight, weight.T):
        raise InapplicableError(f"a weight of shape {weight.shape} cannot be transposed without an error of shapes")
    return weight
