"""The recipes for the vector of a text: which tokens and states are pooled, how, and to which length.

A `Recipe` names a pooling and a scaling. The port's mistakes with its vectors are other recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.encode.pooling import POOLING_MODES
from minibert.parity.diagnosis.formulas.attention import length
from minibert.parity.diagnosis.formulas.tokens import inside
from minibert.parity.diagnosis.mistake import Arrays, Mistake, Recipe, part_mistake
from minibert.parity.truth import VECTOR, InapplicableError, Padded


def pooled(pooling: str) -> Mistake:
    """Return the mistake of another pooling, a key of `POOLINGS`."""
    return Mistake((VECTOR,), vector=lambda right: right._replace(pooling=pooling))


def pooled_for_head(pooling: str) -> Mistake:
    """Return the mistake of another pooling before the pooler, or before the head."""
    return part_mistake(
        ("pooler_dense", "transform_dense", "logits"),
        pool=lambda inner, here, x: POOLINGS[pooling](
            {here.forward.states[-1]: x}, here.forward.inputs, here.forward.states
        ),
    )


def lengths(scaling: str) -> Mistake:
    """Return the mistake of vectors scaled to another length, a key of `SCALINGS`."""
    return Mistake((VECTOR,), vector=lambda right: right._replace(scaling=scaling))


def _ends(inputs: Padded) -> npt.NDArray[np.bool_]:
    """Return the tokens with the id of the row's last visible token, [SEP]."""
    last = inputs.mask.cumsum(axis=1).argmax(axis=1)
    return inputs.ids == inputs.ids[np.arange(len(last)), last][:, None]


_MODES: dict[str, Callable[..., FloatArray]] = {
    **POOLING_MODES,
    "sum": lambda x, positions: x.sum(axis=0),
    "min": lambda x, positions: x.min(axis=0),
}

# The tokens that a port pools instead of the visible ones.
_TOKENS: dict[str, Callable[[Padded], npt.NDArray[np.bool_]]] = {
    "all columns, padding too": lambda inputs: np.ones_like(inputs.mask),
    "the first columns, as many as the mask has ones": length,
    "the tokens without the first and the last one": inside,
    "the tokens without [CLS] and every [SEP]": lambda inputs: inside(inputs) & ~_ends(inputs),
    "the tokens without [CLS]": lambda inputs: inputs.mask & (inputs.mask.cumsum(axis=1) > 1),
    "the tokens without every [SEP]": lambda inputs: inputs.mask & ~_ends(inputs),
    "all columns but the first": lambda inputs: np.indices(inputs.mask.shape)[1] > 0,
    "all columns but the first and the last": lambda inputs: np.pad(inputs.mask[:, 2:] | True, ((0, 0), (1, 1))),
    "the tokens that are not in the first column": lambda inputs: inputs.mask & (np.indices(inputs.mask.shape)[1] > 0),
}


def _pool(mode: str, x: FloatArray, chosen: npt.NDArray[np.bool_]) -> FloatArray:
    """Pool the chosen tokens of each row by a formula of encode/pooling.py; zeros for a row without any."""
    vectors = np.zeros((len(x), x.shape[-1]), x.dtype)
    for row, (states, tokens) in enumerate(zip(x, chosen, strict=True)):
        if tokens.any():
            vectors[row] = _MODES[mode](states[tokens], np.arange(int(tokens.sum())))
    return vectors


def _of_tokens(mode: str, tokens: Callable[[Padded], npt.NDArray[np.bool_]]) -> Callable[..., FloatArray]:
    return lambda values, inputs, states: _pool(mode, values[states[-1]], tokens(inputs))


POOLINGS: dict[str, Callable[[Arrays, Padded, Sequence[str]], FloatArray]] = {
    **{mode: _of_tokens(mode, lambda inputs: inputs.mask) for mode in _MODES},
    "pooler": lambda values, inputs, states: values["pooler"],
    "mean of the first and last state": lambda values, inputs, states: _pool(
        "mean", (values[states[0]] + values[states[-1]]) / 2, inputs.mask
    ),
    "mean of the last state but one": lambda values, inputs, states: _pool("mean", values[states[-2:][0]], inputs.mask),
    "max of all columns, with zeros in place of the padding": lambda values, inputs, states: (
        values[states[-1]] * inputs.mask[..., None]
    ).max(axis=1),
    **{f"{mode} of {words}": _of_tokens(mode, tokens) for words, tokens in _TOKENS.items() for mode in _MODES},
}
"""The vector before it is scaled, by name: of the values of all names, the inputs, and the names of the states."""


def _length(x: FloatArray) -> FloatArray:
    norm: FloatArray = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return np.where(norm > 0, norm, 1)


SCALINGS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "unit": lambda x: x / _length(x),
    "none": lambda x: x,
    "twice": lambda x: x / _length(x) ** 2,
}
"""Normalised to length 1, left as it is, or divided by its length twice."""


def vector(
    values: Arrays, inputs: Padded, states: Sequence[str], recipe: Recipe, mistakes: Iterable[Mistake] = ()
) -> FloatArray:
    """Make one vector per text, (B, H), with mistakes; `values` has the hidden states and the pooler.

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
            return SCALINGS[recipe.scaling](POOLINGS[recipe.pooling](values, inputs, states))
    except KeyError as error:
        raise InapplicableError(f"{error} is not known here") from None
