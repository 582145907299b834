"""`Lesson`: a real model and a text, and what each function of the course is called with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, brief
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.learn.right import layer_weights, run
from minibert.models.bert import BertModel
from minibert.models.loading import named_arrays
from minibert.parity.diagnosis import simulate
from minibert.parity.truth import Padded, Subject
from minibert.tokenizer.bert_tokenizer import BertTokenizer

TEXT = "The river bank is flooded."
PAIR = "Money is safe there."

# The exercises are not checked on more tokens than this, so that a solution in plain loops is fast enough.
_MOST_TOKENS = 24

_TEXTS = (
    "embeddings",
    "Wait... what?! (No.)",
    "It costs $5+tax; a 50% off_sale = 2^3",
    "“Straße”, naïve café — déjà vu\tand\nZÜRICH",
    "a qwzxjkv\u2603 b\u2603 snowman\u2603man",
    "unaffable antidisestablishmentarianism",
)


class Case(NamedTuple):
    """One call of a function.

    Parameters
    ----------
    arguments : tuple
    label : str     what is special about it; "" for the real values of the model
    name : str      the name of the result in trace/names.py, if the catalogue of mistakes can explain it
    known : tuple   the names whose values went in
    eps : float or None     that of the model with which the result is explained; None for its own
    """

    arguments: tuple[Any, ...]
    label: str = ""
    name: str = ""
    known: tuple[str, ...] = ()
    eps: float | None = None


class Lesson:
    """A model, and what the functions are checked on.

    Parameters
    ----------
    name : str or path
        The model, a BERT with GELU: a hub id or a folder.
    text, pair : str
        Two texts, one after the other, on which all steps are checked.

    Raises
    ------
    ValueError
        The model is not a BERT with GELU. For other errors see `BertModel.from_pretrained`.
    """

    def __init__(self, name: str = DEFAULT_MODEL, text: str = TEXT, pair: str = PAIR) -> None:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text={brief(text)}; expected a text with at least one word.")
        self.name, self.text, self.pair = name, text, pair
        self.model = BertModel.from_pretrained(name, backend="numpy", compute_type="float32")
        Subject.of(self.model)
        if self.model.config.activation != "gelu":
            raise ValueError(f"{name} has hidden_act={self.model.config.hidden_act!r}; the exercises are for 'gelu'.")
        self.tokenizer = BertTokenizer.from_pretrained(name)
        self.vocabulary = dict(self.tokenizer.vocab)
        second = pair if self.model.config.type_vocab_size > 1 else None
        encoded = self.tokenizer(text, second, truncation=True, max_length=_MOST_TOKENS, return_tensors="np")
        self.inputs: dict[str, Any] = {key: np.asarray(value) for key, value in encoded.items()}
        self.padded = Padded.of(self.model.config, self.inputs)
        config = self.model.config
        self.config: dict[str, Any] = {
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "layer_norm_eps": config.layer_norm_eps,
        }

    @functools.cached_property
    def weights(self) -> dict[str, FloatArray]:
        """All arrays of the checkpoint by name, float32."""
        return {name.removeprefix("bert."): array for name, array in named_arrays(self.model.weights)}

    @functools.cached_property
    def values(self) -> Mapping[str, FloatArray]:
        """The values of embeddings and layer 0 by name, computed in float32, in padded form."""
        return simulate(self.model, self.inputs, (), record=["embeddings*", "encoder.layer.0*"])

    def model_with(self, eps: float | None) -> BertModel:
        """Return the model, with another layer_norm_eps if one is given."""
        if eps is None:
            return self.model
        config = dataclasses.replace(self.model.config, layer_norm_eps=eps)
        return BertModel.from_pretrained(self.name, config=config, backend="numpy", compute_type="float32")

    @functools.cache  # noqa: B019 (a lesson lives as long as its process)
    def cases(self, step: str) -> list[Case]:
        """Return the calls of a step: the first ones on values of the model, the others on numbers that are special."""
        return _CASES[step](self)

    @functools.cache  # noqa: B019
    def right(self, step: str, index: int, *, plain: bool = False) -> Any:
        """Return the right result of a case in float64, or that of plain code in float32."""
        return run(step, self.cases(step)[index].arguments, np.float32 if plain else np.float64)

    def value(self, name: str) -> FloatArray:
        """Return a value of the only row of the batch."""
        return self.values[name][0]

    def _norm(self, path: str) -> tuple[FloatArray, FloatArray]:
        return self.weights[f"{path}.LayerNorm.weight"], self.weights[f"{path}.LayerNorm.bias"]

    def _layer_path(self, rest: str) -> str:
        return f"encoder.layer.0.{rest}"


_LAYER = "encoder.layer.0"
_SELF = f"{_LAYER}.attention.self"


def _tokenize(lesson: Lesson) -> list[Case]:
    options = (lesson.vocabulary, bool(lesson.tokenizer.do_lower_case))
    return [Case((text, *options), f"the text {text!r}") for text in (lesson.text, *_TEXTS)]


def _embed(lesson: Lesson) -> list[Case]:
    tables = [lesson.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    ids, types = lesson.padded.ids[0], lesson.padded.types[0]
    return [
        Case((ids, types, *tables), name="embeddings.LayerNorm.input"),
        Case((ids[:1], types[:1], *tables), "one token"),
    ]


def _layer_norm(lesson: Lesson) -> list[Case]:
    x, parts, eps = lesson.value("embeddings.LayerNorm.input"), lesson._norm("embeddings"), 0.05
    real = {"name": "embeddings", "known": ("embeddings.LayerNorm.input",)}
    return [
        Case((x, *parts, lesson.config["layer_norm_eps"]), **real),  # type: ignore[arg-type]
        Case((x, *parts, eps), f"eps = {eps}", eps=eps, **real),  # type: ignore[arg-type]
        Case((x[:1] * 1000 + 5, *parts, eps), "one row of large numbers"),
    ]


def _linear(lesson: Lesson) -> list[Case]:
    maps = ((f"{_SELF}.query", "embeddings"), (f"{_LAYER}.intermediate.dense", f"{_LAYER}.attention"))
    cases = [
        Case(
            (lesson.value(given), *(lesson.weights[f"{name}.{part}"] for part in ("weight", "bias"))),
            "" if name.endswith("query") else f"the weights of {name}",
            name,
            (given,),
        )
        for name, given in maps
    ]
    x, weight, bias = cases[1].arguments
    return [*cases, Case((-100 * x[:1], weight[:7], bias[:7]), "one row, and 7 numbers out")]


def _softmax(lesson: Lesson) -> list[Case]:
    scores = lesson.value(f"{_SELF}.scores")
    return [
        Case((scores,), name=f"{_SELF}.probs", known=(f"{_SELF}.scores",)),
        Case((scores[0],), "a matrix, the scores of one head"),
        Case((scores + np.float32(1000),), "large scores, all 1000 higher"),
        Case((scores[0, :1] * 50 - np.float32(1000),), "one row of scores near -1000"),
    ]


def _head(lesson: Lesson) -> list[Case]:
    names = tuple(f"{_SELF}.{name}" for name in ("query", "key", "value"))
    size = lesson.model.config.hidden_size // lesson.config["num_attention_heads"]
    q, k, v = (lesson.value(name) for name in names)
    parts = [slice(a * size, (a + 1) * size) for a in range(lesson.config["num_attention_heads"])]
    cases = [Case((q[:, part], k[:, part], v[:, part]), f"head {a}", _SELF, names) for a, part in enumerate(parts)]
    half = slice(0, max(size // 4, 1))
    return [
        *cases,
        Case((q[:, half], k[:, half], v[:, half]), f"a head of {half.stop} features"),
        Case((q[:1, :size], k[:1, :size], v[:1, :size]), "one token"),
    ]


def _attention(lesson: Lesson) -> list[Case]:
    x, weights, heads = (
        lesson.value("embeddings"),
        layer_weights(lesson.weights, 0),
        lesson.config["num_attention_heads"],
    )
    fewer = next(n for n in range(2, heads + 2) if n > heads or (heads % n == 0 and n < heads))
    cases = [Case((x, weights, heads), name=f"{_LAYER}.attention.output.dense", known=("embeddings",))]
    cases += [Case((x, weights, fewer), f"num_heads = {fewer}")] if fewer <= heads else []
    return [*cases, Case((x[:1], weights, heads), "one token")]


def _gelu(lesson: Lesson) -> list[Case]:
    given = f"{_LAYER}.intermediate.dense"
    line = np.linspace(-12, 12, 97, dtype=np.float32)
    return [
        Case((lesson.value(given),), name=f"{_LAYER}.intermediate", known=(given,)),
        Case((line,), "a vector of numbers from -12 to 12"),
        Case((line[:96].reshape(2, 3, 16) * 1000,), "shape (2, 3, 16), numbers from -12000 to 12000"),
    ]


def _layer(lesson: Lesson) -> list[Case]:
    x, last = lesson.value("embeddings"), lesson.config["num_hidden_layers"] - 1
    heads, eps = lesson.config["num_attention_heads"], lesson.config["layer_norm_eps"]
    return [
        Case((x, layer_weights(lesson.weights, 0), heads, eps), name=_LAYER, known=("embeddings",)),
        Case((x, layer_weights(lesson.weights, last), heads, 0.05), f"the weights of layer {last}, eps = 0.05"),
    ]


def _bert(lesson: Lesson) -> list[Case]:
    ids, types = lesson.padded.ids[0], lesson.padded.types[0]
    fewer = lesson.config | {"num_hidden_layers": max(lesson.config["num_hidden_layers"] // 3, 1)}
    return [
        Case((ids, types, lesson.weights, lesson.config), name="bert"),
        Case(
            (ids[:3], types[:3], lesson.weights, fewer), f"3 tokens, num_hidden_layers = {fewer['num_hidden_layers']}"
        ),
    ]


_CASES: dict[str, Callable[[Lesson], list[Case]]] = {
    "tokenize": _tokenize, "embed": _embed, "layer_norm": _layer_norm, "linear": _linear, "softmax": _softmax,
    "head": _head, "attention": _attention, "gelu": _gelu, "layer": _layer, "bert": _bert,
}  # fmt: skip
