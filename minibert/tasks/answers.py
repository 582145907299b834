"""Spans of tokens -> the best answers in a context. The definition, with nothing left out, is in `best_spans`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from minibert._utils.reproducible_math import softmax
from minibert._utils.validation import FloatArray, Int64Array

__all__ = ["Candidates", "best_spans"]


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The tokens of one window that can begin or end an answer.

    Parameters
    ----------
    start_logits, end_logits : ndarrays of shape (S,)
    context : int ndarray of shape (C,)
        The positions of the context's tokens in the window, in order.
    starts, ends : int ndarrays of shape (C,)
        The first character of an answer that begins with this token, and the one after the last of an answer that ends
        with it.
    null : int or None
        The position of [CLS], which means "no answer".
    """

    start_logits: FloatArray
    end_logits: FloatArray
    context: Int64Array
    starts: Int64Array
    ends: Int64Array
    null: int | None


def best_spans(
    windows: Iterable[Candidates], top_k: int, max_answer_len: int
) -> tuple[list[tuple[float, int, int]], float | None]:
    """Find the most probable answers among all spans of tokens of all windows.

    In a window, the probability that the answer begins at a token is the softmax of the start logits over [CLS] and the
    tokens of the context; that it ends there likewise. The score of a span of at most `max_answer_len` tokens is the
    product of the two. Spans with the same characters are one answer, with the best of their scores.

    Returns
    -------
    list of (score, first character, the one after the last)
        At most `top_k` answers, the best first. Of equal scores the earlier answer is first, then the shorter one.
    float or None
        The score of "no answer": the smallest product of the two probabilities of [CLS] in any window. None if no
        window has [CLS].
    """
    best: dict[tuple[int, int], float] = {}
    null: float | None = None
    for window in windows:
        n = len(window.context)
        if n == 0:
            continue
        positions = window.context if window.null is None else np.concatenate([[window.null], window.context])
        start, end = softmax(window.start_logits[positions]), softmax(window.end_logits[positions])
        if window.null is not None:
            product = float(start[0] * end[0])
            null = product if null is None else min(null, product)
            start, end = start[1:], end[1:]
        most = min(max_answer_len, n)
        first = np.repeat(np.arange(n), np.minimum(most, n - np.arange(n)))
        length = np.concatenate([np.arange(min(most, n - i)) for i in range(n)])
        last = first + length
        scores = start[first] * end[last]
        # Each answer has many spans. They are read from the best to the worst, until `top_k` answers are found.
        # Spans with the score of the last one are read too, because the order of equal answers is decided at the end.
        found: set[tuple[int, int]] = set()
        least = 0.0
        for span in np.argsort(-scores, kind="stable"):
            score = float(scores[span])
            if len(found) >= top_k and score < least:
                break
            place = int(window.starts[first[span]]), int(window.ends[last[span]])
            if place not in found and len(found) < top_k:
                least = score
            found.add(place)
            best[place] = max(best.get(place, 0.0), score)
    order = sorted((-score, *place) for place, score in best.items())
    return [(-score, first, last) for score, first, last in order[:top_k]], null
