"""The forward pass of BERT, to be read beside the papers: embeddings -> L layers -> pooler.

- Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers" (arXiv 1810.04805): section 3, figure 2.
- Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762): section 3.1 and figure 1, the left half.

Two things differ from the papers' pictures. The sequences are not padded to a common length: they lie end to end in
one *packed batch* of T tokens, and only attention needs to know where each one begins (`cu_seqlens`). The arithmetic is
done by five *ops* (ops.py) that the caller passes in: reference.py says what they compute, kernels/ computes it fast.

    padded (B, S)          packed (T,)             cu_seqlens (B + 1,)
    a b c d .         ->   a b c d e f g h i       [0, 4, 9]
    e f g h i              sequence 0 is [0:4], sequence 1 is [4:9]

- There is no padding mask: masked tokens are dropped when a batch is packed (`pack`, models/inputs.py).
- There is no dropout: it acts in training only, and inference leaves every number as it is.
- The factor 1 / sqrt(D) of the scores is inside the attention op.

>>> from minibert import BertConfig, BertTokenizer
>>> from minibert.bert import encoder, reference
>>> from minibert.checkpoint.files import locate
>>> from minibert.models.inputs import pack
>>> from minibert.models.loading import load_weights
>>> files = locate("sentence-transformers/all-MiniLM-L6-v2")
>>> config, tokenizer = BertConfig.from_files(files), BertTokenizer.from_files(files)
>>> weights = load_weights(files, config, reference.OPS.prepare)
>>> batch = pack(config, **tokenizer(["a cat", "a longer text"], padding=True, return_tensors="np"))
>>> batch.mask.shape, batch.cu_seqlens.tolist()
((2, 5), [0, 4, 9])
>>> [x.shape for x in encoder.forward(weights, batch, reference.OPS)]
[(9, 384), (9, 384), (9, 384), (9, 384), (9, 384), (9, 384), (9, 384)]

This is the dimension key of the whole project. Each line that makes an array ends with its shape, and a test executes
these comments:

    B  sequences                  H  hidden_size                 V  vocab_size
    T  tokens of the whole batch  A  num_attention_heads         P  max_position_embeddings
    S  tokens of one sequence     D  H / A, size of one head     L  num_hidden_layers
    Q  tokens that are needed     F  intermediate_size             G  features of the keys: H, or fewer if heads share
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.ops import AttentionInput, LookUp, Ops, PreparedLinear, Queries, look_up
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import LayerWeights, Weights

Start: TypeAlias = tuple[int, FloatArray]
"""The number of a hidden state, 0 to L, and its values, (T, H)."""


def forward(
    weights: Weights, batch: PackedBatch, ops: Ops, *, start: Start | None = None, queries: Queries | None = None
) -> Iterator[FloatArray]:
    """Yield every hidden state in turn: the embeddings' output, then the output of each layer.

    This is a generator: stop iterating, and the remaining layers are not computed.

    Parameters
    ----------
    weights : Weights                        prepared by `ops`
    batch : PackedBatch                      T tokens, checked
    ops : Ops                                computes; `reference.OPS` or those of kernels/
    start : (i, x), optional                 begin with this hidden state i, x of shape (T, H), not with the embeddings
    queries : Queries, optional              the tokens whose last hidden state is needed; it then has shape (Q, H)

    Yields
    ------
    ndarray of shape (T, H), float32
        L + 1 of them, or L + 1 - i; each is a new array.
    """
    first = 0 if start is None else start[0]
    x = embeddings(weights, batch, ops) if start is None else start[1]  # (T, H)
    yield x
    for layer in weights.layers[first:]:
        # Tokens that are not needed can be left out of the last layer only: the next layer needs the keys of all.
        needed = queries if layer is weights.layers[-1] else None
        x = encoder_layer(x, layer, batch, weights.config, ops, needed)  # (T, H)
        yield x


def embeddings(weights: Weights, batch: PackedBatch, ops: Ops) -> FloatArray:
    """BERT figure 2: word + token_type + position embeddings; then LayerNorm, which only the paper's code shows.

    A batch with `inputs_embeds` brings its own word vectors, one per token; its token_ids are then 0, 1, ..., T - 1.
    """
    # A large table of words is in a file, from which the rows of these words are read.
    words = look_up(weights.words if batch.inputs_embeds is None else batch.inputs_embeds, batch.token_ids)
    tables = (weights.token_type_embeddings, batch.token_types), (weights.position_embeddings, batch.positions)
    # Some families have no token types, and no table of positions: attention reads rotary ones. Only ESM has a scale.
    added = [LookUp(rows, ids) for rows, ids in tables if rows is not None]
    x = ops.embed(words, *added, scale=batch.scale(weights.config))  # (T, H)
    # Where norms come first, most models have none here.
    if weights.embeddings_norm is not None:
        x = ops.layer_norm(x, weights.embeddings_norm)  # (T, H)
    # ELECTRA's embeddings have fewer features, and a linear map makes H of them.
    return x if weights.embeddings_project is None else ops.linear(x, weights.embeddings_project)  # (T, H)


def encoder_layer(
    x: FloatArray, layer: LayerWeights, batch: PackedBatch, config: BertConfig, ops: Ops, queries: Queries | None = None
) -> FloatArray:
    """Transformer figure 1, left: attention, Add & Norm, feed forward, Add & Norm.

    "Add" is `residual=x`: the linear map adds the x that went into the block. "Norm" is the line after it. After
    attention, T counts only the tokens that are needed, if there are `queries`.
    """
    context = self_attention(x, layer, batch, config, ops, queries)  # (T, H)
    x = x if queries is None else x[queries.tokens]  # (T, H)
    x = ops.linear(context, layer.attention_output, residual=x)  # (T, H)
    x = ops.layer_norm(x, layer.attention_norm)  # (T, H)

    intermediate = ops.linear(x, layer.intermediate, activation=config.activation)  # (T, F)
    x = ops.linear(intermediate, layer.output, residual=x)  # (T, H)
    x = ops.layer_norm(x, layer.output_norm)  # (T, H)
    return x


def self_attention(
    x: FloatArray, layer: LayerWeights, batch: PackedBatch, config: BertConfig, ops: Ops, queries: Queries | None = None
) -> FloatArray:
    """Transformer section 3.2: each token looks at the tokens of its own sequence, A heads at once."""
    query, key, value = project(x, layer, ops, queries)  # (T, H), (T, G), (T, G)
    inputs = AttentionInput(query, key, value, batch.cu_seqlens, config.num_attention_heads)
    # BERT adds nothing to this. Its successors do: a bias of the scores, rotary positions, windows.
    return ops.attention(layer.with_positions(inputs, batch, queries)).context  # (T, H)


def project(
    x: FloatArray, layer: LayerWeights, ops: Ops, queries: Queries | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return W_Q x, W_K x and W_V x, each with its bias: what a token asks, how others find it, what it gives them."""
    if queries is not None or layer.query_key_value is None:
        # For speed, tokens that are not needed ask nothing; or several heads share their keys and values.
        query = ops.linear(x if queries is None else x[queries.tokens], layer.query)  # (Q, H)
        projected = ops.linear(x, layer.key_value)  # (T, 2G)
        G = projected.shape[1] // 2
        key, value = projected[:, :G], projected[:, G:]  # 2 x (T, G)
        return query, key, value  # (Q, H), (T, G), (T, G)
    # One product serves all three, because W_Q, W_K and W_V are stacked to one matrix of 3H rows.
    projected = ops.linear(x, layer.query_key_value)  # (T, 3H)
    # So each row holds a query, then a key, then a value, H numbers each: the reshape separates them again.
    query, key, value = projected.reshape(-1, 3, x.shape[1]).swapaxes(0, 1)  # 3 x (T, H)
    return query, key, value  # 3 x (T, H)


def pooler(x: FloatArray, dense: PreparedLinear, batch: PackedBatch, ops: Ops, activation: str = "tanh") -> FloatArray:
    """tanh(W x + b) of each sequence's first token, [CLS]; in the paper's code (modeling.py), not in its text.

    Sequences with a masked [CLS] are left out: B is the number of the other sequences.
    """
    first_tokens = x[batch.first_tokens]  # (B, H)
    return ops.linear(first_tokens, dense, activation=activation)  # (B, H)
