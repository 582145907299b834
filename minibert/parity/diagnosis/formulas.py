"""What each mistake of the catalogue computes: LayerNorm, attention, inputs, weights, residuals, precision, names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import reference
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, PreparedLinear, RelativeBias, Rotation
from minibert.bert.rotary import Rotary
from minibert.bert.weights import LayerWeights
from minibert.parity.diagnosis.forward import Here, distances
from minibert.parity.diagnosis.mistake import Mistake, Part, part_mistake
from minibert.parity.symbols import DENSE, ENTRIES, NORMS
from minibert.parity.truth import InapplicableError, Model, Padded, to_bfloat16, to_float16

_EVERY = tuple(entry.symbol for entry in ENTRIES)
LOOK_UPS = _EVERY[:3]
IN_LAYER = tuple(dict.fromkeys(entry.symbol for entry in ENTRIES if entry.module and "{i}" in entry.path))


# --- LayerNorm and activation -----------------------------------------------------------------------------------------


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


def _layer_of(here: Here) -> LayerWeights:
    assert here.layer is not None
    return here.forward.weights.layers[here.layer]


def other_norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Apply the other LayerNorm of the layer."""
    layer = _layer_of(here)
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


# --- attention --------------------------------------------------------------------------------------------------------


def scaled(factor: Callable[[int, BertConfig], float]) -> Mistake:
    """Return the mistake of multiplying scores by `factor` (of D and the config) besides the right scale."""

    def part(inner: Part, here: Here, query: FloatArray, key: FloatArray) -> FloatArray:
        scores = inner(here, query, key)
        return scores * scores.dtype.type(factor(query.shape[-1], here.forward.config))

    return part_mistake("scores", scores=part)


def split_wrongly(inner: Part, here: Here, x: FloatArray, num_heads: int) -> FloatArray:
    """View (S, H) as (A, S, D), without the transposition."""
    return np.ascontiguousarray(x).reshape(len(x), num_heads, x.shape[1], -1)


def merge_wrongly(inner: Part, here: Here, context: FloatArray) -> FloatArray:
    """View (A, S, D) as (S, H), without the transposition."""
    return np.ascontiguousarray(context).reshape(len(context), context.shape[2], -1)


def split_interleaved(inner: Part, here: Here, x: FloatArray, num_heads: int) -> FloatArray:
    """Give head a the columns a, a + A, a + 2 A, ..."""
    return x.reshape(*x.shape[:2], -1, num_heads).transpose(0, 3, 1, 2)


def merge_interleaved(inner: Part, here: Here, context: FloatArray) -> FloatArray:
    """Undo `split_interleaved`."""
    return context.transpose(0, 2, 3, 1).reshape(len(context), context.shape[2], -1)


def instead(*order: int) -> Mistake:
    """Return the mistake of computing query, key and value with each other's weights."""
    mistake = part_mistake(
        IN_LAYER[:3], dense=lambda inner, here, x, linear, index: inner(here, x, linear, order[index])
    )
    return mistake.but(fits=stacks_three)


def stacks_three(model: Model) -> bool:
    """Return whether a model has queries, keys and values of one size."""
    return model.config.key_size == model.config.hidden_size


def tiled(inner: Part, here: Here, x: FloatArray, num_heads: int) -> FloatArray:
    """Give keys and values to the heads in turn, instead of to neighbours."""
    return np.tile(x, (1, num_heads // x.shape[1], 1, 1))


def sliced_by_head(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Read the fused result as (A, 3, D); it is (3, A, D)."""
    fused = np.concatenate([inner(here, x, linear, i) for i in range(3)], axis=-1)
    heads = here.forward.config.num_attention_heads
    return fused.reshape(len(fused), heads, 3, -1)[:, :, index].reshape(len(fused), -1)


def mask(change: Callable[[FloatArray, npt.NDArray[np.bool_]], FloatArray]) -> Mistake:
    """Return the mistake of another masking, from scores and `visible`, (B, 1, 1, S), False for hidden keys."""
    return part_mistake("probs", mask=lambda inner, here, scores, visible: change(scores, visible[:, None, None, :]))


def mask_as(change: Callable[[Padded, BertConfig], npt.NDArray[np.bool_]], nothing: str = "") -> Mistake:
    """Return the mistake of right masking with a wrong mask (B, S), made from the right inputs.

    `nothing` says what a row attends to whose mask has no ones: "" everything, as if nothing were masked, "alike" all
    keys alike, "zeros" nothing, so that its context is zero. Frameworks differ in that.
    """

    def mask(inner: Part, here: Here, scores: FloatArray, visible: object) -> FloatArray:
        changed = change(here.forward.true_inputs, here.forward.config)
        empty = ~changed.any(axis=1, keepdims=True)
        if not empty.any() if nothing else (changed | empty).all():
            raise InapplicableError("with these inputs, it is another mistake")
        return inner(here, scores, changed if nothing else changed | empty)

    def softmax(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
        return np.nan_to_num(inner(here, masked), nan=1 / masked.shape[-1] if nothing == "alike" else 0.0)

    return part_mistake("probs", mask=mask, **({"softmax": softmax} if nothing else {}))


def length(inputs: Padded, *_: object) -> npt.NDArray[np.bool_]:
    """Return as many columns of each row as tokens are visible in it."""
    columns = np.arange(inputs.ids.shape[1])
    return columns < inputs.mask.sum(axis=1, keepdims=True)


def leaking(constant: float) -> Mistake:
    """Return the mistake of a mask that only adds a constant to the scores of hidden keys."""
    return mask(lambda scores, visible: scores + ~visible * scores.dtype.type(constant))


def zeroed(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    """Set the probs of hidden keys to zero after a softmax over all keys; the rest does not sum to 1."""
    probs, visible = inner(here, masked), here.forward.visible
    return probs * visible[:, None, None, :] if len(probs) == len(visible) else probs


def causal(inner: Part, here: Here, scores: FloatArray, visible: npt.NDArray[np.bool_]) -> FloatArray:
    """Hide the keys after each query."""
    later = np.triu(np.ones(scores.shape[-2:], np.bool_), 1)
    # Finite, because a query that sees no key at all must not become NaN.
    return np.where(later, scores.dtype.type(-1e30), np.maximum(inner(here, scores, visible), scores.dtype.type(-1e30)))


def bias(change: Callable[[FloatArray, BertConfig], FloatArray]) -> Mistake:
    """Return the mistake of another bias of the scores, made from the right one, (A, S, S)."""
    part = {"bias": lambda inner, here, bias: change(inner(here, bias), here.forward.config)}
    return Mistake(("scores",), part, fits=_has_relative_bias)


def _has_relative_bias(model: Model) -> bool:
    return model.config.family.has_relative_bias


def buckets(bucket_of: Callable[[IntArray], IntArray]) -> Mistake:
    """Return the mistake of other ranges of distances; a distance is the key's column minus the query's column."""

    def part(inner: Part, here: Here, bias: RelativeBias) -> FloatArray:
        table = here.forward.weights.relative_attention_bias
        assert table is not None
        return table[bucket_of(distances(here))].transpose(2, 0, 1).astype(here.forward.dtype)

    return part_mistake("scores", bias=part).but(fits=_has_relative_bias)


def one_way(distances: IntArray) -> IntArray:
    """Return the buckets of a decoder: 32 for keys before the query, none for those after it."""
    length = np.maximum(-distances, 0)
    scale = np.log(np.maximum(length, 16) / 16) / np.log(128 / 16)
    return np.where(length < 16, length, np.minimum(16 + (16 * scale).astype(np.int64), 31))


def _rotated(x: FloatArray, interleaved: bool) -> FloatArray:
    """Turn pairs of features by angles that grow with the position (RoPE, base 10,000)."""
    length, size = x.shape[-2:]
    half = size // 2
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(half) / max(half, 1))
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    first, second = (x[..., part] for part in pairs)
    y = x.copy()
    y[..., pairs[0]] = first * cos - second * sin
    y[..., pairs[1]] = second * cos + first * sin
    return y


def rope(interleaved: bool) -> Mistake:
    """Return the mistake of rotary positions: query and key are rotated before the scores."""

    def part(inner: Part, here: Here, query: FloatArray, key: FloatArray) -> FloatArray:
        return inner(here, _rotated(query, interleaved), _rotated(key, interleaved))

    return part_mistake("scores", scores=part)


ROTATED = ("rotated_query", "rotated_key")


def rotary(change: Callable[[Rotary, Sequence[LayerWeights]], dict[str, Any]]) -> Mistake:
    """Return the mistake of other angles: other fields of `rope_parameters`, from the right ones and all layers."""

    def part(inner: Part, here: Here, _: object) -> Rotation:
        own, batch = _layer_of(here).rotary, here.forward.inputs.packed
        assert own is not None
        parameters = own.parameters | change(own, here.forward.weights.layers)
        return dataclasses.replace(own, parameters=parameters, stored=None)(batch.positions, batch.cu_seqlens)

    return part_mistake(ROTATED, rotation=part)


def of_the_others(own: Rotary, layers: Sequence[LayerWeights]) -> dict[str, Any]:
    """Return the parameters of the layers of the other type."""
    for layer in layers:
        if layer.rotary is not None and layer.rotary is not own:
            return layer.rotary.parameters
    raise InapplicableError("all layers have the same angles")


def before_ntk(own: Rotary, layers: object) -> dict[str, Any]:
    """Return the base without NTK scaling, which config.py keeps as a larger base and a linear factor."""
    factor = own.parameters.get("factor") or 1.0
    return {"rope_type": "default", "rope_theta": own.parameters["rope_theta"] / factor ** (own.D / 2)}


def whole_factor(own: Rotary, layers: object) -> dict[str, Any]:
    """Return the frequencies of an NTK scaling, divided by its whole factor instead of factor ** (2 / D)."""
    return {"factor": (own.parameters.get("factor") or 1.0) ** (own.D / 2)}


def backwards(inner: Callable[..., Rotation], here: Here, right: Rotation) -> Rotation:
    """Return the rotation in the other sense: the sines are negative."""
    rotation = inner(here, right)
    cosines, sines = np.split(rotation.table, 2, axis=1)
    return rotation._replace(table=np.concatenate([cosines, -sines], axis=1))


def in_pairs(inner: Part, here: Here, x: FloatArray, num_heads: int, rotation: Rotation) -> FloatArray:
    """Rotate neighbouring features together."""
    heads = x.reshape(len(x), num_heads, -1)
    order = np.concatenate([np.arange(0, heads.shape[2], 2), np.arange(1, heads.shape[2], 2)])
    y = np.empty_like(heads)
    y[:, :, order] = inner(here, heads[:, :, order].reshape(x.shape), num_heads, rotation).reshape(heads.shape)
    return y.reshape(x.shape)


def window(change: Callable[[int, int], int | None]) -> Mistake:
    """Return the mistake of another window, from the right one and `local_attention`; None means all tokens."""

    def part(inner: Part, here: Here, size: int | None) -> int | None:
        return None if size is None else change(size, here.forward.config.local_attention or 0)

    return part_mistake("scores", window=part).but(fits=has_windows)


def has_windows(model: Model) -> bool:
    """Return whether a layer of a model does not see all tokens."""
    return any(layer.window is not None for layer in model.weights.layers)


def exchanged_window(inner: Part, here: Here, size: int | None) -> int | None:
    """Give a window to the layers that see all tokens, and none to the others."""
    return None if size is not None else (here.forward.config.local_attention or 0) // 2


_MOST_PACKED = 2048


def without_borders(inner: Part, here: Here, probs: FloatArray, value: FloatArray) -> FloatArray:
    """Let the tokens of all rows see each other, as if the packed texts were one."""
    forward, size = here.forward, _layer_of(here).window
    mask, heads = forward.inputs.mask, [forward.split(here, x) for x in forward.attended]
    places = np.arange(mask.sum())
    if len(places) > _MOST_PACKED:
        raise InapplicableError(f"more than {_MOST_PACKED} tokens are too many to try it")
    far = np.abs(places - places[:, None]) > (len(places) if size is None else size)
    result = inner(here, probs, value)
    by_head = result.swapaxes(0, 1)  # a view, (A, B, S, D)
    for head, (query, key, own) in enumerate(zip(*(x.swapaxes(0, 1)[:, mask] for x in (*heads, value)), strict=True)):
        scores = query @ key.T * query.dtype.type(1 / math.sqrt(query.shape[1]))
        by_head[head, mask] = reference.softmax(np.where(far, -np.inf, scores)) @ own
    return result


def gated(change: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]) -> Mistake:
    """Return the mistake of another gate and of what it multiplies."""
    part = {"gate": lambda inner, here, gate, up, name: inner(here, *change(gate, up), name)}
    return Mistake(("intermediate",), part, fits=lambda model: model.config.family.is_gated)


def softmax_over(axis: int) -> Mistake:
    """Return the mistake of a softmax over another axis."""

    def part(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
        finite = np.where(np.isfinite(masked), masked, masked.dtype.type(-1e30))
        exponentials = np.exp(finite - finite.max(axis=axis, keepdims=True))
        return exponentials / exponentials.sum(axis=axis, keepdims=True)

    return part_mistake("probs", softmax=part)


def softmax_in_float16(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    """Compute softmax in float16."""
    small = masked.astype(np.float16)
    exponentials = np.exp(small - small.max(axis=-1, keepdims=True))
    total = exponentials.sum(axis=-1, keepdims=True, dtype=np.float32).astype(np.float16)
    return (exponentials / total).astype(masked.dtype)


def softmax_without_shift(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    """Compute softmax without subtracting the maximum."""
    exponentials = np.exp(masked)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def weighed_in_float16(inner: Part, here: Here, probs: FloatArray, value: FloatArray) -> FloatArray:
    """Add up in float16, one key after the other, rescaled when the maximum grows, as ggml's flash attention does."""
    if probs.shape[-1] > _MOST_KEYS:
        raise InapplicableError(f"with more than {_MOST_KEYS} tokens, this takes too long")
    largest = np.maximum.accumulate(probs, axis=-1)
    largest = np.where(largest > 0, largest, probs.dtype.type(1))
    context = np.zeros((*probs.shape[:3], value.shape[-1]), probs.dtype)
    for j in range(probs.shape[-1]):
        rescaled = to_float16(context * (largest[..., j - 1, None] / largest[..., j, None] if j else 1))
        term = probs[..., j, None] / largest[..., j, None] * to_float16(value[:, :, None, j])
        context = to_float16(rescaled + term)
    return context * largest[..., -1:] / probs.sum(axis=-1, keepdims=True)


_MOST_KEYS = 512


def flash(*symbols: str, **parts: Part) -> Mistake:
    """Return the mistake of an attention that keeps queries, keys and values in float16, beside other mistakes."""

    def scores(inner: Part, here: Here, query: FloatArray, key: FloatArray) -> FloatArray:
        return inner(here, to_float16(query), to_float16(key))

    return Mistake(
        ("scores", "context", *symbols), {"scores": scores, "weigh": weighed_in_float16, **parts}, rounds=True
    )


# --- inputs and embeddings --------------------------------------------------------------------------------------------


_READ = {"ids": "words", "types": "types", "positions": "positions", "mask": "probs"}
_TABLES = {"ids": "vocab_size", "types": "type_vocab_size", "positions": "max_position_embeddings"}


def fed(**fields: Callable[[Padded, BertConfig], Any]) -> Mistake:
    """Return the mistake of other inputs: fields of `Padded`, made from the right inputs and the config."""

    def change(inputs: Padded, config: BertConfig) -> Padded:
        if inputs.embeds is not None and "ids" in fields:
            raise InapplicableError("the inputs are inputs_embeds, without ids")
        made = {name: field(inputs, config) for name, field in fields.items()}
        for name in made.keys() & _TABLES:
            made[name] = made[name].astype(np.int64)
            if not 0 <= made[name].min(initial=0) <= made[name].max(initial=0) < getattr(config, _TABLES[name]):
                raise InapplicableError(f"the model has {getattr(config, _TABLES[name])} rows of {_TABLES[name]}")
        return dataclasses.replace(inputs, **made)

    fits = (lambda model: model.config.type_vocab_size > 1) if "types" in fields else None
    return Mistake(tuple(_READ[name] for name in fields), inputs=change, fits=fits)


def positions(positions_of: Callable[[Padded, int], IntArray], *, counted: bool = False) -> Mistake:
    """Return the mistake of other positions, made from the inputs and the id of padding.

    `counted` says whether it is one of the families that count the tokens that are no padding, or of the others.
    """
    mistake = fed(positions=lambda inputs, config: positions_of(inputs, config.padding_id or 0))
    return mistake.but(fits=lambda model: model.config.family.counts_tokens == counted)


def restart(inputs: Padded, pad: int) -> IntArray:
    """Count the positions of the second segment from 0 again."""
    columns = np.arange(inputs.ids.shape[1])
    second = (inputs.types > 0) & inputs.mask
    begin = np.where(second.any(axis=1), second.argmax(axis=1), 0)[:, None]
    return np.where(columns >= begin, columns - begin, columns)


def total(change: Callable[..., FloatArray]) -> Mistake:
    """Return the mistake of another sum of the look-ups of words, types and positions."""
    return part_mistake("embeddings_sum", total=lambda inner, here, *look_ups: change(*look_ups))


def added(words: FloatArray, types: FloatArray, positions: FloatArray) -> FloatArray:
    """Add the same random vector to every token."""
    vector = np.random.default_rng(0).standard_normal(words.shape[-1]) * words.std()
    return words + types + positions + vector.astype(words.dtype)


def sinusoids(inner: Part, here: Here, table: FloatArray, ids: IntArray) -> FloatArray:
    """Return the positions of Vaswani et al. 2017, section 3.5, instead of the learned ones."""
    width, dtype = table.shape[-1], here.forward.dtype
    angles = ids[:, None] / 10000.0 ** (2 * (np.arange(width) // 2) / width)
    return np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles)).astype(dtype)


def inside(inputs: Padded) -> npt.NDArray[np.bool_]:
    """Return the visible tokens between the first and the last one of each row."""
    count = inputs.mask.cumsum(axis=1)
    return inputs.mask & (count > 1) & (count < count.max(axis=1, keepdims=True))


def unknown(inputs: Padded, config: BertConfig) -> IntArray:
    """Replace every third token inside a row by [UNK]."""
    third = inputs.mask.cumsum(axis=1) % 3 == 0
    return np.where(inside(inputs) & third, 100 if config.vocab_size > 1000 else 1, inputs.ids)


def cut(length: int) -> Mistake:
    """Return the mistake of cutting rows after `length` tokens; the last kept token is the row's final [SEP]."""

    def change(inputs: Padded, config: BertConfig) -> Padded:
        count = inputs.mask.cumsum(axis=1)
        longer = count[:, -1:] > length
        if not longer.any():
            raise InapplicableError(f"no row has more than {length} tokens")
        ends = inputs.ids[np.arange(len(count)), count.argmax(axis=1)][:, None]
        ids = np.where(longer & inputs.mask & (count == length), ends, inputs.ids)
        return dataclasses.replace(inputs, ids=ids, mask=inputs.mask & (count <= length))

    return Mistake(("words", "probs"), inputs=change, fits=lambda model: model.config.longest > length)


# --- weights and residuals --------------------------------------------------------------------------------------------


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
    layer = _layer_of(here)
    norm = layer.output_norm if ".intermediate." in here.name else layer.attention_norm
    at = here._replace(name=f"encoder.layer.{here.layer}.norm-in-front")
    return inner(here, here.forward.part("norm", at, x, norm), linear, index)


def norm_behind(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    """Apply the LayerNorm of the block to the sum; the first block of ModernBERT has none."""
    layer, total = _layer_of(here), inner(here, dense, residual)
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


# --- dropout and low precision ----------------------------------------------------------------------------------------

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
}
"""The roundings of weights, of rows and the whole matrix that they belong to: blocks of ggml, one scale, one a row."""


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
    return part_mistake(_EVERY, value=lambda inner, here, value: rounding(inner(here, value)))


# --- names of states -------------------------------------------------------------------------------------------------


def renamed(symbols: tuple[str, ...], source: Callable[[int, Sequence[str]], str]) -> Mistake:
    """Return the mistake of dumping hidden state i with another name's values; `source` gives that name."""

    def change(values: dict[str, FloatArray], states: Sequence[str]) -> dict[str, FloatArray]:
        pairs = {state: source(i, states) for i, state in enumerate(states)}
        return values | {name: values[held] for name, held in pairs.items() if held in values}

    return Mistake(symbols, dump=change)
