"""`simulate` makes the dump of a port with mistakes; the vector of a text is made by one of the usual recipes.

>>> from minibert import BertModel, BertTokenizer
>>> from minibert.parity.diagnosis import MISTAKES, simulate
>>> name = "sentence-transformers/all-MiniLM-L6-v2"
>>> tokenizer, model = BertTokenizer.from_pretrained(name), BertModel.from_pretrained(name)
>>> inputs = tokenizer(["the river bank", "a longer text than that"], padding=True, return_tensors="np")
>>> wrong = simulate(model, inputs, "G1.tanh")
>>> len(wrong), wrong["encoder.layer.5"].shape
(91, (2, 7, 384))
>>> MISTAKES["G1.tanh"].text
'hidden_act: in the feed forward gelu_tanh is applied; config.json has another hidden_act'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, Int64Array
from minibert.parity.diagnosis.catalogue import find_mistakes
from minibert.parity.diagnosis.forward import Forward, Mistake, Model, Recipe, names_of, state_name
from minibert.parity.truth import VECTOR, InapplicableError, Padded
from minibert.sentence.modules import POOLING_MODES


def simulate(
    model: Model,
    inputs: Mapping[str, Any],
    mistake: str | Mistake | Sequence[str | Mistake],
    *,
    record: str | Sequence[str] = "*",
) -> dict[str, FloatArray]:
    """Run a model like a port with a mistake: in float32, padded, with numbers in masked positions too.

    Parameters
    ----------
    model : BertModel, or a model with a head; the head does not run
    inputs : mapping
        input_ids, attention_mask, token_type_ids, position_ids, as the model takes them.
    mistake : str, Mistake, or several
        As for `find_mistakes`. () means none: a port that is right.
    record : str or several
        The names to return, or patterns, as for `BertModel.trace`; "sentence_embedding" stands for one vector per text,
        their mean with length 1. The default is all names of the model, and the vector if the mistake is one with it.

    Returns
    -------
    dict of str to float32 ndarray
        In the padded form: (B, S, width), (B, A, S, S) for scores and probs, (B, width) for the pooler and the vector.

    Raises
    ------
    TypeError, ValueError
        An input or an id is wrong; or this mistake is not possible with this model or these inputs.
    """
    layers = model.config.num_hidden_layers
    mistakes = find_mistakes(mistake, layers) if mistake != () else []
    padded = Padded.of(model.config, inputs)
    patterns = {record} if isinstance(record, str) else {*record}
    chosen = names_of(model).select([*patterns - {VECTOR}])
    if VECTOR in patterns or ("*" in patterns and any(one.vector is not None for one in mistakes)):
        chosen.append(VECTOR)
    try:
        values = forward_values(model, padded, mistakes, recipe=Recipe("mean", "unit"))
    except InapplicableError as error:
        raise ValueError(f"{'+'.join(one.id for one in mistakes)} is not possible here: {error}.") from None
    return {name: np.ascontiguousarray(values[name], dtype=np.float32) for name in chosen}


def forward_values(
    model: Model,
    inputs: Padded,
    mistakes: Sequence[Mistake] = (),
    *,
    recipe: Recipe | None = None,
    dtype: npt.DTypeLike = np.float32,
) -> dict[str, FloatArray]:
    """Return by name every value of a forward pass with mistakes and, if a recipe is given, each text's vector.

    Raises
    ------
    InapplicableError
        A mistake is not possible with this model or these inputs.
    """
    forward = Forward(model, inputs, mistakes, dtype=dtype)
    values = dict(forward.run_all())
    depth = model.config.num_hidden_layers
    if recipe is not None:
        values[VECTOR] = vector(values, forward.inputs, depth, recipe, mistakes)
    for mistake in mistakes:
        if mistake.dump is not None:
            values = mistake.dump(values, depth)
    return values


# --- the vector of a text ---------------------------------------------------------------------------------------------

Values: TypeAlias = Mapping[str, FloatArray]


def _sum(x: FloatArray, positions: Int64Array) -> FloatArray:
    return x.sum(axis=0)


_MODES = {**POOLING_MODES, "sum": _sum}


def _rows(x: FloatArray, chosen: npt.NDArray[np.bool_], mode: str) -> FloatArray:
    """Pool the chosen tokens of each row by a formula of sentence/modules.py; zeros for a row without any."""
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
            return SCALINGS[recipe.scaling](POOLINGS[recipe.pooling](values, inputs, depth))
    except KeyError as error:
        raise InapplicableError(f"{error} is not known here") from None


def find_recipe(values: Values, inputs: Padded, depth: int, wanted: FloatArray) -> Recipe | None:
    """Return the recipe that makes the vectors `wanted` from the true values, or None."""
    shown = inputs.mask.any(axis=1)
    limit = 1e-4 * float(np.abs(wanted[shown]).max(initial=0))
    for pooling in (*POOLING_MODES, *(["pooler"] if "pooler" in values else [])):
        for scaling in ("unit", "none"):
            made = vector(values, inputs, depth, Recipe(pooling, scaling))
            if made.shape == wanted.shape and np.abs(made - wanted)[shown].max(initial=0) <= limit:
                return Recipe(pooling, scaling)
    return None
