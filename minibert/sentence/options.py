"""The options of `SentenceTransformer.encode`, and checks of its other arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from minibert.base.checks import brief, check_choice, is_cpu
from minibert.similarity import PRECISIONS
from minibert.tokens.layers import LayerSelection

__all__ = ["EncodeOptions", "check_device", "check_for_tokens", "check_out", "check_output", "make_out"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodeOptions:
    """How a text becomes a vector. All ways to compute sentence vectors take these options, with these defaults.

    The fields are arguments of `SentenceTransformer.encode`, which describes them.
    """

    prompt_name: str | None = None
    prompt: str | None = None
    batch_size: int = 32
    normalize_embeddings: bool = False
    truncate_dim: int | None = None
    layers: LayerSelection | None = None
    layer_pooling: str = "concat"
    pooling: str | Sequence[str] | None = None
    special_tokens: bool = True
    truncation: str = "warn"
    stride: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.layers, Iterator):  # an iterator can be read once, but options may be used again
            object.__setattr__(self, "layers", tuple(self.layers))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Make options from keyword arguments.

        Raises
        ------
        TypeError
            A name is not the name of an option.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in names:
                raise TypeError(f"{brief(name)} is not an option of encode here; expected {', '.join(names)}.")
        return cls(**options)


def check_device(device: object) -> None:
    """Refuse any device but the CPU."""
    if device is not None and not is_cpu(device):
        raise ValueError(f"device={brief(device)}: minibert runs on the CPU; leave device= out, or give 'cpu'.")


def check_output(convert_to_tensor: bool, output_value: str | None, precision: str) -> None:
    """Refuse tensors, and names of outputs and precisions that do not exist."""
    if convert_to_tensor:
        raise TypeError("convert_to_tensor=True: minibert gives NumPy arrays only; torch.from_numpy makes tensors.")
    if output_value is not None:
        check_choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
    check_choice("precision", precision, PRECISIONS)


def check_for_tokens(out: object, precision: str, normalized: bool, truncation: str) -> None:
    """Refuse options that only work for sentence vectors."""
    options = {
        "out=": out is not None,
        f"precision={precision!r}": precision != "float32",
        "normalize_embeddings=True": normalized,
        "truncation='split'": truncation == "split",
    }
    for option, given in options.items():
        if given:
            raise ValueError(f"{option} is only for sentence vectors, not for vectors of tokens; leave it out.")


def make_out(out: npt.NDArray[Any] | None, shape: tuple[int, ...], precision: str) -> npt.NDArray[Any]:
    """Return the array to fill: a new one, or the caller's after checking it."""
    if out is None:
        return np.empty(shape, dtype=np.float32)
    check_out(out)
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; expected {shape}.")
    if precision != "float32":
        raise ValueError(
            f"precision={precision!r} needs all vectors at once, but out= receives them in chunks; give one of the two."
        )
    return out


def check_out(out: object) -> None:
    """Refuse anything but a writeable array of floats whose elements do not overlap in memory."""
    if not isinstance(out, np.ndarray) or out.dtype.kind != "f" or not out.flags.writeable:
        raise TypeError(f"out is {type(out).__name__}; expected a writeable array of floats.")
    if isinstance(out, np.ma.MaskedArray):
        raise TypeError("out is a masked array, which can refuse to be written; give its data: out.data.")
    if not _no_overlap(out):
        raise ValueError(
            f"out has strides {out.strides} for shape {out.shape}: its rows overlap in memory, so one vector would "
            "overwrite another. Give an array whose rows lie apart, such as np.empty(shape, np.float32)."
        )


def _no_overlap(array: npt.NDArray[Any]) -> bool:
    """Return whether each axis's stride covers the extent of the axes with smaller strides, so nothing overlaps."""
    if not array.size:
        return True
    extent = array.itemsize
    for stride, length in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if length > 1 and stride < extent:
            return False
        extent += stride * (length - 1)
    return True
