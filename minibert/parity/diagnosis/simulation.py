"""`simulate`: the dump of a port with known mistakes; `find_mistakes`: those that an id means."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_int
from minibert.parity.diagnosis import recipes
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.forward import Forward
from minibert.parity.diagnosis.mistake import Mistake, Recipe
from minibert.parity.symbols import names_of, names_of_layer, states_of
from minibert.parity.truth import VECTOR, InapplicableError, Model, Padded

Wrong: TypeAlias = str | Mistake | Sequence[str | Mistake]
"""What means mistakes: an id as for `find_mistakes`, a mistake, or several."""


def find_mistakes(mistake: Wrong, num_layers: int | None = None) -> list[Mistake]:
    """Return the mistakes that an id means: "G1.tanh", "G1.tanh@3" in one layer, "G1.tanh+N1.1e-5", or several.

    A kind without a variant, "G1", is its first variant.

    Raises
    ------
    TypeError, ValueError
        It is not an id; the message lists the nearest ones. Or the layer does not exist.
    """
    if isinstance(mistake, Mistake):
        return [mistake]
    if not isinstance(mistake, str):
        if not isinstance(mistake, Sequence) or not mistake:
            raise TypeError(f"mistake={brief(mistake)}; expected an id such as 'G1.tanh', or several.")
        return [known for item in mistake for known in find_mistakes(item, num_layers)]
    mistakes = []
    for part in mistake.split("+"):
        id, at, layer = part.strip().partition("@")
        known = MISTAKES.get(id) or next((other for other in MISTAKES.values() if other.kind == id), None)
        if known is None:
            kin = [other for other in MISTAKES if other.startswith(f"{id.partition('.')[0]}.")]
            nearest = ", ".join(kin or difflib.get_close_matches(id, MISTAKES, 5, 0.0))
            raise ValueError(f"There is no mistake {brief(id)}; the nearest ids are {nearest}.")
        if at:
            if not layer.isdecimal():
                raise ValueError(f"mistake={brief(part)}; after @ the number of a layer is expected: {id}@0.")
            number = check_int("the layer of the mistake", int(layer), 0, (num_layers or 2**31) - 1)
            known = known.only(names_of_layer(number))
        mistakes.append(known)
    return mistakes


def simulate(
    model: Model, inputs: Mapping[str, Any], mistake: Wrong, *, record: str | Sequence[str] = "*"
) -> dict[str, FloatArray]:
    """Run a model like a port with a mistake: in float32, padded, with numbers in masked positions too.

    Parameters
    ----------
    model : BertModel, or a model with a head
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
        In the padded form: (B, S, width), (B, A, S, S) for scores and probs, (B, width) for the pooler, the
        logits of a sequence and the vector.

    Raises
    ------
    TypeError, ValueError
        An input or an id is wrong; or this mistake is not possible with this model or these inputs.
    """
    mistakes = find_mistakes(mistake, model.config.num_hidden_layers) if mistake != () else []
    for single in mistakes:
        if not single.is_for(model):
            raise ValueError(f"{single.id} is not possible here: it is not a mistake of {model.config.model_type}.")
    padded = Padded.of(model.config, inputs)
    patterns = {record} if isinstance(record, str) else {*record}
    chosen = names_of(model).select([*patterns - {VECTOR}])
    if VECTOR in patterns or ("*" in patterns and any(single.vector is not None for single in mistakes)):
        chosen.append(VECTOR)
    try:
        values = forward_values(model, padded, mistakes, recipe=Recipe("mean", "unit"))
    except InapplicableError as error:
        raise ValueError(f"{'+'.join(single.id for single in mistakes)} is not possible here: {error}.") from None
    return {name: np.ascontiguousarray(values[name], dtype=np.float32) for name in chosen}


def forward_values(
    model: Model, inputs: Padded, mistakes: Sequence[Mistake], recipe: Recipe | None = None, dtype: Any = np.float32
) -> dict[str, FloatArray]:
    """Return by name every value of a forward pass with mistakes and, if a recipe is given, each text's vector.

    Raises
    ------
    InapplicableError
        A mistake is not possible with this model or these inputs.
    """
    forward, states = Forward(model, inputs, mistakes, dtype), states_of(model.config)
    values = dict(forward.run_all())
    if recipe is not None:
        values[VECTOR] = recipes.vector(values, forward.inputs, states, recipe, mistakes)
    for mistake in mistakes:
        if mistake.dump is not None:
            values = mistake.dump(values, states)
    return values
