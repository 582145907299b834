"""The heads of BERT: each computes the result of one task from the last hidden state. Read it after encoder.py.

- Devlin et al. 2018 (arXiv 1810.04805): section 3.1 (the two tasks of pre-training), section 4 and figure 4 (others).
- The formulas are those of transformers 5.23:
  https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert/modeling_bert.py

A head is a linear map, and the masked-LM head has one more in front of it. Some heads read every token (T rows), the
others only [CLS], through the pooler (B rows). BERT's pre-training has two heads: masked LM and next sentence.

The results are *logits*: scores before softmax or sigmoid. What they mean is the subject of the task, not of the model.
Dropout acts in training only. The letters are those of encoder.py; N is the number of labels, I the
`prediction_head_size` of UltraBERT.
"""

from __future__ import annotations

from itertools import compress, pairwise

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.encoder import pooler
from minibert.bert.ops import Ops, PreparedLinear
from minibert.bert.packed import PackedBatch
from minibert.bert.reference import ACTIVATIONS
from minibert.bert.rows import head_of
from minibert.bert.weights import HeadWeights, Weights


def masked_lm(x: FloatArray, head: HeadWeights, config: BertConfig, ops: Ops) -> FloatArray:
    """Section 3.1, task 1: for each token, a logit of each word of the vocabulary.

    The transform is in the paper's code, not in its text. The decoder's weight is the table of word embeddings, unless
    the checkpoint has another one. EuroBERT has the decoder alone, UltraBERT a dense map more and no LayerNorm.
    """
    if head.transform is not None:
        x = transform(x, head, config, ops)  # (T, H)
    return ops.linear(x, head.decoder)  # (T, V)


def transform(x: FloatArray, head: HeadWeights, config: BertConfig, ops: Ops) -> FloatArray:
    """Compute the dense map and the LayerNorm before the decoder. In ModernBERT each head begins with them."""
    own = config.classifier_activation
    activation = ACTIVATIONS[own] if own else config.family.activation("BertForMaskedLM", config.activation)
    if head.transform_inner is not None:
        x = ops.linear(x, head.transform_inner, activation=activation)  # (T, I)
    x = ops.linear(x, head.transform, activation=activation)  # (T, H)
    return x if head.transform_norm is None else ops.layer_norm(x, head.transform_norm)  # (T, H)


def pool(x: FloatArray, batch: PackedBatch, has_result: npt.NDArray[np.bool_], pooling: str) -> FloatArray:
    """Give ModernBERT's classifiers of sequences one row for each sequence with a result: of B sequences, n.

    "cls": the first token that is not masked. "mean": the mean over the tokens.
    """
    if pooling == "cls":
        return x[batch.cu_seqlens[:-1][has_result]]  # (B, H)
    parts = [x[start:end] for start, end in compress(pairwise(batch.cu_seqlens), has_result)]  # B x (S, H)
    means = [part.mean(axis=0, dtype=np.float64) for part in parts]  # B x (H,)
    return np.array(means, x.dtype).reshape(-1, x.shape[1])  # (B, H)


def of_first_token(
    x: FloatArray, dense: PreparedLinear, classifier: PreparedLinear, batch: PackedBatch, ops: Ops, activation: str
) -> FloatArray:
    """Figure 4 (a) and (b): N logits for each sequence, from its [CLS]; four tasks differ in what they mean.

    - classification: a logit of each label; for a regression, the number itself.
    - next sentence (section 3.1, task 2; N = 2): "B is the next sentence", "B is a random sentence".
    - multiple choice (section 4.4; N = 1): each choice is a sequence, the question and then one answer.
    """
    pooled = pooler(x, dense, batch, ops, activation)  # (B, H)
    return ops.linear(pooled, classifier)  # (B, N)


def of_all_tokens(
    x: FloatArray,
    dense: PreparedLinear,
    classifier: PreparedLinear,
    batch: PackedBatch,
    ops: Ops,
    activation: str,
    late: bool,
) -> FloatArray:
    """Give EuroBERT's classifier of sequences its mean over the tokens: before its dense map, or `late`, behind it.

    The mean of the logits, which is what EuroBERT takes, is the logits of the mean.
    """
    has_result = batch.has_result(True)  # (B,)
    x = x if late else pool(x, batch, has_result, "mean")  # (T, H) or (B, H)
    x = ops.linear(x, dense, activation=activation)  # (T, H) or (B, H)
    x = pool(x, batch, has_result, "mean") if late else x  # (B, H)
    return ops.linear(x, classifier)  # (B, N)


def of_each_token(x: FloatArray, classifier: PreparedLinear, ops: Ops) -> FloatArray:
    """Figure 4 (c) and (d): N logits for each token.

    - classification of tokens: a logit of each label.
    - question answering (N = 2): "the answer starts here", "the answer ends here".
    """
    return ops.linear(x, classifier)  # (T, N)


def result(
    head: str | None, kind: str, x: FloatArray, weights: Weights, ops: Ops, batch: PackedBatch | None = None
) -> FloatArray:
    """Compute one result of a class in `HEADS`, for rows of the last hidden state, (t, H); None has the pooler only.

    The kinds are those of `HeadRows`, and "pooler". A row for each sequence, as "pooler" and "sequences" have it, needs
    the batch that the rows belong to.
    """
    config, own, dense = weights.config, weights.head, weights.pooler
    if head is None:
        assert dense is not None
        assert batch is not None
        return pooler(x, dense, batch, ops)  # (B, H)
    assert own is not None
    if kind == "words":
        return masked_lm(x, own, config, ops)  # (T, V)
    rows, pooling = head_of(config.family, head), config.classifier_pooling
    classifier = getattr(own, rows.rows[-1].field)
    if kind == "sequences":
        assert batch is not None
        if rows.pooled:
            assert dense is not None
            activation = config.family.activation(head, "tanh")
            if pooling in ("mean", "late"):
                return of_all_tokens(x, dense, classifier, batch, ops, activation, pooling == "late")  # (B, N)
            return of_first_token(x, dense, classifier, batch, ops, activation)  # (B, N)
        x = pool(x, batch, batch.has_result(config.reads_any(head)), pooling or "cls")  # (B, H)
    if config.family.heads_begin_with_transform:
        x = transform(x, own, config, ops)  # (T, H) or (B, H)
    return of_each_token(x, classifier, ops)  # (T, N) or (B, N)
