"""A right solution of the first ten functions, in the plainest NumPy."""

import math
import unicodedata

import numpy as np

SYMBOLS = "$+<=>^`|~"


def tokenize(text, vocabulary, lower_case):
    if lower_case:
        letters = unicodedata.normalize("NFD", text.lower())
        text = "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")
    spaced = ""
    for letter in text:
        is_mark = letter in SYMBOLS or unicodedata.category(letter).startswith("P")
        spaced += f" {letter} " if is_mark else letter
    tokens = ["[CLS]"]
    for word in spaced.split():
        tokens += split_word(word, vocabulary)
    return [*tokens, "[SEP]"]


def split_word(word, vocabulary):
    pieces = []
    start = 0
    while start < len(word):
        end = len(word)
        mark = "##" if start > 0 else ""
        while end > start and mark + word[start:end] not in vocabulary:
            end -= 1
        if end == start:
            return ["[UNK]"]
        pieces.append(mark + word[start:end])
        start = end
    return pieces


def embed(token_ids, token_types, words, positions, types):
    return words[token_ids] + positions[: len(token_ids)] + types[token_types]


def layer_norm(x, weight, bias, eps):
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + eps) * weight + bias


def linear(x, weight, bias):
    return x @ weight.T + bias


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def head(query, key, value):
    scores = query @ key.T / math.sqrt(query.shape[1])
    return softmax(scores) @ value


def attention(x, weights, num_heads):
    def dense(x, name):
        return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    parts = [np.split(dense(x, f"attention.self.{name}"), num_heads, axis=1) for name in ("query", "key", "value")]
    heads = [head(q, k, v) for q, k, v in zip(*parts, strict=True)]
    return dense(np.concatenate(heads, axis=1), "attention.output.dense")


erf = np.vectorize(math.erf, otypes=[float])


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def layer(x, weights, num_heads, eps):
    def norm(x, name):
        return layer_norm(x, weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"], eps)

    x = norm(x + attention(x, weights, num_heads), "attention.output")
    inner = gelu(linear(x, weights["intermediate.dense.weight"], weights["intermediate.dense.bias"]))
    return norm(x + linear(inner, weights["output.dense.weight"], weights["output.dense.bias"]), "output")


def layer_weights(weights, i):
    prefix = f"encoder.layer.{i}."
    return {name[len(prefix) :]: array for name, array in weights.items() if name.startswith(prefix)}


def bert(token_ids, token_types, weights, config):
    tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    scale, shift = (weights[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias"))
    eps = config["layer_norm_eps"]
    states = [layer_norm(embed(token_ids, token_types, *tables), scale, shift, eps)]
    for i in range(config["num_hidden_layers"]):
        states.append(layer(states[-1], layer_weights(weights, i), config["num_attention_heads"], eps))
    mean = states[-1].mean(axis=0)
    return states, mean / np.sqrt((mean**2).sum())
