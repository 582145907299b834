"""The ten functions of the course as they are right, in the dtype of their arguments; and misreadings of some.

The formulas are those of `bert.reference`, with the names and the arguments that the exercises have.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from unicodedata import category, normalize

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import reference
from minibert.bert.ops import AttentionInput
from minibert.models import float64

Weights: TypeAlias = Mapping[str, FloatArray]

MISREADINGS = (
    "shortest", "no-mark", "mark-on-all", "rest-unknown", "unknown-dropped", "case", "accents", "punctuation",
    "punctuation-run", "punctuation-dropped", "punctuation-ascii", "punctuation-category", "special",
)  # fmt: skip
"""What `tokenize` can do wrong, each described in hints.md as "T.shortest"."""


def tokenize(text: str, vocabulary: Mapping[str, int], lower_case: bool, wrong: str = "") -> list[str]:
    """Return [CLS], the pieces of all words, [SEP]; `wrong` is one of `MISREADINGS`."""

    def is_mark(c: str) -> bool:
        if wrong == "punctuation-ascii":
            return c in string.punctuation
        return category(c)[0] == "P" or (c in "$+<=>^`|~" and wrong != "punctuation-category")

    if lower_case and wrong != "case":
        text = text.lower()
    if lower_case and wrong != "accents":
        text = "".join(c for c in normalize("NFD", text) if category(c) != "Mn")
    if wrong == "punctuation-run":
        text = " ".join("".join(some) for _, some in itertools.groupby(text, is_mark))
    else:
        form = {"punctuation": "{}", "punctuation-dropped": " "}.get(wrong, " {} ")
        text = "".join(form.format(c) if is_mark(c) else c for c in text)
    pieces = [piece for word in text.split() for piece in _pieces(word, vocabulary, wrong)]
    return pieces if wrong == "special" else ["[CLS]", *pieces, "[SEP]"]


def _pieces(word: str, vocabulary: Mapping[str, int], wrong: str) -> list[str]:
    pieces: list[str] = []
    while word:
        mark = "##" if (pieces and wrong != "no-mark") or wrong == "mark-on-all" else ""
        fitting = [end for end in range(1, len(word) + 1) if mark + word[:end] in vocabulary]
        if not fitting:
            return {"rest-unknown": [*pieces, "[UNK]"], "unknown-dropped": []}.get(wrong, ["[UNK]"])
        end = min(fitting) if wrong == "shortest" else max(fitting)
        pieces, word = [*pieces, mark + word[:end]], word[end:]
    return pieces


def embed(ids: IntArray, kinds: IntArray, words: FloatArray, positions: FloatArray, types: FloatArray) -> FloatArray:
    """Return the sum of three rows for each token, (T, H)."""
    return words[ids] + positions[: len(ids)] + types[kinds]


def layer_norm(x: FloatArray, weight: FloatArray, bias: FloatArray, eps: float) -> FloatArray:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias, row by row."""
    centered = x - _mean(x)
    return centered / np.sqrt(_mean(centered * centered) + eps) * weight + bias


def _mean(x: FloatArray) -> FloatArray:
    # The sum of plain code, one number after the other; NumPy's has a smaller rounding error.
    return np.cumsum(x, axis=-1)[..., -1:] / x.shape[-1]


def linear(x: FloatArray, weight: FloatArray, bias: FloatArray) -> FloatArray:
    """Return x weight^T + bias."""
    return x @ weight.T + bias


def head(query: FloatArray, key: FloatArray, value: FloatArray, num_heads: int = 1) -> FloatArray:
    """Return softmax(query key^T / sqrt(D)) value, head by head."""
    return reference.attention(AttentionInput(query, key, value, np.array([0, len(query)]), num_heads)).context


def attention(x: FloatArray, weights: Weights, num_heads: int) -> FloatArray:
    """Return what all heads found, joined and given to one linear map."""
    q, k, v = (_dense(x, weights, f"attention.self.{name}") for name in ("query", "key", "value"))
    return _dense(head(q, k, v, num_heads), weights, "attention.output.dense")


def _dense(x: FloatArray, weights: Weights, name: str) -> FloatArray:
    return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def gelu(x: FloatArray) -> FloatArray:
    """Return x / 2 (1 + erf(x / sqrt(2)))."""
    return float64.gelu(x) if x.dtype == np.float64 else reference.ACTIVATION_FUNCTIONS["gelu"](x)


def layer(x: FloatArray, weights: Weights, num_heads: int, eps: float) -> FloatArray:
    """Return the next hidden state: attention, Add & Norm, feed forward, Add & Norm."""
    x = _norm(x + attention(x, weights, num_heads), weights, "attention.output.LayerNorm", eps)
    inner = gelu(_dense(x, weights, "intermediate.dense"))
    return _norm(x + _dense(inner, weights, "output.dense"), weights, "output.LayerNorm", eps)


def _norm(x: FloatArray, weights: Weights, name: str, eps: float) -> FloatArray:
    return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], eps)


def tables(weights: Weights) -> list[FloatArray]:
    """Return the embeddings of words, positions and types."""
    return [weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]


def layer_weights(weights: Weights, i: int) -> dict[str, FloatArray]:
    """Return the weights of layer i, with names that begin after "encoder.layer.i."."""
    prefix = f"encoder.layer.{i}."
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


def bert(ids: IntArray, kinds: IntArray, weights: Weights, config: Mapping[str, Any]) -> tuple[list[FloatArray], Any]:
    """Return the L + 1 hidden states, and the mean of the last one with length 1."""
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    states = [_norm(embed(ids, kinds, *tables(weights)), weights, "embeddings.LayerNorm", eps)]
    for i in range(config["num_hidden_layers"]):
        states.append(layer(states[-1], layer_weights(weights, i), heads, eps))
    mean = states[-1].mean(axis=0)
    return states, mean / np.linalg.norm(mean)


_IN_ORDER = (tokenize, embed, layer_norm, linear, reference.softmax, head, attention, gelu, layer, bert)
RIGHT: dict[str, Callable[..., Any]] = {function.__name__: function for function in _IN_ORDER}
"""The ten functions by name, in the order of the course."""


def _whole(step: Callable[..., FloatArray], *arrays: FloatArray) -> FloatArray:
    """Return what a function gives if an array is one row."""
    return step(*(one.reshape(1, -1) for one in arrays)).reshape(arrays[0].shape)


def _scaled_by_tokens(query: FloatArray, key: FloatArray, value: FloatArray) -> FloatArray:
    return head(query * (query.shape[1] / query.dtype.type(len(query))) ** 0.5, key, value)


def _without_dense(x: FloatArray, weights: Weights, num_heads: int) -> FloatArray:
    name, same = "attention.output.dense", np.eye(x.shape[1], dtype=x.dtype)
    return attention(x, {**weights, f"{name}.weight": same, f"{name}.bias": 0 * same[0]}, num_heads)


WRONG: dict[str, Callable[..., FloatArray]] = {
    "layer_norm.whole": lambda x, weight, bias, eps: (
        _whole(lambda row: layer_norm(row, np.ones_like(row), np.zeros_like(row), eps), x) * weight + bias
    ),
    "layer_norm.no-root": lambda x, weight, bias, eps: (
        (x - _mean(x)) / (_mean((x - _mean(x)) ** 2) + eps) * weight + bias
    ),
    "softmax.whole": lambda scores: _whole(reference.softmax, scores),
    "head.swapped": lambda query, key, value: head(key, query, value),
    "head.tokens": _scaled_by_tokens,
    "attention.one-head": lambda x, weights, num_heads: attention(x, weights, 1),
    "attention.no-dense": _without_dense,
    "gelu.no-root": lambda x: gelu(x * x.dtype.type(2**0.5)) / x.dtype.type(2**0.5),
}
"""Misreadings of the other functions, "step.what", which the catalogue of `minibert.parity` does not have."""


def run(step: str, *arguments: Any, dtype: npt.DTypeLike = np.float64) -> Any:
    """Call a right function or one of `WRONG`, with arrays, lists or tensors; it computes in `dtype`."""

    def convert(one: Any) -> Any:
        if isinstance(one, str | int | float) or step == "tokenize":
            return one
        if isinstance(one, Mapping):
            return {name: convert(value) for name, value in one.items()}
        array = np.asarray(one)
        # Rows of the large table of words are added to others, and get their dtype there.
        return array if array.dtype.kind in "iu" or array.size > 2**22 else array.astype(dtype, copy=False)

    return (RIGHT.get(step) or WRONG[step])(*map(convert, arguments))
