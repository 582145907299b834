"""The parts of a run's output, to which shards are appended, and the counts of what they hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

__all__ = ["Counts", "Part"]


@dataclasses.dataclass(frozen=True)
class Counts:
    """The counts of computed shards.

    Parameters
    ----------
    n_texts : int
        Input lines in the output, those without a text included.
    n_tokens : int
        Tokens of the texts after cutting; equal texts count separately.
    n_cut : int
        Texts that were cut, because they had more tokens than the model takes.
    n_left_out : int
        Input lines that could not be used and were left out.
    """

    n_texts: int = 0
    n_tokens: int = 0
    n_cut: int = 0
    n_left_out: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def _no_header(counts: Counts) -> bytes:
    """Return an empty header."""
    return b""


@dataclasses.dataclass(frozen=True)
class Part:
    """A file to which shards are appended.

    Parameters
    ----------
    name : str
    final : str, optional
        Its final path. None for a part from which an output is made at the end.
    header : callable
        Counts -> the bytes before the shards. Their number does not depend on the counts.
    """

    name: str
    final: str | None
    header: Callable[[Counts], bytes] = _no_header
