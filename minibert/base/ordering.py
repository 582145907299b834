"""Any iterable of texts -> chunks of bounded size, in which each distinct text is computed once, the longest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from minibert.base.arrays import IntArray

__all__ = ["distinct_longest_first", "in_chunks"]

Item = TypeVar("Item")


def in_chunks(
    items: Iterable[Item], size: int, weight: Callable[[Item], int] | None = None, most: int = 0
) -> Iterator[list[Item]]:
    """Yield lists of `size` items, the last one shorter; nothing else is read ahead.

    Parameters
    ----------
    items : iterable
    size : int
    weight : callable, optional
        Says what an item weighs.
    most : int
        A list ends before it has `size` items once those that it has weigh so much. It weighs less than this without
        its last item.
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


def distinct_longest_first(texts: Sequence[str]) -> tuple[list[int], IntArray]:
    """Choose one of each group of equal texts and sort by length: texts of like length share their batches.

    Returns
    -------
    chosen : list of D int
        Where each distinct text first stands, longest texts first, equal lengths in the order given.
    rows : int ndarray of shape (B,)
        For each text the place of its equal among the chosen: ``vectors_of_chosen[rows]`` restores the order.
    """
    first_places: dict[str, int] = {}
    for place, text in enumerate(texts):
        first_places.setdefault(text, place)
    chosen = sorted(first_places.values(), key=lambda place: -len(texts[place]))
    rows = {texts[place]: row for row, place in enumerate(chosen)}
    return chosen, np.array([rows[text] for text in texts], dtype=np.int64)
