"""What mistakes with weights, biases, residuals and the order of ops compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert import reference
from minibert.bert.ops import LayerNorm, PreparedLinear
from minibert.parity.diagnosis.forward import Here, layer_of
from minibert.parity.diagnosis.mistake import Mistake, Part, part_mistake
from minibert.parity.symbols import IN_LAYER
from minibert.parity.truth import InapplicableError


def weights(symbols: tuple[str, ...] | str, change: Callable[[FloatArray, FloatArray], Any]) -> Mistake:
    """Return the mistake of another weight and bias of a linear map."""
    return part_mistake(symbols, weights=lambda inner, here, weight, bias: change(*inner(here, weight, bias)))


def transposed(weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Transpose the weight."""
    if weight.shape[0] != weight.shape[1] or np.array_equal(weight, weight.T):
        raise InapplicableError(f"a weight of shape {weight.shape} cannot be transposed without an error of shapes")
    return weight.T, bias


def without_bias(weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Set the bias to zero."""
    return weight, np.zeros_like(bias)


def filled_up(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Fill up with zeros what the linear map should make."""
    missing = linear.shape[0] - x.shape[-1]
    if missing < 0:
        raise InapplicableError("the embeddings have more features than the layers")
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


def weights_of(choose: Callable[[int, int], int]) -> Mistake:
    """Return the mistake of another layer's weights, chosen from this layer's index and the number of layers."""
    return part_mistake(IN_LAYER, layer=lambda inner, here, layers: layers[choose(here.layer, len(layers))])


def _value(here: Here, name: str, like: FloatArray) -> FloatArray:
    """Return a value that was computed before, in the form of another one."""
    if name not in here.forward.values:
        raise InapplicableError(f"{name} is not known here")
    return here.forward.values[name].reshape(like.shape)


def sum_before_norm(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    """Take as the residual the sum before its LayerNorm."""
    assert here.layer is not None
    block = f"encoder.layer.{here.layer}.attention.output"
    if here.name == f"{block}.LayerNorm.input":
        block = f"encoder.layer.{here.layer - 1}.output" if here.layer else "embeddings"
        if here.layer == 0 and here.forward.states[0] != block:  # a linear map, not a LayerNorm, is before layer 0
            return inner(here, dense, residual)
    return inner(here, dense, _value(here, f"{block}.LayerNorm.input", residual))


def layer_input(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    """Take as the residual the input of the layer."""
    assert here.layer is not None
    return inner(here, dense, _value(here, here.forward.states[here.layer], residual))


def norm_of_input(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Apply a LayerNorm without weight and bias to the input of the block."""
    norm = LayerNorm("", np.ones(x.shape[-1]), np.zeros(x.shape[-1]), here.forward.config.layer_norm_eps)
    return inner(here, reference.layer_norm(x, norm, dtype=x.dtype), linear, index)


def norm_in_front(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Apply the LayerNorm of the block to the block's input."""
    layer = layer_of(here)
    norm = layer.output_norm if ".intermediate." in here.name else layer.attention_norm
    at = here._replace(name=f"encoder.layer.{here.layer}.norm-in-front")
    return inner(here, here.forward.part("norm", at, x, norm), linear, index)


def norm_behind(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    """Apply the LayerNorm of the block to the sum; the first block of ModernBERT has none."""
    layer, total = layer_of(here), inner(here, dense, residual)
    norm = layer.attention_norm if here.name.endswith(".attention") else layer.output_norm
    at = here._replace(name=f"encoder.layer.{here.layer}.norm-behind")
    return total if norm is None else here.forward.part("norm", at, total, norm)


def norm_before_sum(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute residual + LayerNorm(dense)."""
    block = "attention.output" if here.name.endswith(".attention") else "output"
    dense = _value(here, f"encoder.layer.{here.layer}.{block}.dense", x)
    return inner(here, dense, norm) + (x - dense)


LOGITS = ("logits", "predictions")


def without_pooler(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Apply the last linear map of a head to the hidden states themselves."""
    if (x := here.forward.head_input).shape[1] != linear.shape[1]:
        raise InapplicableError("the embeddings have another number of features than the hidden states")
    return inner(here, x, linear, index)


def changed_logits(change: Callable[[FloatArray], FloatArray]) -> Mistake:
    """Return the mistake of giving something else than the logits, made from them."""
    return part_mistake(LOGITS, value=lambda inner, here, value: change(inner(here, value)))
