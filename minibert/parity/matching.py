"""Names in a dump -> what they mean: values of the model, its inputs, its weights, sentence vectors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import printable
from minibert._utils.validation import brief, counted
from minibert.bert.packed import PackedBatch
from minibert.parity.dumps import Dump
from minibert.parity.subject import INPUTS, Subject
from minibert.parity.vectors import VECTOR

__all__ = ["Entry", "Matched", "match", "shape_of"]

_VECTOR_NAMES = {
    *(VECTOR, "sentence_embeddings", "sentence_vector", "sentence_vectors", "vector", "vectors", "embedding"),
    *("embeddings", "text_embeds", "data", "output", "pooled", "result"),
}
_TOKENS_NAMES = {"token_embeddings", "last_hidden", "last_hidden_states", "hidden_state", "encoder_output"}
# Names of hidden states that do not say whether the look-up is number 0: layer_03, model.layers.3.output,
# tf_bert_model/bert/encoder/layer_._3/output, hiddenStates[3].
_LOOSE = re.compile(
    r"(?:.*[._/-])?(?:layers?|blocks?|h|hidden|states?|hidden_?states?|encoder_?layers?|l_out)"
    r"[._/\[-]*0*(\d{1,4})\]?(?:[._/-]?(?:out|outputs?|hidden_?states?))?(?::0)?$"
)
_LONGEST = 200
_SEVERAL = {"hidden_states", "all_hidden_states", "layers", "states", "encoder_states"}
_INPUT_NAMES = {"ids": "input_ids", "tokens": "input_ids", "segment_ids": "token_type_ids", "mask": "attention_mask"}


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One dumped array, and the value it is a dump of.

    Parameters
    ----------
    name : str           the canonical name, or `VECTOR`
    given : str          its name in the dump
    value : ndarray, or a list of one for each text
    before : str         the value that it is if the numbers in the names begin with the embeddings; "" if they do not
    group : str          the name without its number; the names of a group are counted in one way
    guessed : bool       the name does not say which value it is
    """

    name: str
    given: str
    value: npt.NDArray[Any] | list[npt.NDArray[Any]]
    before: str = ""
    group: str = ""
    guessed: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Matched:
    """What a dump holds: inputs, weights and values, several of one meaning too, and unknown names."""

    inputs: list[tuple[str, npt.NDArray[Any]]]
    weights: list[tuple[str, npt.NDArray[Any]]]
    values: list[Entry]
    unknown: list[str]


def match(dump: Dump, subject: Subject, batch: PackedBatch | None, renamed: Mapping[str, str] | None = None) -> Matched:
    """Find out what each array of a dump is.

    Parameters
    ----------
    dump : Dump
    subject : Subject
    batch : PackedBatch or None      None: only the inputs are looked for
    renamed : mapping of names in the dump to names of values, optional

    Raises
    ------
    ValueError
        `renamed` has a name that is not in the dump, or means no value.
    """
    renamed = dict(renamed or {})
    missing = [name for name in renamed if name not in dump]
    if missing:
        raise ValueError(f"The map has the names {brief(missing)}, which are not in the dump: {brief(list(dump))}.")
    weights = {*subject.weights()} if batch is not None else set()
    matched = Matched([], [], [], [])
    for key, value in dump.items():
        name, given = renamed.get(key, key), printable(key)
        plain = _INPUT_NAMES.get(name, name)
        if plain in INPUTS and not isinstance(value, list):
            matched.inputs.append((plain, value))
        elif batch is None:
            continue
        elif (weight := _weight_name(name)) in weights and not isinstance(value, list):
            matched.weights.append((weight, value))
        else:
            if key in renamed and name != VECTOR:
                found = [Entry(subject.names.resolve(name)[0], given, value)]  # raises, with the nearest names
            else:
                found = _values(name, given, value, subject, batch)
            matched.values.extend(found)
            matched.unknown.extend([] if found else [given])
    if batch is not None and not matched.values and len(matched.unknown) == 1:
        (given,) = matched.unknown
        value = next(value for key, value in dump.items() if printable(key) == given)
        matched.values.extend(_by_shape(given, value, subject, batch))
        if matched.values:
            matched.unknown.clear()
    order = {name: i for i, name in enumerate((*subject.names.specs, VECTOR))}
    matched.values.sort(key=lambda entry: order[entry.name])
    return matched


def _weight_name(name: str) -> str:
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    return re.sub(r"^(?:(?:bert|model|0\.auto_model|0\.model)\.)+", "", name)


def _values(
    name: str, given: str, value: npt.NDArray[Any] | list[npt.NDArray[Any]], subject: Subject, batch: PackedBatch
) -> list[Entry]:
    depth = subject.config.num_hidden_layers
    shape = () if isinstance(value, list) else value.shape
    B, flat = len(batch.mask), len(shape) == 1  # flat: a file without a header
    vectors = (len(shape) == 2 and shape[0] == B) or (shape != () and shape == _flat_vectors(subject, B))
    if name.lower() in _VECTOR_NAMES and vectors and name != "pooled":
        return [Entry(VECTOR, given, value)]
    found = subject.names.find(name)
    if found is not None:
        return [Entry(found[0], given, value)]
    if name.lower() in _SEVERAL and flat and shape[0] % (depth + 1) == 0:
        value = np.reshape(np.asarray(value), (depth + 1, -1))
        return [Entry(_state(i), f"{given}[{i}]", state) for i, state in enumerate(value)]
    if name.lower() in _SEVERAL and not isinstance(value, list) and len(shape) >= 3 and shape[0] in (depth, depth + 1):
        exact = shape[0] == depth + 1
        if exact:
            return [Entry(_state(i), f"{given}[{i}]", value[i]) for i in range(depth + 1)]
        return [Entry(_state(i + 1), f"{given}[{i}]", value[i], _state(i), given, True) for i in range(depth)]
    if name.lower() in ("attentions", "all_attentions") and not isinstance(value, list) and shape[:1] == (depth,):
        return [Entry(f"encoder.layer.{i}.attention.self.probs", f"{given}[{i}]", value[i]) for i in range(depth)]
    loose = _LOOSE.match(name.lower()) if len(name) < _LONGEST else None
    if loose is not None and int(loose[1]) <= depth:
        number, group = int(loose[1]), f"{name[: loose.start(1)]}#{name[loose.end(1) :]}"
        if number == depth:  # numbers from 0 to depth, or from 1 on: hidden states
            return [Entry(_state(depth), given, value, "", group, True)]
        return [Entry(_state(number + 1), given, value, _state(number), group, True)]
    if name.lower() in _TOKENS_NAMES:
        return [Entry(_state(depth), given, value)]
    return []


def _by_shape(
    given: str, value: npt.NDArray[Any] | list[npt.NDArray[Any]], subject: Subject, batch: PackedBatch
) -> list[Entry]:
    """Guess what the only array of a dump is, if its name is unknown: vectors, or the last hidden state."""
    B, S = batch.mask.shape
    H, depth = subject.config.hidden_size, subject.config.num_hidden_layers
    if isinstance(value, list):
        return []
    if value.shape == _flat_vectors(subject, B):
        return [Entry(VECTOR, given, value, guessed=True)]
    if value.ndim == 1 and value.size == (depth + 1) * B * S * H:
        value = value.reshape(depth + 1, B, S, H)
    if value.ndim == 1 and value.size in (B * S * H, batch.num_tokens * H):
        return [Entry(_state(depth), given, value, guessed=True)]
    if value.ndim == 2 and value.shape[0] == B and subject.pipeline and value.shape[1] == subject.pipeline.widths[-1]:
        return [Entry(VECTOR, given, value, guessed=True)]
    if value.shape in ((B, S, H), (batch.num_tokens, H)):
        return [Entry(_state(depth), given, value, guessed=True)]
    if value.shape == (depth + 1, B, S, H):
        return [Entry(_state(i), f"{given}[{i}]", value[i]) for i in range(depth + 1)]
    return []


def _flat_vectors(subject: Subject, num_sequences: int) -> tuple[int, ...] | None:
    """Return the shape of the vectors of all texts in a file without a header; None if the model makes none."""
    return None if subject.pipeline is None else (num_sequences * subject.pipeline.widths[-1],)


def _state(i: int) -> str:
    return "embeddings" if i == 0 else f"encoder.layer.{i - 1}"


def shape_of(value: npt.NDArray[Any] | list[npt.NDArray[Any]]) -> str:
    """Return the shape of a dumped array for messages; a list has one array for each text."""
    return f"({counted(len(value), 'text')})" if isinstance(value, list) else str(value.shape)
