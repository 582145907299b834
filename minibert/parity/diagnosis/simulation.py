"""`simulate`: the dump of a port with known mistakes.

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

An id is a kind of mistake and a variant. ``"G1.tanh@3"`` is the same mistake in layer 3 only, and
``"G1.tanh+N1.1e-5"`` is two mistakes at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_int
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.forward import Model, names_of
from minibert.parity.diagnosis.mistakes import VECTOR, Mistake, Recipe, forward_values, names_of_layer
from minibert.parity.subject import InapplicableError, Padded
from minibert.trace.names import Record


def find_mistakes(mistake: str | Mistake | Sequence[str | Mistake], num_layers: int | None = None) -> list[Mistake]:
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
        return [one for item in mistake for one in find_mistakes(item, num_layers)]
    found = []
    for part in mistake.split("+"):
        id, at, layer = part.strip().partition("@")
        known = MISTAKES.get(id) or next((one for one in MISTAKES.values() if one.kind == id), None)
        if known is None:
            kin = [other for other in MISTAKES if other.startswith(f"{id.partition('.')[0]}.")]
            nearest = ", ".join(kin or difflib.get_close_matches(id, MISTAKES, 5, 0.0))
            raise ValueError(f"There is no mistake {brief(id)}; the nearest ids are {nearest}.")
        if at:
            if not layer.isdecimal():
                raise ValueError(f"mistake={brief(part)}; after @ the number of a layer is expected: {id}@0.")
            number = check_int("the layer of the mistake", int(layer), 0, (num_layers or 2**31) - 1)
            known = known.only(names_of_layer(number))
        found.append(known)
    return found


def simulate(
    model: Model,
    inputs: Mapping[str, Any],
    mistake: str | Mistake | Sequence[str | Mistake],
    *,
    record: Record = "*",
    pooling: str = "mean",
    normalize: bool = True,
) -> dict[str, FloatArray]:
    """Run a model as a port with a mistake would run it: in float32, padded, with numbers in hidden places too.

    Parameters
    ----------
    model : BertModel, or a model with a head; the head does not run
    inputs : mapping
        input_ids, attention_mask, token_type_ids, position_ids, as the model takes them.
    mistake : str, Mistake, or several
        As for `find_mistakes`. () means none: a port that is right.
    record : as for `BertModel.trace`
        The names to return; "sentence_embedding" stands for one vector per text. The default is all
        names of the model, and the vector if the mistake is one with the vector.
    pooling, normalize
        How the right vector is made: a key of `mistakes.POOLINGS`, and whether it gets length 1.

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
    names = names_of(model)
    wanted, with_vector = _wanted(names, record, mistakes)
    try:
        values = forward_values(model, padded, mistakes, recipe=Recipe(pooling, "unit" if normalize else "none"))
    except InapplicableError as error:
        raise ValueError(f"{'+'.join(one.id for one in mistakes)} is not possible here: {error}.") from None
    chosen = [*wanted, *([VECTOR] if with_vector else [])]
    return {name: np.ascontiguousarray(values[name], dtype=np.float32) for name in chosen}


def _wanted(names: Any, record: Record, mistakes: Sequence[Mistake]) -> tuple[list[str], bool]:
    """Return the recorded names, and whether the vector is one of them."""
    if isinstance(record, str):
        record = (record,)
    if callable(record):
        return names.select(record), bool(record(VECTOR))
    patterns = list(record)
    with_vector = VECTOR in patterns or ("*" in patterns and any(one.vector is not None for one in mistakes))
    return names.select([pattern for pattern in patterns if pattern != VECTOR]), with_vector
