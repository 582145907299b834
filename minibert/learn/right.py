"""The ten functions of the course as they are right, in the dtype of their arguments; misreadings of `tokenize`, too.

The formulas are those of `bert.reference`, with the names and the arguments that the exercises have.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias
from unicodedata import category, normalize

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import float64, reference
from minibert.bert.ops import LayerNorm

Weights: TypeAlias = Mapping[str, FloatArray]

MISREADINGS = (
    "shortest", "backwards", "no-mark", "mark-on-all", "rest-unknown", "unknown-dropped", "case", "accents",
    "punctuation", "punctuation-run", "punctuation-dropped", "punctuation-ascii", "punctuation-category", "special",
)  # fmt: skip
"""What `tokenize` can do wrong, each described in hints.md as "T.shortest"."""


def tokenize(text: str, vocabulary: Mapping[str, int], lower_case: bool, wrong: str = "") -> list[str]:
    """Return [CLS], the pieces of all words, [SEP]; `wrong` is one of `MISREADINGS`."""
    if lower_case and wrong != "case":
        text = text.lower()
    if lower_case and wrong != "accents":
        text = "".join(c for c in normalize("NFD", text) if category(c) != "Mn")
    if wrong == "punctuation-run":
        marks = [_is_mark(c, wrong) for c in f"{text} "]
        text = "".join(c if mark == after else f"{c} " for c, mark, after in zip(text, marks, marks[1:], strict=True))
    elif wrong != "punctuation":
        space = " " if wrong == "punctuation-dropped" else " {} "
        text = "".join(space.format(c) if _is_mark(c, wrong) else c for c in text)
    pieces = [piece for word in text.split() for piece in _pieces(word, vocabulary, wrong)]
    return pieces if wrong == "special" else ["[CLS]", *pieces, "[SEP]"]


def _is_mark(c: str, wrong: str) -> bool:
    if wrong == "punctuation-ascii":
        return c in string.punctuation
    return category(c)[0] == "P" or (c in "$+<=>^`|~" and wrong != "punctuation-category")


def _pieces(word: str, vocabulary: Mapping[str, int], wrong: str) -> list[str]:
    pieces: list[str] = []
    first, last = 0, len(word)
    while first < last:
        cuts = range(first + 1, last + 1) if wrong == "shortest" else range(last, first, -1)
        if wrong == "backwards":
            cuts = range(first, last)
        for cut in cuts:
            piece = word[cut:last] if wrong == "backwards" else word[first:cut]
            inner = cut > 0 if wrong == "backwards" else first > 0
            marked = f"##{piece}" if (inner and wrong != "no-mark") or wrong == "mark-on-all" else piece
            if marked in vocabulary:
                break
        else:
            return {"rest-unknown": [*pieces, "[UNK]"], "unknown-dropped": []}.get(wrong, ["[UNK]"])
        if wrong == "backwards":
            pieces, last = [marked, *pieces], cut
        else:
            pieces, first = [*pieces, marked], cut
    return pieces


def embed(ids: IntArray, kinds: IntArray, words: FloatArray, positions: FloatArray, types: FloatArray) -> FloatArray:
    """Return the sum of three rows for each token, (T, H)."""
    total: FloatArray = words[ids] + positions[: len(ids)] + types[kinds]
    return total


def layer_norm(x: FloatArray, weight: FloatArray, bias: FloatArray, eps: float) -> FloatArray:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias, row by row."""
    return reference.layer_norm(x, LayerNorm("", weight, bias, eps), dtype=x.dtype)


def linear(x: FloatArray, weight: FloatArray, bias: FloatArray) -> FloatArray:
    """Return x weight^T + bias."""
    return x @ weight.T + bias


softmax = reference.softmax


def head(query: FloatArray, key: FloatArray, value: FloatArray, num_heads: int = 1) -> FloatArray:
    """Return softmax(query key^T / sqrt(D)) value, head by head."""
    return reference.attention(query, key, value, np.array([0, len(query)]), num_heads).context


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


def bert(ids: IntArray, kinds: IntArray, weights: Weights, config: Mapping[str, Any]) -> tuple[list[FloatArray], Any]:
    """Return the L + 1 hidden states, and the mean of the last one with length 1."""
    words, positions, types = (weights[f"embeddings.{name}_embeddings.weight"] for name in _TABLES)
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    states = [_norm(embed(ids, kinds, words, positions, types), weights, "embeddings.LayerNorm", eps)]
    for i in range(config["num_hidden_layers"]):
        states.append(layer(states[-1], layer_weights(weights, i), heads, eps))
    mean = states[-1].mean(axis=0)
    return states, mean / np.linalg.norm(mean)


_TABLES = ("word", "position", "token_type")


def layer_weights(weights: Weights, i: int) -> dict[str, FloatArray]:
    """Return the weights of layer i, with names that begin after "encoder.layer.i."."""
    prefix = f"encoder.layer.{i}."
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


_IN_ORDER: tuple[Callable[..., Any], ...] = (
    tokenize,
    embed,
    layer_norm,
    linear,
    softmax,
    head,
    attention,
    gelu,
    layer,
    bert,
)
RIGHT: dict[str, Callable[..., Any]] = {function.__name__: function for function in _IN_ORDER}
"""The ten functions by name, in the order of the course."""


def run(step: str, arguments: Sequence[Any], dtype: npt.DTypeLike = np.float64) -> Any:
    """Call a right function with arguments of any kind (arrays, lists, tensors); it computes in `dtype`."""

    def convert(one: Any) -> Any:
        if isinstance(one, str | int | float) or step == "tokenize":
            return one
        if isinstance(one, Mapping):
            return {name: convert(value) for name, value in one.items()}
        array = np.asarray(one)
        # Rows of the large table of words are added to others, and get their dtype there.
        return array if array.dtype.kind in "iu" or array.size > 2**22 else array.astype(dtype, copy=False)

    return RIGHT[step](*map(convert, arguments))


def find_misreadings(
    texts: Sequence[str], given: Sequence[Sequence[str]], vocabulary: Mapping[str, int], lower_case: bool
) -> list[str]:
    """Return the misreadings that make these tokens of the texts."""
    made = {wrong: [tokenize(text, vocabulary, lower_case, wrong) for text in texts] for wrong in MISREADINGS}
    return [f"T.{wrong}" for wrong, tokens in made.items() if tokens == [[*one] for one in given]]
