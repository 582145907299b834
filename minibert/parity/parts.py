"""The parts of a forward, as they are right; a mistake is a function in the place of one or more of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import reference
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, PreparedLinear
from minibert.bert.weights import LayerWeights

__all__ = ["PARTS", "Here", "Part", "Store"]

Part = Callable[..., Any]
"""A part; as a mistake it is called with the part that it replaces, then `Here`, then the arguments of the part."""


class Store:
    """The weights of a model in one dtype: those of the layer that is computed, and of others while there is room."""

    _MOST_BYTES = 3 << 25

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._layer: object = None
        self._before = self._largest = 0  # bytes: when this layer was entered, and of the largest layer so far
        self._kept: dict[int, tuple[PreparedLinear, FloatArray, FloatArray]] = {}

    def enter(self, layer: object) -> None:
        """Drop the weights of other layers if those of one more layer would take too much memory."""
        if layer != self._layer:
            self._largest = max(self._largest, self._nbytes() - self._before)
            if self._nbytes() + self._largest > self._MOST_BYTES:
                self._kept = {}
            self._layer, self._before = layer, self._nbytes()

    def _nbytes(self) -> int:
        return sum(weight.nbytes for _, weight, _ in self._kept.values())

    def get(self, linear: PreparedLinear, index: int) -> tuple[FloatArray, FloatArray]:
        """Return the weight and bias of one of the maps that are stacked in `linear`."""
        if id(linear) not in self._kept:
            weight, bias = (array.astype(self.dtype, copy=False) for array in (linear.weight, linear.bias))
            self._kept[id(linear)] = (linear, weight, bias)
        _, weight, bias = self._kept[id(linear)]
        size = len(bias) // len(linear.paths)
        rows = slice(index * size, (index + 1) * size)
        return weight[rows], bias[rows]


class Computing(Protocol):
    """What a part may use of the forward that it is in."""

    dtype: np.dtype[Any]
    store: Store
    shown: npt.NDArray[np.bool_]

    @property
    def config(self) -> BertConfig:
        """The sizes and the formulas."""

    @property
    def values(self) -> Mapping[str, FloatArray]:
        """The values of this stage and of the one before it, by name."""

    def part(self, name: str, here: Here, *arguments: Any) -> Any:
        """Compute another part."""

    def layer_weights(self, here: Here) -> LayerWeights:
        """Return the weights of the layer in which a part is computed."""


class Here(NamedTuple):
    """Where a part is computed: the name that it contributes to, its layer, and the forward."""

    name: str
    layer: int | None
    forward: Computing


def _rows(here: Here, table: FloatArray, ids: IntArray) -> FloatArray:
    """Look up rows of a table of embeddings."""
    rows: FloatArray = table[ids].astype(here.forward.dtype)
    return rows


def _total(here: Here, words: FloatArray, types: FloatArray, positions: FloatArray) -> FloatArray:
    return words + types + positions


def _norm(here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    scaled: FloatArray = centered / np.sqrt(variance + x.dtype.type(norm.eps))
    return scaled * norm.weight + norm.bias


def _weights(here: Here, weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    return weight, bias


def _dense(here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Compute x W^T + b of one of the maps that are stacked in `linear`."""
    forward = here.forward
    weight, bias = forward.part("weights", here, *forward.store.get(linear, index))
    y: FloatArray = forward.part("product", here, x, weight)
    return y + bias


def _product(here: Here, x: FloatArray, weight: FloatArray) -> FloatArray:
    y: FloatArray = x @ weight.T
    return y


def _activation(here: Here, x: FloatArray, name: str) -> FloatArray:
    return reference.ACTIVATION_FUNCTIONS[name](x)


def _add(here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    return dense + residual


def _split(here: Here, x: FloatArray, num_heads: int) -> FloatArray:
    """Split columns into heads, (B, S, H) -> (B, A, S, D); head a owns the columns [a D, (a + 1) D)."""
    rows, length, width = x.shape
    return x.reshape(rows, length, num_heads, width // num_heads).transpose(0, 2, 1, 3)


def _scores(here: Here, query: FloatArray, key: FloatArray) -> FloatArray:
    scores: FloatArray = query @ key.transpose(0, 1, 3, 2)
    return scores * query.dtype.type(1 / math.sqrt(query.shape[-1]))


def _mask(here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
    """Give hidden keys the score minus infinity; `shown` (B, S) is True for the others."""
    masked: FloatArray = np.where(shown[:, None, None, :], scores, scores.dtype.type(-np.inf))
    return masked


def _softmax(here: Here, masked: FloatArray) -> FloatArray:
    return reference.softmax(masked)


def _weigh(here: Here, probs: FloatArray, value: FloatArray) -> FloatArray:
    context: FloatArray = probs @ value
    return context


def _merge(here: Here, context: FloatArray) -> FloatArray:
    """Put the heads side by side, (B, A, S, D) -> (B, S, H)."""
    rows, heads, length, size = context.shape
    return context.transpose(0, 2, 1, 3).reshape(rows, length, heads * size)


def _value(here: Here, value: FloatArray) -> FloatArray:
    """Store the value of a name."""
    return value


def _layer(here: Here, layers: tuple[LayerWeights, ...]) -> LayerWeights:
    assert here.layer is not None
    return layers[here.layer]


PARTS: dict[str, Part] = {
    "layer": _layer,
    "rows": _rows,
    "total": _total,
    "norm": _norm,
    "weights": _weights,
    "product": _product,
    "dense": _dense,
    "activation": _activation,
    "add": _add,
    "split": _split,
    "scores": _scores,
    "mask": _mask,
    "softmax": _softmax,
    "weigh": _weigh,
    "merge": _merge,
    "value": _value,
}
"""The parts by name: each is called with `Here` and its own arguments."""
