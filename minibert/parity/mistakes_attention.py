"""Mistakes in attention (A): scale, heads, query-key-value, mask, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.bert.ops import PreparedLinear
from minibert.parity.mistake import Mistake, part_mistake
from minibert.parity.parts import Here, Part

__all__ = ["ATTENTION_MISTAKES", "leak_mistake", "scale_mistake"]

# --- scale ------------------------------------------------------------------------------------------------------------

_SCALE_REMEDY = (
    "Divide query key^T by sqrt(D), D = hidden_size / num_attention_heads, once: torch scaled_dot_product_attention "
    "does it by itself; ggml_soft_max_ext takes 1 / sqrt(D) as its scale."
)


def scale_mistake(id: str, text: str, factor: Callable[[Here, int], float]) -> Mistake:
    """Return scores that are multiplied by `factor` (of `Here` and D) beside the right scale."""

    def part(inner: Part, here: Here, query: FloatArray, key: FloatArray) -> FloatArray:
        scores: FloatArray = inner(here, query, key)
        return scores * scores.dtype.type(factor(here, query.shape[-1]))

    return part_mistake(id, text, _SCALE_REMEDY, "scores", scores=part)


_SCALES = (
    scale_mistake(
        "A1.none",
        "attention: the scores are not divided by sqrt(D), D = hidden_size / num_attention_heads",
        lambda here, size: math.sqrt(size),
    ),
    scale_mistake(
        "A2.hidden",
        "attention: the scores are divided by sqrt(hidden_size); right is sqrt(hidden_size / num_attention_heads)",
        lambda here, size: math.sqrt(size / here.forward.config.hidden_size),
    ),
    scale_mistake(
        "A2.heads",
        "attention: the scores are divided by sqrt(num_attention_heads); right is the root of the size of a head",
        lambda here, size: math.sqrt(size / here.forward.config.num_attention_heads),
    ),
    scale_mistake(
        "A2.twice",
        "attention: the scores are divided by sqrt(D) twice, so by D = hidden_size / num_attention_heads",
        lambda here, size: 1 / math.sqrt(size),
    ),
)

# --- heads and query-key-value ----------------------------------------------------------------------------------------

_HEADS_REMEDY = (
    "Head a owns the columns a D to (a + 1) D: view (B, S, H) as (B, S, A, D), then transpose to (B, A, S, D); undo "
    "both after attention. torch: x.view(B, S, A, D).transpose(1, 2); ndarray: into_shape, then permuted_axes."
)


def _split_wrongly(inner: Part, here: Here, x: FloatArray, num_heads: int) -> FloatArray:
    """View (S, H) as (A, S, D), without the transposition."""
    rows, length, width = x.shape
    return np.ascontiguousarray(x).reshape(rows, num_heads, length, width // num_heads)


def _merge_wrongly(inner: Part, here: Here, context: FloatArray) -> FloatArray:
    rows, heads, length, size = context.shape
    return np.ascontiguousarray(context).reshape(rows, length, heads * size)


def _split_interleaved(inner: Part, here: Here, x: FloatArray, num_heads: int) -> FloatArray:
    """Give head a the columns a, a + A, a + 2 A, ..."""
    rows, length, width = x.shape
    return x.reshape(rows, length, width // num_heads, num_heads).transpose(0, 3, 1, 2)


def _merge_interleaved(inner: Part, here: Here, context: FloatArray) -> FloatArray:
    rows, heads, length, size = context.shape
    return context.transpose(0, 2, 3, 1).reshape(rows, length, heads * size)


_HEADS = (
    part_mistake(
        "A3.split",
        "attention heads: (S, H) is viewed as (A, S, D) without a transposition, so that heads mix tokens",
        *(_HEADS_REMEDY, ("scores", "context")),
        split=_split_wrongly,
    ),
    part_mistake(
        "A3.merge",
        "attention heads: the context is viewed as (S, H) without the transposition back from (A, S, D)",
        *(_HEADS_REMEDY, "context"),
        merge=_merge_wrongly,
    ),
    part_mistake(
        "A3.both",
        "attention heads: (S, H) is viewed as (A, S, D) and back without a transposition, so that heads mix tokens",
        *(_HEADS_REMEDY, ("scores", "context")),
        split=_split_wrongly,
        merge=_merge_wrongly,
    ),
    part_mistake(
        "A3.interleaved",
        "attention heads: head a has the columns a, a + A, a + 2A, ...; right are the columns a D to (a + 1) D",
        *(_HEADS_REMEDY, ("scores", "context")),
        split=_split_interleaved,
        merge=_merge_interleaved,
    ),
)

_STACK_REMEDY = (
    "A fused weight is [query; key; value], hidden_size rows of each. Compare each third with attention.self.query, "
    ".key and .value of the checkpoint."
)


def _instead(order: tuple[int, int, int]) -> Part:
    """Return a dense part that computes query, key and value with the weights of others."""

    def part(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
        y: FloatArray = inner(here, x, linear, order[index])
        return y

    return part


def _sliced_by_head(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Read the fused result as (A, 3, D); it is (3, A, D)."""
    fused = np.concatenate([inner(here, x, linear, i) for i in range(3)], axis=-1)
    heads = here.forward.config.num_attention_heads
    y: FloatArray = fused.reshape(len(fused), heads, 3, -1)[:, :, index].reshape(len(fused), -1)
    return y


_QKV = ("query", "key", "value")
_STACKED = (
    *(
        part_mistake(
            f"A4.{first}-{second}",
            f"attention.self: the weights of {first} and {second} are exchanged",
            *(_STACK_REMEDY, _QKV),
            dense=_instead(order),
        )
        for first, second, order in (
            ("query", "key", (1, 0, 2)),
            ("query", "value", (2, 1, 0)),
            ("key", "value", (0, 2, 1)),
        )
    ),
    part_mistake(
        "A4.by-head",
        "attention.self: the fused query, key and value are sliced as (A, 3, D); the layout is (3, A, D)",
        *(_STACK_REMEDY, _QKV),
        dense=_sliced_by_head,
    ),
)

# --- mask -------------------------------------------------------------------------------------------------------------

_MASK_REMEDY = (
    "Give the scores of hidden keys minus infinity before softmax: torch scores.masked_fill(mask == 0, float('-inf')), "
    "attention_mask= of the model, (1 - mask) * -1e9 or less, on the axis of the keys; candle: pass attention_mask."
)


def _no_mask(inner: Part, here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
    return scores


def leak_mistake(constant: float, id: str = "A6.weak") -> Mistake:
    """Return a mask that adds `constant` to the scores of hidden keys."""

    def part(inner: Part, here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
        return scores + (~shown[:, None, None, :]) * scores.dtype.type(constant)

    text = f"attention_mask: hidden keys get {constant:g} added to their scores, which is too little to hide them"
    return part_mistake(id, text, _MASK_REMEDY, "probs", mask=part)


def _added_ones(inner: Part, here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
    return scores + shown[:, None, None, :]


def _multiplied(inner: Part, here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
    return scores * shown[:, None, None, :]


def _inverted(inner: Part, here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
    masked: FloatArray = inner(here, scores, ~shown | shown.all(axis=1, keepdims=True))
    return masked


def _as_length(inner: Part, here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
    """Show as many keys as the mask has ones, from the first place on."""
    masked: FloatArray = inner(here, scores, np.arange(shown.shape[1]) < shown.sum(axis=1, keepdims=True))
    return masked


def _zeroed(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    """Set the probs of hidden keys to zero after a softmax over all keys; the rest does not sum to 1."""
    probs: FloatArray = inner(here, masked)
    shown = here.forward.shown
    return probs * shown[:, None, None, :] if len(probs) == len(shown) else probs


def _causal(inner: Part, here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
    later = np.triu(np.ones(scores.shape[-2:], np.bool_), 1)
    # Finite, because a query that sees no key at all must not become NaN.
    return np.where(later, scores.dtype.type(-1e30), np.maximum(inner(here, scores, shown), scores.dtype.type(-1e30)))


_MASKS = (
    part_mistake(
        "A5.none",
        "attention_mask: padding is attended, as if no token were masked",
        *(_MASK_REMEDY, "probs"),
        mask=_no_mask,
    ),
    leak_mistake(-10.0, "A6.minus-ten"),
    part_mistake(
        "A6.added",
        "attention_mask: the mask of ones and zeros is added to the scores, so that hidden keys stay visible",
        *(_MASK_REMEDY, "probs"),
        mask=_added_ones,
    ),
    part_mistake(
        "A6.multiplied",
        "attention_mask: the scores are multiplied by the mask, so that hidden keys have the score 0",
        *(_MASK_REMEDY, "probs"),
        mask=_multiplied,
    ),
    part_mistake(
        "A6.after",
        "attention_mask: the mask is applied after softmax, so that the probs of a token do not sum to 1",
        *(_MASK_REMEDY, "probs"),
        mask=_no_mask,
        softmax=_zeroed,
    ),
    part_mistake(
        "A6.inverted",
        "attention_mask: 0 and 1 are exchanged, so that only the padding is attended",
        *(_MASK_REMEDY, "probs"),
        mask=_inverted,
    ),
    part_mistake(
        "A6.length",
        "attention_mask: it is read as a length, the number of its ones; holes and padding on the left are wrong",
        "Give attention the mask itself, not its sum. onnxruntime's fused attention (optimize_model) takes a length: "
        "do not fuse attention, or give padding on the right only.",
        "probs",
        mask=_as_length,
    ),
    part_mistake(
        "A6.ten-thousand",
        "attention_mask: hidden keys get -10000 added to their scores",
        *(_MASK_REMEDY, "probs"),
        mask=leak_mistake(-1e4).parts["mask"],
        harmless="exp(-10000) is 0 in every format, unless the scores themselves are in the thousands",
    ),
    part_mistake(
        "A7.causal",
        "attention: a causal mask is left on, so that a token does not see the tokens after it",
        "BERT attends in both directions: is_causal=False; llama.cpp: causal_attn = false (pooling or embedding mode).",
        "probs",
        mask=_causal,
    ),
)

# --- rotations and softmax --------------------------------------------------------------------------------------------


def _rotated(x: FloatArray, interleaved: bool) -> FloatArray:
    """Turn pairs of features by angles that grow with the position (RoPE, base 10,000)."""
    length, size = x.shape[-2:]
    half = size // 2
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(half) / max(half, 1))
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    )
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def _rope(interleaved: bool) -> Part:
    def part(inner: Part, here: Here, query: FloatArray, key: FloatArray) -> FloatArray:
        scores: FloatArray = inner(here, _rotated(query, interleaved), _rotated(key, interleaved))
        return scores

    return part


_ROPE_REMEDY = "BERT adds position_embeddings to the words, once. Leave rotary embeddings out."


def _over(axis: int) -> Part:
    def part(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
        finite = np.where(np.isfinite(masked), masked, masked.dtype.type(-1e30))
        exponentials = np.exp(finite - finite.max(axis=axis, keepdims=True))
        probs: FloatArray = exponentials / exponentials.sum(axis=axis, keepdims=True)
        return probs

    return part


def _half_softmax(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    small = masked.astype(np.float16)
    exponentials = np.exp(small - small.max(axis=-1, keepdims=True))
    total = exponentials.sum(axis=-1, keepdims=True, dtype=np.float32).astype(np.float16)
    probs: FloatArray = (exponentials / total).astype(masked.dtype)
    return probs


def _no_shift(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    exponentials = np.exp(masked)
    probs: FloatArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probs


_SOFTMAX_REMEDY = "softmax is over the keys, the last axis of (B, A, S, S): torch softmax(scores, dim=-1)."
_REST = (
    part_mistake(
        *("A8.rope", "attention: rotary position embeddings (RoPE, halves) turn query and key", _ROPE_REMEDY, "scores"),
        scores=_rope(False),
    ),
    part_mistake(
        "A8.rope-pairs",
        "attention: rotary position embeddings (RoPE, neighbouring pairs) turn query and key",
        *(_ROPE_REMEDY, "scores"),
        scores=_rope(True),
    ),
    part_mistake(
        "A9.queries", "softmax: it is over the queries, not the keys", _SOFTMAX_REMEDY, "probs", softmax=_over(-2)
    ),
    part_mistake("A9.heads", "softmax: it is over the heads, not the keys", _SOFTMAX_REMEDY, "probs", softmax=_over(1)),
    part_mistake(
        "A9.float16",
        "softmax: it is computed in float16",
        "Compute softmax in float32: torch softmax(scores, dim=-1, dtype=torch.float32).",
        "probs",
        softmax=_half_softmax,
        rounds=True,
    ),
    part_mistake(
        "A9.no-shift",
        "softmax: the maximum is not subtracted before exp",
        "Subtract each row's maximum, because exp of a large score overflows.",
        "probs",
        softmax=_no_shift,
        harmless="exp(x - m) / sum exp(x - m) is exp(x) / sum exp(x) as long as nothing overflows",
    ),
)

ATTENTION_MISTAKES: tuple[Mistake, ...] = (*_SCALES, *_HEADS, *_STACKED, *_MASKS, *_REST)
