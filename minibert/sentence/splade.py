"""SPLADE: the logits of a masked-LM head -> one weight for each word of the vocabulary, in bounded memory.

Formal et al. 2021 (arXiv 2109.10086, "SPLADE v2"): the weight of word j in a text is max over its tokens i of
log(1 + relu(logit_ij)). The first SPLADE (arXiv 2107.05720) has the sum instead of the maximum. log(1 + x) grows with
x, so the maximum of the logits is taken first, and the logarithm only of what is above 0. The logits of a text, S x V
numbers, are computed for some tokens at a time and never kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import log1p
from minibert._utils.validation import FloatArray, IntArray, brief
from minibert.bert import heads
from minibert.bert.packed import PackedBatch
from minibert.errors import ModelFormatError
from minibert.models.heads import BertForMaskedLM
from minibert.tokenizer.encodings import Encoding

__all__ = ["LOGITS_BYTES", "SpladePooling", "pool_words"]

LOGITS_BYTES = 1 << 24
"""Most bytes of logits that are held at a time, those that a pooled text has so far included."""

STRATEGIES = ("max", "sum")
ACTIVATIONS = ("relu", "log1p_relu")


@dataclasses.dataclass(frozen=True)
class SpladePooling:
    """The settings of the module SpladePooling.

    Parameters
    ----------
    pooling_strategy : {"max", "sum"}
        Over the tokens of a text.
    activation_function : {"relu", "log1p_relu"}
        "log1p_relu" takes the logarithm twice, as OpenSearch's models do.
    """

    pooling_strategy: str = "max"
    activation_function: str = "relu"

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str, vocab_size: int) -> SpladePooling:
        """Read the config.json of the module; ModelFormatError names a setting that minibert does not implement."""
        found = []
        for key, choices in (("pooling_strategy", STRATEGIES), ("activation_function", ACTIVATIONS)):
            value = config.get(key, choices[0])
            if not isinstance(value, str) or value not in choices:
                raise ModelFormatError(f"{where} has {key}={brief(value)}; expected one of {', '.join(choices)}.")
            found.append(value)
        for key in ("embedding_dimension", "word_embedding_dimension"):
            if config.get(key) not in (None, vocab_size):
                raise ModelFormatError(
                    f"{where} has {key}={brief(config[key])}, but the vocabulary has {vocab_size} words (vocab_size)."
                )
        return cls(*found)

    def weights(self, numbers: FloatArray) -> FloatArray:
        """Compute log(1 + x), once or twice, in float64; the numbers are at least 0."""
        once = log1p(numbers)
        return log1p(once) if self.activation_function == "log1p_relu" else once


def pool_words(
    model: BertForMaskedLM, pooling: SpladePooling, groups: Sequence[Sequence[Encoding]], indices: Sequence[int]
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Compute the weights of the words for each text, from all tokens of its windows.

    Parameters
    ----------
    model : BertForMaskedLM
    pooling : SpladePooling
    groups : sequence of sequences of Encoding
        The windows of each text.
    indices : sequence of int
        Where each text is in the caller's input, for errors.

    Yields
    ------
    (int ndarray of shape (n,), float32 ndarray of shape (n,))
        The words with weights above 0 in increasing order, and their weights.

    Raises
    ------
    ModelFormatError
        The model computes NaN or infinity for a text.
    """
    windows = [window for group in groups for window in group]
    if not windows:
        return
    ends_of_texts = np.cumsum([len(group) for group in groups]).tolist()
    index_at = dict(zip(ends_of_texts, indices, strict=True))  # windows done -> the text that has ended there
    depth, vocab_size = model.config.num_hidden_layers, model.config.vocab_size
    batch = PackedBatch.from_sequences([w.ids for w in windows], [w.token_types for w in windows])
    # One row of logits is the pooled one, in float64 for sums, and one more is a temporary.
    tokens_at_once = max(1, LOGITS_BYTES // (4 * vocab_size) - 3)
    done, pooled = 0, _Pooled(pooling, vocab_size)
    for step, found in model.bert.states(batch, [depth]):
        x, ends = found[depth], step.cu_seqlens
        b = 0
        for start in range(0, max(1, len(x)), tokens_at_once):  # texts without tokens are texts too
            stop = min(start + tokens_at_once, len(x))
            logits = _logits(model, x[start:stop]) if stop else np.zeros((0, vocab_size), np.float32)
            while b < step.num_sequences:
                end = int(ends[b + 1])
                pooled.add(logits[max(int(ends[b]), start) - start : min(end, stop) - start])
                if end > stop:
                    break
                b += 1
                done += 1
                if done in index_at:
                    yield pooled.take(index_at[done])
            del logits  # before the next ones are computed


def _logits(model: BertForMaskedLM, x: FloatArray) -> FloatArray:
    """Compute the logits of the masked-LM head for some tokens: (t, H) -> (t, V)."""
    head = model.weights.head
    assert head is not None
    assert head.predictions is not None
    return heads.masked_lm(x, head.predictions, model.config, model.ops)


class _Pooled:
    """What the tokens of a text have given so far: the maximum, or the sum, for each word."""

    def __init__(self, pooling: SpladePooling, vocab_size: int) -> None:
        self._pooling = pooling
        self._sums = pooling.pooling_strategy == "sum"
        self._row: FloatArray = np.zeros(vocab_size, dtype=np.float64 if self._sums else np.float32)

    def add(self, logits: FloatArray) -> None:
        """Add the logits of some tokens, (t, V)."""
        if not self._sums:
            if len(logits):
                np.maximum(self._row, logits.max(axis=0), out=self._row)
            return
        for token in logits:  # one after another: the bits of a sum depend on its order
            if not np.isfinite(token).all():
                self._row[0] = np.nan  # which `take` finds
                return
            active = np.flatnonzero(token > 0)
            self._row[active] += self._pooling.weights(token[active])

    def take(self, index: int) -> tuple[IntArray, FloatArray]:
        """Return the words and weights of the text at this index of the input, and begin the next one."""
        row = self._row
        if not np.isfinite(row).all():
            raise ModelFormatError(
                f"the model computes NaN or infinity for inputs[{index}]: its weights are too large, or damaged."
            )
        words = np.flatnonzero(row > 0)
        numbers = row[words] if self._sums else self._pooling.weights(row[words])
        row[:] = 0
        return words.astype(np.int32), numbers.astype(np.float32)
