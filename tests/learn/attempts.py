"""The attempts of students in attempts.txt, and the functions that they use."""

# ruff: noqa: RUF005, RUF017, F401

import math
import re
import string
import unicodedata
from pathlib import Path

import numpy as np

from tests.learn.solution import (
    attention,
    bert,
    embed,
    erf,
    gelu,
    head,
    layer,
    layer_norm,
    layer_weights,
    linear,
    softmax,
)

ATTEMPTS_FILE = Path(__file__).with_suffix(".txt")


def read_attempts():
    """Return the attempts: the name of the exercise, what `check` must say of it, and the function."""
    found, line, first_line = [], 1, ""
    for block in re.split(r"\n\n(?=\S)", ATTEMPTS_FILE.read_text(encoding="utf-8")):
        expected, _, body = block.partition("\n")
        if block.startswith("def "):
            first_line = block
        elif not block.startswith("#"):
            made = {}
            source = "\n" * (line - 1) + f"{first_line}\n{body}"  # so that errors name the line of the file
            exec(compile(source, ATTEMPTS_FILE, "exec"), globals(), made)
            ((exercise, function),) = made.items()
            found.append((exercise, expected, function))
        line += block.count("\n") + 2
    return found


# --- what the attempts use --------------------------------------------------------------------------------------------


def plain(text):
    return "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")


def punctuation(c):
    return unicodedata.category(c).startswith("P") or c in "$+<=>^`|~"


def split(text, is_mark=punctuation):
    words = [""]
    for c in text:
        if c.isspace():
            words.append("")
        elif is_mark(c):
            words += [c, ""]
        else:
            words[-1] += c
    return [word for word in words if word]


def pieces_of(word, vocabulary, unknown="[UNK]", mark="##"):
    result, rest = [], word
    while rest:
        for n in range(len(rest), 0, -1):
            piece = rest[:n] if not result else mark + rest[:n]
            if piece in vocabulary:
                break
        else:
            return [unknown]
        result.append(piece)
        rest = rest[n:]
    return result


def joined(words, vocabulary, **options):
    return ["[CLS]"] + sum((pieces_of(word, vocabulary, **options) for word in words), []) + ["[SEP]"]


def projected(x, weights, names=("query", "key", "value")):
    return [linear(x, weights[f"attention.self.{n}.weight"], weights[f"attention.self.{n}.bias"]) for n in names]


def output(context, weights):
    return linear(context, weights["attention.output.dense.weight"], weights["attention.output.dense.bias"])


def of_heads(q, k, v):
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    return softmax(scores) @ v


def normed(x, weights, name, eps):
    return layer_norm(x, weights[name + ".LayerNorm.weight"], weights[name + ".LayerNorm.bias"], eps)


def dense(x, weights, name):
    return linear(x, weights[name + ".weight"], weights[name + ".bias"])


def feed_forward(x, weights):
    return dense(gelu(dense(x, weights, "intermediate.dense")), weights, "output.dense")


def first_state(token_ids, token_types, weights, eps):
    tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    return normed(embed(token_ids, token_types, *tables), weights, "embeddings", eps)


def states_of(token_ids, token_types, weights, config):
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    states = [first_state(token_ids, token_types, weights, eps)]
    for i in range(config["num_hidden_layers"]):
        states.append(layer(states[-1], layer_weights(weights, i), heads, eps))
    return states


def unit(vector):
    return vector / np.linalg.norm(vector)


def batched(token_ids, token_types, mask, weights, config, scores_of=None, mean_of=None):
    """Compute all texts at once, in arrays of four axes."""
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    words, positions, types = (weights[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type"))
    x = words[token_ids] + positions[: token_ids.shape[1]] + types[token_types]
    x = normed(x, weights, "embeddings", eps)
    for i in range(config["num_hidden_layers"]):
        w = layer_weights(weights, i)
        q, k, v = (one.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for one in projected(x, w))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        shares = softmax(np.where(mask[:, None, None], scores, -1e9)) if scores_of is None else scores_of(scores, mask)
        x = normed(x + output((shares @ v).transpose(0, 2, 1, 3).reshape(x.shape), w), w, "attention.output", eps)
        x = normed(x + feed_forward(x, w), w, "output", eps)
    mean = (x * mask[..., None]).sum(1) / mask.sum(1)[:, None] if mean_of is None else mean_of(x, mask)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def heads_of(x, weights, num_heads, choose):
    size = x.shape[1] // num_heads
    query, key, value = projected(x, weights)
    context = np.zeros_like(x)
    for a in range(num_heads):
        if (one := choose(a, size, query, key, value)) is not None:
            context[:, a * size : (a + 1) * size] = head(*one)
    return output(context, weights)
