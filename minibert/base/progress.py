"""A progress bar on the standard error. The only import of tqdm."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(
    total: int | None, *, show: bool, initial: int = 0, unit: str = " texts"
) -> Iterator[Callable[[int], object]]:
    """Show how many are done, how many per second, and the time left; give the function that counts n more.

    Parameters
    ----------
    total : int, optional
        The number at the end; without it only the count and the speed are shown.
    show : bool
        False prints nothing, and does not import tqdm.
    initial : int
        How many were done before.
    unit : str
    """
    if not show or sys.stderr is None:
        yield lambda n: None
        return
    from tqdm import tqdm

    with tqdm(total=total, initial=initial, unit=unit, dynamic_ncols=True, smoothing=0.05) as bar:
        yield bar.update
