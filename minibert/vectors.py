"""Hidden states -> vectors: of a sentence by pooling, of a word by finding it; and their cosines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from minibert.ops import FloatArray, IntArray

__all__ = ["POOLING", "cls_pooling", "cosine_similarity", "find_word", "mean_pooling", "normalize"]


def mean_pooling(hidden_state: FloatArray, cu_seqlens: IntArray) -> FloatArray:
    """Mean over the tokens of each sequence, special tokens included; zeros for an empty sequence.

    Parameters
    ----------
    hidden_state : ndarray of shape (T, H), float32
    cu_seqlens : int ndarray of shape (B + 1,)

    Returns
    -------
    ndarray of shape (B, H), float32

    Notes
    -----
    Source: Reimers and Gurevych 2019 (arXiv 1908.10084), section 3. Summed in float64 and rounded once.
    """
    pooled = np.zeros((len(cu_seqlens) - 1, hidden_state.shape[1]), dtype=np.float32)
    for b, (start, end) in enumerate(pairwise(cu_seqlens)):
        if end > start:
            pooled[b] = hidden_state[start:end].mean(axis=0, dtype=np.float64)
    return pooled


def cls_pooling(hidden_state: FloatArray, cu_seqlens: IntArray) -> FloatArray:
    """First token of each sequence, [CLS]; arguments and result as in `mean_pooling`."""
    pooled = np.zeros((len(cu_seqlens) - 1, hidden_state.shape[1]), dtype=np.float32)
    filled = cu_seqlens[1:] > cu_seqlens[:-1]
    pooled[filled] = hidden_state[cu_seqlens[:-1][filled]]
    return pooled


POOLING: dict[str, Callable[[FloatArray, IntArray], FloatArray]] = {"mean": mean_pooling, "cls": cls_pooling}
"""Pooling by the name sentence-transformers gives it."""


def normalize(vectors: FloatArray) -> FloatArray:
    """Scale each row to length 1: v / max(|v|, 1e-12), as sentence-transformers' Normalize does."""
    lengths = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)


def cosine_similarity(a: FloatArray, b: FloatArray) -> npt.NDArray[np.float64]:
    """Cosine of the angle between each row of `a` (m, H) and each row of `b` (n, H), as (m, n) in float64.

    A row of zeros has the cosine 0 with everything.
    """
    rows = [np.asarray(x, dtype=np.float64) for x in (a, b)]
    unit = [x / np.maximum(np.sqrt((x * x).sum(axis=1, keepdims=True)), 1e-12) for x in rows]
    return unit[0] @ unit[1].T


def find_word(word: Sequence[int], ids: Sequence[int], word_ids: Sequence[int | None]) -> list[slice]:
    """Find where a word occurs in a tokenized text, as whole words only.

    Parameters
    ----------
    word : ids of the word's tokens, without special tokens
    ids : ids of the text's tokens
    word_ids : which word of the text each token belongs to; None for special tokens

    Returns
    -------
    list of slice
        The tokens of each occurrence, in order.
    """
    length = len(word)
    found = []
    for start in range(len(ids) - length + 1 if length else 0):
        end = start + length
        starts_word = start == 0 or word_ids[start] != word_ids[start - 1]
        ends_word = end == len(ids) or word_ids[end] != word_ids[end - 1]
        inside = None not in word_ids[start:end]
        if inside and starts_word and ends_word and list(ids[start:end]) == list(word):
            found.append(slice(start, end))
    return found
