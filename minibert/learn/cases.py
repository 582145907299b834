"""`Cases`: what each function of the course is called with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.learn.right import attention, columns, dense, embed, layer_weights, norm, tables

_TEXTS = (
    "Wait... what?! (No embeddings.)",
    "It costs $5+tax; a 50% off_sale = 2^3",
    "“Straße”, naïve café — déjà vu x²\tand\nZÜRICH",
    "a qwzxjkv\u2603 b\u2603 snowman\u2603man",
    "unaffable antidisestablishmentarianism",
)
# A small vocabulary with capital letters.
_OWN = "[PAD] [UNK] [CLS] [SEP] . bank Bank BA ba ##nk ##NK ##n ##k E É e ##E a A ##a ##A ##rm ##B ##b"
_CASED = "Bank BANK. É ÉA ba baNK Bab BArm"

_EPS = 0.05  # so large that each mistake with eps changes the numbers
_FEW = 40  # rows of the small model's tables


class Case(NamedTuple):
    """One call of a function; the label says what is special about it, and is "" for the real values of the model."""

    arguments: tuple[Any, ...]
    label: str = ""


@dataclasses.dataclass(eq=False)
class Cases:
    """The calls of each function: a method for each exercise gives them, with the label first.

    The first calls are on values of the model, the others on special numbers. Each argument differs between two calls,
    so that a function that does not look at it is not right.

    Parameters
    ----------
    text : str
    words : pair of a dict and a bool
        The vocabulary, and whether the tokenizer lowers case.
    ids, types : int ndarrays of shape (T,)
    weights : mapping
        The model's arrays by name, without "bert.".
    config : mapping
        num_hidden_layers, num_attention_heads, layer_norm_eps.
    """

    text: str
    words: tuple[Mapping[str, int], bool]
    ids: IntArray
    types: IntArray
    weights: Mapping[str, FloatArray]
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._layers, self._heads, self._eps = self.config.values()
        self._tables = tables(self.weights)
        self._first = layer_weights(self.weights, 0)
        # A small model: the first features of each head. Its layer 0 has the weights of the last one.
        self._head_size = max(self._tables[0].shape[1] // self._heads // 4, 1)
        self._fewer = next((n for n in range(2, self._heads) if self._heads % n == 0), 1)
        self._one_layer = {"num_hidden_layers": 1, "num_attention_heads": self._fewer, "layer_norm_eps": _EPS}
        last = layer_weights(self.weights, self._layers - 1)
        weights = {**self.weights, **{f"encoder.layer.0.{name}": array for name, array in last.items()}}
        self._small = {name: self._cut(name, array) for name, array in weights.items()}
        # Three texts of 8 tokens; with ids of the small model's table.
        self._texts, self._kinds = np.resize(self.ids, (3, 8)), np.resize(self.types, (3, 8))
        self._small_ids = self._texts % len(self._small["embeddings.word_embeddings.weight"])
        self._mask = (np.arange(8) < np.array([[8], [5], [3]])).astype(np.int64)

    def of(self, exercise: str) -> list[Case]:
        """Return the calls of an exercise."""
        return [Case(tuple(arguments), label) for label, *arguments in getattr(self, f"_{exercise}")()]

    def _cut(self, name: str, array: FloatArray) -> FloatArray:
        """Return the small model's part of an array."""
        width, small = self._tables[0].shape[1], self._head_size * self._heads
        rows = slice(-_FEW, None) if "_embeddings" in name else slice(len(array) * small // width)
        return array[rows][..., : array.shape[-1] * small // width]

    # --- values between the steps: products of matrices, which take most of the time of a short check -------------

    @functools.cached_property
    def _sum(self) -> FloatArray:
        return embed(self.ids, self.types, *self._tables)

    @functools.cached_property
    def _x(self) -> FloatArray:
        return norm(self._sum, self.weights, "embeddings", self._eps)

    @functools.cached_property
    def _parts(self) -> list[list[FloatArray]]:
        """Query, key and value of each head."""
        three = [dense(self._x, self._first, f"attention.self.{name}") for name in ("query", "key", "value")]
        return [[columns(rows, a, self._heads) for rows in three] for a in range(self._heads)]

    @functools.cached_property
    def _between(self) -> FloatArray:
        """The input of the feed forward."""
        added = self._x + attention(self._x, self._first, self._heads)
        return norm(added, self._first, "attention.output", self._eps)

    @functools.cached_property
    def _small_between(self) -> FloatArray:
        return self._between[:, : self._head_size * self._heads]

    def _two(self, name: str) -> tuple[FloatArray, FloatArray]:
        return self._first[f"{name}.weight"], self._first[f"{name}.bias"]

    # --- the exercises --------------------------------------------------------------------------------------------

    def _tokenize(self) -> list[Any]:
        own = {token: i for i, token in enumerate(_OWN.split())}
        return [
            *((f"the text {text!r}", text, *self.words) for text in (self.text, *_TEXTS)),
            (f"lower_case = False, a small vocabulary and the text {_CASED!r}", _CASED, own, False),
            (f"a small vocabulary and the text {_CASED!r}", _CASED, own, True),
        ]

    def _embed(self) -> list[Any]:
        ids, types, (words, positions, kinds) = self.ids, self.types, self._tables
        few = words[-_FEW:]
        return [
            ("", ids, types, words, positions, kinds),
            ("other tokens", np.roll(ids, 1), types, words, positions, kinds),
            ("one token", ids[:1], types[:1], words, positions, kinds),
            ("other tables", ids[::-1] % len(few), np.roll(types, -1), few, 2 * positions[::-1], 1 + kinds[::-1]),
        ]

    def _layer_norm(self) -> list[Any]:
        scale = [self.weights[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias")]
        return [
            ("", self._sum, *scale, self._eps),
            (f"eps = {_EPS}", self._sum[::-1], *(array[::-1] for array in scale), _EPS),
            ("one row of large numbers", self._sum[:1] * 1000 + 5, *scale, _EPS),
        ]

    def _linear(self) -> list[Any]:
        return [
            ("", self._x, *self._two("attention.self.query")),
            ("more numbers out than in", self._between, *self._two("intermediate.dense")),
            ("other weights", self._between, *self._two("attention.self.key")),
            ("one row, and 7 numbers out", -100 * self._x[:1], *(w[:7] for w in self._two("intermediate.dense"))),
        ]

    def _softmax(self) -> list[Any]:
        scores = np.stack([query @ key.T / query.shape[1] ** 0.5 for query, key, _ in self._parts])
        return [
            ("", scores),
            ("a matrix, the scores of one head", scores[0]),
            ("large scores, all 1000 higher", scores[::-1] + np.float32(1000)),
            ("two rows near 1000 and -1000", scores[0, :2] * 50 + np.array([[1000], [-1000]], np.float32)),
        ]

    def _head(self) -> list[Any]:
        size = self._head_size
        return [
            *((f"head {a}", *part) for a, part in enumerate(self._parts)),
            (f"a head of {size} features", *(part[:, :size] for part in self._parts[0])),
            ("one token", *(part[:1] for part in self._parts[0])),
        ]

    def _attention(self) -> list[Any]:
        small, fewer = layer_weights(self._small, 0), self._fewer
        return [
            ("", self._x, self._first, self._heads),
            (f"a small layer, num_heads = {fewer}", self._small_between, small, fewer),
            ("other tokens", self._small_between[::-1], small, fewer),
            ("one token", self._x[:1], self._first, self._heads),
        ]

    def _gelu(self) -> list[Any]:
        inner = dense(self._between, self._first, "intermediate.dense")
        line = np.linspace(-12, 12, 97, dtype=np.float32)
        return [
            ("", inner),
            ("the other sign", -inner[::-1]),
            ("a vector of numbers from -12 to 12", line),
            ("shape (2, 3, 16), numbers from -12000 to 12000", line[:96].reshape(2, 3, 16) * 1000),
        ]

    def _layer(self) -> list[Any]:
        small, fewer = layer_weights(self._small, 0), self._fewer
        return [
            ("", self._x, self._first, self._heads, self._eps),
            (f"a small layer, num_heads = {fewer}, eps = {_EPS}", self._small_between, small, fewer, _EPS),
            ("other tokens", self._small_between[::-1], small, fewer, _EPS),
        ]

    def _bert(self) -> list[Any]:
        ids, types, one = self.ids, self.types, self._one_layer
        few = one | {"num_hidden_layers": max(self._layers // 3, 1)}
        return [
            ("", ids, types, self.weights, self.config),
            (f"3 tokens, config = {few}", ids[:3], types[-3:], self.weights, few),
            (f"a small model, 3 tokens, config = {one}", self._small_ids[2, -3:], types[:3], self._small, one),
        ]

    def _batch(self) -> list[Any]:
        ids, kinds, mask, small = self._small_ids, self._kinds, self._mask, (self._small, self._one_layer)
        short = {**self.config, "num_hidden_layers": min(self._layers, 2)}
        return [
            ("3 texts", self._texts * mask, kinds * mask, mask, self.weights, short),
            ("2 texts, a small model", ids[1:, 3::-1], kinds[:2, 4:], mask[2::-2, :4], *small),
            ("2 other texts", ids[1:, 4:], kinds[1:, 2:6], mask[2::-2, :4], *small),
        ]
