"""The modules of BERT and of its heads in a checkpoint: their paths, the fields of weights.py, and the shapes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from minibert.bert.config import BertConfig
from minibert.bert.families import Family


@dataclasses.dataclass(frozen=True)
class Row:
    """One module of the checkpoint: its path, the field it fills, and the shape of its weight.

    A size is a field of the config or a number. Rows with the same field are stacked. A shape with two sizes belongs to
    an embedding table or a linear map, a shape with one size to a LayerNorm. Without `bias`, a map adds zeros.
    """

    path: str
    field: str
    shape: tuple[str | int, ...]
    bias: bool = True
    is_table: bool = False

    def sizes(self, config: BertConfig) -> tuple[int, ...]:
        """Return the shape as integers, with the sizes of the config."""
        return tuple(size if isinstance(size, int) else getattr(config, size) for size in self.shape)


_H, _F, _E = "hidden_size", "intermediate_size", "embedding_size"
EMBEDDING_ROWS = (
    Row("embeddings.word_embeddings", "words", ("vocab_size", _E), False, True),
    Row("embeddings.position_embeddings", "position_embeddings", ("max_position_embeddings", _E), False, True),
    Row("embeddings.token_type_embeddings", "token_type_embeddings", ("type_vocab_size", _E), False, True),
    Row("embeddings.LayerNorm", "embeddings_norm", (_E,)),
)
_PROJECTION = Row("embeddings_project", "embeddings_project", (_H, _E))
_TASKS = Row("embeddings.task_type_embeddings", "tasks", ("task_type_vocab_size", _E), False, True)
RELATIVE_BIAS = Row(
    "encoder.relative_attention_bias", "relative_attention_bias", (32, "num_attention_heads"), False, True
)
"""The table of MPNet: a bias for each of 32 ranges of distances, and each head."""
_FINAL_NORM = Row("final_norm", "final_norm", (_H,))


def _in_model(config: BertConfig, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return rows with the biases that this model has."""
    return tuple(dataclasses.replace(row, bias=row.bias and config.has_bias(row.path)) for row in rows)


def stored_rows(config: BertConfig) -> tuple[Row, ...]:
    """Return the modules beside layers and pooler that a checkpoint has."""
    family, rows = config.family, [*EMBEDDING_ROWS]
    there = {
        **{"words": True, "position_embeddings": not family.theta, "token_type_embeddings": config.has_token_types},
        "embeddings_norm": family.has_embeddings_norm,
    }
    rows = [row for row in rows if there[row.field]]
    if config.use_task_id:
        rows.append(_TASKS)
    if config.embedding_size != config.hidden_size or family.always_projects:
        rows.append(_PROJECTION)
    rows += [RELATIVE_BIAS] * family.has_relative_bias + [_FINAL_NORM] * (family.forward == "norm_first")
    return _in_model(config, rows)


LAYER_ROWS = (
    Row("attention.self.query", "query_key_value", (_H, _H)),
    Row("attention.self.key", "query_key_value", (_H, _H)),
    Row("attention.self.value", "query_key_value", (_H, _H)),
    Row("attention.output.dense", "attention_output", (_H, _H)),
    Row("attention.output.LayerNorm", "attention_norm", (_H,)),
    Row("intermediate.dense", "intermediate", (_F, _H)),
    Row("output.dense", "output", (_H, _F)),
    Row("output.LayerNorm", "output_norm", (_H,)),
)
_GATED_ROWS = (Row("intermediate.gate", "intermediate", (_F, _H)), Row("intermediate.up", "intermediate", (_F, _H)))
_SHARED_ROWS = (
    Row("attention.self.query", "own_query", (_H, _H)),
    Row("attention.self.key", "shared_key_value", ("key_size", _H)),
    Row("attention.self.value", "shared_key_value", ("key_size", _H)),
)
_NORMS = (Row("attention.LayerNorm", "attention_norm", (_H,)), Row("intermediate.LayerNorm", "output_norm", (_H,)))


@functools.lru_cache(maxsize=256)
def layer_rows(config: BertConfig, i: int) -> tuple[Row, ...]:
    """Return the modules of layer i, below its path."""
    family = config.family
    attention = (*(LAYER_ROWS[:3] if config.key_size == config.hidden_size else _SHARED_ROWS), LAYER_ROWS[3])
    feed_forward = (*(_GATED_ROWS if family.is_gated else LAYER_ROWS[5:6]), LAYER_ROWS[6])
    if family.forward == "norm_first":
        first = () if i == 0 and family.has_embeddings_norm else _NORMS[:1]  # else two norms would follow each other
        return _in_model(config, (*first, *attention, _NORMS[1], *feed_forward))
    return _in_model(config, (*attention, LAYER_ROWS[4], *feed_forward, LAYER_ROWS[7]))


POOLER_ROWS = (Row("pooler.dense", "pooler", (_H, _H)),)


@dataclasses.dataclass(frozen=True)
class HeadRows:
    """The modules of one head, and the kinds of its results, in order.

    "words": a logit of each word of the vocabulary, for each token; "tokens": logits of labels, for each token;
    "sequences": logits for each sequence, most often from its first token, through the pooler.
    """

    rows: tuple[Row, ...]
    result_kinds: tuple[str, ...]
    has_pooler: bool = True

    @property
    def pooled(self) -> bool:
        """True if the head needs the pooler."""
        return "sequences" in self.result_kinds and self.has_pooler


DECODER = "cls.predictions.decoder"
TRANSFORM = {
    "inner": Row("cls.predictions.transform.inner.dense", "transform_inner", ("prediction_head_size", _H)),
    "dense": Row("cls.predictions.transform.dense", "transform", (_E, _H)),
    "LayerNorm": Row("cls.predictions.transform.LayerNorm", "transform_norm", (_E,)),
}
"""The modules that a masked-LM head may have before the decoder."""
_PREDICTIONS = (TRANSFORM["dense"], TRANSFORM["LayerNorm"], Row(DECODER, "decoder", ("vocab_size", _E)))
_SEQ_RELATIONSHIP = Row("cls.seq_relationship", "seq_relationship", (2, _H))
_CLASSIFIER = Row("classifier", "classifier", ("num_labels", _H))
HEADS = {
    "BertForPreTraining": HeadRows((*_PREDICTIONS, _SEQ_RELATIONSHIP), ("words", "sequences")),
    "BertForMaskedLM": HeadRows(_PREDICTIONS, ("words",)),
    "BertForNextSentencePrediction": HeadRows((_SEQ_RELATIONSHIP,), ("sequences",)),
    "BertForQuestionAnswering": HeadRows((Row("qa_outputs", "qa_outputs", (2, _H)),), ("tokens",)),
    "BertForSequenceClassification": HeadRows((_CLASSIFIER,), ("sequences",)),
    "BertForTokenClassification": HeadRows((_CLASSIFIER,), ("tokens",)),
    "BertForMultipleChoice": HeadRows((Row("classifier", "classifier", (1, _H)),), ("sequences",)),
}
"""Class -> the modules of its head. Two rows are special: the decoder's weight may be the word embeddings, and its bias
may be named ``cls.predictions.bias``."""


def head_of(family: Family, name: str) -> HeadRows:
    """Return the modules of a head in a family."""
    rows = HEADS[name].rows
    if rows[0] in _PREDICTIONS or family.heads_begin_with_transform:
        own = [TRANSFORM[module] for module in family.transform]
        if "inner" in family.transform:
            own[1] = dataclasses.replace(own[1], shape=(_H, "prediction_head_size"))
        rows = (*own, *(row for row in rows if row not in _PREDICTIONS[:2]))
    return HeadRows(rows, HEADS[name].result_kinds, family.has_pooler)


def head_rows(config: BertConfig, name: str) -> tuple[Row, ...]:
    """Return the modules of a head, with the biases that they have in this model."""
    return _in_model(config, head_of(config.family, name).rows)
