"""`Mistake`: one mistake of a port: what it replaces in the forward. `Recipe`: how the vector of a text is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.parity.symbols import symbol_of, symbols_of
from minibert.parity.truth import Model, Padded

Part: TypeAlias = Callable[..., FloatArray]
"""A part; as a mistake it is called with the part that it replaces, then `Here`, then the arguments of the part."""

Arrays: TypeAlias = Mapping[str, FloatArray]
"""Padded arrays by name."""

NOTHING: Arrays = MappingProxyType({})


class Recipe(NamedTuple):
    """The recipe for a text's vector: a key of `POOLINGS` and a key of `SCALINGS` in recipes.py."""

    pooling: str
    scaling: str


READ_PADDING = {"mask", "softmax", "split", "merge", "weigh", "pool"}
"""The parts that read places without a token: their mistakes cannot be tried on one row without its padding."""

READ_INPUTS = {"mask", "window", "rotation", "bias"}
"""The parts that read the mask or the positions: their mistakes show in some inputs only."""

CAN_SPARE_ROWS = {"mask", "pool"}
"""The parts whose mistakes can leave whole rows right."""

_OF_ANY_MODEL = {
    "hidden_act": "hidden_act",
    "layer_norm_eps": "layer_norm_eps",
    "true_act": "config.json has another hidden_act",
    "true_eps": "config.json has another layer_norm_eps",
    "look_ups": "word + token_type + position embeddings, three",
}


def words_of(config: BertConfig) -> dict[str, str]:
    """Return what the braces in `Mistake.template` and `Mistake.cure` mean for a model."""
    words, family = dict(_OF_ANY_MODEL), config.family
    values = {"hidden_act": config.hidden_act, "layer_norm_eps": f"{config.layer_norm_eps:g}"}
    for (field, value), true in zip(values.items(), ("true_act", "true_eps"), strict=True):
        words[field] = family.fields.get(field, field)
        fixed = field in family.ignored and field not in family.fields
        words[true] = f"{config.model_type if fixed else 'config.json'} has {value}"
    return words if family.has_token_types else words | {"look_ups": "word + position embeddings, two"}


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One mistake of a port: what it changes, and how to repair it.

    Parameters
    ----------
    symbols : tuple of str
        The values of trace/layout.py that are computed differently. Everything after them differs too.
    parts : mapping of str to Part
        What it does in the place of parts of forward.py.
    inputs : function of `Padded` and the config, optional
        How it changes the inputs of the model.
    dump : function of the arrays by name and the names of the hidden states, optional
        How it changes what is dumped; the numbers are right then, but they have wrong names.
    vector : function of `Recipe`, optional
        How it makes one vector of a text.
    id : str
        A letter and a number for the kind of mistake, a dot, and the variant: "N1.1e-5".
    template : str
        What the port does, and what is right. It names the config field or the op. Words in braces depend on the model.
    cure : str
        What to change; it names the call in common frameworks. The same words may be in it.
    fits : function of the model, optional
        Whether a port of this model can have it; None if it fits all families.
    harmless : function of the config, optional
        Whether it cannot change a hidden state of a model by more than rounding; None if it can in every model.
    needs : function of `Padded`, optional
        Whether inputs can show it; None if unseen.py finds that out from its parts.
    rounds : bool
        It rounds numbers. Then float32 and float64 forwards with it differ by more than their own rounding, because a
        number near the middle of two rounded ones may become either.
    mixes_rows : bool
        What it changes in a row depends on other rows.
    from_values : bool
        It is read from the port's values (causes.py, suggested.py); the search does not try it.
    names : frozenset of str, optional
        The only names where it is made; None means wherever its symbols are computed.
    source : int, optional
        The layer whose weights it uses in the others.
    """

    symbols: tuple[str, ...]
    parts: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    inputs: Callable[[Padded, BertConfig], Padded] | None = None
    dump: Callable[[dict[str, FloatArray], Sequence[str]], dict[str, FloatArray]] | None = None
    vector: Callable[[Recipe], Recipe] | None = None
    id: str = ""
    template: str = ""
    cure: str = ""
    fits: Callable[[Model], bool] | None = None
    harmless: Callable[[BertConfig], bool] | None = None
    needs: Callable[[Padded], Any] | None = None
    rounds: bool = False
    mixes_rows: bool = False
    from_values: bool = False
    names: frozenset[str] | None = None
    source: int | None = None

    @property
    def text(self) -> str:
        """What the port does, said for any model."""
        return self.template.format(**_OF_ANY_MODEL)

    @property
    def remedy(self) -> str:
        """What to change, said for any model."""
        return self.cure.format(**_OF_ANY_MODEL)

    @property
    def kind(self) -> str:
        """The id without the variant."""
        return self.id.split(".", 1)[0]

    @property
    def is_local(self) -> bool:
        """Whether what it changes at a token depends on no other row, and on no place without a token."""
        return not (self.mixes_rows or self.inputs or self.vector or self.parts.keys() & READ_PADDING)

    def acts_at(self, name: str) -> bool:
        """Return whether this mistake changes the value of a name that is computed from right inputs."""
        return (symbol_of(name) or name) in self.symbols and (self.names is None or name in self.names)

    def but(self, **fields: Any) -> Mistake:
        """Return this mistake with other fields."""
        return dataclasses.replace(self, **fields)

    def only(self, names: Iterable[str]) -> Mistake:
        """Return this mistake, limited to these names.

        Raises
        ------
        ValueError
            It is a mistake with the inputs or the vector; or none of its values has such a name.
        """
        kept = frozenset(name for name in names if self.acts_at(name))
        if not self.parts or not kept:
            raise ValueError(f"{self.id} is not a mistake inside a layer, so it cannot be made in one layer alone.")
        return self.but(names=kept)

    def is_for(self, model: Model) -> bool:
        """Return whether a port of this model can have this mistake."""
        has_place = self.vector is not None or not symbols_of(model).isdisjoint(self.symbols)
        return has_place and (self.fits is None or self.fits(model))

    def is_harmless(self, config: BertConfig) -> bool:
        """Return whether this mistake cannot change a hidden state of such a model by more than rounding."""
        return self.harmless is not None and self.harmless(config)


def part_mistake(symbols: tuple[str, ...] | str, **parts: Callable[..., Any]) -> Mistake:
    """Return a mistake that replaces parts in the computation of these symbols."""
    return Mistake((symbols,) if isinstance(symbols, str) else symbols, parts)
