"""Mistakes with weights (W), wiring (C), dropout and low precision (D)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.ops import LayerNorm, PreparedLinear
from minibert.bert.weights import LayerWeights
from minibert.parity.mistake import DENSE, Mistake, part_mistake, square
from minibert.parity.parts import Here, Part
from minibert.parity.subject import InapplicableError
from minibert.parity.truth import to_bfloat16, to_float16, to_tf32
from minibert.parity.vectors import state_name
from minibert.trace.names import EMBEDDINGS, LAYER, POOLER

__all__ = ["DROPOUT", "WEIGHT_MISTAKES"]

_MODULES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_dense": "attention.output.dense",
    "intermediate_dense": "intermediate.dense",
    "output_dense": "output.dense",
    "pooler_dense": "pooler.dense",
}

# --- weights ----------------------------------------------------------------------------------------------------------


def _transposed(inner: Part, here: Here, weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    weight, bias = inner(here, weight, bias)
    return square(weight).T, bias


def _without_bias(inner: Part, here: Here, weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    weight, bias = inner(here, weight, bias)
    return weight, np.zeros_like(bias)


def _another_layer(choose: Callable[[int, int], int]) -> Part:
    def part(inner: Part, here: Here, layers: tuple[LayerWeights, ...]) -> LayerWeights:
        assert here.layer is not None
        return layers[choose(here.layer, len(layers))]

    return part


_LAYER_SYMBOLS = tuple(entry.symbol for entry in LAYER if entry.weights)
_TRANSPOSE_REMEDY = (
    "A weight of the checkpoint is (outputs, inputs): y = x W^T + b. torch nn.Linear, candle Linear and ggml_mul_mat "
    "take it as it is; Keras Dense and tf kernels take its transpose."
)
_BIAS_REMEDY = "Load the tensor whose name ends in .bias and add it: candle linear(...), not linear_no_bias(...)."
_LAYERS_REMEDY = "Layer i has the tensors encoder.layer.i.*; compare one row of a weight in each layer."
_KEY = "a constant that is added to all keys adds the same number to all scores of a query, and softmax removes it"
_WEIGHTS = (
    *(
        part_mistake(
            *(f"W1.{module}", f"weights: {module}.weight is transposed", _TRANSPOSE_REMEDY, symbol),
            weights=_transposed,
        )
        for symbol, module in _MODULES.items()
        if symbol not in ("intermediate_dense", "output_dense")
    ),
    *(
        part_mistake(
            f"W2.{module}",
            f"weights: {module}.bias is missing",
            *(_BIAS_REMEDY, symbol),
            harmless=_KEY if symbol == "key" else "",
            weights=_without_bias,
        )
        for symbol, module in _MODULES.items()
    ),
    part_mistake(*("W2.all", "weights: no linear map has its bias", _BIAS_REMEDY, DENSE), weights=_without_bias),
    part_mistake(
        *("W3.shifted", "weights: each layer has the weights of the layer after it", _LAYERS_REMEDY, _LAYER_SYMBOLS),
        layer=_another_layer(lambda i, count: (i + 1) % count),
    ),
    part_mistake(
        *("W3.reversed", "weights: the layers are in reversed order", _LAYERS_REMEDY, _LAYER_SYMBOLS),
        layer=_another_layer(lambda i, count: count - 1 - i),
    ),
    part_mistake(
        *("W3.first", "weights: all layers have the weights of layer 0", _LAYERS_REMEDY, _LAYER_SYMBOLS),
        layer=_another_layer(lambda i, count: 0),
    ),
)

# --- wiring -----------------------------------------------------------------------------------------------------------


def _no_residual(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    return dense


def _twice(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    return dense + residual + residual


def _sum_before(here: Here) -> str:
    """Return the name of the sum whose LayerNorm gives the residual of this sum."""
    assert here.layer is not None
    if here.name.endswith("attention.output.LayerNorm.input"):
        return (
            "embeddings.LayerNorm.input"
            if here.layer == 0
            else f"encoder.layer.{here.layer - 1}.output.LayerNorm.input"
        )
    return f"encoder.layer.{here.layer}.attention.output.LayerNorm.input"


def _wrong_side(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    name = _sum_before(here)
    if name not in here.forward.values:
        raise InapplicableError(f"{name} is not known here")
    y: FloatArray = inner(here, dense, here.forward.values[name].reshape(residual.shape))
    return y


def _layer_input(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    """Add the input of the layer."""
    assert here.layer is not None
    y: FloatArray = inner(here, dense, here.forward.values[state_name(here.layer)].reshape(residual.shape))
    return y


def _norm_in_front(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Apply the block's LayerNorm to its input."""
    layer = here.forward.layer_weights(here)
    norm = layer.output_norm if here.name.endswith("intermediate.dense") else layer.attention_norm
    at = here._replace(name=f"encoder.layer.{here.layer}.norm-in-front")
    y: FloatArray = inner(here, here.forward.part("norm", at, x, norm), linear, index)
    return y


def _no_norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    return x


def _norm_before_sum(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute residual + LayerNorm(dense)."""
    suffix = "attention.output.dense" if here.name.endswith(".attention") else "output.dense"
    dense = here.forward.values.get(f"encoder.layer.{here.layer}.{suffix}")
    if dense is None:
        raise InapplicableError(f"{suffix} is not known here")
    flat = dense.reshape(x.shape)
    y: FloatArray = inner(here, flat, norm) + (x - flat)
    return y


_ADD_REMEDY = (
    "BERT is post-norm: x = LayerNorm(x + attention(x)), then x = LayerNorm(x + feed_forward(x)). x is the output of "
    "the LayerNorm before."
)
_SUMS = ("attention_sum", "output_sum")
_WIRING = (
    *(
        part_mistake(
            f"C1.no-{symbol.split('_')[0]}",
            f"residual: {where} does not add its input",
            *(_ADD_REMEDY, symbol),
            add=_no_residual,
        )
        for symbol, where in (("attention_sum", "attention"), ("output_sum", "the feed forward"))
    ),
    part_mistake(*("C1.none", "residual: no block adds its input", _ADD_REMEDY, _SUMS), add=_no_residual),
    part_mistake(*("C1.twice", "residual: the input of each block is added twice", _ADD_REMEDY, _SUMS), add=_twice),
    part_mistake(
        "C1.before-norm",
        "residual: the sum before the LayerNorm is added; right is the output of the LayerNorm",
        *(_ADD_REMEDY, _SUMS),
        add=_wrong_side,
    ),
    part_mistake(
        "C1.layer-input",
        "residual: the feed forward adds the input of the layer; right is its own input, the output of attention",
        *(_ADD_REMEDY, "output_sum"),
        add=_layer_input,
    ),
    part_mistake(
        "C1.pre-norm",
        "layer_norm: each LayerNorm is in front of its block (pre-norm)",
        *(_ADD_REMEDY, ("query", "key", "value", "intermediate_dense", "attention", "output")),
        dense=_norm_in_front,
        norm=_no_norm,
    ),
    part_mistake(
        "C1.norm-inside",
        "layer_norm: it is applied before the residual is added, x + LayerNorm(block(x))",
        *(_ADD_REMEDY, ("attention", "output")),
        norm=_norm_before_sum,
    ),
)

# --- dropout ----------------------------------------------------------------------------------------------------------

DROPOUT = 0.1


def _dropped(name: str, value: FloatArray) -> FloatArray:
    """Set a tenth of the numbers to zero, and scale the others; the same ones each time."""
    generator = np.random.default_rng([*name.encode()])
    keep = generator.random(value.shape) >= DROPOUT
    return value * keep / value.dtype.type(1 - DROPOUT)


def _drop(inner: Part, here: Here, *arguments: FloatArray) -> FloatArray:
    return _dropped(here.name, inner(here, *arguments))


def _drop_dense(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    y: FloatArray = inner(here, _dropped(here.name, dense), residual)
    return y


_DROPOUT = part_mistake(
    "D1.dropout",
    "dropout: it is on, as in training; some numbers are zero and the others are larger",
    "Call model.eval() in torch; pass training=False in Keras, deterministic=True in Flax; onnx: export in eval mode.",
    ("embeddings", "probs", *_SUMS),
    norm=_drop,
    softmax=_drop,
    add=_drop_dense,
)

# --- low precision ----------------------------------------------------------------------------------------------------


def _q8_0(weight: FloatArray) -> FloatArray:
    """Round to 8 bits in blocks of 32 with a scale in float16, as ggml does."""
    if weight.shape[-1] % 32:
        raise InapplicableError("rows of a weight in q8_0 are multiples of 32")
    blocks = weight.reshape(*weight.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / weight.dtype.type(127)
    whole = np.round(blocks / np.where(scale, scale, 1))
    return (whole * to_float16(scale)).reshape(weight.shape)


def _int8(weight: FloatArray) -> FloatArray:
    """Round to 8 bits with one scale for the whole weight."""
    scale = np.abs(weight).max() / weight.dtype.type(127)
    rounded: FloatArray = np.round(weight / scale) * scale if scale else weight
    return rounded


def _round_weight(rounding: Callable[[FloatArray], FloatArray]) -> Part:
    """Return a part that rounds the weight of a linear map; the bias stays."""

    def part(inner: Part, here: Here, weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
        weight, bias = inner(here, weight, bias)
        return rounding(weight), bias

    return part


def _round_rows(rounding: Callable[[FloatArray], FloatArray]) -> Part:
    """Return a part that rounds a table of embeddings."""

    def part(inner: Part, here: Here, table: FloatArray, ids: IntArray) -> FloatArray:
        return rounding(inner(here, table, ids))

    return part


def _weights_int8(inner: Part, here: Here, weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    weight, bias = inner(here, weight, bias)
    return _int8(weight), bias


def _dynamic_int8(inner: Part, here: Here, x: FloatArray, weight: FloatArray) -> FloatArray:
    """Multiply in 8 bits: one scale for the weight, a scale and a zero point for all rows of x."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = x.dtype.type((high - low) / 255 or 1.0)
    zero = np.round(-low / scale)
    rounded = (np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale
    y: FloatArray = inner(here, rounded.astype(x.dtype), _int8(weight))
    return y


def _tf32(inner: Part, here: Here, x: FloatArray, weight: FloatArray) -> FloatArray:
    y: FloatArray = inner(here, to_tf32(x), to_tf32(weight))
    return y


def _half_sums(inner: Part, here: Here, x: FloatArray, weight: FloatArray) -> FloatArray:
    """Add up in float16, sixteen products at a time."""
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    y = np.zeros((len(x), len(weight)), np.float16)
    for start in range(0, x.shape[1], 16):
        y = (y.astype(np.float32) + x[:, start : start + 16] @ weight[:, start : start + 16].T).astype(np.float16)
    return y.astype(here.forward.dtype)


def _stored(rounding: Callable[[FloatArray], FloatArray]) -> Part:
    def part(inner: Part, here: Here, value: FloatArray) -> FloatArray:
        return rounding(inner(here, value))

    return part


_LOOKUPS = tuple(entry.symbol for entry in EMBEDDINGS[:3])
_EVERY = tuple(entry.symbol for entry in (*EMBEDDINGS, *LAYER, *POOLER))
_WEIGHT_REMEDY = "Convert the checkpoint without rounding: convert_hf_to_gguf.py with outtype f32; dtype=torch.float32."
_ACTIVATION_REMEDY = "Run the model in float32: torch model.float(); onnxruntime: a float32 export; candle DType::F32."
_PRECISION = (
    *(
        part_mistake(
            f"D2.{id}-weights",
            f"weights: the matrices are rounded to {name}",
            *(_WEIGHT_REMEDY, (*_LOOKUPS, *DENSE)),
            weights=_round_weight(rounding),
            rows=_round_rows(rounding),
        )
        for id, name, rounding in (
            ("float16", "float16", to_float16),
            ("bfloat16", "bfloat16", to_bfloat16),
            ("q8_0", "8 bits in blocks of 32 (q8_0 of ggml)", _q8_0),
        )
    ),
    part_mistake(
        "D2.float16-words",
        "weights: the word embeddings are rounded to float16",
        *(_WEIGHT_REMEDY, _LOOKUPS[0]),
        rows=_round_rows(to_float16),
    ),
    part_mistake(
        "D2.int8-weights",
        "weights: the weights of the linear maps are rounded to 8 bits, with one scale each",
        *("Use the model without quantisation.", DENSE),
        weights=_weights_int8,
    ),
    part_mistake(
        "D2.int8",
        "linear maps: they multiply in 8 bits with a scale of each call (dynamic quantisation)",
        *(
            "Use the model without quantisation: model.onnx, not model_quantized.onnx; transformers.js dtype: 'fp32'.",
            DENSE,
        ),
        product=_dynamic_int8,
        rounds=True,
    ),
    part_mistake(
        "D2.float16",
        "precision: every value is rounded to float16",
        *(_ACTIVATION_REMEDY, _EVERY),
        value=_stored(to_float16),
        rounds=True,
    ),
    part_mistake(
        "D2.bfloat16",
        "precision: every value is rounded to bfloat16",
        *(_ACTIVATION_REMEDY, _EVERY),
        value=_stored(to_bfloat16),
        rounds=True,
    ),
    part_mistake(
        "D2.tf32",
        "linear maps: they multiply in TF32, with 11 bits",
        "torch.backends.cuda.matmul.allow_tf32 = False; NVIDIA_TF32_OVERRIDE=0; JAX "
        "jax_default_matmul_precision='highest'.",
        DENSE,
        product=_tf32,
        rounds=True,
    ),
    part_mistake(
        "D3.float16",
        "linear maps: their sums are added up in float16",
        "Add up in float32: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False; cuBLAS "
        "CUBLAS_COMPUTE_32F; TensorRT: keep the layers in float32.",
        DENSE,
        product=_half_sums,
        rounds=True,
    ),
)

WEIGHT_MISTAKES: tuple[Mistake, ...] = (*_WEIGHTS, *_WIRING, _DROPOUT, *_PRECISION)
