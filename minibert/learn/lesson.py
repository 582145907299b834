"""`Lesson`: a real model and a text, and what each function of the course is called with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import brief
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.learn.mistakes import as_list, run
from minibert.learn.right import attention, columns, dense, embed, layer_weights, norm, tables
from minibert.models.bert import BertModel
from minibert.models.stored import named_arrays
from minibert.tokenizer.bert_tokenizer import BertTokenizer

TEXT = "The river bank is flooded."
PAIR = "Money is safe there."

# The exercises are not checked on more tokens than this, so that a solution in plain loops is fast enough.
_MOST_TOKENS = 24

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


class Case(NamedTuple):
    """One call of a function; the label says what is special about it, and is "" for the real values of the model."""

    arguments: tuple[Any, ...]
    label: str = ""


class Lesson:
    """A model, and what the functions are checked on.

    Parameters
    ----------
    model : str or path
        A BERT with GELU: a hub id or a folder.
    text, pair : str
        Two texts, one after the other, on which all exercises are checked.

    Raises
    ------
    ValueError
        The model is not a BERT with GELU. For other errors see `BertModel.from_pretrained`.
    """

    def __init__(self, model: str = DEFAULT_MODEL, text: str | None = None, pair: str = PAIR) -> None:
        text = TEXT if text is None else text
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text={brief(text)}; expected a text with at least one word.")
        self.text = text
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
        names = ("num_hidden_layers", "num_attention_heads", "layer_norm_eps")
        self.config: dict[str, Any] = {name: getattr(config, name) for name in names}
        self.weights = {
            name.removeprefix("bert."): np.asarray(array) for name, array in named_arrays(self.model.weights)
        }

    @functools.cache  # noqa: B019 (a lesson lives as long as its process)
    def right(self, exercise: str, index: int, *, plain: bool = False) -> list[Any]:
        """Return the right result of a case, tokens or arrays: in float64, or of plain code in float32."""
        arguments = self.cases(exercise)[index].arguments
        if plain and exercise == "softmax":  # with logsumexp: it is right, too, and has a larger error
            below = arguments[0] - (most := arguments[0].max(axis=-1, keepdims=True))
            return [np.exp(arguments[0] - (most + np.log(np.exp(below).sum(axis=-1, keepdims=True))))]
        return as_list(run(exercise, *arguments, dtype=np.float32 if plain else np.float64))

    @functools.cache  # noqa: B019
    def cases(self, exercise: str) -> list[Case]:
        """Return the calls of an exercise: the first ones on values of the model, the others on special numbers.

        Each argument differs between two calls, so that a function that does not look at it is not right.
        """
        ids, types, three = self.inputs["input_ids"][0], self.inputs["token_type_ids"][0], tables(self.weights)
        layers, heads, eps = self.config.values()
        first, last = (layer_weights(self.weights, i) for i in (0, layers - 1))
        total = embed(ids, types, *three)
        x = norm(total, self.weights, "embeddings", eps)
        few, size = three[0][-40:], max(x.shape[1] // heads // 4, 1)
        fewer = next((n for n in range(2, heads) if heads % n == 0), 1)
        line = np.linspace(-12, 12, 97, dtype=np.float32)
        small = {"num_hidden_layers": max(layers // 3, 1), "num_attention_heads": fewer, "layer_norm_eps": _EPS}
        one_layer, short = small | {"num_hidden_layers": 1}, self.config | {"num_hidden_layers": min(layers, 2)}
        texts, kinds = np.resize(ids, (3, 8)), np.resize(types, (3, 8))
        mask = (np.arange(8) < np.array([[8], [5], [3]])).astype(np.int64)
        words = (self.vocabulary, bool(self.tokenizer.do_lower_case))
        own = {token: i for i, token in enumerate(_OWN.split())}

        def two(weights: Any, name: str) -> tuple[Any, Any]:
            return weights[f"{name}.weight"], weights[f"{name}.bias"]

        scale = two(self.weights, "embeddings.LayerNorm")

        def cut(name: str, array: Any) -> Any:
            rows, columns = (slice(n * size * heads // x.shape[1]) for n in (len(array), array.shape[-1]))
            return array[slice(-len(few), None) if "_embeddings" in name else rows][..., columns]

        # A small model: the first features of each head. Its layer 0 has the weights of the last one.
        turned = self.weights | {f"encoder.layer.0.{name}": array for name, array in last.items()}
        turned = {name: cut(name, array) for name, array in turned.items()}
        last, low = layer_weights(turned, 0), texts % len(few)

        @functools.cache
        def parts() -> list[list[Any]]:
            three = [dense(x, first, f"attention.self.{name}") for name in ("query", "key", "value")]
            return [[columns(rows, a, heads) for rows in three] for a in range(heads)]

        def scores() -> Any:
            return np.stack([query @ key.T / query.shape[1] ** 0.5 for query, key, _ in parts()])

        @functools.cache
        def between() -> Any:
            return norm(x + attention(x, first, heads), first, "attention.output", eps)

        # Functions, because products of matrices take most of the time of a short check.
        calls: dict[str, Callable[[], list[tuple[Any, ...]]]] = {
            "tokenize": lambda: [
                *((f"the text {text!r}", text, *words) for text in (self.text, *_TEXTS)),
                (f"lower_case = False, a small vocabulary and the text {_CASED!r}", _CASED, own, False),
                (f"a small vocabulary and the text {_CASED!r}", _CASED, own, True),
            ],
            "embed": lambda: [
                ("", ids, types, *three),
                ("other tokens", np.roll(ids, 1), types, *three),
                ("one token", ids[:1], types[:1], *three),
                ("other tables", ids[::-1] % len(few), np.roll(types, -1), few, 2 * three[1][::-1], 1 + three[2][::-1]),
            ],
            "layer_norm": lambda: [
                ("", total, *scale, eps),
                (f"eps = {_EPS}", total[::-1], *(array[::-1] for array in scale), _EPS),
                ("one row of large numbers", total[:1] * 1000 + 5, *scale, _EPS),
            ],
            "linear": lambda: [
                ("", x, *two(first, "attention.self.query")),
                ("more numbers out than in", between(), *two(first, "intermediate.dense")),
                ("other weights", between(), *two(first, "attention.self.key")),
                ("one row, and 7 numbers out", -100 * x[:1], *(w[:7] for w in two(first, "intermediate.dense"))),
            ],
            "softmax": lambda: [
                ("", scores()),
                ("a matrix, the scores of one head", scores()[0]),
                ("large scores, all 1000 higher", scores()[::-1] + np.float32(1000)),
                ("two rows near 1000 and -1000", scores()[0, :2] * 50 + np.array([[1000], [-1000]], np.float32)),
            ],
            "head": lambda: [
                *((f"head {a}", *part) for a, part in enumerate(parts())),
                (f"a head of {size} features", *(part[:, :size] for part in parts()[0])),
                ("one token", *(part[:1] for part in parts()[0])),
            ],
            "attention": lambda: [
                ("", x, first, heads),
                (f"a small layer, num_heads = {fewer}", between()[:, : size * heads], last, fewer),
                ("other tokens", between()[::-1, : size * heads], last, fewer),
                ("one token", x[:1], first, heads),
            ],
            "gelu": lambda: [
                ("", inner := dense(between(), first, "intermediate.dense")),
                ("the other sign", -inner[::-1]),
                ("a vector of numbers from -12 to 12", line),
                ("shape (2, 3, 16), numbers from -12000 to 12000", line[:96].reshape(2, 3, 16) * 1000),
            ],
            "layer": lambda: [
                ("", x, first, heads, eps),
                (f"a small layer, num_heads = {fewer}, eps = {_EPS}", between()[:, : size * heads], last, fewer, _EPS),
                ("other tokens", between()[::-1, : size * heads], last, fewer, _EPS),
            ],
            "bert": lambda: [
                ("", ids, types, self.weights, self.config),
                (f"3 tokens, config = {small}", ids[:3], types[-3:], self.weights, small),
                (f"a small model, 3 tokens, config = {one_layer}", low[2, -3:], types[:3], turned, one_layer),
            ],
            "batch": lambda: [
                ("3 texts", texts * mask, kinds * mask, mask, self.weights, short),
                ("2 texts, a small model", low[1:, 3::-1], kinds[:2, 4:], mask[2::-2, :4], turned, one_layer),
                ("2 other texts", low[1:, 4:], kinds[1:, 2:6], mask[2::-2, :4], turned, one_layer),
            ],
        }
        return [Case(tuple(arguments), label) for label, *arguments in calls[exercise]()]
