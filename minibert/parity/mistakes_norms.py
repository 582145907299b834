"""Mistakes in LayerNorm (N) and in the activation (G)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert import reference
from minibert.bert.ops import LayerNorm
from minibert.parity.mistake import NORMS, Mistake, part_mistake
from minibert.parity.parts import Here, Part

__all__ = ["ACTIVATIONS", "CURVES", "NORM_MISTAKES", "activation_mistake", "eps_mistake"]

# --- LayerNorm --------------------------------------------------------------------------------------------------------

_EPS_REMEDY = (
    "Take layer_norm_eps of config.json: torch nn.LayerNorm(hidden_size, eps=1e-12); Keras LayerNormalization("
    "epsilon=1e-12); candle layer_norm(size, 1e-12, vb); burn LayerNormConfig::new(d).with_epsilon(1e-12). The "
    "defaults of the frameworks are 1e-5, 1e-3 or 1e-6."
)


def _norm(
    *,
    eps: float | None = None,
    outside: bool = False,
    unbiased: bool = False,
    rms: bool = False,
    weight: bool = True,
    bias: bool = True,
    swapped: bool = False,
) -> Part:
    """Return a LayerNorm with another formula."""

    def part(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
        centered = x if rms else x - x.mean(axis=-1, keepdims=True)
        count = x.shape[-1] - 1 if unbiased else x.shape[-1]
        variance = (centered * centered).sum(axis=-1, keepdims=True) / x.dtype.type(count)
        small = x.dtype.type(norm.eps if eps is None else eps)
        scale, shift = (norm.bias, norm.weight) if swapped else (norm.weight, norm.bias)
        y: FloatArray = centered / (np.sqrt(variance) + small if outside else np.sqrt(variance + small))
        y = y * scale if weight else y
        return y + shift if bias else y

    return part


def eps_mistake(eps: float, *, outside: bool = False) -> Mistake:
    """Return a LayerNorm with this eps, inside or outside the root."""
    number = f"{eps:g}".replace("e-0", "e-")
    if outside:
        text = f"layer_norm: {number} is added to sqrt(variance); layer_norm_eps is added to the variance, in the root"
        return part_mistake(f"N2.{number}", text, _EPS_REMEDY, NORMS, norm=_norm(eps=eps, outside=True))
    text = f"layer_norm_eps: LayerNorm adds {number} to the variance; config.json has another layer_norm_eps"
    return part_mistake(f"N1.{number}", text, _EPS_REMEDY, NORMS, norm=_norm(eps=eps))


def _half(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute the variance in float16; x is scaled, as large activations would be, so that it is infinite."""
    centered = x - x.mean(axis=-1, keepdims=True)
    squares = (centered * x.dtype.type(1024)).astype(np.float16) ** 2
    variance = squares.sum(axis=-1, keepdims=True, dtype=np.float16).astype(x.dtype)
    y: FloatArray = centered * x.dtype.type(1024) / np.sqrt(variance + x.dtype.type(norm.eps))
    return y * norm.weight + norm.bias


def _skip(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    return x


def _last_only(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    return x if here.layer == here.forward.config.num_hidden_layers - 1 else inner(here, x, norm)


def _of_the_other(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    layer = here.forward.layer_weights(here)
    other = layer.output_norm if here.name.endswith(".attention") else layer.attention_norm
    y: FloatArray = inner(here, x, other)
    return y


def _if_tiny(*arguments: Any, **options: Any) -> Mistake:
    """Return a mistake that is harmless if the model's own eps is tiny."""
    mistake = part_mistake(*arguments, **options)
    return dataclasses.replace(mistake, harmless_if=lambda config: config.layer_norm_eps <= 1e-9)


_FORMULA = "LayerNorm is (x - mean) / sqrt(variance + eps) * weight + bias, the variance divided by hidden_size."
_PLAIN_NAMES = "Old checkpoints name the weight gamma and the bias beta. torch: LayerNorm.weight, LayerNorm.bias."
NORM_MISTAKES: tuple[Mistake, ...] = (
    *(eps_mistake(eps) for eps in (1e-5, 1e-6, 1e-3, 1e-7, 1e-12)),
    _if_tiny(
        *("N1.zero", "layer_norm_eps: LayerNorm adds nothing to the variance", _EPS_REMEDY, NORMS),
        norm=_norm(eps=0.0),
        harmless="1e-12 is below the rounding of a variance in float32",
    ),
    _if_tiny(
        "N2.outside",
        "layer_norm_eps: it is added to sqrt(variance); it belongs inside the root, to the variance",
        f"{_FORMULA} torch nn.LayerNorm and candle layer_norm do so.",
        NORMS,
        norm=_norm(outside=True),
        harmless="an eps of 1e-12 is below the rounding of the root too",
    ),
    *(eps_mistake(eps, outside=True) for eps in (1e-6, 1e-5)),
    part_mistake(
        "N3.unbiased",
        "layer_norm: the variance is divided by hidden_size - 1; it must be divided by hidden_size",
        "Divide by hidden_size: torch x.var(-1, unbiased=False); numpy x.var(-1, ddof=0).",
        NORMS,
        norm=_norm(unbiased=True),
    ),
    part_mistake(
        "N3.annotated",
        "layer_norm: the standard deviation is the unbiased one, and 1e-6 is added to it",
        f"{_FORMULA} The Annotated Transformer has another formula; use torch nn.LayerNorm.",
        NORMS,
        norm=_norm(unbiased=True, outside=True, eps=1e-6),
    ),
    part_mistake(
        "N4.last",
        "layer_norm: the last LayerNorm of the encoder is skipped",
        "BERT has a LayerNorm after each attention and after each feed forward, also in the last layer.",
        "output",
        norm=_last_only,
    ),
    *(
        part_mistake(f"N4.no-{symbol}", f"layer_norm: {where} is missing", remedy, symbol, norm=_skip)
        for symbol, where, remedy in (
            ("attention", "the LayerNorm after attention", "Apply attention.output.LayerNorm to dense + residual."),
            ("output", "the LayerNorm after the feed forward", "Apply output.LayerNorm to dense + residual."),
        )
    ),
    part_mistake(
        *("N4.swapped", "layer_norm: weight and bias are exchanged", f"{_FORMULA} {_PLAIN_NAMES}", NORMS),
        norm=_norm(swapped=True),
    ),
    part_mistake(
        *("N4.plain", "layer_norm: neither weight nor bias is applied", f"{_FORMULA} {_PLAIN_NAMES}", NORMS),
        norm=_norm(weight=False, bias=False),
    ),
    part_mistake(
        *("N4.no-weight", "layer_norm: the weight is not applied", f"{_FORMULA} {_PLAIN_NAMES}", NORMS),
        norm=_norm(weight=False),
    ),
    part_mistake(
        *("N4.no-bias", "layer_norm: the bias is not applied", f"{_FORMULA} {_PLAIN_NAMES}", NORMS),
        norm=_norm(bias=False),
    ),
    part_mistake(
        "N4.rms",
        "layer_norm: the mean is not subtracted (RMSNorm)",
        f"{_FORMULA} Use LayerNorm; ggml: ggml_norm, not ggml_rms_norm.",
        NORMS,
        norm=_norm(rms=True),
    ),
    part_mistake(
        "N5.float16",
        "layer_norm: the variance overflows in float16, so that the output is the bias",
        "Compute LayerNorm in float32: torch x.float(); onnxruntime: keep LayerNormalization in float32.",
        NORMS,
        norm=_half,
    ),
    part_mistake(
        "W3.norms",
        "weights: the two LayerNorms of each layer are exchanged",
        "attention.output.LayerNorm follows attention, output.LayerNorm follows the feed forward.",
        ("attention", "output"),
        norm=_of_the_other,
    ),
)

# --- activation -------------------------------------------------------------------------------------------------------


def _curve(function: Callable[[FloatArray], FloatArray]) -> Part:
    def part(inner: Part, here: Here, x: FloatArray, name: str) -> FloatArray:
        return function(x).astype(x.dtype, copy=False)

    return part


def _sigmoid(x: FloatArray) -> FloatArray:
    return x.dtype.type(0.5) * (1 + np.tanh(x.dtype.type(0.5) * x))


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
    y: FloatArray = 1 - t * (0.3480242 + t * (-0.0958798 + t * 0.7478556)) * np.exp(-x * x)
    return np.sign(x) * y


def _erf_5(x: FloatArray) -> FloatArray:
    """Abramowitz and Stegun 7.1.26, error at most 1.5e-7."""
    t = 1 / (1 + x.dtype.type(0.3275911) * np.abs(x))
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    y: FloatArray = 1 - t * (0.254829592 + t * (-0.284496736 + t * series)) * np.exp(-x * x)
    return np.sign(x) * y


CURVES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "gelu_tanh": reference.ACTIVATION_FUNCTIONS["gelu_tanh"],
    "gelu": reference.ACTIVATION_FUNCTIONS["gelu"],
    "gelu in a table of float16": _ggml,
    "quick_gelu": lambda x: x * _sigmoid(x.dtype.type(1.702) * x),
    "relu": reference.ACTIVATION_FUNCTIONS["relu"],
    "silu": reference.ACTIVATION_FUNCTIONS["silu"],
    "none": lambda x: x,
    "leaky_relu": lambda x: np.where(x > 0, x, x.dtype.type(0.01) * x),
    "gelu with a short erf": _gelu_with(_erf_3),
    "gelu with the erf of Abramowitz and Stegun 7.1.26": _gelu_with(_erf_5),
    "tanh": np.tanh,
}
"""The curves that ports apply, by name."""

_IDS = {
    "gelu": "G1.erf",
    "gelu_tanh": "G1.tanh",
    "gelu in a table of float16": "G2.ggml",
    "quick_gelu": "G3.quick",
    "relu": "G3.relu",
    "silu": "G3.silu",
    "none": "G3.none",
    "leaky_relu": "G3.leaky",
    "gelu with a short erf": "G3.erf-3",
    "gelu with the erf of Abramowitz and Stegun 7.1.26": "G3.erf-5",
    "tanh": "G3.tanh",
}
_ACTIVATION_REMEDY = (
    'hidden_act "gelu" is x / 2 * (1 + erf(x / sqrt(2))): torch gelu(approximate="none"); candle .gelu_erf(); ggml: '
    "ggml_gelu_erf; burn Gelu; Keras gelu(approximate=False); JAX gelu(approximate=False)."
)
_GELU_TANH_REMEDY = (
    'hidden_act "gelu_new" and "gelu_pytorch_tanh" are the tanh formula: torch gelu(approximate="tanh"); candle '
    ".gelu(); ggml: ggml_gelu; JAX gelu(approximate=True)."
)


def activation_mistake(curve: str) -> Mistake:
    """Return the mistake of a curve of `CURVES` in the place of hidden_act."""
    what = "no activation is applied" if curve == "none" else f"{curve} is applied"
    text = f"hidden_act: in the feed forward {what}; config.json has another hidden_act"
    remedy = _GELU_TANH_REMEDY if curve == "gelu" else _ACTIVATION_REMEDY
    mistake = part_mistake(
        *(_IDS[curve], text, remedy, "intermediate"),
        harmless="this erf is within 1.5e-7 of the true one" if _IDS[curve] == "G3.erf-5" else "",
        rounds=_IDS[curve] == "G2.ggml",
        activation=_curve(CURVES[curve]),
    )
    return dataclasses.replace(mistake, harmless_if=lambda config: config.activation == "gelu")


ACTIVATIONS: tuple[Mistake, ...] = (
    *(activation_mistake(curve) for curve in CURVES),
    part_mistake(
        "G3.pooler",
        "pooler: tanh is missing; the pooler's output is tanh(dense(first token))",
        "Apply tanh after pooler.dense: torch.tanh; candle .tanh(); ggml_tanh.",
        "pooler",
        activation=_curve(CURVES["none"]),
    ),
)
