"""What mistakes with LayerNorms and activations compute."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert import reference
from minibert.bert.ops import LayerNorm
from minibert.parity.diagnosis.forward import Here, layer_of
from minibert.parity.diagnosis.mistake import Mistake, Part, part_mistake
from minibert.parity.symbols import NORMS


def norm(eps: float | None, *changes: str) -> Mistake:
    """Return the mistake of a LayerNorm with another eps (None: the right one) or another formula.

    The changes: "outside" (eps is added to the root), "unbiased", "mean" (it is subtracted where it should not be, or
    the other way round), "swapped" (weight and bias), "no weight" and "no bias".
    """

    def part(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
        centered = x - x.mean(axis=-1, keepdims=True) if norm.centered != ("mean" in changes) else x
        count = x.shape[-1] - 1 if "unbiased" in changes else x.shape[-1]
        variance = (centered * centered).sum(axis=-1, keepdims=True) / x.dtype.type(count)
        small = x.dtype.type(norm.eps if eps is None else eps)
        scale, shift = (norm.bias, norm.weight) if "swapped" in changes else (norm.weight, norm.bias)
        y = centered / (np.sqrt(variance) + small if "outside" in changes else np.sqrt(variance + small))
        y = y if "no weight" in changes else y * scale
        return y if "no bias" in changes else y + shift

    return part_mistake(NORMS, norm=part)


def norm_in_float16(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute the variance in float16; x is scaled like large activations, so that the variance is infinite."""
    centered = x - x.mean(axis=-1, keepdims=True) if norm.centered else x
    squares = (centered * x.dtype.type(1024)).astype(np.float16) ** 2
    variance = squares.sum(axis=-1, keepdims=True, dtype=np.float16).astype(x.dtype)
    return centered * x.dtype.type(1024) / np.sqrt(variance + x.dtype.type(norm.eps)) * norm.weight + norm.bias


def last_norm_skipped(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Leave out the LayerNorm after the sum in the last layer."""
    return x if here.layer == here.forward.config.num_hidden_layers - 1 else inner(here, x, norm)


def no_norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Leave out the LayerNorm."""
    return x


def other_norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Apply the other LayerNorm of the layer."""
    layer = layer_of(here)
    return inner(here, x, layer.output_norm if here.name.endswith(".attention") else layer.attention_norm)


def _ggml(x: FloatArray) -> FloatArray:
    """Look up the tanh form in a table of float16, as ggml does; beyond 10 there is no table."""
    rounded = x.astype(np.float16).astype(np.float32)
    table = reference.ACTIVATION_FUNCTIONS["gelu_tanh"](rounded).astype(np.float16)
    return np.where(x <= -10, 0, np.where(x >= 10, x, table)).astype(x.dtype)


def _gelu_with(erf: Callable[[FloatArray], FloatArray]) -> Callable[[FloatArray], FloatArray]:
    return lambda x: x * x.dtype.type(0.5) * (1 + erf(x * x.dtype.type(math.sqrt(0.5))))


def _erf_3(x: FloatArray) -> FloatArray:
    """Abramowitz and Stegun 7.1.25, error at most 2.5e-5."""
    t = 1 / (1 + x.dtype.type(0.47047) * np.abs(x))
    return np.sign(x) * (1 - t * (0.3480242 + t * (-0.0958798 + t * 0.7478556)) * np.exp(-x * x))


def _erf_5(x: FloatArray) -> FloatArray:
    """Abramowitz and Stegun 7.1.26, error at most 1.5e-7."""
    t = 1 / (1 + x.dtype.type(0.3275911) * np.abs(x))
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    return np.sign(x) * (1 - t * (0.254829592 + t * (-0.284496736 + t * series)) * np.exp(-x * x))


CURVES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "gelu_tanh": reference.ACTIVATION_FUNCTIONS["gelu_tanh"],
    "gelu": reference.ACTIVATION_FUNCTIONS["gelu"],
    "gelu in a table of float16": _ggml,
    "quick_gelu": lambda x: x * (x.dtype.type(0.5) * (1 + np.tanh(x.dtype.type(0.5) * (x.dtype.type(1.702) * x)))),
    "relu": reference.ACTIVATION_FUNCTIONS["relu"],
    "silu": reference.ACTIVATION_FUNCTIONS["silu"],
    "none": lambda x: x,
    "leaky_relu": lambda x: np.where(x > 0, x, x.dtype.type(0.01) * x),
    "gelu with a short erf": _gelu_with(_erf_3),
    "gelu with a longer erf": _gelu_with(_erf_5),
    "tanh": np.tanh,
}
"""The curves that ports apply, by name."""


def curve(name: str, *symbols: str) -> Mistake:
    """Return the mistake of another activation, a key of `CURVES`."""
    return part_mistake(
        symbols or "intermediate", activation=lambda inner, here, x, _: CURVES[name](x).astype(x.dtype, copy=False)
    )


def table_of_gelu(inner: Part, here: Here, x: FloatArray, name: str) -> FloatArray:
    """Look up gelu in a table of float16; another activation is computed."""
    return _ggml(x) if name.startswith("gelu") else inner(here, x, name)
