"""Compute the units of a step; one that cannot be computed fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert.serving.scheduler import Step

__all__ = ["Failure", "reason_of", "results_of"]


class Failure(NamedTuple):
    """In place of the result of a unit that cannot be computed."""

    error: Exception


def results_of(step: Step) -> list[Any]:
    """Compute a step; if it fails, compute its units one by one, so that only the one that cannot be fails."""
    units = step.units
    try:
        return _checked(step.kind.compute(units), len(units))
    except Exception as error:
        if len(units) == 1:
            return [Failure(error)]
    results: list[Any] = []
    for unit in units:
        try:
            results += _checked(step.kind.compute([unit]), 1)
        except Exception as error:
            results.append(Failure(error))
    return results


def _checked(results: Sequence[Any], number: int) -> list[Any]:
    if len(results) != number:
        raise RuntimeError(f"{number} texts have {len(results)} results")
    if len({getattr(result, "shape", None) for result in results}) == 1 and _are_finite(results):
        return [*results]
    return [_finite(result) for result in results]


def _are_finite(results: Sequence[Any]) -> bool:
    """Check results of one shape together, which is faster."""
    whole = np.array(results)
    return whole.dtype == np.float32 and bool(np.isfinite(whole).all())


def _finite(result: Any) -> Any:
    """Return a result, or a failure for a vector with NaN or infinity in it: clients could not read it."""
    if isinstance(result, np.ndarray) and not np.isfinite(result).all():
        return Failure(ArithmeticError("its vector is not finite"))
    return result


def reason_of(error: Exception) -> str:
    """Describe an error to a client, who may not see what else is in a traceback."""
    if isinstance(error, MemoryError):
        return "there is not enough memory; send fewer or shorter texts."
    return f"{error}." if isinstance(error, ArithmeticError) else "an error of the service; its log has the details."
