"""The heads of BERT: each computes the result of one task from the last hidden state. Read it after encoder.py.

- Devlin et al. 2018 (arXiv 1810.04805): section 3.1 (the two tasks of pre-training), section 4 and figure 4 (others).
- The formulas are those of transformers 5.23:
  https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert/modeling_bert.py

A head is a linear map, and the masked-LM head has one more in front of it. Some heads read every token (T rows), the
others only [CLS], through the pooler (B rows). BERT's pre-training has two heads, `masked_lm` and `next_sentence`.

The results are *logits*: scores before softmax or sigmoid. What they mean is the subject of the task, not of the model.
Dropout acts in training only. The letters are those of encoder.py; N is the number of labels.
"""

from __future__ import annotations

from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.encoder import pooler
from minibert.bert.ops import Ops, PreparedLinear
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import PredictionWeights


def masked_lm(x: FloatArray, head: PredictionWeights, config: BertConfig, ops: Ops) -> FloatArray:
    """Section 3.1, task 1: for each token, a logit of each word of the vocabulary.

    The transform is in the paper's code, not in its text. The decoder's weight is the table of word embeddings, unless
    the checkpoint has another one.
    """
    activation = config.family.activation("BertForMaskedLM", config.activation)
    x = ops.linear(x, head.transform, activation=activation)  # (T, H)
    x = ops.layer_norm(x, head.transform_norm)  # (T, H)
    return ops.linear(x, head.decoder)  # (T, V)


def next_sentence(
    x: FloatArray,
    dense: PreparedLinear,
    seq_relationship: PreparedLinear,
    batch: PackedBatch,
    ops: Ops,
    activation: str = "tanh",
) -> FloatArray:
    """Section 3.1, task 2: the logits of "B is the next sentence" and "B is a random sentence", in this order."""
    pooled = pooler(x, dense, batch, ops, activation)  # (B, H)
    return ops.linear(pooled, seq_relationship)  # (B, 2)


def sequence_classification(
    x: FloatArray,
    dense: PreparedLinear,
    classifier: PreparedLinear,
    batch: PackedBatch,
    ops: Ops,
    activation: str = "tanh",
) -> FloatArray:
    """Figure 4 (a) and (b): a logit of each label for the whole sequence; for a regression, the number itself."""
    pooled = pooler(x, dense, batch, ops, activation)  # (B, H)
    return ops.linear(pooled, classifier)  # (B, N)


def token_classification(x: FloatArray, classifier: PreparedLinear, ops: Ops) -> FloatArray:
    """Figure 4 (d): a logit of each label for each token."""
    return ops.linear(x, classifier)  # (T, N)


def question_answering(x: FloatArray, qa_outputs: PreparedLinear, ops: Ops) -> FloatArray:
    """Figure 4 (c): for each token, the logits of "the answer starts here" and "the answer ends here"."""
    return ops.linear(x, qa_outputs)  # (T, 2)


def multiple_choice(
    x: FloatArray,
    dense: PreparedLinear,
    classifier: PreparedLinear,
    batch: PackedBatch,
    ops: Ops,
    activation: str = "tanh",
) -> FloatArray:
    """Section 4.4: one logit for each choice. Each choice is a sequence: the question, then one answer."""
    pooled = pooler(x, dense, batch, ops, activation)  # (B, H)
    return ops.linear(pooled, classifier)  # (B, 1)
