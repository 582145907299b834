"""What mistakes with ids, types, positions and embeddings compute, and with the names of hidden states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.config import BertConfig
from minibert.parity.diagnosis.forward import Here
from minibert.parity.diagnosis.mistake import Mistake, Part, part_mistake
from minibert.parity.truth import InapplicableError, Padded

_READ = {"ids": "words", "types": "types", "positions": "positions", "mask": "probs"}
_TABLES = {"ids": "vocab_size", "types": "type_vocab_size", "positions": "max_position_embeddings"}


def fed(**fields: Callable[[Padded, BertConfig], Any]) -> Mistake:
    """Return the mistake of other inputs: fields of `Padded`, made from the right inputs and the config."""

    def change(inputs: Padded, config: BertConfig) -> Padded:
        if inputs.embeds is not None and "ids" in fields:
            raise InapplicableError("the inputs are inputs_embeds, without ids")
        made = {name: field(inputs, config) for name, field in fields.items()}
        for name in made.keys() & _TABLES:
            made[name] = made[name].astype(np.int64)
            if not 0 <= made[name].min(initial=0) <= made[name].max(initial=0) < getattr(config, _TABLES[name]):
                raise InapplicableError(f"the model has {getattr(config, _TABLES[name])} rows of {_TABLES[name]}")
        return dataclasses.replace(inputs, **made)

    fits = (lambda model: model.config.type_vocab_size > 1) if "types" in fields else None
    return Mistake(tuple(_READ[name] for name in fields), inputs=change, fits=fits)


def positions(positions_of: Callable[[Padded, int], IntArray], *, counted: bool = False) -> Mistake:
    """Return the mistake of other positions, made from the inputs and the id of padding.

    `counted` says whether it is one of the families that count the tokens that are no padding, or of the others.
    """
    mistake = fed(positions=lambda inputs, config: positions_of(inputs, config.padding_id or 0))
    return mistake.but(fits=lambda model: model.config.family.counts_tokens == counted)


def restart(inputs: Padded, pad: int) -> IntArray:
    """Count the positions of the second segment from 0 again."""
    columns = np.arange(inputs.ids.shape[1])
    second = (inputs.types > 0) & inputs.mask
    begin = np.where(second.any(axis=1), second.argmax(axis=1), 0)[:, None]
    return np.where(columns >= begin, columns - begin, columns)


def total(change: Callable[..., FloatArray]) -> Mistake:
    """Return the mistake of another sum of the look-ups of words, types and positions."""
    return part_mistake("embeddings_sum", total=lambda inner, here, *look_ups: change(*look_ups))


def added(words: FloatArray, types: FloatArray, positions: FloatArray) -> FloatArray:
    """Add the same random vector to every token."""
    vector = np.random.default_rng(0).standard_normal(words.shape[-1]) * words.std()
    return words + types + positions + vector.astype(words.dtype)


def sinusoids(inner: Part, here: Here, table: FloatArray, ids: IntArray) -> FloatArray:
    """Return the positions of Vaswani et al. 2017, section 3.5, instead of the learned ones."""
    width, dtype = table.shape[-1], here.forward.dtype
    angles = ids[:, None] / 10000.0 ** (2 * (np.arange(width) // 2) / width)
    return np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles)).astype(dtype)


def inside(inputs: Padded) -> npt.NDArray[np.bool_]:
    """Return the visible tokens between the first and the last one of each row."""
    count = inputs.mask.cumsum(axis=1)
    return inputs.mask & (count > 1) & (count < count.max(axis=1, keepdims=True))


def unknown(inputs: Padded, config: BertConfig) -> IntArray:
    """Replace every third token inside a row by [UNK]."""
    third = inputs.mask.cumsum(axis=1) % 3 == 0
    return np.where(inside(inputs) & third, 100 if config.vocab_size > 1000 else 1, inputs.ids)


def cut(length: int) -> Mistake:
    """Return the mistake of cutting rows after `length` tokens; the last kept token is the row's final [SEP]."""

    def change(inputs: Padded, config: BertConfig) -> Padded:
        count = inputs.mask.cumsum(axis=1)
        longer = count[:, -1:] > length
        if not longer.any():
            raise InapplicableError(f"no row has more than {length} tokens")
        ends = inputs.ids[np.arange(len(count)), count.argmax(axis=1)][:, None]
        ids = np.where(longer & inputs.mask & (count == length), ends, inputs.ids)
        return dataclasses.replace(inputs, ids=ids, mask=inputs.mask & (count <= length))

    return Mistake(("words", "probs"), inputs=change, fits=lambda model: model.config.longest > length)


def renamed(symbols: tuple[str, ...], source: Callable[[int, Sequence[str]], str]) -> Mistake:
    """Return the mistake of dumping hidden state i with another name's values; `source` gives that name."""

    def change(values: dict[str, FloatArray], states: Sequence[str]) -> dict[str, FloatArray]:
        pairs = {state: source(i, states) for i, state in enumerate(states)}
        return values | {name: values[held] for name, held in pairs.items() if held in values}

    return Mistake(symbols, dump=change)
