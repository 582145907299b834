"""The options of `SentenceTransformer.encode`, pairs of texts, and checks of the other arguments of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from minibert._utils import torch_interop
from minibert._utils.validation import brief, check_choice, check_int, is_cpu
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts, check_texts, shown
from minibert.tokenizer.windows import WITHOUT_WINDOWS
from minibert.vectors.layers import LayerSelection
from minibert.vectors.quantization import PRECISIONS

# Texts tokenized together. This limits the memory that the encodings of a large corpus take.
_TEXTS_AT_ONCE = 1024


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
    """Refuse any device but the CPU, which may be given several times, as for several processes."""
    devices = device if isinstance(device, list | tuple) else [device]
    if not all(one is None or is_cpu(one) for one in devices):
        raise ValueError(f"device={brief(device)}: minibert runs on the CPU; leave device= out, or give 'cpu'.")


def texts_at_once(batch_size: int) -> int:
    """Return the number of texts that are tokenized together for a `batch_size`."""
    return min(_TEXTS_AT_ONCE, 32 * check_int("batch_size", batch_size, 1))


def one_of(name: str, value: Any, old_name: str, old: Any) -> Any:
    """Return the value of an argument that may be given under its old name."""
    if old is None:
        return value
    if value is not None:
        raise TypeError(f"{old_name}= is the old name of {name}=; give one of them.")
    return old


def check_output(
    convert_to_tensor: bool, convert_to_numpy: bool, output_value: str | None, precision: str | None
) -> str:
    """Refuse names of outputs and precisions that do not exist, and tensors without torch; return the precision."""
    if output_value is not None:
        check_choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
    precision = "float32" if precision is None else precision
    check_choice("precision", precision, PRECISIONS)
    if convert_to_tensor:
        torch_interop.check_torch("convert_to_tensor=True")
    elif not convert_to_numpy:
        torch_interop.check_torch("convert_to_numpy=False")
    return precision


def in_kind(result: Any, convert_to_tensor: bool, convert_to_numpy: bool, single: bool) -> Any:
    """Convert the results of `encode` into the kind that was asked for.

    Parameters
    ----------
    result : ndarray; or for vectors of tokens, an ndarray, a list of ndarrays or of dicts, or a dict
    convert_to_tensor : bool
        Arrays become tensors.
    convert_to_numpy : bool
        False: the array of several vectors becomes a list of tensors, unless `convert_to_tensor` is True.
    single : bool
        The result is that of one text.
    """
    if convert_to_numpy and not convert_to_tensor:
        return result
    if isinstance(result, list):
        return [_as_tensors(one) for one in result]
    result = _as_tensors(result)
    return result if convert_to_tensor or single or isinstance(result, dict) else list(result)


def _as_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_tensors(one) for name, one in value.items()}
    return torch_interop.to_tensor(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value


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


def as_pairs(inputs: Any) -> tuple[list[tuple[str, str]], bool]:
    """Return a pair or pairs of texts as a list of pairs, and whether one pair was given.

    Parameters
    ----------
    inputs : two str in a list, tuple or array; or a sequence, array of shape (B, 2) or table with B rows of two str

    Raises
    ------
    TypeError, ValueError
        It is something else. The message names the index.
    """
    if isinstance(inputs, str):
        raise TypeError(f"inputs is {shown(inputs)}; expected a pair of texts, (query, text), or a list of pairs.")
    if getattr(inputs, "ndim", 1) == 2 and hasattr(inputs, "to_numpy"):  # a table of pandas or Polars
        inputs = inputs.to_numpy()
    if isinstance(inputs, np.ndarray) and inputs.ndim == 2:
        inputs = inputs.tolist()
    values = inputs if isinstance(inputs, list | tuple) else as_texts("inputs", inputs)[0]
    single = len(values) > 0 and isinstance(values[0], str)
    if single:
        return [_as_pair(values, "inputs")], True
    return [_as_pair(value, f"inputs[{index}]") for index, value in enumerate(values)], False


def _as_pair(value: Any, name: str) -> tuple[str, str]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is {shown(value)}; expected a pair of texts: (query, text).")
    if len(value) != 2:
        raise ValueError(
            f"{name} has {len(value)} parts, {brief(value)}; expected a pair of texts: (query, text). Give several "
            "pairs as a list of pairs."
        )
    check_texts(value, name=name)
    return value[0], value[1]


def num_characters(pair: tuple[str, str]) -> int:
    """Count the characters of both texts."""
    return len(pair[0]) + len(pair[1])


def check_truncation(truncation: object) -> None:
    """Refuse anything but the three ways to treat a pair that is too long."""
    if isinstance(truncation, str) and truncation == "split":
        raise ValueError(
            "truncation='split' is not for pairs, because the score of a window is not that of the pair. Give 'warn', "
            "'error' or 'silent'; or split the text yourself, score each part, and take the maximum."
        )
    check_choice("truncation", truncation, WITHOUT_WINDOWS)


def refuse_cut(encodings: Sequence[Encoding], indices: Sequence[int], max_length: int) -> None:
    """Refuse pairs of which tokens were cut off; the error names the first one by the caller's index."""
    cut = [(index, encoding) for index, encoding in zip(indices, encodings, strict=True) if encoding.n_truncated]
    if cut:
        index, encoding = min(cut, key=lambda one: one[0])
        raise ValueError(
            f"inputs[{index}] has {max_length + encoding.n_truncated} tokens, the limit is {max_length} "
            "(max_seq_length). Shorten it, or cut it: truncation='warn'."
        )
