"""A progress bar on the standard error. This module is the only one that imports tqdm."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress_bar", "write_line"]


@contextlib.contextmanager
def progress_bar(
    total: int | None, *, show: bool, initial: int = 0, unit: str = " texts"
) -> Iterator[Callable[[int], object]]:
    """Show a progress bar with count, speed and time left; yield the function that counts n more.

    Parameters
    ----------
    total : int, optional
        The count at the end. Without it only the count and the speed are shown.
    show : bool
        If False, nothing is printed and tqdm is not imported.
    initial : int
        The count at the start.
    unit : str
    """
    if not show or sys.stderr is None:
        yield lambda n: None
        return
    from tqdm import tqdm

    with tqdm(total=total, initial=initial, unit=unit, dynamic_ncols=True, smoothing=0.05) as bar:
        yield bar.update


def write_line(text: str) -> None:
    """Print a line on the standard output; a progress bar that is shown stays below it."""
    if "tqdm" in sys.modules:
        from tqdm import tqdm

        tqdm.write(text)
    elif sys.stdout is not None:
        sys.stdout.write(f"{text}\n")
