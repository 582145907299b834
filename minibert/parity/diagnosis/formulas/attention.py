"""What mistakes with attention compute: heads, scores, mask, bias, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import reference
from minibert.bert.config import BertConfig
from minibert.bert.ops import PreparedLinear, RelativeBias
from minibert.parity.diagnosis.forward import Here, distances, layer_of
from minibert.parity.diagnosis.mistake import Mistake, Part, part_mistake
from minibert.parity.symbols import IN_LAYER
from minibert.parity.truth import InapplicableError, Model, Padded, to_float16


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


_MOST_PACKED = 2048


def without_borders(inner: Part, here: Here, probs: FloatArray, value: FloatArray) -> FloatArray:
    """Let the tokens of all rows see each other, as if the packed texts were one."""
    forward, size = here.forward, layer_of(here).window
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
