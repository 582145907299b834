"""`norms`: the sizes of what attention really adds up, by algebra on a trace and the weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, check_choice
from minibert.inside.checks import as_trace, check_layers, pad_maps, require
from minibert.trace.trace import Trace

__all__ = ["norms"]

# Numbers of the contributions (keys x queries x H) that are held at a time.
_BLOCK = 2**22

_NEEDED = ["*.value", "*.probs", "hidden_states.*", "*.attention.output.LayerNorm.input"]


def norms(
    model: Any, trace: Any, include: str = "layer_norm", *, heads: bool = False, layers: Any = None
) -> FloatArray:
    """Return ||contribution of token j to token i|| in each layer's attention block.

    The attention weight alone ignores how long the vectors are that it weighs. With value vectors v, output map W of a
    head, probs a, input x and LayerNorm's scale g:

    - "attention": ||sum over heads of a_ij v_j W||; Kobayashi et al. 2020, "Attention is Not Only a Weight" (arXiv
      2004.10102), section 3.
    - "residual": the same with x_i added where j = i.
    - "layer_norm": the same after LayerNorm, which for its true mean and deviation is linear: (y - mean(y)) g /
      deviation for each part y. Kobayashi et al. 2021, "Incorporating Residual and Normalization Layers into Analysis
      of Masked Language Models" (arXiv 2109.07152), section 3.

    The biases of the output map and of LayerNorm belong to no token, and are left out, as in the papers.

    Parameters
    ----------
    model : BertModel, or a model with a head
    trace : Trace of this model, or inputs as the tokenizer gives them
        A trace must have ``*.value`` and ``*.probs``; with the residual also ``hidden_states.*``, and with LayerNorm
        ``*.attention.output.LayerNorm.input``.
    include : {"attention", "residual", "layer_norm"}
    heads : bool
        Return ||a_ij v_j W|| of each attention head; only with include="attention".
    layers : int or ints, optional
        Default: all.

    Returns
    -------
    ndarray of shape (layers, B, S, S), or (layers, B, A, S, S) with `heads`; float64, zeros for masked tokens

    Raises
    ------
    TypeError, ValueError
    """
    check_choice("include", include, ("attention", "residual", "layer_norm"))
    if heads and include != "attention":
        raise ValueError(
            f"heads=True with include={include!r}; the residual and LayerNorm belong to no single head. Give "
            "include='attention'."
        )
    traced = as_trace("norms", model, trace, _NEEDED)
    chosen = check_layers(traced, layers)
    maps = []
    for i in chosen:
        own = f"encoder.layer.{i}.attention"
        names = [f"{own}.self.value", f"{own}.self.probs"]
        names += [_input(i)] if include != "attention" else []
        names += [f"{own}.output.LayerNorm.input"] if include == "layer_norm" else []
        require("norms", traced, names, f"{_NEEDED}")
        layer = model.weights.layers[i]
        maps.append([_of_sequence(layer, traced, i, b, include, heads) for b in range(len(traced.mask))])
    return pad_maps(traced, maps)


def _input(layer: int) -> str:
    return "embeddings" if layer == 0 else f"encoder.layer.{layer - 1}"


def _of_sequence(layer: Any, trace: Trace, i: int, b: int, include: str, heads: bool) -> FloatArray:
    """Return the norms of one sequence in one layer, (S, S) or (A, S, S)."""

    def value(name: str) -> FloatArray:
        return np.asarray(trace.value_of(name, b), dtype=np.float64)

    probs = value(f"encoder.layer.{i}.attention.self.probs")  # (A, S, S)
    A, S, _ = probs.shape
    weight = np.asarray(layer.attention_output.weight, dtype=np.float64)  # (H, H)
    H = len(weight)
    vectors = value(f"encoder.layer.{i}.attention.self.value").reshape(S, A, H // A)
    # Head a owns the columns a D to (a + 1) D - 1 of the output map.
    mapped = np.einsum("sad,had->sah", vectors, weight.reshape(H, A, H // A), optimize=True)  # (S, A, H)
    if heads:
        return np.abs(probs) * np.linalg.norm(mapped, axis=2).T[:, None, :]
    x = value(_input(i)) if include != "attention" else None
    scale = None
    if include == "layer_norm":
        sums = value(f"encoder.layer.{i}.attention.output.LayerNorm.input")
        scale = 1 / np.sqrt(sums.var(axis=1) + layer.attention_norm.eps)  # (S,)
    found = np.empty((S, S))
    size = max(1, _BLOCK // max(1, S * H))
    for start in range(0, S, size):
        keys = np.arange(start, min(start + size, S))
        parts = np.matmul(probs[:, :, keys].transpose(2, 1, 0), mapped[keys])  # (keys, S, H)
        if x is not None:
            parts[np.arange(len(keys)), keys] += x[keys]
        if scale is not None:
            parts -= parts.mean(axis=2, keepdims=True)
            parts *= np.asarray(layer.attention_norm.weight, dtype=np.float64)
        found[:, keys] = np.linalg.norm(parts, axis=2).T
    return found if scale is None else found * scale[:, None]
