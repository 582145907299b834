"""The weights of a BERT model, and the table that maps names in the checkpoint to fields and shapes."""

from __future__ import annotations

import dataclasses

from minibert.base.arrays import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, PreparedLinear

__all__ = ["EMBEDDING_ROWS", "LAYER_ROWS", "POOLER_ROWS", "LayerWeights", "Row", "Weights"]


@dataclasses.dataclass(frozen=True, eq=False)
class LayerWeights:
    """The module path and the weights of one encoder layer; `Ops.prepare` returned its linear maps."""

    path: str
    query_key_value: PreparedLinear
    attention_output: PreparedLinear
    attention_norm: LayerNorm
    intermediate: PreparedLinear
    output: PreparedLinear
    output_norm: LayerNorm


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
    ignored : tuple of str             tensors of the file that belong to task heads, not to BERT itself

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

    def __post_init__(self) -> None:
        # Ids are checked against the config only. With a smaller table, kernels would read memory beyond its end.
        if len(self.layers) != self.config.num_hidden_layers:
            raise ValueError(f"There are {len(self.layers)} layers; the config says {self.config.num_hidden_layers}.")
        parts = [("", self, EMBEDDING_ROWS), *((f"{layer.path}.", layer, LAYER_ROWS) for layer in self.layers)]
        for path, owner, rows in [*parts, *([("", self, POOLER_ROWS)] if self.pooler is not None else ())]:
            for field in dict.fromkeys(row.field for row in rows):
                stack = [row for row in rows if row.field == field]
                rows_of_each, *columns = (getattr(self.config, size) for size in stack[0].shape)
                expected, found = (len(stack) * rows_of_each, *columns), _shape(getattr(owner, field))
                if found != expected:
                    raise ValueError(f"{path}{field} has shape {found}; the config says {expected}.")


@dataclasses.dataclass(frozen=True)
class Row:
    """One module of the checkpoint: its path, the field it fills, and the config fields that give its weight's shape.

    Rows with the same field are stacked. A shape with two sizes belongs to an embedding table or a linear map, a shape
    with one size to a LayerNorm.
    """

    path: str
    field: str
    shape: tuple[str, ...]
    bias: bool = True


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
