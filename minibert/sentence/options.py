"""What a caller may ask of `encode` beyond the vectors themselves: kinds of output, places to write it; checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.base.checks import brief, check_choice, is_cpu
from minibert.similarity import PRECISIONS

__all__ = ["OUTPUT_VALUES", "check_device", "check_for_tokens", "check_out", "check_output", "make_out"]

OUTPUT_VALUES = ("sentence_embedding", "token_embeddings", None)
"""What `encode` gives: one vector per text, one per token, or a dict of both."""


def check_device(device: object) -> None:
    """Refuse any device but the CPU."""
    if device is not None and not is_cpu(device):
        raise ValueError(f"device={brief(device)}: minibert runs on the CPU; leave device= out, or give 'cpu'.")


def check_output(convert_to_tensor: bool, output_value: str | None, precision: str) -> None:
    """Refuse tensors, and what is none of `OUTPUT_VALUES` or `PRECISIONS`."""
    if convert_to_tensor:
        raise TypeError("convert_to_tensor=True: minibert gives NumPy arrays only; torch.from_numpy makes tensors.")
    if output_value is not None and (not isinstance(output_value, str) or output_value not in OUTPUT_VALUES):
        raise ValueError(f"output_value={brief(output_value)}; expected {', '.join(map(repr, OUTPUT_VALUES))}.")
    check_choice("precision", precision, PRECISIONS)


def check_for_tokens(out: object, precision: str, normalized: bool, truncation: str) -> None:
    """Refuse what only sentence vectors can have."""
    wishes = {
        "out=": out is not None,
        f"precision={precision!r}": precision != "float32",
        "normalize_embeddings=True": normalized,
        "truncation='split'": truncation == "split",
    }
    for wish, wished in wishes.items():
        if wished:
            raise ValueError(f"{wish} is for sentence vectors; here the vectors of tokens are asked for.")


def make_out(out: npt.NDArray[Any] | None, shape: tuple[int, ...], precision: str) -> npt.NDArray[Any]:
    """Return the array to fill: a new one, or the caller's after checking it."""
    if out is None:
        return np.empty(shape, dtype=np.float32)
    check_out(out)
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; the vectors take {shape}.")
    if precision != "float32":
        raise ValueError(f"out= takes vectors as they are computed, precision={precision!r} needs them all first.")
    return out


def check_out(out: object) -> None:
    """Refuse what vectors cannot be written into, each to a place of its own."""
    if not isinstance(out, np.ndarray) or out.dtype.kind != "f" or not out.flags.writeable:
        raise TypeError(f"out is {type(out).__name__}; expected a writeable array of floats.")
    if isinstance(out, np.ma.MaskedArray):
        raise TypeError("out is a masked array, which can refuse to be written; give its data: out.data.")
    if not _lies_apart(out):
        raise ValueError(
            f"out has strides {out.strides} for shape {out.shape}: its rows overlap in memory, so one vector would "
            "overwrite another. Give an array whose rows lie apart, such as np.empty(shape, np.float32)."
        )


def _lies_apart(array: npt.NDArray[Any]) -> bool:
    """Whether each axis steps over all that the axes with smaller strides reach: then no two elements overlap."""
    if not array.size:
        return True
    reached = array.itemsize
    for stride, length in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if length > 1 and stride < reached:
            return False
        reached += stride * (length - 1)
    return True
