"""Arrays in the layouts that programs use -> the padded form of a trace; where two shapes fit, the error decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.bert.packed import PackedBatch
from minibert.trace.names import Spec

__all__ = ["Aligned", "align", "expected_shape"]

Array = npt.NDArray[Any]


class Aligned(NamedTuple):
    """An array in padded form; `layout` says how it lay, "" if it was in that form already.

    `by_value` says that its shape fits the usual layout too, and that only its values decided for another one.
    """

    array: FloatArray
    layout: str
    by_value: bool = False


def expected_shape(spec: Spec, batch: PackedBatch) -> tuple[int, ...]:
    """Return the shape of a value in padded form."""
    num_sequences, length = batch.mask.shape
    if spec.kind == "pairs":
        return (num_sequences, spec.width, length, length)
    return (num_sequences, length, spec.width) if spec.kind == "tokens" else (num_sequences, spec.width)


def align(
    value: Array | list[Array], spec: Spec, batch: PackedBatch, num_heads: int, error: Callable[[FloatArray], float]
) -> Aligned | None:
    """Bring a dumped value into padded form; None if its shape fits no layout.

    Parameters
    ----------
    value : ndarray, or a list of one array for each text
    spec : Spec
    batch : PackedBatch
    num_heads : int
    error : (padded array) -> float
        Decides between layouts of the same shape.
    """
    found: list[Aligned] = []
    for array, layout in _candidates(value, spec, batch, num_heads):
        if array.shape == expected_shape(spec, batch) and layout not in [one.layout for one in found]:
            found.append(Aligned(np.ascontiguousarray(array), layout))
    if len(found) < 2:
        return found[0] if found else None
    errors = [error(one.array) for one in found]
    best = int(np.nanargmin([np.inf if np.isnan(e) else e for e in errors]))
    # The first one is the usual one. A wrong value may by chance be a little nearer in another layout.
    return found[best]._replace(by_value=best > 0) if not errors[best] > 0.1 * errors[0] else found[0]


def _candidates(
    value: Array | list[Array], spec: Spec, batch: PackedBatch, num_heads: int
) -> Iterator[tuple[Array, str]]:
    if isinstance(value, list):
        yield from _of_texts(value, spec, batch)
        return
    if spec.kind == "tokens":
        yield from _tokens(value, spec, batch, num_heads)
    elif spec.kind == "pairs":
        yield from _pairs(value, spec, batch)
    else:
        yield from _pooled(value, spec, batch)


def _of_texts(value: list[Array], spec: Spec, batch: PackedBatch) -> Iterator[tuple[Array, str]]:
    """Place the arrays of single texts; each has the tokens that are not masked, or as many as the batch is wide."""
    if len(value) != len(batch.mask):
        return
    rows = []
    for array, shown in zip(value, batch.mask, strict=True):
        columns = np.flatnonzero(shown)
        array = np.asarray(array)
        while array.ndim > 1 and len(array) == 1 and array.ndim > (3 if spec.kind == "pairs" else 2):
            array = array[0]
        if spec.kind == "pooled" and array.shape == (spec.width,):
            rows.append(array)
        elif spec.kind == "tokens" and array.shape == (len(columns), spec.width):
            rows.append(np.zeros((len(shown), spec.width), array.dtype))
            rows[-1][columns] = array
        elif spec.kind == "pairs" and array.shape == (spec.width, len(columns), len(columns)):
            rows.append(np.zeros((spec.width, len(shown), len(shown)), array.dtype))
            rows[-1][:, columns[:, None], columns] = array
        else:
            return
    yield np.stack(rows), "one array for each text"


def _scatter(packed: Array, batch: PackedBatch) -> Array:
    padded = np.zeros((*batch.mask.shape, *packed.shape[1:]), packed.dtype)
    padded[batch.mask] = packed
    return padded


def _tokens(value: Array, spec: Spec, batch: PackedBatch, num_heads: int) -> Iterator[tuple[Array, str]]:
    B, S = batch.mask.shape
    T, W, A = batch.num_tokens, spec.width, num_heads
    D = W // A
    shape = value.shape
    if shape == (B, S, W):
        yield value, ""
    if shape == (S, B, W):
        yield value.swapaxes(0, 1), "(S, B, H)"
    if shape == (B, W, S):
        yield value.swapaxes(1, 2), "(B, H, S)"
    if shape == (S, W) and B == 1:
        yield value[None], "(S, H)"
    if shape == (W, S) and B == 1:
        yield value.T[None], "(H, S)"
    if shape == (B * S, W):
        yield value.reshape(B, S, W), "(B S, H)"
    if shape == (W, B * S):
        yield value.T.reshape(B, S, W), "(H, B S)"
    for packed, layout in ((value, "(T, H)"), (value.T, "(H, T)")):
        if packed.shape == (T, W):
            yield _scatter(packed, batch), f"{layout}, without padding"
    if value.ndim == 3 and shape[0] == B and shape[2] == W and shape[1] != S:
        other = _other_width(value, batch)
        if other is not None:
            yield other, f"{shape[1]} columns instead of {S}"
    if spec.has_heads and value.ndim in (3, 4):
        yield from _heads(value, batch, (B, S, T, A, D))
    if value.ndim == 1:
        if len(value) == B * S * W:
            yield value.reshape(B, S, W), "numbers without a shape"
            yield value.reshape(S, B, W).swapaxes(0, 1), "numbers without a shape, (S, B, H)"
            yield value.reshape(B, W, S).swapaxes(1, 2), "numbers without a shape, (B, H, S)"
        if len(value) == T * W:
            yield _scatter(value.reshape(T, W), batch), "numbers without a shape, (T, H), without padding"
            yield _scatter(value.reshape(W, T).T, batch), "numbers without a shape, (H, T), without padding"
    if value.ndim > 3 and 1 in shape:
        yield from _tokens(value.reshape([size for size in shape if size != 1]), spec, batch, num_heads)
    if spec.name == "embeddings.position_embeddings" and B != 1 and shape in ((1, S, W), (S, W)):
        yield np.broadcast_to(value.reshape(1, S, W), (B, S, W)), "one array for all texts"
    if value.ndim == 3 and shape[0] == 1 and B != 1:
        yield from _tokens(value[0], spec, batch, num_heads)


def _other_width(value: Array, batch: PackedBatch) -> Array | None:
    """Cut or fill padding on the right; None if tokens that are not masked would be lost."""
    B, S = batch.mask.shape
    if value.shape[1] > S:
        return value[:, :S]
    if batch.mask[:, value.shape[1] :].any():
        return None
    padded = np.zeros((B, S, value.shape[2]), value.dtype)
    padded[:, : value.shape[1]] = value
    return padded


def _heads(value: Array, batch: PackedBatch, sizes: tuple[int, int, int, int, int]) -> Iterator[tuple[Array, str]]:
    B, S, T, A, D = sizes
    shape = value.shape
    if shape == (B, A, S, D):
        yield value.swapaxes(1, 2).reshape(B, S, A * D), "(B, A, S, D)"
    if shape == (B, S, A, D):
        yield value.reshape(B, S, A * D), "(B, S, A, D)"
    if shape == (S, B, A, D):
        yield value.swapaxes(0, 1).reshape(B, S, A * D), "(S, B, A, D)"
    if shape == (B * A, S, D):
        yield value.reshape(B, A, S, D).swapaxes(1, 2).reshape(B, S, A * D), "(B A, S, D)"
    if shape == (B, A, D, S):
        yield value.transpose(0, 3, 1, 2).reshape(B, S, A * D), "(B, A, D, S)"
    for packed, layout in ((value, "(T, A, D)"), (value.swapaxes(0, 1), "(A, T, D)")):
        if packed.shape == (T, A, D):
            yield _scatter(packed.reshape(T, A * D), batch), f"{layout}, without padding"


def _pairs(value: Array, spec: Spec, batch: PackedBatch) -> Iterator[tuple[Array, str]]:
    B, S = batch.mask.shape
    A, shape = spec.width, value.shape
    if shape == (B, A, S, S):
        yield value, ""
    if shape == (B, S, A, S):
        yield value.swapaxes(1, 2), "(B, S, A, S)"
    if shape == (B, S, S, A):
        yield value.transpose(0, 3, 1, 2), "(B, S, S, A)"
    if shape == (A, B, S, S):
        yield value.swapaxes(0, 1), "(A, B, S, S)"
    if shape == (A, S, S) and B == 1:
        yield value[None], "(A, S, S)"
    if shape == (B * A, S, S):
        yield value.reshape(B, A, S, S), "(B A, S, S)"
        yield value.reshape(A, B, S, S).swapaxes(0, 1), "(A B, S, S)"
    if value.ndim == 1 and len(value) == B * A * S * S:
        yield value.reshape(B, A, S, S), "numbers without a shape"


def _pooled(value: Array, spec: Spec, batch: PackedBatch) -> Iterator[tuple[Array, str]]:
    B = len(batch.mask)
    if value.shape == (B, spec.width):
        yield value, ""
    if value.shape == (spec.width, B):
        yield value.T, "(H, B)"
    if value.size == B * spec.width and value.ndim in (1, 3) and value.shape != (B, spec.width):
        yield value.reshape(B, spec.width), "numbers without a shape" if value.ndim == 1 else str(value.shape)
