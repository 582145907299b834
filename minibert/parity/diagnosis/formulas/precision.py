"""What dropout and low precision compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.parity.diagnosis.formulas.tensors import weights
from minibert.parity.diagnosis.forward import Here
from minibert.parity.diagnosis.mistake import Mistake, Part, part_mistake
from minibert.parity.symbols import DENSE, EVERY, LOOK_UPS
from minibert.parity.truth import InapplicableError, to_bfloat16, to_float16

_DROPOUT = 0.1


def _dropped(name: str, value: FloatArray) -> FloatArray:
    """Set a tenth of the numbers to zero, and scale the others; the same ones each time."""
    keep = np.random.default_rng([*name.encode()]).random(value.shape) >= _DROPOUT
    return value * keep / value.dtype.type(1 - _DROPOUT)


def drop(inner: Part, here: Here, *arguments: FloatArray) -> FloatArray:
    """Apply dropout of a tenth to the result."""
    return _dropped(here.name, inner(here, *arguments))


def drop_dense(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    """Apply dropout of a tenth to the value that is added to the residual."""
    return inner(here, _dropped(here.name, dense), residual)


def _in_blocks(rounding: Callable[[FloatArray], FloatArray]) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Round blocks of 32 numbers of a row, as ggml does."""

    def rounded(weight: FloatArray, whole: FloatArray) -> FloatArray:
        if weight.shape[-1] % 32:
            raise InapplicableError("rows of a weight in blocks are multiples of 32")
        return rounding(weight.reshape(*weight.shape[:-1], -1, 32)).reshape(weight.shape)

    return rounded


def _whole(weight: FloatArray, largest: FloatArray, steps: int) -> FloatArray:
    scale = largest / weight.dtype.type(steps)
    return np.round(weight / np.where(scale, scale, 1)) * scale


def _q8_0(blocks: FloatArray) -> FloatArray:
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / blocks.dtype.type(127)
    return np.round(blocks / np.where(scale, scale, 1)) * to_float16(scale)


def _q4_0(blocks: FloatArray) -> FloatArray:
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)
    scale = largest / blocks.dtype.type(-8)
    return (np.clip(np.floor(blocks / np.where(scale, scale, 1) + 8.5), 0, 15) - 8) * to_float16(scale)


ROUNDINGS: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "float16": lambda weight, whole: to_float16(weight),
    "bfloat16": lambda weight, whole: to_bfloat16(weight),
    "q8_0": _in_blocks(_q8_0),
    "q4_0": _in_blocks(_q4_0),
    "int8": lambda weight, whole: _whole(weight, np.abs(whole).max(), 127),
    "int8-rows": lambda weight, whole: _whole(weight, np.abs(weight).max(axis=-1, keepdims=True), 127),
    "int4": lambda weight, whole: _whole(weight, np.abs(whole).max(), 7),
    "int4-rows": lambda weight, whole: _whole(weight, np.abs(weight).max(axis=-1, keepdims=True), 7),
}
"""The roundings of weights, of rows and the whole matrix that they belong to: blocks of ggml, one scale, one a row."""

ROUNDED = {
    "float16": "rounded to float16",
    "bfloat16": "rounded to bfloat16",
    "q8_0": "rounded to 8 bits in blocks of 32 (q8_0 of ggml)",
    "q4_0": "rounded to 4 bits in blocks of 32 (q4_0 of ggml)",
    "int8": "rounded to 8 bits, with one scale each",
    "int8-rows": "rounded to 8 bits, with one scale for each row",
    "int4": "rounded to 4 bits, with one scale each",
    "int4-rows": "rounded to 4 bits, with one scale for each row",
}
"""What a sentence says of matrices with each of them. mistakes.md says the same."""


def dynamic_int8(x: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Round both factors to 8 bits: one scale for the weight, a scale and a zero point for all rows of x."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = x.dtype.type((high - low) / 255 or 1.0)
    zero = np.round(-low / scale)
    rounded = (np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale
    return rounded.astype(x.dtype), ROUNDINGS["int8"](weight, weight)


def sums_in_float16(inner: Part, here: Here, x: FloatArray, weight: FloatArray) -> FloatArray:
    """Add up in float16, sixteen products at a time."""
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    y = np.zeros((len(x), len(weight)), np.float16)
    for start in range(0, x.shape[1], 16):
        y = (y.astype(np.float32) + x[:, start : start + 16] @ weight[:, start : start + 16].T).astype(np.float16)
    return y.astype(here.forward.dtype)


def rounded_weights(rounding: Callable[[FloatArray, FloatArray], FloatArray]) -> Mistake:
    """Return the mistake of rounded matrices and embedding tables, one of `ROUNDINGS`; biases are not rounded."""
    return part_mistake(
        (*LOOK_UPS, *DENSE),
        **weights(DENSE, lambda weight, bias: (rounding(weight, weight), bias)).parts,
        rows=lambda inner, here, table, ids: rounding(inner(here, table, ids), table).astype(here.forward.dtype),
    )


def product(change: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]) -> Mistake:
    """Return the mistake of matrix products with changed factors."""
    return part_mistake(DENSE, product=lambda inner, here, x, weight: inner(here, *change(x, weight)))


def stored(rounding: Callable[[FloatArray], FloatArray]) -> Mistake:
    """Return the mistake of rounding all values."""
    return part_mistake(EVERY, value=lambda inner, here, value: rounding(inner(here, value)))
