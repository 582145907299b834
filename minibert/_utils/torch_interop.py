"""Convert torch tensors to arrays, and arrays to torch tensors. Only this module imports torch.

minibert computes with NumPy arrays. A function that was given a tensor, or was asked for tensors, converts at its start
and at its end. torch is imported when a tensor is asked for; to recognise a tensor it need not be imported.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Self, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "torch.Tensor"
"""For annotations. Where torch is not installed, it is Any to a type checker."""


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch.Tensor; torch is not imported for that."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)  # None while another thread is importing torch
    return isinstance(kind, type) and isinstance(value, kind)


def holds_tensor(value: object) -> bool:
    """Return whether a value is a tensor, or a list or tuple that begins with one."""
    return is_tensor(value) or (isinstance(value, list | tuple) and len(value) > 0 and is_tensor(value[0]))


def to_array(value: Any) -> Any:
    """Turn a tensor, or the tensors in a list that begins with one, into NumPy arrays; return other values as they are.

    A tensor on the CPU shares its memory with the array. Gradients are left behind. Types of floats that NumPy does not
    have, such as bfloat16, become float32.

    Raises
    ------
    ValueError
        A tensor has no values that NumPy can read: it is sparse, or it is on the "meta" device.
    """
    if is_tensor(value):
        return _array_of(value)
    return [_array_of(part) if is_tensor(part) else part for part in value] if holds_tensor(value) else value


def to_tensor(array: Any) -> torch.Tensor:
    """Turn an array of numbers into a tensor on the CPU. It shares the memory of an array that can be written to.

    Raises
    ------
    ImportError
        torch is not installed; the message says what to do.
    """
    check_torch()
    import torch

    array = np.asarray(array)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    usable = native.flags.writeable and all(stride >= 0 for stride in native.strides)
    return torch.from_numpy(native if usable else native.copy())


def to_sparse_tensor(indices: Any, values: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Make a sparse tensor (COO) from numbers and their positions; the errors are as for `to_tensor`.

    Parameters
    ----------
    indices : int ndarray of shape (number of axes, n)
        The positions; each is there once, and they are sorted.
    values : ndarray of shape (n,)
    shape : tuple of int
    """
    places, numbers = to_tensor(indices), to_tensor(values)  # which check torch
    import torch

    return torch.sparse_coo_tensor(places, numbers, shape, check_invariants=True, is_coalesced=True)


def check_torch(option: str = "the option that asks for tensors") -> None:
    """Raise an ImportError if torch cannot be imported; call it before work whose result must be a tensor.

    Parameters
    ----------
    option : str
        What asks for tensors, for the message, such as "return_tensors='pt'".
    """
    try:
        import torch  # noqa: F401
    except Exception as error:  # ImportError, or OSError for a library of torch that cannot be loaded
        raise ImportError(
            f"{option} needs torch, which cannot be imported ({error}). Install torch (pip install torch), or leave "
            "the option out: minibert then gives NumPy arrays or lists."
        ) from error


class _CPU(str):
    """The device "cpu", for programs in which torch is not loaded; torch takes it too, because it is a str."""

    __slots__ = ()
    type = "cpu"
    index = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "device(type='cpu')"


def torch_is_loaded() -> bool:
    """Return whether this program has imported torch."""
    return hasattr(sys.modules.get("torch"), "Tensor")


def cpu_device() -> Any:
    """Return the device "cpu": torch.device("cpu") if torch is loaded, else a str with its attributes."""
    device = getattr(sys.modules.get("torch"), "device", None)
    return device("cpu") if isinstance(device, type) else _CPU("cpu")


def float32_dtype() -> Any:
    """Return the type of all results: torch.float32 if torch is loaded, else NumPy's float32."""
    return getattr(sys.modules.get("torch"), "float32", np.dtype(np.float32))


def _array_of(tensor: Any) -> Any:
    try:
        if tensor.is_floating_point() and tensor.element_size() < 4 and str(tensor.dtype) != "torch.float16":
            tensor = tensor.detach().float()
        return tensor.numpy(force=True)
    except MemoryError:
        raise
    except Exception as error:  # each kind of tensor without plain values fails in its own way
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device} cannot be read by NumPy "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). Give a dense tensor with values: "
            "tensor.to_dense().cpu()."
        ) from error


_P = ParamSpec("_P")
_R = TypeVar("_R")

# Methods whose call means one thing for an array and another for a tensor, unless this keyword is given. NumPy's own
# functions, such as np.max(scores, 1), always give it.
_AMBIGUOUS = {"max": "axis", "min": "axis", "repeat": "axis", "std": "ddof", "var": "ddof"}


class Scores(np.ndarray[Any, np.dtype[Any]]):
    """An array with the few methods of a tensor that programs call: ``numpy``, ``cpu``, ``detach``, ``data``, float().

    sentence-transformers answers with tensors even where it is given arrays, so programs end with
    ``model.similarity(a, b).numpy()``. The tables of embeddings are such arrays too, for programs that read
    ``word_embeddings.weight.data.numpy()``. Slices and results of arithmetic are `Scores` too; pickles hold plain
    arrays.

    Functions of torch, such as ``torch.topk(scores, 5)``, take them as tensors. A call that would mean one thing for an
    array and another for a tensor is refused.
    """

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"This is an array of NumPy, which has no {name!r}. For a tensor: torch.tensor(array).")

    def numpy(self, *, force: bool = False) -> npt.NDArray[Any]:
        """Return the scores as a plain array that shares their memory."""
        return self.view(np.ndarray)

    def detach(self) -> Self:
        """Return the scores themselves, because they have no gradient and are in the memory of the CPU."""
        return self

    cpu = detach
    data = property(detach)  # `memoryview` gives the buffer

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Let functions of torch take these arrays, as in ``torch.topk(scores, k)``: they get tensors."""
        _refuse_change(kwargs.get("out") if kwargs else None, "out=")
        _refuse_change(args[0] if args else None, function.__name__)
        return function(*as_tensors(args, Scores), **as_tensors(kwargs or {}, Scores))

    def __float__(self) -> float:
        """Return the only score, whatever the number of axes."""
        return float(self.item())

    def __array_wrap__(
        self, array: npt.NDArray[Any], context: tuple[Any, ...] | None = None, return_scalar: bool = False
    ) -> Any:
        return array.view(np.ndarray)[()] if return_scalar else array.view(Scores)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))


def _refuse_change(scores: Any, name: str) -> None:
    """Raise a ValueError if a function of torch would change a read-only array: it would change a copy of it."""
    in_place = name == "out=" or re.search("[^_]_$", name) is not None
    if in_place and isinstance(scores, Scores) and not scores.flags.writeable:
        raise ValueError(f"{name} would change an array that is read-only. Make a copy first: torch.tensor(array).")


def _method(name: str, keyword: str) -> Callable[..., Any]:
    """Make a method that refuses a call which does not say whether an array or a tensor is meant."""
    of_array = getattr(np.ndarray, name)

    @functools.wraps(of_array)
    def method(self: Scores, *args: Any, **kwargs: Any) -> Any:
        if keyword not in kwargs and (args or keyword == "ddof"):
            both = f"{name}() of these scores would mean one thing for an array and another for a tensor"
            raise TypeError(f"{both}: give {keyword}= for that of NumPy, or take torch.tensor(scores).")
        return of_array(self, *args, **kwargs)

    return method


for _name, _keyword in _AMBIGUOUS.items():
    setattr(Scores, _name, _method(_name, _keyword))


def as_tensors(value: Any, kinds: Any) -> Any:
    """Turn arrays of some kinds into tensors, also those in lists, tuples and dicts."""
    if isinstance(value, kinds):
        return to_tensor(np.asarray(value))
    if isinstance(value, dict):
        return {name: as_tensors(part, kinds) for name, part in value.items()}
    return type(value)([as_tensors(part, kinds) for part in value]) if type(value) in (list, tuple) else value


def as_dense_array(value: Any) -> Any:
    """Turn a tensor (dense or sparse), or the tensors in a list, into arrays; return other values as they are."""
    if is_tensor(value):
        return to_array(value.detach().to_dense())
    return [as_dense_array(part) for part in value] if holds_tensor(value) else value


def as_given(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function of arrays also take tensors and lists of tensors; for these it returns a tensor."""

    @functools.wraps(function)
    def converted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        values = (*args, *kwargs.values())
        if not any(holds_tensor(value) for value in values):
            return function(*args, **kwargs)
        named = {name: as_dense_array(value) for name, value in kwargs.items()}
        return to_tensor(function(*map(as_dense_array, args), **named))  # type: ignore[return-value]

    return converted


def as_scores(function: Callable[_P, Any]) -> Callable[_P, Any]:
    """Make a function of arrays also take tensors, as `as_given` does; it returns its arrays as `Scores`."""

    def scored(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        result = function(*args, **kwargs)
        return result.view(Scores) if isinstance(result, np.ndarray) else result

    return as_given(functools.wraps(function)(scored))
