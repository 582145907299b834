"""A progress bar on the standard error. The only import of tqdm."""

from __future__ import annotations

import sys
from typing import Any, Protocol, Self

__all__ = ["ProgressBar", "progress_bar"]


class ProgressBar(Protocol):
    """What is used of tqdm's bar."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self, n: int) -> object:
        """Count n more."""


class _NoBar:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, n: int) -> None:
        pass


def progress_bar(total: int | None, *, show: bool, initial: int = 0, unit: str = " texts") -> ProgressBar:
    """Return tqdm's bar: how many are done, how many per second, and the time left.

    Parameters
    ----------
    total : int, optional
        What 100 % is; without it only the count and the speed are shown.
    show : bool
        False gives a bar that prints nothing.
    initial : int
        How many were done before.
    unit : str
    """
    if not show or sys.stderr is None:
        return _NoBar()
    from tqdm import tqdm

    bar: Any = tqdm(total=total, initial=initial, unit=unit, dynamic_ncols=True, smoothing=0.05)
    return bar
