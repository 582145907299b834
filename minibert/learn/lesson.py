"""`Lesson`: a real model and a text, and what each function of the course is called with."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, brief
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.learn.right import layer_weights, run, tables
from minibert.models.bert import BertModel
from minibert.models.loading import named_arrays
from minibert.parity.diagnosis import simulate
from minibert.parity.truth import Padded
from minibert.tokenizer.bert_tokenizer import BertTokenizer

TEXT = "The river bank is flooded."
PAIR = "Money is safe there."

# The exercises are not checked on more tokens than this, so that a solution in plain loops is fast enough.
_MOST_TOKENS = 24

_TEXTS = (
    "Wait... what?! (No embeddings.)",
    "It costs $5+tax; a 50% off_sale = 2^3",
    "“Straße”, naïve café — déjà vu\tand\nZÜRICH",
    "a qwzxjkv\u2603 b\u2603 snowman\u2603man",
    "unaffable antidisestablishmentarianism",
)

_LAYER = "encoder.layer.0"
_SELF = f"{_LAYER}.attention.self"
_EPS = 0.05  # so large that each mistake with eps changes the numbers


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
    model : str or path
        A BERT with GELU: a hub id or a folder.
    text, pair : str
        Two texts, one after the other, on which all steps are checked.

    Raises
    ------
    ValueError
        The model is not a BERT with GELU. For other errors see `BertModel.from_pretrained`.
    """

    def __init__(self, model: str = DEFAULT_MODEL, text: str | None = None, pair: str = PAIR) -> None:
        text = TEXT if text is None else text
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text={brief(text)}; expected a text with at least one word.")
        self.name, self.text = model, text
        self.model = BertModel.from_pretrained(model, backend="numpy", compute_type="float32")
        config = self.model.config
        if (config.model_type, config.activation) != ("bert", "gelu"):
            kind = f"model_type={config.model_type!r} and hidden_act={config.hidden_act!r}"
            raise ValueError(f"{model} has {kind}; the exercises are for 'bert' and 'gelu'.")
        self.tokenizer = BertTokenizer.from_pretrained(model)
        self.vocabulary = dict(self.tokenizer.vocab)
        second = pair if config.type_vocab_size > 1 else None
        encoded = self.tokenizer(text, second, truncation=True, max_length=_MOST_TOKENS, return_tensors="np")
        self.inputs: dict[str, Any] = {key: np.asarray(value) for key, value in encoded.items()}
        self.padded = Padded.of(config, self.inputs)
        names = ("num_hidden_layers", "num_attention_heads", "layer_norm_eps")
        self.config: dict[str, Any] = {name: getattr(config, name) for name in names}
        self.weights = {name.removeprefix("bert."): array for name, array in named_arrays(self.model.weights)}

    def model_with(self, eps: float | None) -> BertModel:
        """Return the model, with another layer_norm_eps if one is given."""
        if eps is None:
            return self.model
        config = dataclasses.replace(self.model.config, layer_norm_eps=eps)
        return BertModel.from_pretrained(self.name, config=config, backend="numpy", compute_type="float32")

    @functools.cache  # noqa: B019 (a lesson lives as long as its process)
    def right(self, step: str, index: int, *, plain: bool = False) -> list[Any]:
        """Return the right result of a case in float64, or that of plain code in float32: tokens, or arrays."""
        result = run(step, *self.cases[step][index].arguments, dtype=np.float32 if plain else np.float64)
        if isinstance(result, tuple):  # the states and the vector
            return [*result[0], result[1]]
        return result if isinstance(result, list) else [result]

    @functools.cached_property
    def cases(self) -> dict[str, list[Case]]:
        """The calls of each step: the first ones on values of the model, the others on numbers that are special."""
        record = ["embeddings*", f"{_LAYER}*"]
        values = {name: one[0] for name, one in simulate(self.model, self.inputs, (), record=record).items()}
        ids, types, three = self.padded.ids[0], self.padded.types[0], tables(self.weights)
        layers, heads, eps = self.config.values()
        size = self.model.config.hidden_size // heads
        x, scores, inner = values["embeddings"], values[f"{_SELF}.scores"], values[f"{_LAYER}.intermediate.dense"]
        first, last = (layer_weights(self.weights, i) for i in (0, layers - 1))

        def two(name: str) -> tuple[FloatArray, FloatArray]:
            return self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]

        total = "embeddings.LayerNorm.input"
        norm, dense = two("embeddings.LayerNorm"), two(f"{_LAYER}.intermediate.dense")
        qkv = tuple(f"{_SELF}.{name}" for name in ("query", "key", "value"))
        q, k, v = (values[name] for name in qkv)
        part, *parts = (
            slice(a * n, (a + 1) * n) for a, n in [(0, max(size // 4, 1)), *((a, size) for a in range(heads))]
        )
        fewer = next((n for n in range(2, heads) if heads % n == 0), 1)
        some = self.config | {"num_hidden_layers": max(layers // 3, 1)}
        line = np.linspace(-12, 12, 97, dtype=np.float32)
        words = (self.vocabulary, bool(self.tokenizer.do_lower_case))
        return {
            "tokenize": [Case((text, *words), f"the text {text!r}") for text in (self.text, *_TEXTS)],
            "embed": [Case((ids, types, *three), "", total), Case((ids[:1], types[:1], *three), "one token")],
            "layer_norm": [
                Case((values[total], *norm, eps), "", "embeddings", (total,)),
                Case((values[total], *norm, _EPS), f"eps = {_EPS}", "embeddings", (total,), _EPS),
                Case((values[total][:1] * 1000 + 5, *norm, _EPS), "one row of large numbers"),
            ],
            "linear": [
                Case((x, *two(qkv[0])), "", qkv[0], ("embeddings",)),
                Case((values[f"{_LAYER}.attention"], *dense), "more numbers out than in"),
                Case((-100 * x[:1], *(one[:7] for one in dense)), "one row, and 7 numbers out"),
            ],
            "softmax": [
                Case((scores,), "", f"{_SELF}.probs", (f"{_SELF}.scores",)),
                Case((scores[0],), "a matrix, the scores of one head"),
                Case((scores + np.float32(1000),), "large scores, all 1000 higher"),
                Case((scores[0, :1] * 50 - np.float32(1000),), "one row of scores near -1000"),
            ],
            "head": [
                *(Case((q[:, one], k[:, one], v[:, one]), f"head {a}", _SELF, qkv) for a, one in enumerate(parts)),
                Case((q[:, part], k[:, part], v[:, part]), f"a head of {part.stop} features"),
                Case((q[:1, parts[0]], k[:1, parts[0]], v[:1, parts[0]]), "one token"),
            ],
            "attention": [
                Case((x, first, heads), "", f"{_LAYER}.attention.output.dense", ("embeddings",)),
                Case((x, first, fewer), f"num_heads = {fewer}"),
                Case((x[:1], first, heads), "one token"),
            ],
            "gelu": [
                Case((inner,), "", f"{_LAYER}.intermediate", (f"{_LAYER}.intermediate.dense",)),
                Case((line,), "a vector of numbers from -12 to 12"),
                Case((line[:96].reshape(2, 3, 16) * 1000,), "shape (2, 3, 16), numbers from -12000 to 12000"),
            ],
            "layer": [
                Case((x, first, heads, eps), "", _LAYER, ("embeddings",)),
                Case((x, last, heads, _EPS), f"the weights of layer {layers - 1}, eps = {_EPS}"),
            ],
            "bert": [
                Case((ids, types, self.weights, self.config), "", "bert"),
                Case((ids[:3], types[:3], self.weights, some), f"3 tokens, {some['num_hidden_layers']} layers"),
            ],
        }
