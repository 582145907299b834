"""The forward pass of models whose norms come first, to be read after encoder.py: its ops in another order.

They are ModernBERT, EuroBERT, UltraBERT, ESM-2, Megatron-BERT and XLM-RoBERTa-XL (families/norm_first.py).

- Warner et al. 2024, "Smarter, Better, Faster, Longer" (arXiv 2412.13663): section 2.1.
- Boizard et al. 2025, "EuroBERT: Scaling Multilingual Encoders for European Languages" (arXiv 2503.05500): section 2.1.
- Lin et al. 2023, "Evolutionary-scale prediction of atomic-level protein structure" (doi 10.1126/science.ade2574).
- The formulas are those of transformers 5.24, modeling_modernbert.py, modeling_eurobert.py, modeling_ultrabert.py and
  modeling_esm.py in https://github.com/huggingface/transformers/tree/v5.24.0/src/transformers/models

Four things differ from BERT; in Megatron-BERT and XLM-RoBERTa-XL only the first:

- **Norm first.** A LayerNorm is before each block, not behind it, so the blocks only add to x; one more follows the
  last layer. Only ModernBERT's embeddings end with one, so its first layer begins without one. EuroBERT's are RMSNorms:
  they do not subtract the mean.
- **Rotary positions.** Attention turns queries and keys by the positions (rotary.py); no table is added to the words.
- **Windows.** In most layers of ModernBERT, a token sees `local_attention` / 2 tokens on each side, in every third
  layer all of them. Both kinds have a rotary base of their own. UltraBERT has such layers, too.
- **A gate.** The feed-forward is W2 (gelu(Wg x) * Wu x), or with silu. ESM-2's has none, as in BERT.

ESM-2 multiplies the embeddings by a factor (`PackedBatch.scale`). In the larger EuroBERTs, several heads of queries
share their keys and values. The embeddings and the attention are those of encoder.py, and so are the letters of the
shapes.
"""

from __future__ import annotations

from collections.abc import Iterator

from minibert._utils.validation import FloatArray
from minibert.bert import encoder
from minibert.bert.config import BertConfig
from minibert.bert.encoder import Start, embeddings, self_attention
from minibert.bert.ops import Ops, Queries
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import LayerWeights, Weights


def forward(
    weights: Weights, batch: PackedBatch, ops: Ops, *, start: Start | None = None, queries: Queries | None = None
) -> Iterator[FloatArray]:
    """Yield every hidden state in turn, as `encoder.forward` does; the last one is that behind the final LayerNorm."""
    first = 0 if start is None else start[0]
    x = embeddings(weights, batch, ops) if start is None else start[1]  # (T, H)
    yield x
    for layer in weights.layers[first:]:
        is_last = layer is weights.layers[-1]
        x = encoder_layer(x, layer, batch, weights.config, ops, queries if is_last else None)  # (T, H)
        if is_last and weights.final_norm is not None:
            x = ops.layer_norm(x, weights.final_norm)  # (T, H)
        yield x


def encoder_layer(
    x: FloatArray, layer: LayerWeights, batch: PackedBatch, config: BertConfig, ops: Ops, queries: Queries | None = None
) -> FloatArray:
    """Section 2.1: Norm, attention, Add; Norm, feed forward, Add.

    After attention, T counts only the tokens that are needed, if there are `queries`.
    """
    normed = x if layer.attention_norm is None else ops.layer_norm(x, layer.attention_norm)  # (T, H)
    context = self_attention(normed, layer, batch, config, ops, queries)  # (T, H)
    x = x if queries is None else x[queries.tokens]  # (T, H)
    x = ops.linear(context, layer.attention_output, residual=x)  # (T, H)

    normed = ops.layer_norm(x, layer.output_norm)  # (T, H)
    # With a gate, the weight holds it and what it multiplies, F rows each: activation(gate) * up.
    intermediate = ops.linear(normed, layer.intermediate, activation=config.activation)  # (T, F)
    x = ops.linear(intermediate, layer.output, residual=x)  # (T, H)
    return x


FORWARDS = {"bert": encoder.forward, "norm_first": forward}
LAYERS = {"bert": encoder.encoder_layer, "norm_first": encoder_layer}
"""`Family.forward` -> the forward of its models, and that of one layer."""
