"""Pooling: the vectors of a text's tokens -> one vector of the text, dense or over the vocabulary (SPLADE)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.reproducible_math import log1p
from minibert._utils.validation import FloatArray, IntArray, brief
from minibert.bert.packed import PackedBatch
from minibert.errors import ModelFormatError
from minibert.models.heads import BertForMaskedLM
from minibert.tokenizer.encodings import Encoding

POOLING_MODES: dict[str, Callable[[FloatArray, IntArray], FloatArray]] = {
    "cls": lambda x, positions: x[0],
    "max": lambda x, positions: x.max(axis=0),
    "mean": lambda x, positions: x.mean(axis=0, dtype=np.float64),
    "mean_sqrt_len_tokens": lambda x, positions: x.sum(axis=0, dtype=np.float64) / np.sqrt(len(x)),
    "weightedmean": lambda x, positions: ((positions[:, None] + 1.0) * x).sum(axis=0) / (positions + 1.0).sum(),
    "lasttoken": lambda x, positions: x[-1],
}
"""Formulas by sentence-transformers' names: tokens that count, x (S, H), and their positions (S,) in the text -> (H,).

Sums are computed in float64 and rounded once, when the result is stored.

Sources: Reimers and Gurevych 2019 (arXiv 1908.10084), section 3, for cls, max and mean; Muennighoff 2022 (arXiv
2202.08904), section 3, for weightedmean; sentence-transformers 6, sentence_transformer/modules/pooling.py.
"""

_ALIASES: dict[str, tuple[str, ...]] = {
    "mean_max": ("mean", "max"),
    "sep": ("lasttoken",),
    # bert-as-service's names. Source: server/bert_serving/server/graph.py of that project.
    "NONE": ("none",),
    "REDUCE_MEAN": ("mean",),
    "REDUCE_MAX": ("max",),
    "REDUCE_MEAN_MAX": ("mean", "max"),
    "CLS_TOKEN": ("cls",),
    "FIRST_TOKEN": ("cls",),
    "SEP_TOKEN": ("lasttoken",),
    "LAST_TOKEN": ("lasttoken",),
}

# These need more than the token vectors of one hidden state, or do not give one vector. encoding.py computes them.
_ALONE = ("first_last", "pooler", "none")


def pooling_modes(pooling: str | Sequence[str]) -> tuple[str, ...]:
    """Turn the argument `pooling` into names of `POOLING_MODES`, or one of "first_last", "pooler", "none".

    Parameters
    ----------
    pooling : str or sequence of str
        One mode, or several whose vectors are concatenated; aliases are "mean_max", "sep" and bert-as-service's NONE,
        REDUCE_MEAN, REDUCE_MAX, REDUCE_MEAN_MAX, CLS_TOKEN, FIRST_TOKEN, SEP_TOKEN, LAST_TOKEN.

    Raises
    ------
    TypeError, ValueError
        A name is not that of a mode, or "first_last", "pooler" or "none" is combined with another mode.
    """
    names = [pooling] if isinstance(pooling, str) else pooling
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"pooling={brief(pooling)}; expected the name of a pooling mode, or a list of names.")
    modes: list[str] = []
    for name in names:
        if name not in POOLING_MODES and name not in _ALONE and name not in _ALIASES:
            known = ", ".join([*POOLING_MODES, *_ALONE])
            raise ValueError(
                f"pooling={brief(name)} is not a pooling mode; expected {known}, or bert-as-service's names."
            )
        modes += _ALIASES.get(name, (name,))
    if len(modes) > 1 and (alone := [mode for mode in modes if mode in _ALONE]):
        raise ValueError(f"pooling {alone[0]!r} cannot be combined with others; got {', '.join(map(repr, modes))}.")
    return tuple(modes)


def pool(
    hidden_state: FloatArray,
    cu_seqlens: IntArray,
    modes: Sequence[str],
    counts: npt.NDArray[np.bool_] | None = None,
) -> FloatArray:
    """Pool each sequence of a packed batch; the vectors of several modes are concatenated.

    Parameters
    ----------
    hidden_state : ndarray of shape (T, H), float32
    cu_seqlens : int ndarray of shape (B + 1,)
    modes : names of `POOLING_MODES`
    counts : bool ndarray of shape (T,), optional
        Which tokens count; default: all. "weightedmean" still counts the positions of the others.

    Returns
    -------
    ndarray of shape (B, len(modes) * H), float32
        Zeros for a sequence without a token that counts.
    """
    H = hidden_state.shape[1]
    pooled = np.zeros((len(cu_seqlens) - 1, len(modes) * H), dtype=np.float32)
    for b, (start, end) in enumerate(pairwise(cu_seqlens)):
        x = hidden_state[start:end]
        positions = np.arange(end - start) if counts is None else np.flatnonzero(counts[start:end])
        if len(positions) == 0:
            continue
        if counts is not None:
            x = x[positions]
        for i, mode in enumerate(modes):
            pooled[b, i * H : (i + 1) * H] = POOLING_MODES[mode](x, positions)
    return pooled


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
        """Read the config.json of the module; a ModelFormatError names a setting that minibert does not implement."""
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
    """Compute the weight of each word of the vocabulary for each text, from all tokens of the text's windows.

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
            logits = model.word_logits(x[start:stop]) if stop else np.zeros((0, vocab_size), np.float32)
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
        """Return the words and weights of the text with this index in the input, and begin the next text."""
        row = self._row
        if not np.isfinite(row).all():
            raise ModelFormatError(
                f"the model computes NaN or infinity for inputs[{index}]: its weights are too large, or damaged."
            )
        words = np.flatnonzero(row > 0)
        numbers = row[words] if self._sums else self._pooling.weights(row[words])
        row[:] = 0
        return words.astype(np.int32), numbers.astype(np.float32)
