"""The weights of BERT and of its heads, and how they are made of the numbers of any source (rows.py)."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.ops import AttentionInput, LayerNorm, PreparedLinear, Queries, RelativeBias, Rotation, Table, Window
from minibert.bert.packed import PackedBatch
from minibert.bert.rotary import Rotary
from minibert.bert.rows import DECODER, POOLER_ROWS, Row, head_rows, layer_rows, stored_rows


@dataclasses.dataclass(frozen=True, eq=False)
class LayerWeights:
    """The module path and the weights of one encoder layer; its linear maps are results of `Ops.prepare`.

    In BERT, `attention_norm` is behind attention and `output_norm` behind the feed-forward. In models whose norms come
    first (norm_first.py), each is before its block, so `output_norm` is the one before the feed-forward.
    """

    path: str
    _: dataclasses.KW_ONLY
    query_key_value: PreparedLinear = None  # type: ignore[assignment]  # if heads share keys, the next two are there
    own_query: PreparedLinear = None  # type: ignore[assignment]
    shared_key_value: PreparedLinear = None  # type: ignore[assignment]
    attention_output: PreparedLinear
    attention_norm: LayerNorm = None  # type: ignore[assignment]  # the first layer of ModernBERT has none
    intermediate: PreparedLinear
    output: PreparedLinear
    output_norm: LayerNorm
    relative_bias: FloatArray | None = None  # one array for all layers; see `RelativeBias`
    rotary: Rotary | None = None  # one for all layers of a type
    window: int | None = None  # how many tokens a token sees on each side; None: all

    def with_positions(self, inputs: AttentionInput, batch: PackedBatch, queries: Queries | None) -> AttentionInput:
        """Return the input of attention with what BERT's successors add to it, and the name of the module.

        MPNet adds a bias to the scores, for each distance of two tokens. Rotary models turn queries and keys by their
        positions. In most layers of ModernBERT, tokens see near ones only.
        """
        bias = None if self.relative_bias is None else RelativeBias(self.relative_bias, batch.columns)
        window = None if self.window is None else Window(self.window, batch.columns)
        path = f"{self.path}.attention.self"  # for wrappers that record; nothing is computed from it
        return inputs._replace(bias=bias, rotation=self.rotation_of(batch), window=window, queries=queries, path=path)

    def rotation_of(self, batch: PackedBatch) -> Rotation | None:
        """Return the rotation of the queries and keys of a batch."""
        return None if self.rotary is None else self.rotary(batch.positions, batch.cu_seqlens)

    @property
    def linears(self) -> tuple[PreparedLinear, ...]:
        """The linear maps, in the order of the forward."""
        maps = self.query_key_value, self.own_query, self.shared_key_value
        return *filter(None, maps), self.attention_output, self.intermediate, self.output

    @functools.cached_property
    def query(self) -> PreparedLinear:
        """The map that makes the queries."""
        return self.own_query or self.query_key_value.part(0, 1)

    @functools.cached_property
    def key_value(self) -> PreparedLinear:
        """The maps that make the keys and the values, stacked."""
        return self.shared_key_value or self.query_key_value.part(1, 3)


@dataclasses.dataclass(frozen=True, eq=False)
class HeadWeights:
    """The weights of one head; `name` is its class in `HEADS`. A module that the head does not have is None.

    The first three are those of the masked-LM head, ``cls.predictions``. In ModernBERT every head has the first two.
    The decoder is *tied* if its weight is the table of word embeddings. `Ops.prepare` may have made a copy of it in
    another layout: minibert's kernels do, which takes 4 V H bytes.
    """

    name: str
    transform: PreparedLinear = None  # type: ignore[assignment]
    transform_norm: LayerNorm = None  # type: ignore[assignment]
    decoder: PreparedLinear = None  # type: ignore[assignment]
    tied: bool = False
    seq_relationship: PreparedLinear | None = None
    classifier: PreparedLinear | None = None
    qa_outputs: PreparedLinear | None = None
    transform_inner: PreparedLinear | None = None  # UltraBERT's, before `transform`


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """All weights of one BERT model, float32 and read-only.

    Parameters
    ----------
    config : BertConfig
    words : Table of shape (V, H)      the word embeddings, an array or in a file; see `word_embeddings`. In ELECTRA the
                                       embeddings have `embedding_size` features instead of H
    position_embeddings : ndarray of shape (P, H), or None if the positions are rotary
    token_type_embeddings : ndarray of shape (type_vocab_size, H), or None if there are no token types
    embeddings_norm : LayerNorm or None    None in models whose norms come first, except ModernBERT
    layers : tuple of L LayerWeights
    pooler : PreparedLinear or None    None if the checkpoint does not have it, or the caller did not ask for it
    ignored : tuple of str             tensors of the file that belong to heads that were not asked for
    head : HeadWeights or None         of the head that was asked for
    embeddings_project : PreparedLinear or None    makes H features of ELECTRA's embeddings
    relative_attention_bias : ndarray of shape (32, A), or None    MPNet's; see `bias_of_distances`
    final_norm : LayerNorm or None     after the last layer, in models whose norms come first

    Raises
    ------
    ValueError
        The number of layers or the shape of a weight differs from the config.
    """

    config: BertConfig
    words: Table
    layers: tuple[LayerWeights, ...]
    pooler: PreparedLinear | None
    embeddings_norm: LayerNorm = None  # type: ignore[assignment]
    position_embeddings: FloatArray | None = None
    token_type_embeddings: FloatArray | None = None
    ignored: tuple[str, ...] = ()
    head: HeadWeights | None = None
    embeddings_project: PreparedLinear | None = None
    relative_attention_bias: FloatArray | None = None
    final_norm: LayerNorm | None = None

    def __post_init__(self) -> None:
        # Ids are checked against the config only. With a smaller array, kernels would read memory beyond its end.
        if len(self.layers) != self.config.num_hidden_layers:
            raise ValueError(f"There are {len(self.layers)} layers; the config says {self.config.num_hidden_layers}.")
        distances = (self.config.num_attention_heads, 2 * self.config.max_position_embeddings - 1)
        wanted = distances if self.config.family.has_relative_bias else None
        for layer in self.layers:
            if getattr(layer.relative_bias, "shape", None) != wanted:
                raise ValueError(f"{layer.path}.relative_bias does not have the shape {wanted}.")
        for path, owner, rows in self.parts(None if self.head is None else self.head.name):
            for field in dict.fromkeys(row.field for row in rows):
                stack = [row for row in rows if row.field == field]
                rows_of_each, *columns = stack[0].sizes(self.config)
                part = getattr(owner, field)
                expected = (len(stack) * rows_of_each, *columns)
                shape = tuple(part.weight.shape if isinstance(part, LayerNorm) else part.shape)
                if shape != expected:
                    raise ValueError(f"{path}{field} has shape {shape}; the config says {expected}.")
                if not stack[0].is_table and part.bias.shape != expected[:1]:
                    raise ValueError(f"{path}{field}.bias has shape {part.bias.shape}; expected {expected[:1]}.")

    @property
    def word_embeddings(self) -> FloatArray:
        """The table of words as an array, (V, H); if it is in a file, it is read as a whole."""
        return np.asarray(self.words)

    def parts(self, head: str | None) -> Iterator[tuple[str, Any, tuple[Row, ...]]]:
        """Yield the parts of the model, and those of a class in `HEADS`, in the order of the forward.

        A part is the beginning of its paths, the object that has its fields, and its modules.
        """
        yield "", self, stored_rows(self.config)
        for i, layer in enumerate(self.layers):
            yield f"{layer.path}.", layer, layer_rows(self.config, i)
        if self.pooler is not None:
            yield "", self, POOLER_ROWS
        if self.head is not None and head is not None:
            yield "", self.head, head_rows(self.config, head)

    def stored_parts(self, head: str | None) -> Iterator[tuple[str, str, Any, tuple[Row, ...]]]:
        """Yield the same, but of the layers with the same weights one; second is its beginning in a checkpoint."""
        numbers = {f"{layer.path}.": self.config.stored_layer(i) for i, layer in enumerate(self.layers)}
        written: set[int] = set()
        for scope, owner, rows in self.parts(head):
            if scope and numbers[scope] in written:
                continue
            written |= {numbers[scope]} if scope else set()
            yield scope, f"encoder.layer.{numbers[scope]}." if scope else "", owner, rows


def bias_of_distances(buckets: FloatArray, largest: int) -> FloatArray:
    """Return the table of a `RelativeBias` for distances below `largest`: (32, A) -> (A, 2 largest - 1).

    A distance has one of 16 buckets for each direction: 0 to 7 one each, longer ones on a logarithmic scale to 128.

    Notes
    -----
    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1; the logarithms are in float32, as in transformers:
    https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mpnet/modeling_mpnet.py
    """
    distances = np.arange(1 - largest, largest)  # (2 largest - 1,): column of the key - column of the query
    length = np.abs(distances)
    scale = np.log(np.maximum(length, 8).astype(np.float32) / np.float32(8)) / np.float32(np.log(128 / 8))
    bucket = np.where(length < 8, length, np.minimum(8 + (scale * np.float32(8)).astype(np.int64), 15))
    table = np.ascontiguousarray(buckets[bucket + 16 * (distances > 0)].T)  # (A, 2 largest - 1)
    table.flags.writeable = False
    return table


class TensorSource(Protocol):
    """The numbers of a model by their names in BERT: those of a checkpoint, of a shared file, or of none."""

    def array(self, names: Sequence[str], shape: tuple[int, ...]) -> Any:
        """Return the tensors with these names, stacked by rows to one array of this shape; the words as a `Table`.

        The frequencies of rotary positions have no numbers if they are not there.
        """

    def linear(
        self, paths: tuple[str, ...], shape: tuple[int, int], *, bias: bool = True, gated: bool = False
    ) -> PreparedLinear:
        """Return the linear maps of these modules, stacked into one weight of this shape."""

    def decoder(self, path: str, word_embeddings: FloatArray, bias: bool) -> tuple[PreparedLinear, bool]:
        """Return the decoder of a masked-LM head, and whether its weight is the table of word embeddings."""


def read_encoder(config: BertConfig, tensors: TensorSource) -> Weights:
    """Read the embeddings and the layers."""
    fields: dict[str, Any] = _assemble(tensors, stored_rows(config), "", config)
    if (tasks := fields.pop("tasks", None)) is not None:  # ERNIE's task 0, which transformers takes if none is given
        fields["token_type_embeddings"] = fields["token_type_embeddings"] + tasks[:1]
        config = dataclasses.replace(config, use_task_id=False)
    buckets = fields.get("relative_attention_bias")
    bias = None if buckets is None else bias_of_distances(buckets, config.max_position_embeddings)
    types = config.layer_types or ("full_attention",) * config.num_hidden_layers
    rotaries = {
        name: Rotary(
            config.rope_of(name), config.head_size, config.max_position_embeddings, _frequencies(config, tensors)
        )
        for name in config.family.theta
    }
    layers, read = [], dict[int, dict[str, Any]]()
    for i, layer_type in enumerate(types):
        if (stored := config.stored_layer(i)) not in read:
            read[stored] = _assemble(tensors, layer_rows(config, stored), f"encoder.layer.{stored}.", config)
        maps = read[stored] if i == stored else _as_layer(i, read[stored])
        window = config.window if layer_type == "sliding_attention" else None
        rotary = rotaries.get(layer_type)
        layers.append(LayerWeights(f"encoder.layer.{i}", **maps, relative_bias=bias, rotary=rotary, window=window))
    return Weights(config=config, layers=tuple(layers), pooler=None, **fields)


def _frequencies(config: BertConfig, tensors: TensorSource) -> FloatArray | None:
    """Return the frequencies of the rotary positions that a checkpoint of ESM has; None if it has none."""
    if not config.family.stores_frequencies:
        return None
    stored: FloatArray = tensors.array(["rotary_embeddings.inv_freq"], (config.head_size // 2,))
    return stored if len(stored) else None


def _as_layer(i: int, maps: dict[str, Any]) -> dict[str, Any]:
    """Return the modules of another layer under the paths of layer i; the numbers are the same arrays."""

    def moved(path: str) -> str:
        return re.sub(r"(?<=^encoder\.layer\.)\d+", str(i), path)

    return {
        field: dataclasses.replace(part, path=moved(part.path))
        if isinstance(part, LayerNorm)
        else dataclasses.replace(part, paths=tuple(map(moved, part.paths)))
        for field, part in maps.items()
    }


def read_pooler(config: BertConfig, tensors: TensorSource) -> dict[str, Any]:
    """Read the pooler, as the field of `Weights` that holds it."""
    return _assemble(tensors, POOLER_ROWS, "", config)


def read_head(head: str, weights: Weights, tensors: TensorSource) -> HeadWeights:
    """Read the modules of a class in `HEADS`, for a model with these weights."""
    config = weights.config
    rows = head_rows(config, head)
    fields: dict[str, Any] = _assemble(tensors, [row for row in rows if row.path != DECODER], "", config)
    for row in rows:
        if row.path == DECODER:
            fields["decoder"], fields["tied"] = tensors.decoder(DECODER, weights.word_embeddings, row.bias)
    return HeadWeights(head, **fields)


def _assemble(
    tensors: TensorSource, rows: Iterable[Row], scope: str, config: BertConfig
) -> dict[str, PreparedLinear | LayerNorm | FloatArray]:
    """Read the modules below one path into fields; modules of the same field are stacked into one linear map."""
    by_field: dict[str, list[Row]] = {}
    for row in rows:
        by_field.setdefault(row.field, []).append(row)
    fields: dict[str, PreparedLinear | LayerNorm | FloatArray] = {}
    for field, stack in by_field.items():
        paths = tuple(scope + row.path for row in stack)
        num_rows, *columns = stack[0].sizes(config)
        if columns and not stack[0].is_table:
            shape, gated = (len(stack) * num_rows, *columns), paths[0].endswith(".intermediate.gate")
            fields[field] = tensors.linear(paths, shape, bias=stack[0].bias, gated=gated)  # type: ignore[arg-type]
            continue
        weight = tensors.array([f"{path}.weight" for path in paths], (len(stack) * num_rows, *columns))
        if columns:
            fields[field] = weight
        else:
            bias = (
                tensors.array([f"{path}.bias" for path in paths], (num_rows,)) if stack[0].bias else zeros_of(num_rows)
            )
            fields[field] = LayerNorm(paths[0], weight, bias, config.layer_norm_eps, not config.family.has_rms_norm)
    return fields


def zeros_of(length: int) -> FloatArray:
    """Return the bias of a module that does not have one."""
    zeros: FloatArray = np.zeros(length, np.float32)
    zeros.flags.writeable = False
    return zeros
