"""`Mistake`: one thing that ports of BERT do wrong, in a form that can be simulated; and the vector of a text."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, Int64Array
from minibert.bert.config import BertConfig
from minibert.parity.diagnosis.forward import Forward, Model, Store, state_name
from minibert.parity.subject import InapplicableError, Padded
from minibert.sentence.pooling import POOLING_MODES
from minibert.trace.names import EMBEDDINGS, LAYER, POOLER

VECTOR = "sentence_embedding"
"""The name of one vector per text, (B, H), which is that of sentence-transformers."""

NORMS = ("embeddings", "attention", "output")
DENSE = ("query", "key", "value", "attention_dense", "intermediate_dense", "output_dense", "pooler_dense")
"""The symbols of the outputs of LayerNorms and of linear maps, in trace/names.py."""

_SYMBOLS = {entry.path: entry.symbol for entry in (*EMBEDDINGS, *LAYER, *POOLER)}


@functools.lru_cache(maxsize=4096)
def symbol_of(name: str) -> str:
    """Return the symbol of a name of trace/names.py, "" for a name without one."""
    return _SYMBOLS.get(re.sub(r"^encoder\.layer\.\d+", "encoder.layer.{i}", name), "")


def names_of_layer(layer: int) -> list[str]:
    """Return the names of the values of a layer."""
    return [entry.path.format(i=layer) for entry in LAYER]


class Recipe(NamedTuple):
    """How one vector of a text is made: a key of `POOLINGS`, and a key of `SCALINGS`."""

    pooling: str
    scaling: str


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
    dump : function of the arrays by name and the number of layers, optional
        How it changes what is dumped; the numbers are right then, but they have wrong names.
    vector : function of `Recipe`, optional
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
    parts: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    inputs: Callable[[Padded, BertConfig], Padded] | None = None
    dump: Callable[[dict[str, FloatArray], int], dict[str, FloatArray]] | None = None
    vector: Callable[[Recipe], Recipe] | None = None
    harmless: str = ""
    rounds: bool = False
    harmless_if: Callable[[BertConfig], bool] = lambda config: True
    names: frozenset[str] | None = None

    @property
    def kind(self) -> str:
        """The id without the variant."""
        return self.id.split(".", 1)[0]

    def acts_at(self, name: str) -> bool:
        """Return whether the value of a name is computed differently, if what goes in is right."""
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
    id: str, text: str, remedy: str, symbols: tuple[str, ...] | str, **parts: Callable[..., Any]
) -> Mistake:
    """Return a mistake that replaces parts where they compute one of the symbols."""
    return Mistake(id, text, remedy, (symbols,) if isinstance(symbols, str) else symbols, parts)


# --- the vector of a text ---------------------------------------------------------------------------------------------

Values: TypeAlias = Mapping[str, FloatArray]


def mask_of(name: str, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which places of a value count: a text has a vector if any of its tokens is visible, not only [CLS]."""
    shown: npt.NDArray[np.bool_] = np.any(mask, axis=1, keepdims=True) if name == VECTOR else mask
    return shown


def _sum(x: FloatArray, positions: Int64Array) -> FloatArray:
    return x.sum(axis=0)


_MODES = {**POOLING_MODES, "sum": _sum}


def _rows(x: FloatArray, chosen: npt.NDArray[np.bool_], mode: str) -> FloatArray:
    """Pool the chosen tokens of each row by a formula of sentence/pooling.py; zeros for a row without any."""
    vectors = np.zeros((len(x), x.shape[-1]), x.dtype)
    for row, (states, some) in enumerate(zip(x, chosen, strict=True)):
        if some.any():
            vectors[row] = _MODES[mode](states[some], np.arange(int(some.sum())))
    return vectors


def _mode(mode: str) -> Callable[[Values, Padded, int], FloatArray]:
    return lambda values, inputs, depth: _rows(values[state_name(depth)], inputs.mask, mode)


def _without_special(values: Values, inputs: Padded, depth: int) -> FloatArray:
    count = inputs.mask.cumsum(axis=1)
    inside = inputs.mask & (count > 1) & (count < count.max(axis=1, keepdims=True))
    return _rows(values[state_name(depth)], inside, "mean")


POOLINGS: dict[str, Callable[[Values, Padded, int], FloatArray]] = {
    **{mode: _mode(mode) for mode in _MODES},
    "pooler": lambda values, inputs, depth: values["pooler"],
    "mean with padding": lambda values, inputs, depth: values[state_name(depth)].mean(axis=1),
    "mean without [CLS] and [SEP]": _without_special,
    "mean of the first and last state": lambda values, inputs, depth: _rows(
        (values[state_name(0)] + values[state_name(depth)]) / 2, inputs.mask, "mean"
    ),
    "mean of the last state but one": lambda values, inputs, depth: _rows(
        values[state_name(max(depth - 1, 0))], inputs.mask, "mean"
    ),
}
"""The vector before it is scaled, by name: of the values of all names, the inputs, and the number of layers."""


def _length(x: FloatArray) -> FloatArray:
    norms: FloatArray = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return np.where(norms > 0, norms, 1)


SCALINGS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "unit": lambda x: x / _length(x),
    "none": lambda x: x,
    "twice": lambda x: x / _length(x) ** 2,
}
"""Normalised to length 1, left as it is, or divided by its length twice."""


def vector(values: Values, inputs: Padded, depth: int, recipe: Recipe, mistakes: Iterable[Mistake] = ()) -> FloatArray:
    """Make one vector per text, (B, H), with mistakes; `values` has the hidden states and the pooler that it needs.

    Raises
    ------
    InapplicableError
        A value is not there.
    """
    for mistake in mistakes:
        if mistake.vector is not None:
            recipe = mistake.vector(recipe)
    try:
        with np.errstate(all="ignore"):
            return SCALINGS[recipe.scaling](POOLINGS[recipe.pooling](values, inputs, depth))
    except KeyError as error:
        raise InapplicableError(f"{error} is not known here") from None


def find_recipe(values: Values, inputs: Padded, depth: int, wanted: FloatArray) -> Recipe | None:
    """Return the recipe that makes the vectors `wanted` of the true values, or None."""
    shown = inputs.mask.any(axis=1)
    limit = 1e-4 * float(np.abs(wanted[shown]).max(initial=0))
    for pooling in (*POOLING_MODES, *(["pooler"] if "pooler" in values else [])):
        for scaling in ("unit", "none"):
            made = vector(values, inputs, depth, Recipe(pooling, scaling))
            if made.shape == wanted.shape and np.abs(made - wanted)[shown].max(initial=0) <= limit:
                return Recipe(pooling, scaling)
    return None


def forward_values(
    model: Model,
    inputs: Padded,
    mistakes: Sequence[Mistake] = (),
    *,
    recipe: Recipe | None = None,
    dtype: npt.DTypeLike = np.float32,
    store: Store | None = None,
) -> dict[str, FloatArray]:
    """Return every value of a forward with mistakes by name, and with a recipe the vector of each text.

    Raises
    ------
    InapplicableError
        A mistake is not possible with this model or these inputs.
    """
    forward = Forward(model, inputs, mistakes, dtype=dtype, store=store)
    values = dict(forward.run_all())
    depth = model.config.num_hidden_layers
    if recipe is not None:
        values[VECTOR] = vector(values, forward.inputs, depth, recipe, mistakes)
    for mistake in mistakes:
        if mistake.dump is not None:
            values = mistake.dump(values, depth)
    return values
