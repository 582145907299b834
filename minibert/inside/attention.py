"""Analyses of the attention in a trace: kinds of heads, rollout through the layers. They do not run the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, brief, check_choice
from minibert.inside.validation import as_trace, check_layers, check_model, check_trace, pad_maps, require, shares
from minibert.trace.edits import copied_array
from minibert.trace.trace import Trace

_FUSE: dict[str, Callable[..., Any]] = {"mean": np.mean, "max": np.max, "min": np.min}


class HeadKinds(NamedTuple):
    """Measures of what the attention heads look at; each array has the shape (layers, A), float64.

    The shares are means of the attention that one token gives: to the token before it, the one after it, itself,
    [CLS], [SEP]. Tokens that do not have such a token do not count.

    Parameters
    ----------
    layers : list of int            the layer of each row
    entropy : in nats               0 for a token that looks at one token only; the mean over all tokens
    relative_entropy : 0 to 1       the entropy divided by the entropy of uniform attention; the mean over all tokens
    previous, following, itself : shares
    cls, sep : shares               None if the trace does not have tokens
    distance : in tokens            the mean distance to what is looked at
    """

    layers: list[int]
    entropy: FloatArray
    relative_entropy: FloatArray
    previous: FloatArray
    following: FloatArray
    itself: FloatArray
    cls: FloatArray | None
    sep: FloatArray | None
    distance: FloatArray

    def kinds(self, share: float = 0.5, broad: float = 0.9) -> npt.NDArray[np.str_]:
        """Return a word for each head, (layers, A).

        "previous", "following", "itself", "[CLS]" or "[SEP]" is the largest share, if it is at least `share`. A head
        without such a share is "broad" if its relative entropy is at least `broad`, and "mixed" otherwise.
        """
        names = {"previous": "previous", "following": "following", "itself": "itself", "cls": "[CLS]", "sep": "[SEP]"}
        there = {word: getattr(self, name) for name, word in names.items() if getattr(self, name) is not None}
        stacked = np.stack(list(there.values()))
        largest = np.array(list(there), dtype=np.str_)[stacked.argmax(axis=0)]
        rest = np.where(self.relative_entropy >= broad, "broad", "mixed")
        return np.where(stacked.max(axis=0) >= share, largest, rest)


def heads(trace: Trace, layers: Any = None) -> HeadKinds:
    """Measure what each attention head looks at: entropy, neighbours, special tokens, distance.

    Clark et al. 2019, "What Does BERT Look At?" (arXiv 1906.04341), sections 3 and 3.3. The means are over all tokens
    that are not masked, of all texts. Neighbours are those among these tokens.

    Parameters
    ----------
    trace : Trace
        With probs (``record="attentions.*"``); with ``tokens=`` for the shares of [CLS] and [SEP].
    layers : int or ints, optional
        Default: all.

    Raises
    ------
    TypeError, ValueError
        The probs were not recorded, a layer is not there, or no token is visible.
    """
    trace = check_trace("heads", trace)
    chosen = check_layers(trace, layers)
    names = [f"encoder.layer.{i}.attention.self.probs" for i in chosen]
    require("heads", trace, names, "'attentions.*'")
    lengths = trace.mask.sum(axis=1)
    if not lengths.any():
        raise ValueError("heads was given a trace in which all tokens are masked. Give a text.")
    rows = [_measure(trace, name, lengths) for name in names]
    columns: dict[str, Any] = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    if trace.tokens is None:
        columns["cls"] = columns["sep"] = None
    return HeadKinds(chosen, **columns)


def _measure(trace: Trace, name: str, lengths: npt.NDArray[Any]) -> dict[str, FloatArray]:
    """Return the means of one layer by name, (A,) each; a share that no token has is 0."""
    by_measure: dict[str, list[FloatArray]] = {}
    for b in np.flatnonzero(lengths):
        probs = _of(trace, name, int(b))
        S = probs.shape[1]
        logs = np.log(probs, out=np.zeros_like(probs), where=probs > 0)
        entropy = -(probs * logs).sum(axis=2)  # (A, S)
        place = np.arange(S)
        values = {
            "entropy": entropy,
            "relative_entropy": entropy / np.log(S) if S > 1 else 0 * entropy,
            "previous": probs[:, place[1:], place[:-1]],
            "following": probs[:, place[:-1], place[1:]],
            "itself": probs[:, place, place],
            "distance": (probs * np.abs(place[:, None] - place)).sum(axis=2),
        }
        words = np.array([] if trace.tokens is None else trace.tokens[b], dtype=np.str_)
        for key, special in (("cls", ["[CLS]", "<s>"]), ("sep", ["[SEP]", "</s>"])):
            there = np.isin(words, special)
            values[key] = probs[:, :, there].sum(axis=2) if there.any() else probs[:, :0, 0]
        for key, value in values.items():
            by_measure.setdefault(key, []).append(value)
    joined = {key: np.concatenate(values, axis=1) for key, values in by_measure.items()}
    return {key: value.mean(axis=1) if value.size else np.zeros(len(value)) for key, value in joined.items()}


def _of(trace: Trace, name: str, sequence: int) -> FloatArray:
    """Return the probs of one sequence; an edit can make them negative, and then no share is defined."""
    value = np.asarray(trace.value_of(name, sequence), dtype=np.float64)
    if value.min(initial=0) < 0:
        raise ValueError(f"{name} has negative numbers in sequence {sequence}, because of an edit; expected probs.")
    return value


def rollout(trace: Trace | npt.ArrayLike, residual: float = 0.5, heads: str = "mean", layers: Any = None) -> FloatArray:
    """Multiply the attention of the layers: how much of each input token reaches each token after every layer.

    Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers" (arXiv 2005.00928), section 3: A = residual I +
    (1 - residual) attention, rows scaled to sum 1, then A of the last layer times ... times A of the first one.

    Parameters
    ----------
    trace : Trace, or array of shape (layers, B, S, S) or (layers, B, A, S, S)
        A trace with probs (``record="attentions.*"``); or other maps of attention, such as the results of
        `value_zeroing` and `norms`. These contain the residual already: give ``residual=0``. Rows of zeros are masked
        tokens.
    residual : float, 0 to 1
        The share of the residual connection.
    heads : {"mean", "max", "min"}
        How the attention heads of a layer become one map.
    layers : int or ints, optional
        The layers to multiply, in ascending order; default: all.

    Returns
    -------
    ndarray of shape (layers, B, S, S), float64
        ``[-1, b, i, j]``: the share of token j in token i after the last layer; ``[0]`` after the first one. Rows have
        the sum 1, and zeros for masked tokens.
    """
    check_choice("heads", heads, _FUSE)
    if isinstance(residual, bool) or not isinstance(residual, int | float | np.floating) or not 0 <= residual <= 1:
        raise ValueError(f"residual={brief(residual)}; expected a number from 0 to 1.")
    if isinstance(trace, Trace):
        names = [f"encoder.layer.{i}.attention.self.probs" for i in check_layers(trace, layers)]
        require("rollout", trace, names, "'attentions.*'")
        maps = pad_maps(
            trace, [[_FUSE[heads](_of(trace, name, b), axis=0) for b in range(len(trace.mask))] for name in names]
        )
        mask = trace.mask
    else:
        maps = _check_maps(trace)
        if maps.ndim == 5:
            maps = _FUSE[heads](maps, axis=2)
        if layers is not None:
            raise ValueError("layers= chooses layers of a trace; of an array, choose them yourself: maps[2:5].")
        mask = maps[0].any(axis=-1)
    eye = mask[:, :, None] * np.eye(mask.shape[1])
    result = np.empty_like(maps)
    joined = eye
    for attention_map, into in zip(maps, result, strict=True):
        step = residual * eye + (1 - residual) * attention_map
        joined = shares(step) @ joined
        into[:] = joined
    return result


def _check_maps(values: object) -> FloatArray:
    """Return maps of attention as a float64 array."""
    maps = copied_array("the maps", values)
    if maps.dtype.kind != "f" or maps.ndim not in (4, 5) or maps.shape[-1] != maps.shape[-2] or not len(maps):
        raise TypeError(
            f"rollout was given {brief(values) if not isinstance(values, np.ndarray) else f'an array {maps.shape}'}; "
            "expected a Trace, or a float array of shape (layers, B, S, S) or (layers, B, A, S, S)."
        )
    if not np.isfinite(maps).all() or maps.min(initial=0) < 0:
        raise ValueError("rollout was given negative numbers, NaN or infinity; maps of attention have none.")
    return maps.astype(np.float64)


# Numbers of the contributions (keys x queries x H) that are held at a time.
_BLOCK = 2**22

_INCLUDE = ("attention", "residual", "layer_norm")  # each needs one name more
_NEEDED = ["*.value", "*.probs", "hidden_states.*", "*.attention.output.LayerNorm.input"]


def norms(model: Any, trace: Any, include: str | None = None, *, heads: bool = False, layers: Any = None) -> FloatArray:
    """Return ||contribution of token j to token i|| in each layer's attention block.

    The attention weight alone ignores how long the vectors are that it weighs. With value vectors v, output map W of a
    head, probs a, input x and LayerNorm's scale g:

    - "attention": ||sum over heads of a_ij v_j W||; Kobayashi et al. 2020, "Attention is Not Only a Weight" (arXiv
      2004.10102), section 3.
    - "residual": the same with x_i added where j = i.
    - "layer_norm": the same after LayerNorm. With its true mean and deviation it is linear: (y - mean(y)) g /
      deviation for each part y. Kobayashi et al. 2021, "Incorporating Residual and Normalization Layers into Analysis
      of Masked Language Models" (arXiv 2109.07152), section 3.

    The biases of the output map and of LayerNorm belong to no token, and are left out, as in the papers.

    Parameters
    ----------
    model : BertModel, or a model with a head
    trace : Trace of this model, or inputs as the tokenizer gives them
        A trace must have ``*.value`` and ``*.probs``; with the residual also ``hidden_states.*``, and with LayerNorm
        ``*.attention.output.LayerNorm.input``.
    include : {"attention", "residual", "layer_norm"}, optional
        Default: "layer_norm"; in a ModernBERT "residual", because no LayerNorm follows the attention block there.
    heads : bool
        Return ||a_ij v_j W|| of each attention head; only with include="attention".
    layers : int or ints, optional
        Default: all.

    Returns
    -------
    ndarray of shape (layers, B, S, S), or (layers, B, A, S, S) with `heads`; float64, zeros for masked tokens
    """
    model = check_model("norms", model)
    choices = _INCLUDE[:2] if model.config.family.forward == "norm_first" else _INCLUDE
    include = choices[-1] if include is None else include
    check_choice("include", include, choices)
    if heads and include != "attention":
        raise ValueError(f"heads=True needs include='attention', not {include!r}: the rest belongs to no single head.")
    needed = _NEEDED[: len(choices) + 1]
    traced = as_trace("norms", model, trace, needed)
    chosen = check_layers(traced, layers)
    maps = []
    for i in chosen:
        own = f"encoder.layer.{i}.attention"
        names = [f"{own}.self.value", f"{own}.self.probs", f"hidden_states.{i}", f"{own}.output.LayerNorm.input"]
        require("norms", traced, names[: 2 + _INCLUDE.index(include)], f"{needed}")
        layer = model.weights.layers[i]
        maps.append([_of_sequence(layer, traced, i, b, include, heads) for b in range(len(traced.mask))])
    return pad_maps(traced, maps)


def _of_sequence(layer: Any, trace: Trace, i: int, b: int, include: str, heads: bool) -> FloatArray:
    """Return the norms of one sequence in one layer, (S, S) or (A, S, S)."""

    def value(name: str) -> FloatArray:
        return np.asarray(trace.value_of(name, b), dtype=np.float64)

    probs = value(f"encoder.layer.{i}.attention.self.probs")  # (A, S, S)
    A, S, _ = probs.shape
    weight = np.asarray(layer.attention_output.weight, dtype=np.float64)  # (H, H)
    H = len(weight)
    stored = value(f"encoder.layer.{i}.attention.self.value")
    stored = stored.reshape(S, math.prod(stored.shape[1:]) // (H // A), H // A)
    vectors = np.repeat(stored, A // stored.shape[1], axis=1)  # (S, A, D): heads may share values
    # Head a owns the columns a D to (a + 1) D - 1 of the output map.
    mapped = np.einsum("sad,had->sah", vectors, weight.reshape(H, A, H // A), optimize=True)  # (S, A, H)
    if heads:
        return np.abs(probs) * np.linalg.norm(mapped, axis=2).T[:, None, :]
    x = value(f"hidden_states.{i}") if include != "attention" else None
    scale = None
    if include == "layer_norm":
        sums = value(f"encoder.layer.{i}.attention.output.LayerNorm.input")
        scale = 1 / np.sqrt(sums.var(axis=1) + layer.attention_norm.eps)  # (S,)
    lengths = np.empty((S, S))
    size = max(1, _BLOCK // max(1, S * H))
    for start in range(0, S, size):
        keys = np.arange(start, min(start + size, S))
        parts = np.matmul(probs[:, :, keys].transpose(2, 1, 0), mapped[keys])  # (keys, S, H)
        if x is not None:
            parts[np.arange(len(keys)), keys] += x[keys]
        if scale is not None:
            parts -= parts.mean(axis=2, keepdims=True)
            parts *= np.asarray(layer.attention_norm.weight, dtype=np.float64)
        lengths[:, keys] = np.linalg.norm(parts, axis=2).T
    return lengths if scale is None else lengths * scale[:, None]
