"""What a forward computes from its last hidden state: one `Result` for each output of the pooler and of the head."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.packed import PackedBatch
from minibert.models.inputs import as_numbers, check_ids


@dataclasses.dataclass(eq=False)
class Result:
    """One result of a forward, zeros until it is computed, step by step.

    Parameters
    ----------
    compute : callable
        (rows of the last hidden state, step) -> rows of the result. For a result of tokens it is called with at most
        `rows_at_once` rows, so that it does not double the memory of a large vocabulary.
    shape, dtype : of the result
        The last axis has the numbers of one sequence or token.
    places : int ndarray
        The row of each result; the other rows stay zeros.
    tokens : int ndarray
        The tokens, of T, that are needed, increasing. For a result of tokens: the token of each row.
    rows_at_once : int or None
        None: this is a result of sequences.
    """

    compute: Callable[..., FloatArray]
    shape: tuple[int, ...]
    dtype: npt.DTypeLike
    places: IntArray
    tokens: IntArray
    rows_at_once: int | None
    _done: int = dataclasses.field(default=0, init=False)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    @functools.cached_property
    def array(self) -> FloatArray:
        """The result; its memory is allocated at the first use, after `nbytes` has been checked."""
        return np.zeros(self.shape, dtype=self.dtype)

    def add(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Compute the rows of a step from its last hidden state; `tokens` is its part of the T tokens."""
        if self.rows_at_once is None:
            rows = self.compute(x, step)
            if len(rows) == self.shape[0]:  # all in one step
                self.array = rows
                return
            self.array[self.places[self._done : self._done + len(rows)]] = rows
            self._done += len(rows)
            return
        flat = self.array.reshape(-1, self.shape[-1])
        first, last = np.searchsorted(self.tokens, [tokens.start, tokens.stop])
        for start in range(first, last, self.rows_at_once):
            chosen = slice(start, min(start + self.rows_at_once, last))
            flat[self.places[chosen]] = self.compute(x[self.tokens[chosen] - tokens.start], step)


def rows_of_tokens(batch: PackedBatch, positions: npt.ArrayLike | None) -> tuple[tuple[int, ...], IntArray, IntArray]:
    """Return the leading axes of a result of tokens, its rows that have numbers, and the token of each, increasing.

    The result has a row for each token position of the padded batch, or for each of n requested `positions`, (n, 2).

    Raises
    ------
    TypeError, ValueError
        The positions are not pairs of integers, or one is outside the batch; the message says which.
    """
    if positions is None:
        return batch.mask.shape, np.flatnonzero(batch.mask), np.arange(batch.num_tokens)
    pairs = np.array(as_numbers("positions", positions))
    if pairs.size == 0 and not isinstance(positions, np.ndarray):
        pairs = np.zeros((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"positions has shape {pairs.shape}; expected (n, 2), as np.argwhere(ids == mask_token_id).")
    rows = check_ids("positions[:, 0]", pairs[:, 0], batch.mask.shape[0], "rows of the batch", ndim=1)
    columns = check_ids("positions[:, 1]", pairs[:, 1], batch.mask.shape[1], "columns of the batch", ndim=1)
    visible = np.flatnonzero(batch.mask[rows, columns])
    # A token's index among the T tokens is the number of tokens before it that are not masked.
    tokens = (np.cumsum(batch.mask) - 1).reshape(batch.mask.shape)[rows[visible], columns[visible]]
    order = np.argsort(tokens, kind="stable")
    return pairs.shape[:1], visible[order], tokens[order]
