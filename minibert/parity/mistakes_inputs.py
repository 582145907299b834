"""Mistakes with the inputs and the embeddings (E), and with ids (T)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.config import BertConfig
from minibert.parity.mistake import Mistake, part_mistake
from minibert.parity.parts import Here, Part
from minibert.parity.subject import InapplicableError, Padded

__all__ = ["INPUT_MISTAKES"]

Edit = Callable[[Padded, BertConfig], Padded]

# --- token types and positions ----------------------------------------------------------------------------------------


def _types(types_of: Callable[[Padded], IntArray]) -> Edit:
    def edit(inputs: Padded, config: BertConfig) -> Padded:
        types = types_of(inputs).astype(np.int64)
        if types.max(initial=0) >= config.type_vocab_size:
            raise InapplicableError(f"the model has {config.type_vocab_size} token types (type_vocab_size)")
        return dataclasses.replace(inputs, types=types)

    return edit


def _positions(positions_of: Callable[[Padded], IntArray]) -> Edit:
    def edit(inputs: Padded, config: BertConfig) -> Padded:
        positions = positions_of(inputs).astype(np.int64)
        if not 0 <= positions.min(initial=0) <= positions.max(initial=0) < config.max_position_embeddings:
            raise InapplicableError(f"the model has {config.max_position_embeddings} positions")
        return dataclasses.replace(inputs, positions=positions)

    return edit


def _restart(inputs: Padded) -> IntArray:
    """Count the positions of the second segment from 0 again."""
    columns = np.arange(inputs.ids.shape[1])
    second = (inputs.types > 0) & inputs.mask
    begin = np.where(second.any(axis=1), second.argmax(axis=1), 0)[:, None]
    return np.where(columns >= begin, columns - begin, columns)


def _swapped(inputs: Padded, config: BertConfig) -> Padded:
    types = inputs.mask.astype(np.int64)
    if types.max(initial=0) >= config.type_vocab_size:
        raise InapplicableError(f"the model has {config.type_vocab_size} token types (type_vocab_size)")
    return dataclasses.replace(inputs, types=types, mask=inputs.types > 0)


_TYPES_REMEDY = (
    "Give token_type_ids of the tokenizer to the model: 0 for the first text with its [SEP], 1 for the second one. "
    "llama.cpp takes row 0 for all tokens."
)
_POSITION_REMEDY = (
    "Positions are 0, 1, 2, ... by column in every row, also with padding on the left: torch.arange(S). RoBERTa, not "
    "BERT, begins with pad_token_id + 1."
)
_INPUTS = (
    Mistake(
        "E1.first",
        "token_type_ids: they are ignored; all tokens have the type 0",
        *(_TYPES_REMEDY, ("types",)),
        inputs=_types(lambda inputs: np.zeros_like(inputs.types)),
    ),
    Mistake(
        "E1.second",
        "token_type_ids: all tokens have the type 1",
        *(_TYPES_REMEDY, ("types",)),
        inputs=_types(lambda inputs: np.ones_like(inputs.types)),
    ),
    *(
        Mistake(
            f"E3.plus-{offset}",
            f"position_ids: they are {offset} too large{hint}",
            *(_POSITION_REMEDY, ("positions",)),
            inputs=_positions(lambda inputs, offset=offset: inputs.positions + offset),  # type: ignore[misc]
        )
        for offset, hint in ((1, "; they begin with 1"), (2, ", as RoBERTa has them (pad_token_id + 1 with pad 1)"))
    ),
    Mistake(
        "E3.zero",
        "position_ids: they are all 0",
        *(_POSITION_REMEDY, ("positions",)),
        inputs=_positions(lambda inputs: np.zeros_like(inputs.positions)),
    ),
    Mistake(
        "E3.visible",
        "position_ids: they count the visible tokens only, cumsum(attention_mask) - 1",
        *(_POSITION_REMEDY, ("positions",)),
        inputs=_positions(lambda inputs: np.maximum(inputs.mask.cumsum(axis=1) - 1, 0)),
    ),
    Mistake(
        "E3.visible-1",
        "position_ids: they count the visible tokens only, from 1 on: cumsum(attention_mask)",
        *(_POSITION_REMEDY, ("positions",)),
        inputs=_positions(lambda inputs: inputs.mask.cumsum(axis=1)),
    ),
    Mistake(
        "E3.segments",
        "position_ids: they begin with 0 again in the second segment",
        *(_POSITION_REMEDY, ("positions",)),
        inputs=_positions(_restart),
    ),
    Mistake(
        "E3.backwards",
        "position_ids: they run backwards",
        *(_POSITION_REMEDY, ("positions",)),
        inputs=_positions(lambda inputs: inputs.positions[:, ::-1]),
    ),
    Mistake(
        "E5.swapped",
        "attention_mask and token_type_ids are exchanged: the types are the mask, and the mask is the types",
        "Pass inputs by name. The order differs: onnx exports often have input_ids, attention_mask, token_type_ids; "
        "transformers' tokenizers return input_ids, token_type_ids, attention_mask.",
        ("types", "probs"),
        inputs=_swapped,
    ),
)

# --- the sum of the embeddings ----------------------------------------------------------------------------------------


def _without_types(inner: Part, here: Here, words: FloatArray, types: FloatArray, positions: FloatArray) -> FloatArray:
    return words + positions


def _without_positions(
    inner: Part, here: Here, words: FloatArray, types: FloatArray, positions: FloatArray
) -> FloatArray:
    return words + types


def _scaled(inner: Part, here: Here, words: FloatArray, types: FloatArray, positions: FloatArray) -> FloatArray:
    y: FloatArray = inner(here, words * words.dtype.type(np.sqrt(words.shape[-1])), types, positions)
    return y


def _reordered(inner: Part, here: Here, words: FloatArray, types: FloatArray, positions: FloatArray) -> FloatArray:
    return words + (positions + types)


def _sinusoids(inner: Part, here: Here, table: FloatArray, ids: IntArray) -> FloatArray:
    """Return the positions of Vaswani et al. 2017, section 3.5, instead of the learned ones."""
    rows: FloatArray = inner(here, table, ids)
    width = rows.shape[-1]
    angles = ids[:, None] / 10000.0 ** (2 * (np.arange(width) // 2) / width)
    return np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles)).astype(rows.dtype)


_SUM_REMEDY = "The input of embeddings.LayerNorm is word + token_type + position embeddings, three look-ups, unscaled."
_SUMS = (
    part_mistake(
        "E2.missing",
        "embeddings: token_type_embeddings are not added, not even row 0",
        *(_SUM_REMEDY, "embeddings_sum"),
        total=_without_types,
    ),
    part_mistake(
        *("E4.positions", "embeddings: position_embeddings are not added", _SUM_REMEDY, "embeddings_sum"),
        total=_without_positions,
    ),
    part_mistake(
        *(
            "E4.scaled",
            "embeddings: word_embeddings are multiplied by sqrt(hidden_size)",
            _SUM_REMEDY,
            "embeddings_sum",
        ),
        total=_scaled,
    ),
    part_mistake(
        "E4.sinusoids",
        "embeddings: positions are sines and cosines; BERT has learned position_embeddings",
        *(_SUM_REMEDY, "positions"),
        rows=_sinusoids,
    ),
    part_mistake(
        "E4.norm",
        "embeddings: embeddings.LayerNorm is missing",
        "Apply embeddings.LayerNorm to the sum of the three embeddings.",
        "embeddings",
        norm=lambda inner, here, x, norm: x,
    ),
    part_mistake(
        *("E4.order", "embeddings: the three look-ups are added in another order", _SUM_REMEDY, "embeddings_sum"),
        total=_reordered,
        harmless="the order of a sum of three numbers changes rounding only",
    ),
)

# --- ids --------------------------------------------------------------------------------------------------------------


def _unknown(inputs: Padded, config: BertConfig) -> Padded:
    """Replace every third token inside a row by [UNK]."""
    if inputs.embeds is not None:
        raise InapplicableError("the inputs are inputs_embeds, without ids")
    unknown = 100 if config.vocab_size > 1000 else 1
    count = inputs.mask.cumsum(axis=1)
    inside = inputs.mask & (count > 1) & (count < count.max(axis=1, keepdims=True))
    return dataclasses.replace(inputs, ids=np.where(inside & (count % 3 == 0), unknown, inputs.ids))


def _shifted(inputs: Padded, config: BertConfig) -> Padded:
    if inputs.embeds is not None:
        raise InapplicableError("the inputs are inputs_embeds, without ids")
    return dataclasses.replace(inputs, ids=(inputs.ids + 1) % config.vocab_size)


_IDS_REMEDY = (
    "Compare the ids first. Use the model's own tokenizer.json or vocab.txt and its do_lower_case; [CLS] and [SEP] are "
    "tokens too."
)
_TOKENS = (
    Mistake(
        "T1.unknown",
        "input_ids: words became [UNK], as without lower-casing or with another vocabulary",
        *(_IDS_REMEDY, ("words",)),
        inputs=_unknown,
    ),
    Mistake(
        "T1.shifted",
        "input_ids: all ids are 1 too large, as with a vocabulary that is one line longer",
        *(_IDS_REMEDY, ("words",)),
        inputs=_shifted,
    ),
)

# --- length -----------------------------------------------------------------------------------------------------------


def _cut(length: int) -> Edit:
    """Return a cut after `length` tokens; the last one is that which ends the row, [SEP]."""

    def edit(inputs: Padded, config: BertConfig) -> Padded:
        count = inputs.mask.cumsum(axis=1)
        longer = count[:, -1:] > length
        if not longer.any():
            raise InapplicableError(f"no row has more than {length} tokens")
        ends = inputs.ids[np.arange(len(count)), count.argmax(axis=1)][:, None]
        ids = np.where(longer & inputs.mask & (count == length), ends, inputs.ids)
        return dataclasses.replace(inputs, ids=ids, mask=inputs.mask & (count <= length))

    return edit


_LENGTHS = tuple(
    Mistake(
        f"P4.cut-{length}",
        f"truncation: texts are cut after {length} tokens; the inputs are longer",
        "Cut where the model does: max_seq_length of sentence_bert_config.json, else model_max_length of "
        "tokenizer_config.json. The truncation that is stored in tokenizer.json is often 128.",
        ("words", "probs"),
        inputs=_cut(length),
    )
    for length in (64, 128, 256)
)

INPUT_MISTAKES: tuple[Mistake, ...] = (*_INPUTS, *_SUMS, *_TOKENS, *_LENGTHS)
