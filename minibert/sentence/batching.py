"""Any iterable of texts -> chunks of bounded size, in which each distinct text is computed once, the longest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from minibert._utils.validation import IntArray

Item = TypeVar("Item")
Text = TypeVar("Text", str, tuple[str, str])


def in_chunks(
    items: Iterable[Item], size: int, weight: Callable[[Item], int] | None = None, most: int = 0
) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last one may be shorter. No other items are read ahead.

    Parameters
    ----------
    items : iterable
    size : int
    weight : callable, optional
        Returns the weight of an item.
    most : int
        A list ends before it has `size` items when its weight reaches `most`. Without its last item it weighs less.
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size) if weight is None else _weighed(iterator, size, weight, most)):
        yield chunk
        del chunk  # before the next one is read


def _weighed(items: Iterator[Item], size: int, weight: Callable[[Item], int], most: int) -> Iterator[Item]:
    total = 0
    for item in islice(items, size):
        total += weight(item)
        yield item
        del item
        if total >= most:
            return


def distinct_longest_first(texts: Sequence[Text], length: Callable[[Text], int] = len) -> tuple[list[int], IntArray]:
    """Choose one of each group of equal texts, and sort by length, so that texts of similar length share a batch.

    Parameters
    ----------
    texts : sequence of B str, or of B pairs of str
    length : callable
        Returns the characters of a text or pair.

    Returns
    -------
    chosen : list of D int
        Index of the first of each group of equal texts; longest texts first, equal lengths in the order given.
    rows : int ndarray of shape (B,)
        For each text the index in `chosen` of its group: ``vectors_of_chosen[rows]`` restores the order.
    """
    first_indices: dict[Text, int] = {}
    for index, text in enumerate(texts):
        first_indices.setdefault(text, index)
    chosen = sorted(first_indices.values(), key=lambda index: -length(texts[index]))
    rows = {texts[index]: row for row, index in enumerate(chosen)}
    return chosen, np.array([rows[text] for text in texts], dtype=np.int64)
