"""Tensors of torch at the border of minibert: tensors -> arrays, arrays -> tensors. The only import of torch.

minibert computes with NumPy arrays. A function that was given a tensor, or was asked for tensors, converts at its start
and at its end. torch is imported when a tensor is asked for; to recognise a tensor it need not be imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.base.checks import brief

if TYPE_CHECKING:
    import torch

__all__ = [
    "as_array",
    "check_return_tensors",
    "check_torch",
    "cpu_device",
    "float32_dtype",
    "holds_tensor",
    "is_tensor",
    "to_sparse_tensor",
    "to_tensor",
    "torch_is_loaded",
]


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch.Tensor; torch is not imported for that."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)  # None while another thread is importing torch
    return isinstance(kind, type) and isinstance(value, kind)


def holds_tensor(value: object) -> bool:
    """Return whether a value is a tensor, or a list or tuple that begins with one."""
    return is_tensor(value) or (isinstance(value, list | tuple) and len(value) > 0 and is_tensor(value[0]))


def as_array(value: Any) -> Any:
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
    if holds_tensor(value):
        return [_array_of(one) if is_tensor(one) else one for one in value]
    return value


def to_tensor(array: Any) -> torch.Tensor:
    """Turn an array of numbers into a tensor on the CPU, which shares its memory if the array can be written to.

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
    """Make a sparse tensor (COO) of numbers at some positions; the arguments and errors are those of `to_tensor`.

    Parameters
    ----------
    indices : int ndarray of shape (number of axes, n)
        The positions; each is there once, and they are sorted.
    values : ndarray of shape (n,)
    shape : tuple of int
    """
    check_torch()
    import torch

    return torch.sparse_coo_tensor(
        to_tensor(indices), to_tensor(values), shape, check_invariants=True, is_coalesced=True
    )


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


def check_return_tensors(value: object) -> str | None:
    """Return the value of ``return_tensors=`` as None, "np" or "pt".

    Raises
    ------
    ValueError
        It is another value, such as "tf".
    ImportError
        It is "pt", and torch is not installed.
    """
    value = getattr(value, "value", value)  # transformers has an enum of these names
    if value is None or (isinstance(value, str) and value == "np"):
        return value
    if not isinstance(value, str) or value != "pt":
        raise ValueError(
            f"return_tensors={brief(value)}; expected None for lists, 'np' for NumPy arrays or 'pt' for tensors of "
            "torch. Other libraries read NumPy arrays: give 'np'."
        )
    check_torch("return_tensors='pt'")
    return "pt"


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
    dtype = getattr(sys.modules.get("torch"), "float32", None)
    return np.dtype(np.float32) if dtype is None else dtype


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
