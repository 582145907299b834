"""The kind of array in which a function of vectors answers: tensors for tensors, otherwise NumPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Self, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from minibert.base import tensors

__all__ = ["Scores", "as_dense_array", "as_given", "as_scores"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Scores(np.ndarray[Any, np.dtype[Any]]):
    """An array with the few methods of a tensor that programs call on scores: ``numpy``, ``cpu``, ``detach``, float().

    sentence-transformers answers with tensors even where it is given arrays, so programs end with
    ``model.similarity(a, b).numpy()``. Slices and results of arithmetic are `Scores` too; pickles hold plain arrays.
    """

    def numpy(self, *, force: bool = False) -> npt.NDArray[Any]:
        """Return the scores as a plain array, which shares their memory."""
        return self.view(np.ndarray)

    def cpu(self) -> Self:
        """Return the scores themselves, because they are in the memory of the CPU."""
        return self

    def detach(self) -> Self:
        """Return the scores themselves, because they have no gradient."""
        return self

    def __float__(self) -> float:
        """Return the only score, whatever the number of axes."""
        if self.size != 1:
            raise TypeError(f"There are {self.size} scores; only one score can become a float. Choose one: scores[i].")
        return float(self.item())

    def __array_wrap__(
        self,
        array: npt.NDArray[Any],
        context: tuple[Any, ...] | None = None,
        return_scalar: bool = False,
    ) -> Any:
        return array.view(np.ndarray)[()] if return_scalar else array.view(Scores)

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))


def as_dense_array(value: Any) -> Any:
    """Turn a tensor, or the tensors in a list, into arrays, also sparse ones; return other values as they are."""
    if tensors.is_tensor(value):
        return tensors.as_array(value.detach().to_dense())
    if tensors.holds_tensor(value):
        return [as_dense_array(one) for one in value]
    return value


def as_given(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function of arrays take tensors, and lists of tensors, too; then its answer is a tensor."""

    @functools.wraps(function)
    def converted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        values = (*args, *kwargs.values())
        if not any(tensors.holds_tensor(value) for value in values):
            return function(*args, **kwargs)
        result: Any = function(
            *(as_dense_array(value) for value in args),
            **{name: as_dense_array(value) for name, value in kwargs.items()},
        )
        return tensors.to_tensor(result)  # type: ignore[return-value]

    return converted


def as_scores(function: Callable[_P, Any]) -> Callable[_P, Any]:
    """Make a function of arrays take tensors, as `as_given` does; arrays that it returns become `Scores`."""

    def scored(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        result = function(*args, **kwargs)
        return result.view(Scores) if isinstance(result, np.ndarray) else result

    return as_given(functools.wraps(function)(scored))
