"""The logits of a batch: filled step by step while the encoder runs, in padded form, with zeros for masked tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray, brief
from minibert.bert.packed import PackedBatch
from minibert.models.inputs import as_numbers

__all__ = ["SLICE_BYTES", "SequenceLogits", "TokenLogits", "check_positions"]

SLICE_BYTES = 1 << 24
"""The most bytes of logits that are computed at once, before they are copied to their places."""


class _Logits:
    """Logits of a fixed shape, zeros until they are computed; a `StepHead`."""

    def __init__(self, *shape: int, dtype: npt.DTypeLike = np.float32) -> None:
        self._shape = shape
        self._dtype = np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        """The memory of all logits."""
        return self._dtype.itemsize * math.prod(self._shape)

    @functools.cached_property
    def logits(self) -> FloatArray:
        """The logits; the memory is taken at the first use, after `BertModel` has compared it with the limit."""
        return np.zeros(self._shape, dtype=self._dtype)


class SequenceLogits(_Logits):
    """`width` logits for each of B sequences; zeros for a sequence whose first token is masked.

    Parameters
    ----------
    batch : PackedBatch
    width : int
    compute : (x of shape (t, H), step) -> ndarray with one row for each sequence of the step that shows its first token
    dtype : of the logits
    """

    def __init__(
        self,
        batch: PackedBatch,
        width: int,
        compute: Callable[[FloatArray, PackedBatch], FloatArray],
        *,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__(batch.num_sequences, width, dtype=dtype)
        self._compute = compute
        self._places = np.flatnonzero(batch.shows_first)
        self._done = 0

    def __call__(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Compute the logits of a step."""
        rows = self._compute(x, step)
        self.logits[self._places[self._done : self._done + len(rows)]] = rows
        self._done += len(rows)


class TokenLogits(_Logits):
    """`width` logits for each token position, (B, S, width), or for the `positions` that were asked for, (n, width).

    Parameters
    ----------
    batch : PackedBatch
    width : int
    compute : (rows of the last hidden state, of shape (t, H)) -> ndarray of shape (t, width)
        It is called with at most `slice_bytes` of logits at once, so that it does not double the memory of a large
        vocabulary.
    positions : int array of shape (n, 2), optional
        A row and a column of the padded batch each; see `check_positions`.
    dtype : of the logits
    slice_bytes : int
    """

    def __init__(
        self,
        batch: PackedBatch,
        width: int,
        compute: Callable[[FloatArray], FloatArray],
        positions: IntArray | None = None,
        *,
        dtype: npt.DTypeLike = np.float32,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self._compute = compute
        self._rows_at_once = max(1, slice_bytes // (4 * width))
        if positions is None:
            super().__init__(*batch.mask.shape, width, dtype=dtype)
            self._places = np.flatnonzero(batch.mask)
            self._tokens = np.arange(batch.num_tokens)
            return
        super().__init__(len(positions), width, dtype=dtype)
        rows, columns = positions.T
        shown = np.flatnonzero(batch.mask[rows, columns])
        # A token's index among the T tokens is the number of tokens before it that are not masked.
        tokens = (np.cumsum(batch.mask) - 1).reshape(batch.mask.shape)[rows[shown], columns[shown]]
        order = np.argsort(tokens, kind="stable")
        self._places, self._tokens = shown[order], tokens[order]

    def __call__(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Compute the logits of a step."""
        first, last = np.searchsorted(self._tokens, [tokens.start, tokens.stop])
        flat = self.logits.reshape(-1, self._shape[-1])
        for start in range(first, last, self._rows_at_once):
            some = slice(start, min(start + self._rows_at_once, last))
            flat[self._places[some]] = self._compute(x[self._tokens[some] - tokens.start])


def check_positions(positions: npt.ArrayLike, shape: tuple[int, int]) -> IntArray:
    """Return positions in a padded batch of this shape as an int array of n rows and columns, (n, 2).

    Raises
    ------
    TypeError, ValueError
        They are not pairs of integers, or one is outside the batch; the message says which.
    """
    found = np.array(as_numbers("positions", positions))
    if found.size == 0 and not isinstance(positions, np.ndarray):
        return np.zeros((0, 2), dtype=np.int64)
    if found.dtype.kind not in "iu":
        raise TypeError(f"positions holds {found.dtype} values; expected integers: the row and column of each token.")
    if found.ndim != 2 or found.shape[1] != 2:
        raise ValueError(
            f"positions has shape {found.shape}; expected (n, 2): the row and column of each token, as "
            "np.argwhere(input_ids == mask_token_id) gives them."
        )
    outside = np.logical_or.reduce((found < 0) | (found >= shape), axis=1)
    if outside.any():
        index = int(np.argmax(outside))
        raise ValueError(
            f"positions[{index}] is {brief(found[index].tolist())}; the batch has {shape[0]} rows and {shape[1]} "
            "columns, counted from 0."
        )
    return found.astype(np.int64)
