"""`Edit`: a change of intermediate values, as users write it; applied_edits.py checks and applies it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert._utils.torch_interop import to_array
from minibert._utils.validation import FloatArray, brief, check_choice
from minibert.trace.trace import Trace

EditValue: TypeAlias = "Edit | npt.ArrayLike | Callable[..., FloatArray | None]"
"""A value of ``edit=``: an `Edit`; an array or a number that replaces; or a function that returns the new array."""

Indices: TypeAlias = "int | Sequence[int] | npt.NDArray[Any] | None"


@dataclasses.dataclass(frozen=True, eq=False)
class Where:
    """The part of a value that an edit changes; None means all.

    Parameters
    ----------
    heads : attention heads, of query, key, value, the context and of scores and probs
    tokens : columns of the padded batch, or a bool array (B, S); of scores and probs the tokens that look
    keys : columns of the padded batch, or a bool array (B, S); of scores and probs the tokens that are looked at
    features : the last axis of a value that has features
    sequences : rows of the padded batch
    """

    heads: Any = None
    tokens: Any = None
    keys: Any = None
    features: Any = None
    sequences: Any = None

    def __post_init__(self) -> None:
        for name, value in self.given():
            object.__setattr__(self, name, _frozen(name, value))

    def given(self) -> list[tuple[str, npt.NDArray[Any]]]:
        """Return the fields that are not None, as pairs of name and value."""
        return [(name, value) for name, value in vars(self).items() if value is not None]

    def __str__(self) -> str:
        return ", ".join(f"{name}={brief(value.tolist())}" for name, value in self.given())


def copied_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Copy the values of an argument into a new array; a ValueError with its name says why that is impossible."""
    try:
        return np.array(to_array(value))
    except MemoryError:
        raise
    except Exception as error:  # lists of different lengths, or an object of another library that cannot be read
        raise ValueError(f"{name} is not a rectangular array of numbers ({error}).") from error


def _frozen(name: str, value: Any) -> npt.NDArray[Any]:
    """Return indices or a mask as a private array: ints of one axis, or bools."""
    array = copied_array(name, value if not isinstance(value, range | set | frozenset) else list(value))
    if not array.size and array.dtype.kind == "f":
        array = array.astype(np.int64)
    kind, of_columns = array.dtype.kind, name in ("tokens", "keys")
    is_mask = of_columns and kind == "b" and array.ndim == 2
    # A mask of ints would be read as columns 0 and 1.
    if not is_mask and (kind not in "iu" or (of_columns and array.ndim > 1)):
        also = ", or a bool array of shape (B, S)" if of_columns else ""
        raise TypeError(f"{name}={brief(value)}; expected an int or several{also}.")
    if kind != "b":
        array = array.reshape(-1)
    array.flags.writeable = False
    return array


@dataclasses.dataclass(frozen=True, eq=False)
class Change:
    """One step of an edit: the operation, its argument, and where."""

    operation: Literal["zero", "mean", "scale", "add", "replace", "patch", "function"]
    value: Any
    where: Where

    def __str__(self) -> str:
        value = self.value
        if self.operation in ("zero", "patch", "function"):
            text = ""
        elif isinstance(value, np.ndarray) and value.ndim:
            text = f"<array {value.shape}>"
        else:
            text = brief(value.tolist() if isinstance(value, np.ndarray) else value)
        return f"{self.operation}({', '.join(filter(None, [text, str(self.where)]))})"


@dataclasses.dataclass(frozen=True, eq=False)
class Edit:
    """A change of a value, made by its class methods; ``first | second`` applies one after the other.

    All class methods have the keywords of `Where`: heads, tokens, keys, features, sequences. Arrays are (B, S, width),
    (B, A, S, S) or (B, width) as in a trace, with 1 for an axis that does not matter; or one number for each feature
    (of scores and probs: for each head); or one number.
    """

    changes: tuple[Change, ...]

    @classmethod
    def zero(cls, **where: Indices) -> Edit:
        """Set the value to 0."""
        return cls((Change("zero", np.float64(0), Where(**where)),))

    @classmethod
    def mean(cls, over: Literal["tokens", "features", "heads"] = "tokens", **where: Indices) -> Edit:
        """Replace the value by its mean over the sequence's tokens, over the token's features, or over the heads.

        The mean is over the whole axis, also if only a part is replaced. The axis "features" of scores and probs is
        their axis of keys.
        """
        check_choice("over", over, ("tokens", "features", "heads"))
        return cls((Change("mean", over, Where(**where)),))

    @classmethod
    def scale(cls, factor: npt.ArrayLike, **where: Indices) -> Edit:
        """Multiply the value by numbers."""
        return cls((Change("scale", _numbers("factor", factor), Where(**where)),))

    @classmethod
    def add(cls, value: npt.ArrayLike, **where: Indices) -> Edit:
        """Add numbers to the value; -inf can be added to scores and makes the probs 0."""
        return cls((Change("add", _numbers("value", value), Where(**where)),))

    @classmethod
    def replace(cls, value: npt.ArrayLike, **where: Indices) -> Edit:
        """Replace the value by numbers."""
        return cls((Change("replace", _numbers("value", value), Where(**where)),))

    @classmethod
    def patch(cls, other: Trace, **where: Indices) -> Edit:
        """Replace by the value of the same name in another trace, of the same sequence or of its only sequence.

        The two sequences must have the same masks.
        """
        if not isinstance(other, Trace):
            raise TypeError(f"patch was given {brief(other)}; expected a Trace, the result of model.trace(...).")
        return cls((Change("patch", other, Where(**where)),))

    @classmethod
    def function(cls, function: Callable[..., FloatArray | None], **where: Indices) -> Edit:
        """Replace by the result of a function. It is called with one sequence's array, or with the chosen part.

        A function with two parameters also gets the `Site`: name, layer, sequence and columns. The result
        has the shape of the array; None leaves the value as it is. The array is a copy.
        """
        if not callable(function):
            raise TypeError(f"function was given {brief(function)}; expected a function of an array.")
        return cls((Change("function", function, Where(**where)),))

    def __or__(self, other: Edit) -> Edit:
        if not isinstance(other, Edit):
            return NotImplemented
        return Edit(self.changes + other.changes)

    def __str__(self) -> str:
        return " | ".join(map(str, self.changes))


def head_mask(mask: npt.ArrayLike) -> dict[str, EditValue]:
    """Return ``edit=`` that multiplies the probs of attention head a of layer i by ``mask[i, a]``; 0 removes the head.

    This is the ``head_mask=`` that transformers had before version 5. Layers of ones only are left out.

    Parameters
    ----------
    mask : array of shape (L, A), or (A,) for all layers
    """
    numbers = _numbers("mask", mask)
    rows = [("*", numbers)] if numbers.ndim < 2 else enumerate(numbers)
    return {f"encoder.layer.{i}.attention.self.probs": Edit.scale(row) for i, row in rows if not (row == 1).all()}


def as_edit(value: Any) -> Edit:
    """Return the edit that a value of ``edit=`` means: an Edit, an array, a number, a function or a trace."""
    if isinstance(value, Edit):
        return value
    if isinstance(value, Trace):
        return Edit.patch(value)
    return Edit.function(value) if callable(value) else Edit.replace(value)


def _numbers(name: str, value: Any) -> npt.NDArray[np.float64]:
    """Return numbers as a private float64 array; NaN and +inf are refused, because no value may hold them."""
    array = copied_array(name, value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}={brief(value)}; expected a number, an array of numbers, a function or an Edit.")
    array = array.astype(np.float64)
    if np.isnan(array).any() or (array == np.inf).any():
        raise ValueError(f"{name} holds NaN or infinity; give finite numbers.")
    array.flags.writeable = False
    return array
