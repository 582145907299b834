"""The level of each row, such as "float16" or "wrong", and the verdict of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.parity.measuring import Measuring
from minibert.parity.rounding import HALF_PRECISIONS, round_to
from minibert.parity.rows import Row
from minibert.parity.truth import Unit

__all__ = ["LARGEST", "RMS", "is_allowed", "verdict_of", "with_levels", "within"]

RMS, LARGEST = 4.0, 8.0
"""The budget: RMS error and largest error, in units of those of a plain float32 forward. See the README."""

# The share of a squared error that rounding leaves, and a factor for each token does not.
_SCALED = 0.1

# The least share of float16's error that every value of a float16 forward has.
_LEAST_HALF = 1 / 32


def with_levels(
    rows: list[Row], arrays: Mapping[str, FloatArray], given: Iterable[Any], measuring: Measuring
) -> list[Row]:
    """Say which rows are wrong, or which half precision they have.

    Parameters
    ----------
    rows : list of Row
    arrays : mapping of names to arrays in padded form
    given : all arrays of the dump, as they were given; one of a value for each text is a list
    measuring : Measuring
    """
    off = [row for row in rows if not within(row)]
    if not off:
        return rows
    level = _half_precision(rows, arrays, given, measuring) if not any(row.holds for row in rows) else None
    if level is None:
        return [dataclasses.replace(row, level="wrong") if row in off else row for row in rows]
    precision, units = level
    leveled = []
    for row in rows:
        half = {precision: row.rms / units[row.name].rms}
        leveled.append(dataclasses.replace(row, level=precision if row in off else row.level, half=half))
    return leveled


def _half_precision(
    rows: list[Row], aligned: Mapping[str, FloatArray], given: Iterable[Any], measuring: Measuring
) -> tuple[str, dict[str, Unit]] | None:
    """Return the half precision whose forward has such errors, and its units; None if there is none.

    A mistake can be as small as these errors. So every value must have an error of that size, and the dump must
    hold the embeddings, where almost no mistake is, or numbers that were rounded. A wrong eps is as small in the
    embeddings too, but its error has another form.
    """
    if not all(np.isfinite(row.ratio) for row in rows) or any(row.relative > 0.5 for row in rows):
        return None
    arrays = [array for array in given if not isinstance(array, list)]
    # All numbers of bfloat16 that are not tiny or huge are numbers of float16 too.
    stored = [one for one in reversed(HALF_PRECISIONS) if all(_is_rounded(array, one) for array in arrays)]
    states = [row for row in rows if row.name == "embeddings"]
    if not stored and (not states or within(states[0]) or _is_scaled(aligned["embeddings"], measuring)):
        return None
    for precision in stored[:1] or HALF_PRECISIONS:
        units = measuring.units([row.name for row in rows], precision)
        ratios = [(row.rms / units[row.name].rms, row.largest / units[row.name].largest) for row in rows]
        # Where the weights are numbers of this precision, a look-up has no error.
        exact = [units[row.name].rms <= row.unit for row in rows]
        if all(ratio <= RMS and worst <= LARGEST for ratio, worst in ratios) and all(
            ratio >= _LEAST_HALF or one for (ratio, _), one in zip(ratios, exact, strict=True)
        ):
            return precision, units
    return None


def _is_scaled(embeddings: FloatArray, measuring: Measuring) -> bool:
    """Return whether the error of the embeddings is a factor for each token, as of a wrong eps; rounding is not."""
    mask = measuring.mask
    true = measuring.truth["embeddings"][mask]
    error = embeddings[mask] - true
    centered = true - measuring.embeddings_bias
    factors = (error * centered).sum(axis=1) / np.maximum((centered * centered).sum(axis=1), 1e-300)
    rest = error - factors[:, None] * centered
    return bool(np.sum(rest * rest) < _SCALED * np.sum(error * error))


def verdict_of(rows: list[Row], found: bool) -> str:
    """Return the verdict, without the bits: "wrong", or the lowest precision; `found` says that a mistake is known."""
    levels = {row.level for row in rows}
    if found or "wrong" in levels or any(row.holds for row in rows):
        return "wrong"
    for level in HALF_PRECISIONS:
        if level in levels:
            return level
    return "float32"


def is_allowed(rows: list[Row], verdict: str, budget: str | float) -> bool:
    """Return whether a budget allows what was found."""
    if isinstance(budget, int | float):
        return bool(rows) and all(row.ratio <= budget and row.worst <= 2 * budget and not row.holds for row in rows)
    accepted = {"float32": ("bits", "float32"), "float16": ("bits", "float32", "float16")}
    accepted["bfloat16"] = (*accepted["float16"], "bfloat16")
    return verdict in accepted[budget]


def _is_rounded(array: npt.NDArray[Any], precision: str) -> bool:
    return bool(np.array_equal(array, round_to(precision, array.astype(np.float32))))


def within(row: Row) -> bool:
    """Return whether a row is within the budget of float32."""
    return row.ratio <= RMS and row.worst <= LARGEST
