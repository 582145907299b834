"""The weights of BERT and of its heads, and the tables that map names in the checkpoint to fields and shapes."""

from __future__ import annotations

import dataclasses

from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, PreparedLinear


@dataclasses.dataclass(frozen=True, eq=False)
class LayerWeights:
    """The module path and the weights of one encoder layer; its linear maps are results of `Ops.prepare`."""

    path: str
    query_key_value: PreparedLinear
    attention_output: PreparedLinear
    attention_norm: LayerNorm
    intermediate: PreparedLinear
    output: PreparedLinear
    output_norm: LayerNorm

    @property
    def linears(self) -> tuple[PreparedLinear, ...]:
        """The linear maps, in the order of the forward."""
        return self.query_key_value, self.attention_output, self.intermediate, self.output


@dataclasses.dataclass(frozen=True, eq=False)
class PredictionWeights:
    """The weights of ``cls.predictions``, the masked-LM head.

    The decoder is *tied* if its weight is the table of word embeddings. `Ops.prepare` may have made a copy of it in
    another layout: minibert's kernels do, which takes 4 V H bytes.
    """

    transform: PreparedLinear
    transform_norm: LayerNorm
    decoder: PreparedLinear
    tied: bool


@dataclasses.dataclass(frozen=True, eq=False)
class HeadWeights:
    """The weights of one head; `name` is its class in `HEADS`. A module that the head does not have is None."""

    name: str
    predictions: PredictionWeights | None = None
    seq_relationship: PreparedLinear | None = None
    classifier: PreparedLinear | None = None
    qa_outputs: PreparedLinear | None = None

    def owner(self, field: str) -> HeadWeights | PredictionWeights | None:
        """Return the object that has this field of `HEADS`: `predictions`, or the head itself."""
        return self if field in HeadWeights.__dataclass_fields__ else self.predictions


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """All weights of one BERT model, float32 and read-only.

    Parameters
    ----------
    config : BertConfig
    word_embeddings : ndarray of shape (V, H)
    position_embeddings : ndarray of shape (P, H)
    token_type_embeddings : ndarray of shape (type_vocab_size, H)
    embeddings_norm : LayerNorm
    layers : tuple of L LayerWeights
    pooler : PreparedLinear or None    None if the checkpoint does not have it, or the caller did not ask for it
    ignored : tuple of str             tensors of the file that belong to heads that were not asked for
    head : HeadWeights or None         those of the head that was asked for

    Raises
    ------
    ValueError
        The number of layers or the shape of a weight differs from the config.
    """

    config: BertConfig
    word_embeddings: FloatArray
    position_embeddings: FloatArray
    token_type_embeddings: FloatArray
    embeddings_norm: LayerNorm
    layers: tuple[LayerWeights, ...]
    pooler: PreparedLinear | None
    ignored: tuple[str, ...] = ()
    head: HeadWeights | None = None

    def __post_init__(self) -> None:
        # Ids are checked against the config only. With a smaller table, kernels would read memory beyond its end.
        if len(self.layers) != self.config.num_hidden_layers:
            raise ValueError(f"There are {len(self.layers)} layers; the config says {self.config.num_hidden_layers}.")
        parts: list[tuple[str, object, tuple[Row, ...]]] = [("", self, EMBEDDING_ROWS)]
        parts += [(f"{layer.path}.", layer, LAYER_ROWS) for layer in self.layers]
        if self.pooler is not None:
            parts.append(("", self, POOLER_ROWS))
        if self.head is not None:
            parts += [("", self.head.owner(row.field), (row,)) for row in HEADS[self.head.name].rows]
        for path, owner, rows in parts:
            for field in dict.fromkeys(row.field for row in rows):
                stack = [row for row in rows if row.field == field]
                rows_of_each, *columns = stack[0].sizes(self.config)
                expected, found = (len(stack) * rows_of_each, *columns), _shape(getattr(owner, field))
                if found != expected:
                    raise ValueError(f"{path}{field} has shape {found}; the config says {expected}.")


@dataclasses.dataclass(frozen=True)
class Row:
    """One module of the checkpoint: its path, the field it fills, and the shape of its weight.

    A size is a field of the config or a number. Rows with the same field are stacked. A shape with two sizes belongs to
    an embedding table or a linear map, a shape with one size to a LayerNorm.
    """

    path: str
    field: str
    shape: tuple[str | int, ...]
    bias: bool = True

    def sizes(self, config: BertConfig) -> tuple[int, ...]:
        """Return the shape as integers, with the sizes of the config."""
        return tuple(size if isinstance(size, int) else getattr(config, size) for size in self.shape)


def _shape(part: PreparedLinear | LayerNorm | FloatArray) -> tuple[int, ...]:
    return tuple(part.weight.shape if isinstance(part, LayerNorm) else part.shape)


_H, _F = "hidden_size", "intermediate_size"
EMBEDDING_ROWS = (
    Row("embeddings.word_embeddings", "word_embeddings", ("vocab_size", _H), bias=False),
    Row("embeddings.position_embeddings", "position_embeddings", ("max_position_embeddings", _H), bias=False),
    Row("embeddings.token_type_embeddings", "token_type_embeddings", ("type_vocab_size", _H), bias=False),
    Row("embeddings.LayerNorm", "embeddings_norm", (_H,)),
)
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
POOLER_ROWS = (Row("pooler.dense", "pooler", (_H, _H)),)


@dataclasses.dataclass(frozen=True)
class HeadRows:
    """The modules of one head; `pooled` says whether it reads the pooler's output or the last hidden state."""

    rows: tuple[Row, ...]
    pooled: bool


_PREDICTIONS = (
    Row("cls.predictions.transform.dense", "transform", (_H, _H)),
    Row("cls.predictions.transform.LayerNorm", "transform_norm", (_H,)),
    Row("cls.predictions.decoder", "decoder", ("vocab_size", _H)),
)
_SEQ_RELATIONSHIP = Row("cls.seq_relationship", "seq_relationship", (2, _H))
_CLASSIFIER = Row("classifier", "classifier", ("num_labels", _H))
HEADS = {
    "BertForPreTraining": HeadRows((*_PREDICTIONS, _SEQ_RELATIONSHIP), pooled=True),
    "BertForMaskedLM": HeadRows(_PREDICTIONS, pooled=False),
    "BertForNextSentencePrediction": HeadRows((_SEQ_RELATIONSHIP,), pooled=True),
    "BertForQuestionAnswering": HeadRows((Row("qa_outputs", "qa_outputs", (2, _H)),), pooled=False),
    "BertForSequenceClassification": HeadRows((_CLASSIFIER,), pooled=True),
    "BertForTokenClassification": HeadRows((_CLASSIFIER,), pooled=False),
    "BertForMultipleChoice": HeadRows((Row("classifier", "classifier", (1, _H)),), pooled=True),
}
"""Class -> the modules of its head. Two rows are special: the decoder's weight may be the word embeddings, and its bias
may be named ``cls.predictions.bias``."""
