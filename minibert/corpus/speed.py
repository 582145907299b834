"""The time of a run over any number of tokens, from several short runs over a sample.

Why         Machines that others share are slower for a part of the time. Simulated, for a run of 40 s on a machine that
            needs half as much time again for a fifth of the time, in spells of 1, 3 and 8 s on average: one run of 5 s
            missed by more than 15 % in 8, 17 and 25 of 100 cases, these runs in 0, 5 and 15. No short measurement
            helps against spells that are longer than itself
Runs        Pairs of a run over a few texts and a run over more of them, each pair over other texts of the sample. The
            difference of a pair gives the time of a token, and then the few texts the time that every run takes
Statistic   The mean of the middle half of the pairs: a run that was interrupted does not change it, and if many were
            slow, it lies between them and the others, where the median would be one or the other
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from minibert.base.arrays import FloatArray

__all__ = ["Speed", "measure_speed"]

_FEW_TEXTS = 8
_LEAST_PAIRS, _MOST_PAIRS = 8, 24
# Further pairs are run until all but an eighth of the fastest and of the slowest differ by less than this factor ...
_AGREE = 1.1
# ... or all larger runs have taken this many times the time that was asked for. Of a small sample, which takes only a
# part of that time, no further ones are run.
_MOST_TIMES, _SMALL_PART = 3, 0.25
# The least part of a run that its further texts must take, so that they can be told from the start.
_LEAST_PART = 0.1


@dataclasses.dataclass(frozen=True)
class Speed:
    """What the runs over a sample took.

    Parameters
    ----------
    start_seconds : float
        That any run takes; of all of the run, if the sample is too small to tell it from the tokens.
    token_seconds : float or None
        That a token takes; None if the sample is too small.
    ratios : tuple of float
        Of each larger run, in ascending order: its time / the time that the two numbers above give.
    texts : int
        Of each of these.
    tokens : int
        Of all of these together.
    seconds : float
        Of all of these together.
    """

    start_seconds: float
    token_seconds: float | None
    ratios: tuple[float, ...]
    texts: int
    tokens: int
    seconds: float

    @property
    def low(self) -> float:
        """The mean ratio of the fastest quarter of the runs, at most 1."""
        return min(1.0, sum(self.ratios[: len(self.ratios) // 4]) / max(1, len(self.ratios) // 4))

    @property
    def high(self) -> float:
        """The mean ratio of the slowest quarter of the runs, at least 1."""
        return max(1.0, sum(self.ratios[-(len(self.ratios) // 4) :]) / max(1, len(self.ratios) // 4))

    @property
    def agrees(self) -> bool:
        """True if the runs agree, but for an eighth of the fastest and of the slowest."""
        eighth = len(self.ratios) // 8
        return self.ratios[-1 - eighth] <= _AGREE * self.ratios[eighth]


def measure_speed(run: Callable[[int, int], float], counts: Sequence[int], seconds: float) -> Speed:
    """Time runs over parts of a sample.

    Parameters
    ----------
    run : callable
        ``run(first, count)`` computes this many texts of the sample from this index on, and after its last text the
        first ones again; it returns the seconds.
    counts : sequence of int
        Tokens of each text of the sample, at least one.
    seconds : float
        About the time of all larger runs; three times as long if they disagree.
    """
    size = len(counts)
    twice = np.concatenate([[0], np.cumsum([*counts, *counts])])

    def tokens(first: int, count: int) -> int:
        return int(twice[first + count] - twice[first])

    few = min(_FEW_TEXTS, max(1, size // 4))
    run(0, few)  # the first run of a process starts threads and gets memory
    many = _enough(run, tokens, few, size, seconds / _LEAST_PAIRS)
    pairs = list[tuple[int, int, float, float]]()
    total, first = 0.0, 0
    while True:
        short, long = run(first, few), run(first, many)
        pairs.append((tokens(first, few), tokens(first, many), short, long))
        total, first = total + long, (first + many) % size
        found = _fit(pairs, many)
        if len(pairs) < _LEAST_PAIRS:
            continue
        worth_more = _SMALL_PART * seconds <= total < _MOST_TIMES * seconds
        if found.agrees or len(pairs) == _MOST_PAIRS or not worth_more:
            return found


def _enough(
    run: Callable[[int, int], float], tokens: Callable[[int, int], int], few: int, size: int, seconds: float
) -> int:
    """Return how many texts take about this time beyond the start, or all."""
    many, first = few, run(0, few)
    longer = first
    while many < size:
        following = 4 * many
        if longer > first:
            token_seconds = (longer - first) / (tokens(0, many) - tokens(0, few))
            following = min(following, int(seconds / token_seconds / (tokens(0, size) / size)))
        following = min(following, size)
        if following < min(1.2 * many, size):
            break
        many, longer = following, run(0, following)
    return many


def _fit(pairs: Sequence[tuple[int, int, float, float]], texts: int) -> Speed:
    few_tokens, tokens, short, long = np.array(pairs, dtype=np.float64).T
    more = tokens - few_tokens
    token_seconds: float | None = None
    start, expected = _middle(long), np.full(len(long), _middle(long))
    if more.all():
        of_token = (long - short) / more
        first, third = np.quantile(of_token, [0.25, 0.75])
        of_more = _middle(of_token)
        if of_more > 0 and third - first <= of_more and of_more * more.mean() >= _LEAST_PART * start:
            token_seconds, start = of_more, max(0.0, _middle(short - few_tokens * of_more))
            expected = start + tokens * token_seconds
    ratios = np.sort(np.divide(long, expected, out=np.ones_like(long), where=expected > 0))
    return Speed(start, token_seconds, tuple(ratios.tolist()), texts, int(tokens.sum()), float(long.sum()))


def _middle(values: FloatArray) -> float:
    """Return the mean of the middle half of some numbers."""
    ordered, quarter = np.sort(values), len(values) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())
