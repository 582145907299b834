"""Arrays in the layouts that programs use -> the padded form of a trace; where two shapes fit, the error decides."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert.packed import PackedBatch
from minibert.parity.dumps import Array
from minibert.trace.names import Spec


class Aligned(NamedTuple):
    """An array in padded form; `layout` says how it lay, "" if it was in that form already.

    `by_value` says that its shape fits the usual layout too, and that only its values decided for another one.
    """

    array: FloatArray
    layout: str
    by_value: bool = False


# The layouts of each kind, the usual one first: texts B, tokens S, features W, heads A of D features, all tokens that
# are not masked T, queries Q and keys K. "(B S)" is one axis.
_PADDED = {"tokens": "B S W", "pairs": "B A Q K", "pooled": "B W"}
_LAYOUTS = {
    "tokens": ("B S W", "S B W", "B W S", "(B S) W", "W (B S)", "(B S W)", "(S B W)", "(B W S)"),
    "packed": ("T W", "W T", "(T W)", "(W T)"),
    "heads": ("B A S D", "B S A D", "S B A D", "(B A) S D", "B A D S"),
    "packed heads": ("T A D", "A T D"),
    "pairs": ("B A Q K", "B Q A K", "B Q K A", "A B Q K", "(B A) Q K", "(A B) Q K", "(B A Q K)"),
    "pooled": ("B W", "W B", "(B W)"),
}


_LETTERS = str.maketrans("WQK", "HSS")  # those of the pages


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
    candidates = _of_texts(value, spec, batch) if isinstance(value, list) else _of_array(value, spec, batch, num_heads)
    found: dict[str, Array] = {}
    for array, layout in candidates:
        found.setdefault(layout, np.ascontiguousarray(array))
    aligned = [Aligned(array, layout) for layout, array in found.items()]
    if len(aligned) < 2:
        return aligned[0] if aligned else None
    errors = [error(one.array) for one in aligned]
    best = int(np.nanargmin([np.inf if np.isnan(e) else e for e in errors]))
    # The first one is the usual one. A wrong value may by chance be a little nearer in another layout.
    return aligned[best]._replace(by_value=best > 0) if not errors[best] > 0.1 * errors[0] else aligned[0]


def _of_array(value: Array, spec: Spec, batch: PackedBatch, num_heads: int) -> Iterator[tuple[Array, str]]:
    (B, S), T, W = batch.mask.shape, batch.num_tokens, spec.width
    sizes = {"B": B, "S": S, "T": T, "W": W, "A": num_heads, "D": W // num_heads, "Q": S, "K": S}
    if spec.kind == "pairs":
        sizes["A"] = W
    for layout in _LAYOUTS[spec.kind]:
        yield from _arranged(value, layout, _PADDED[spec.kind], sizes)
    if spec.kind != "tokens":
        if spec.kind == "pooled" and value.ndim == 3 and value.size == B * W:  # (B, 1, H)
            yield value.reshape(B, W), str(value.shape)
        return
    for layout in _LAYOUTS["packed"]:
        for packed, shown in _arranged(value, layout, "T W", sizes):
            yield _scatter(packed, batch), f"{shown or '(T, H)'}, without padding"
    if value.ndim == 3 and value.shape[0] == B and value.shape[2] == W and value.shape[1] != S:
        yield from _of_other_length(value, batch)
    if spec.has_heads:
        for layout in _LAYOUTS["heads"]:
            for array, shown in _arranged(value, layout, "B S A D", sizes):
                yield array.reshape(B, S, W), shown or "(B, S, A, D)"
        for layout in _LAYOUTS["packed heads"]:
            for packed, shown in _arranged(value, layout, "T A D", sizes):
                yield _scatter(packed.reshape(T, W), batch), f"{shown or '(T, A, D)'}, without padding"
    if spec.name == "embeddings.position_embeddings" and B != 1 and value.shape in ((1, S, W), (S, W)):
        yield np.broadcast_to(value.reshape(1, S, W), (B, S, W)), "one array for all texts"
    if (value.ndim > 2 and value.shape[0] == 1 != B) or (value.ndim > 3 and 1 in value.shape):
        yield from _of_array(value.reshape([size for size in value.shape if size != 1]), spec, batch, num_heads)


def _arranged(value: Array, layout: str, padded: str, sizes: dict[str, int]) -> Iterator[tuple[Array, str]]:
    """Yield an array with the axes of `padded`, if its shape is that of the layout; of one text, B may be left out."""
    for given in (layout, layout.replace("B", "").strip()) if sizes["B"] == 1 else (layout,):
        axes = [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\w", given)]
        if value.shape != tuple(math.prod(sizes[axis] for axis in group) for group in axes):
            continue
        order = [axis for group in axes for axis in group]
        split = value.reshape([sizes[axis] for axis in order])
        missing = [axis for axis in padded.split() if axis not in order]
        split = split.reshape((1,) * len(missing) + split.shape)
        array = split.transpose([[*missing, *order].index(axis) for axis in padded.split()])
        letters = [" ".join(group).translate(_LETTERS) for group in axes]
        if len(letters) == 1:
            yield array, f"numbers without a shape, ({letters[0].replace(' ', ', ')})"
        else:
            yield array, "" if given == padded else f"({', '.join(letters)})"


def _scatter(packed: Array, batch: PackedBatch) -> Array:
    padded = np.zeros((*batch.mask.shape, *packed.shape[1:]), packed.dtype)
    padded[batch.mask] = packed
    return padded


def _of_other_length(value: Array, batch: PackedBatch) -> Iterator[tuple[Array, str]]:
    """Cut or fill padding on the right, unless tokens that are not masked would be lost."""
    B, S = batch.mask.shape
    length = value.shape[1]
    if not batch.mask[:, length:].any():
        padded = np.zeros((B, S, value.shape[2]), value.dtype)
        padded[:, :length] = value[:, :S]
        yield padded, f"{length} columns instead of {S}"


def _of_texts(value: list[Array], spec: Spec, batch: PackedBatch) -> Iterator[tuple[Array, str]]:
    """Place the arrays of single texts, each of the tokens that are not masked."""
    if len(value) != len(batch.mask):
        return
    rows = []
    for given, shown in zip(value, batch.mask, strict=True):
        columns = np.flatnonzero(shown)
        array = np.asarray(given)
        while len(array) == 1 and array.ndim > (3 if spec.kind == "pairs" else 2):
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
