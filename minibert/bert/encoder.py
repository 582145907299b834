"""The forward pass of BERT, to be read beside the papers: embeddings -> L layers -> pooler.

- Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers" (arXiv 1810.04805): section 3, figure 2.
- Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762): section 3.1 and figure 1, the left half.

Two things differ from the papers' pictures. Sequences are not padded to a common length but laid end to end in one
*packed batch* of T tokens; only attention needs to know where each one begins (`cu_seqlens`). And the arithmetic is
done by five *ops* (ops.py) that are passed in: reference.py says what they compute, kernels/ computes it fast.

The dimension key of the whole project; each line that makes an array ends with its shape, and a test runs them all:

    B  sequences                  H  hidden_size                 V  vocab_size
    T  tokens of the whole batch  A  num_attention_heads         P  max_position_embeddings
    S  tokens of one sequence     D  H / A, size of one head     L  num_hidden_layers
                                  F  intermediate_size
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from minibert.base.arrays import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.ops import AttentionOutput, Ops, PreparedLinear
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import LayerWeights, Weights

__all__ = ["HiddenState", "embeddings", "encoder_layer", "forward", "pooler", "self_attention"]


class HiddenState(NamedTuple):
    """One of the L + 1 hidden states, and the attention probs of the layer that made it (None if not asked for)."""

    hidden_state: FloatArray
    attention_probs: list[FloatArray] | None


def forward(
    weights: Weights, batch: PackedBatch, ops: Ops, *, return_probs: Collection[int] = ()
) -> Iterator[HiddenState]:
    """Yield every hidden state in turn: the embeddings' output, then that of each layer.

    This is a generator: stop iterating, and the remaining layers are not computed.

    Parameters
    ----------
    weights : Weights                        prepared by `ops`
    batch : PackedBatch                      T tokens, checked
    ops : Ops                                who computes
    return_probs : layers, 0 to L - 1        also give their attention probs, one (A, S, S) array per sequence

    Yields
    ------
    HiddenState
        L + 1 of them, each hidden_state a new array of shape (T, H), float32.
    """
    x = embeddings(weights, batch, ops)  # (T, H)
    yield HiddenState(x, None)
    for i, layer in enumerate(weights.layers):
        x, probs = encoder_layer(x, layer, batch, weights.config, ops, i in return_probs)  # (T, H), B x (A, S, S)
        yield HiddenState(x, probs)


def embeddings(weights: Weights, batch: PackedBatch, ops: Ops) -> FloatArray:
    """BERT figure 2: word + token_type + position embeddings; then LayerNorm, which only the paper's code shows."""
    words = weights.word_embeddings if batch.inputs_embeds is None else batch.inputs_embeds  # (V, H) or (T, H)
    types, positions = weights.token_type_embeddings, weights.position_embeddings  # (type_vocab_size, H), (P, H)
    x = ops.embed(words, batch.token_ids, types, batch.token_types, positions, batch.positions)  # (T, H)
    return ops.layer_norm(x, weights.embeddings_norm)  # (T, H)


def encoder_layer(
    x: FloatArray, layer: LayerWeights, batch: PackedBatch, config: BertConfig, ops: Ops, return_probs: bool = False
) -> tuple[FloatArray, list[FloatArray] | None]:
    """Transformer figure 1, left: attention, Add & Norm, feed forward, Add & Norm."""
    attention = self_attention(x, layer, batch, config, ops, return_probs)
    x = ops.linear(attention.context, layer.attention_output, residual=x)  # (T, H)
    x = ops.layer_norm(x, layer.attention_norm)  # (T, H)

    intermediate = ops.linear(x, layer.intermediate, activation=config.hidden_act)  # (T, F)
    x = ops.linear(intermediate, layer.output, residual=x)  # (T, H)
    x = ops.layer_norm(x, layer.output_norm)  # (T, H)
    return x, attention.probs


def self_attention(
    x: FloatArray, layer: LayerWeights, batch: PackedBatch, config: BertConfig, ops: Ops, return_probs: bool = False
) -> AttentionOutput:
    """Transformer section 3.2: each token looks at the tokens of its own sequence, A heads at once."""
    projected = ops.linear(x, layer.query_key_value)  # (T, 3H)
    query, key, value = projected.reshape(-1, 3, config.hidden_size).swapaxes(0, 1)  # 3 x (T, H)
    heads, path = config.num_attention_heads, f"{layer.path}.attention.self"
    return ops.attention(query, key, value, batch.cu_seqlens, heads, path=path, return_probs=return_probs)


def pooler(x: FloatArray, dense: PreparedLinear, batch: PackedBatch, ops: Ops) -> FloatArray:
    """tanh(W x + b) of each sequence's first token, [CLS]; in the paper's code (modeling.py), not in its text."""
    first_tokens = x[batch.first_tokens]  # (B, H)
    return ops.linear(first_tokens, dense, activation="tanh")  # (B, H)
