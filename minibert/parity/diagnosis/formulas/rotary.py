"""What mistakes with rotary positions, windows and gates compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert.ops import Rotation
from minibert.bert.rotary import Rotary
from minibert.bert.weights import LayerWeights
from minibert.parity.diagnosis.forward import Here, layer_of
from minibert.parity.diagnosis.mistake import Mistake, Part, part_mistake
from minibert.parity.truth import InapplicableError, Model


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
        own, batch = layer_of(here).rotary, here.forward.inputs.packed
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
    """Return the mistake of another window, from the right one and the number in the config; None means all tokens."""

    def part(inner: Part, here: Here, size: int | None) -> int | None:
        return None if size is None else change(size, here.forward.config.local_attention or 0)

    return part_mistake("scores", window=part).but(fits=has_windows)


def has_windows(model: Model) -> bool:
    """Return whether a layer of a model does not see all tokens."""
    return any(layer.window is not None for layer in model.weights.layers)


def counts_both_sides(model: Model) -> bool:
    """Return whether the number in the config is that of both sides together, as in ModernBERT."""
    return has_windows(model) and "local_attention" not in model.config.family.fields


def counts_one_side(model: Model) -> bool:
    """Return whether the number in the config is that of each side, as in UltraBERT."""
    return has_windows(model) and not counts_both_sides(model)


def exchanged_window(inner: Part, here: Here, size: int | None) -> int | None:
    """Give a window to the layers that see all tokens, and none to the others."""
    return None if size is not None else here.forward.config.window


def gated(change: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]) -> Mistake:
    """Return the mistake of another gate and of what it multiplies."""
    part = {"gate": lambda inner, here, gate, up, name: inner(here, *change(gate, up), name)}
    return Mistake(("intermediate",), part, fits=lambda model: model.config.family.is_gated)
