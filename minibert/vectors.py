"""Hidden states -> vectors: layers combined, words found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minibert.ops import FloatArray

__all__ = ["combine_layers", "find_word"]


def combine_layers(hidden_states: Sequence[FloatArray], how: str) -> FloatArray:
    """Make one array of several hidden states of the same tokens: side by side, summed, or averaged.

    Parameters
    ----------
    hidden_states : sequence of n ndarrays of shape (T, H)
    how : {"concat", "sum", "mean"}

    Returns
    -------
    ndarray of shape (T, n * H) for "concat", else (T, H)
    """
    if how not in ("concat", "sum", "mean"):
        raise ValueError(f"layer_pooling={how!r}; expected 'concat', 'sum' or 'mean'.")
    if how == "concat":
        return np.concatenate(hidden_states, axis=1)
    total = np.sum(hidden_states, axis=0)
    return total if how == "sum" else total / np.float32(len(hidden_states))


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
