"""Compute sparse vectors, a chunk of texts at a time and each distinct text once; see encode.py for dense ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.models.heads import BertForMaskedLM
from minibert.sentence.batching import distinct_longest_first, in_chunks
from minibert.sentence.sparse_vectors import SparseVectors, make_sparse
from minibert.sentence.splade import SpladePooling, pool_words
from minibert.tokenizer.texts import check_inputs
from minibert.tokenizer.windows import TokenWindows, count_tokens

__all__ = ["EncodedSparse", "encode_sparse"]

# One text: its words, their weights.
_Row = tuple[IntArray, FloatArray]


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedSparse:
    """The results of one chunk of n texts, in the order of the input.

    Parameters
    ----------
    vectors : SparseVectors of shape (n, V)
    n_tokens : int ndarray of shape (n,)
        Tokens of each whole text, with its prompt and the special tokens.
    n_truncated : int ndarray of shape (n,)
        How many of these were cut off.
    """

    vectors: SparseVectors
    n_tokens: IntArray
    n_truncated: IntArray


def encode_sparse(
    model: BertForMaskedLM,
    pooling: SpladePooling,
    windows: TokenWindows,
    inputs: Iterable[str],
    *,
    most: int | None,
    size: int,
    progress: Callable[[int], object],
    exact: bool,
) -> Iterator[EncodedSparse]:
    """Compute the vectors of any iterable of texts, `size` texts at a time; the caller has checked the arguments.

    Parameters
    ----------
    most : int or None
        How many of the largest weights a vector keeps.
    exact : bool
        See `TokenWindows.of`.
    """
    first = 0
    for chunk in in_chunks(inputs, size):
        check_inputs(chunk, first)
        chosen, rows = distinct_longest_first(chunk)
        copies = np.bincount(rows, minlength=len(chosen))
        found, counts = list[_Row](), list[tuple[int, int]]()
        texts, indices = [chunk[i] for i in chosen], [first + i for i in chosen]
        for part, groups in windows.of(texts, indices, exact=exact):
            found += (_largest(row, most) for row in pool_words(model, pooling, groups, indices[part]))
            counts += map(count_tokens, groups)
            del groups  # frees their memory before the next texts are tokenized
            progress(int(copies[part].sum()))
        n_tokens, n_truncated = np.array(counts, dtype=np.int64)[rows].T
        vectors = make_sparse([found[row] for row in rows], model.config.vocab_size)
        yield EncodedSparse(vectors, n_tokens, n_truncated)
        first += len(chunk)


def _largest(row: _Row, most: int | None) -> _Row:
    """Keep the largest weights of a vector."""
    words, numbers = row
    if most is None or len(words) <= most:
        return row
    kept = np.sort(np.argsort(-numbers, kind="stable")[:most])
    return words[kept], numbers[kept]
