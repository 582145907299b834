"""The tensors of a checkpoint, in safetensors, pytorch_model.bin, TensorFlow's format or GGUF: their list and numbers.

All headers are read before memory for the tensors is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.gguf_files import is_gguf
from minibert.checkpoint.safetensors import Blocks, StoredTensor, file_state, fill, read_exactly, read_header
from minibert.errors import ModelFormatError

BUFFER_BYTES = 4 * 2**20

READERS = {
    "F32": Blocks(np.dtype("<f4"), lambda stored: stored),
    "F64": Blocks(np.dtype("<f8"), np.errstate(over="ignore")(lambda stored: stored.astype(np.float32))),
    "F16": Blocks(np.dtype("<f2"), lambda stored: stored.astype(np.float32)),
    # A bfloat16 is the upper half of a float32.
    "BF16": Blocks(np.dtype("<u2"), lambda stored: (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)),
}

DTYPES = tuple(READERS)
"""The dtypes of weights that minibert reads, by safetensors' names."""

INTEGERS: dict[str, np.dtype] = {"I8": np.dtype("i1"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
"""The dtypes of integers that only a static model may have."""
READERS |= {name: Blocks(stored, lambda integers: integers.astype(np.float32)) for name, stored in INTEGERS.items()}

# A product of query and key grows with the fourth power of the weights. With larger weights it may overflow
# float32, and the model would give NaN. Up to this limit no hidden state is NaN, for any text and any width.
_LARGEST_WEIGHT = 1e6


def open_checkpoint(files: ModelFiles) -> dict[str, StoredTensor]:
    """Read the headers of all files of a checkpoint, but no tensor.

    Raises
    ------
    ModelFormatError
        A file is missing or damaged, is of another format, or holds more than tensors; or the files and their index do
        not agree.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in files.checkpoint():
        for tensor in _read_header(path):
            if (other := tensors.setdefault(tensor.name, tensor)) is not tensor:
                raise ModelFormatError(f"{tensor.name} is in two files, {other.path.name} and {path.name}.")
    for name, shard in (files.index() or {}).items():
        if name not in tensors or tensors[name].path.name != shard:
            raise ModelFormatError(f"{files.source}: the index says {name} is in {shard}, but it is not there.")
    return tensors


def _read_header(path: Path) -> list[StoredTensor]:
    if path.suffix in (".bin", ".pt"):
        from minibert.checkpoint import pytorch_bin  # most models do not need it

        return pytorch_bin.read_header(path)
    if path.suffix == ".index":
        from minibert.checkpoint import tensorflow

        return tensorflow.read_header(path)
    if is_gguf(path):
        from minibert.checkpoint import gguf

        return gguf.read_header(path)
    return read_header(path)


def blocks_of(tensor: StoredTensor) -> Blocks:
    """Return how the numbers of a tensor of `DTYPES` are stored."""
    return tensor.blocks or READERS[tensor.dtype]


def read_tensor(tensor: StoredTensor, target: FloatArray) -> None:
    """Fill `target` with one tensor of `DTYPES`, buffer by buffer.

    Raises
    ------
    ModelFormatError
        The tensor holds NaN, infinity or a number beyond 10^6; or the file cannot be read, or has changed since its
        header was read.
    """
    stored, to_float32, numbers = blocks_of(tensor)
    flat = target.reshape(-1)
    step = BUFFER_BYTES // stored.itemsize if numbers == 1 else BUFFER_BYTES // (4 * numbers) * numbers
    try:
        with open(tensor.path, "rb", buffering=0) as file:
            file.seek(tensor.offset)
            view = None if tensor.strides is None else _read_view(file, tensor, stored, tensor.strides)
            for first in range(0, flat.size, step):
                part = flat[first : first + step]
                if view is not None:
                    part[:] = to_float32(view[first : first + step])
                elif stored == part.dtype:
                    fill(file, part.view(np.uint8).data)
                else:
                    read = read_exactly(file, tensor.size_of(part.size))
                    part[:] = to_float32(np.frombuffer(read, dtype=stored)).reshape(-1)
                check_numbers(tensor, part, first.__add__)
            if file_state(file) != tensor.state:
                raise ModelFormatError(f"{tensor.path} changed while it was being read; load the model again.")
    except OSError as error:
        raise ModelFormatError(f"{tensor.path}: reading tensor {tensor.name} failed: {error}.") from error


def check_numbers(tensor: StoredTensor, part: FloatArray, place: Callable[[int], int]) -> None:
    """Raise a ModelFormatError if a number of a part is not a weight; `place` is that of the i-th one in the tensor."""
    if not -_LARGEST_WEIGHT <= part.min() <= part.max() <= _LARGEST_WEIGHT:  # nor if one is NaN
        wrong = int(np.argmin(np.abs(part) <= _LARGEST_WEIGHT))
        index = [int(i) for i in np.unravel_index(place(wrong), tensor.shape)]
        raise ModelFormatError(
            f"{tensor.path}: tensor {tensor.name} holds {part.flat[wrong]} at {index}; a weight must be finite, and "
            f"between -{_LARGEST_WEIGHT:g} and {_LARGEST_WEIGHT:g}. The file was saved from a broken model."
        )


def _read_view(file: BinaryIO, tensor: StoredTensor, stored: np.dtype[Any], strides: tuple[int, ...]) -> np.ndarray:
    """Read a tensor whose numbers do not lie row by row, such as a transposed one; return its numbers row by row."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    numbers = read_exactly(file, span * stored.itemsize)
    return np.ndarray(tensor.shape, stored, numbers, strides=[stride * stored.itemsize for stride in strides]).ravel()


def load_tensors(files: ModelFiles, shapes: Mapping[str, tuple[int, ...]], name: str = "") -> dict[str, FloatArray]:
    """Read the tensors of a small module, such as a Dense layer, that must hold exactly these tensors.

    Parameters
    ----------
    files : ModelFiles
        The folder of the module.
    shapes : tensor name -> expected shape
    name : str, optional
        The file; default: the checkpoint of the folder.

    Returns
    -------
    dict of str to ndarray, float32, read-only

    Raises
    ------
    ModelFormatError
        A file is missing, damaged or of another format, or the tensors differ from `shapes`.
    """
    tensors = {tensor.name: tensor for tensor in _read_header(files.require(name))} if name else open_checkpoint(files)
    for name in (*tensors, *shapes):
        tensor, expected = tensors.get(name), shapes.get(name)
        if tensor is None or tensor.shape != expected or tensor.dtype not in DTYPES:
            stored = "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
            raise ModelFormatError(
                f"{files.source}: {name} is {stored}; expected {list(expected or ()) or 'nothing'} by its config.json, "
                f"in {', '.join(DTYPES)}."
            )
    arrays = {}
    for name, shape in shapes.items():
        arrays[name] = np.empty(shape, dtype=np.float32)
        read_tensor(tensors[name], arrays[name])
        arrays[name].flags.writeable = False
    return arrays
