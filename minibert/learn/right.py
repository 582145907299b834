"""The functions of the course as they are right, in plain NumPy, in the dtype of their arguments.

hints.txt has wrong versions of them: what is written instead of a part of this file. So each part that somebody may
get wrong is in this file once, and written plainly. They also set the limits of rounding errors: sums are made one
number after the other, as in a loop, because NumPy's own have a smaller error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from unicodedata import category, normalize

import numpy as np

from minibert._utils.validation import FloatArray, IntArray

Weights: TypeAlias = Mapping[str, FloatArray]


def tokenize(text: str, vocabulary: Mapping[str, int], lower_case: bool) -> list[str]:
    """Return [CLS], the pieces of all words, [SEP]."""
    if lower_case:
        text = text.lower()
        text = "".join(c for c in normalize("NFD", text) if category(c) != "Mn")
    text = "".join(f" {c} " if is_mark(c) else c for c in text)
    pieces = [piece for word in text.split() for piece in split_word(word, vocabulary)]
    return ["[CLS]", *pieces, "[SEP]"]


def is_mark(c: str) -> bool:
    """Return whether a character is a punctuation mark."""
    return category(c)[0] == "P" or c in "$+<=>^|~\x60"  # \x60 is the backtick, which is a quote in hints.txt


def split_word(word: str, vocabulary: Mapping[str, int]) -> list[str]:
    """Return the pieces of a word."""
    pieces: list[str] = []
    while word:
        mark = "##" if pieces else ""
        ends = [end for end in range(1, len(word) + 1) if mark + word[:end] in vocabulary]
        if not ends:
            return ["[UNK]"]
        end = max(ends)
        pieces.append(mark + word[:end])
        word = word[end:]
    return pieces


def embed(
    token_ids: IntArray, token_types: IntArray, words: FloatArray, positions: FloatArray, types: FloatArray
) -> FloatArray:
    """Return the sum of three rows for each token, (T, H)."""
    t = np.arange(len(token_ids))
    return words[token_ids] + positions[t] + types[token_types]


def row_mean(x: FloatArray) -> FloatArray:
    """Return the mean of each row, (T, 1): x.mean(axis=-1, keepdims=True)."""
    return np.cumsum(x, axis=-1)[..., -1:] / x.shape[-1]


def layer_norm(x: FloatArray, weight: FloatArray, bias: FloatArray, eps: float) -> FloatArray:
    """Return each row with mean 0 and variance 1, scaled by the weight and shifted by the bias."""
    mean = row_mean(x)
    variance = row_mean((x - mean) ** 2)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def linear(x: FloatArray, weight: FloatArray, bias: FloatArray) -> FloatArray:
    """Return x weight^T + bias."""
    return x @ weight.T + bias


def softmax(scores: FloatArray) -> FloatArray:
    """Return exp(scores), divided by its sum over the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def head(query: FloatArray, key: FloatArray, value: FloatArray, hidden: Any = 0) -> FloatArray:
    """Return softmax(query key^T / sqrt(D)) value; `hidden` is added to the scores: minus infinity for padding."""
    scores = query @ key.T / math.sqrt(query.shape[1])
    shares = softmax(scores + hidden)
    return shares @ value


def columns(x: FloatArray, a: int, num_heads: int) -> FloatArray:
    """Return the columns of head a."""
    return np.split(x, num_heads, axis=1)[a]


def dense(x: FloatArray, weights: Weights, name: str) -> FloatArray:
    """Return a linear map with the weights of this name."""
    return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def attention(x: FloatArray, weights: Weights, num_heads: int, hidden: Any = 0) -> FloatArray:
    """Return what all heads found, joined and given to one linear map."""
    query = dense(x, weights, "attention.self.query")
    key = dense(x, weights, "attention.self.key")
    value = dense(x, weights, "attention.self.value")
    heads = [head(*(columns(one, a, num_heads) for one in (query, key, value)), hidden) for a in range(num_heads)]  # type: ignore[call-arg]
    context = np.concatenate(heads, axis=1)
    return dense(context, weights, "attention.output.dense")


def erf(x: FloatArray) -> FloatArray:
    """Return the error function of each number."""
    return np.array([*map(math.erf, x.ravel().tolist())], x.dtype).reshape(x.shape)


def gelu(x: FloatArray) -> FloatArray:
    """Return x times the share of a normal distribution that is below x."""
    return x / 2 * (1 + erf(x / math.sqrt(2)))


def norm(x: FloatArray, weights: Weights, name: str, eps: float) -> FloatArray:
    """Return LayerNorm with the weights of this name."""
    return layer_norm(x, weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"], eps)


def layer(x: FloatArray, weights: Weights, num_heads: int, eps: float, hidden: Any = 0) -> FloatArray:
    """Return the next hidden state: attention, Add & Norm, feed forward, Add & Norm."""
    y = norm(x + attention(x, weights, num_heads, hidden), weights, "attention.output", eps)
    inner = gelu(dense(y, weights, "intermediate.dense"))
    return norm(y + dense(inner, weights, "output.dense"), weights, "output", eps)


def tables(weights: Weights) -> list[FloatArray]:
    """Return the embeddings of words, positions and types."""
    return [weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]


def layer_weights(weights: Weights, i: int) -> dict[str, FloatArray]:
    """Return the weights of layer i, with names that begin after "encoder.layer.i."."""
    prefix = f"encoder.layer.{i}."
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


def bert(
    token_ids: IntArray, token_types: IntArray, weights: Weights, config: Mapping[str, Any], mask: Any = None
) -> tuple[list[FloatArray], FloatArray]:
    """Return the L + 1 hidden states, and the mean of the last one with length 1; `mask` is 0 for padding."""
    heads, eps, layers = (config[name] for name in ("num_attention_heads", "layer_norm_eps", "num_hidden_layers"))
    x = embed(token_ids, token_types, *tables(weights))
    x = norm(x, weights, "embeddings", eps)
    mask = np.ones(len(x), x.dtype) if mask is None else mask.astype(x.dtype)
    hidden = np.where(mask > 0, 0, -np.inf).astype(x.dtype)
    states = [x]
    for i in range(layers):
        x = layer(x, layer_weights(weights, i), heads, eps, hidden)
        states.append(x)
    visible = mask[:, None]
    vector = (x * visible).sum(axis=0) / visible.sum()
    return states, vector / np.sqrt((vector**2).sum())


def batch(
    token_ids: IntArray, token_types: IntArray, mask: IntArray, weights: Weights, config: Mapping[str, Any]
) -> FloatArray:
    """Return the vectors of several texts, (B, H); `mask` (B, S) is 0 for padding."""
    rows = zip(token_ids, token_types, mask, strict=True)
    return np.stack([bert(ids, types, weights, config, row)[1] for ids, types, row in rows])


_IN_ORDER = (tokenize, embed, layer_norm, linear, softmax, head, attention, gelu, layer, bert, batch)
RIGHT: dict[str, Callable[..., Any]] = {function.__name__: function for function in _IN_ORDER}
"""The functions of the exercises by name, in the order of the course."""
