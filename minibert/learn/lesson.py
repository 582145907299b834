"""`Lesson`: a real model and a text, and what each function of the course is called with."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import brief
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.learn.mistakes import as_list, run
from minibert.learn.right import attention, columns, dense, embed, layer_weights, norm, tables
from minibert.models.bert import BertModel
from minibert.models.loading import named_arrays
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
_TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    ".",
    "bank",
    "Bank",
    "BA",
    "ba",
    "##nk",
    "##NK",
    "##n",
    "##k",
    "E",
    "É",
    "e",
    "##E",
    "a",
    "A",
    "##a",
    "##A",
    "##rm",
    "##B",
    "##b",
]
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
        names = ("num_hidden_layers", "num_attention_heads", "layer_norm_eps")
        self.config: dict[str, Any] = {name: getattr(config, name) for name in names}
        self.weights = {name.removeprefix("bert."): array for name, array in named_arrays(self.model.weights)}

    @functools.cache  # noqa: B019 (a lesson lives as long as its process)
    def right(self, step: str, index: int, *, plain: bool = False) -> list[Any]:
        """Return the right result of a case in float64, or that of plain code in float32: tokens, or arrays."""
        return as_list(run(step, *self.cases[step][index].arguments, dtype=np.float32 if plain else np.float64))

    @functools.cached_property
    def cases(self) -> dict[str, list[Case]]:
        """The calls of each step: the first ones on values of the model, the others on numbers that are special.

        Each argument differs between two calls, so that a function that does not look at it is not right.
        """
        ids, types, three = self.inputs["input_ids"][0], self.inputs["token_type_ids"][0], tables(self.weights)
        layers, heads, eps = self.config.values()
        first, last = (layer_weights(self.weights, i) for i in (0, layers - 1))
        total = embed(ids, types, *three)
        x = norm(total, self.weights, "embeddings", eps)
        q, k, v = (dense(x, first, f"attention.self.{name}") for name in ("query", "key", "value"))
        parts = [[columns(one, a, heads) for one in (q, k, v)] for a in range(heads)]
        size = max(parts[0][0].shape[1] // 4, 1)
        scores = np.stack([query @ key.T / parts[0][0].shape[1] ** 0.5 for query, key, _ in parts])
        between = norm(x + attention(x, first, heads), first, "attention.output", eps)
        inner = dense(between, first, "intermediate.dense")

        def two(weights: Any, name: str) -> tuple[Any, Any]:
            return weights[f"{name}.weight"], weights[f"{name}.bias"]

        scale, wide = two(self.weights, "embeddings.LayerNorm"), two(first, "intermediate.dense")
        query_map, key_map = two(first, "attention.self.query"), two(first, "attention.self.key")
        few = three[0][-40:]
        fewer = next((n for n in range(2, heads) if heads % n == 0), 1)
        line = np.linspace(-12, 12, 97, dtype=np.float32)
        some = {"num_hidden_layers": max(layers // 3, 1), "num_attention_heads": fewer, "layer_norm_eps": _EPS}
        one_layer = some | {"num_hidden_layers": 1}
        # The same names in another order of the layers: layer 0 has the weights of the last one.
        turned = self.weights | {f"encoder.layer.0.{name}": array for name, array in last.items()}
        turned["embeddings.LayerNorm.weight"] = scale[0][::-1].copy()
        turned["embeddings.LayerNorm.weight"].flags.writeable = False
        texts, kinds = np.resize(ids, (3, 8)), np.resize(types, (3, 8))
        mask = (np.arange(8) < np.array([[8], [5], [3]])).astype(np.int64)
        words = (self.vocabulary, bool(self.tokenizer.do_lower_case))
        own = {token: i for i, token in enumerate(_TOKENS)}
        return {
            "tokenize": [
                *(Case((text, *words), f"the text {text!r}") for text in (self.text, *_TEXTS)),
                Case((_CASED, own, False), f"lower_case = False, a small vocabulary and the text {_CASED!r}"),
                Case((_CASED, own, True), f"a small vocabulary and the text {_CASED!r}"),
            ],
            "embed": [
                Case((ids, types, *three)),
                Case((np.roll(ids, 1), types, *three), "other tokens"),
                Case((ids[:1], types[:1], *three), "one token"),
                Case(
                    (ids[::-1] % len(few), np.r_[types[1:], types[-1]], few, 2 * three[1][::-1], 1 + three[2][::-1]),
                    "other tables",
                ),
            ],
            "layer_norm": [
                Case((total, *scale, eps)),
                Case((total[::-1], *(one[::-1] for one in scale), _EPS), f"eps = {_EPS}"),
                Case((total[:1] * 1000 + 5, *scale, _EPS), "one row of large numbers"),
            ],
            "linear": [
                Case((x, *query_map)),
                Case((between, *wide), "more numbers out than in"),
                Case((between, *key_map), "other weights"),
                Case((-100 * x[:1], *(one[:7] for one in wide)), "one row, and 7 numbers out"),
            ],
            "softmax": [
                Case((scores,)),
                Case((scores[0],), "a matrix, the scores of one head"),
                Case((scores[::-1] + np.float32(1000),), "large scores, all 1000 higher"),
                Case((scores[0, :1] * 50 - np.float32(1000),), "one row of scores near -1000"),
            ],
            "head": [
                *(Case(tuple(part), f"head {a}") for a, part in enumerate(parts)),
                Case(tuple(one[:, :size] for one in parts[0]), f"a head of {size} features"),
                Case(tuple(one[:1] for one in parts[0]), "one token"),
            ],
            "attention": [
                Case((x, first, heads)),
                Case((between, last, fewer), f"the weights of layer {layers - 1}, num_heads = {fewer}"),
                Case((x[:1], first, heads), "one token"),
            ],
            "gelu": [
                Case((inner,)),
                Case((-inner[::-1],), "the other sign"),
                Case((line,), "a vector of numbers from -12 to 12"),
                Case((line[:96].reshape(2, 3, 16) * 1000,), "shape (2, 3, 16), numbers from -12000 to 12000"),
            ],
            "layer": [
                Case((x, first, heads, eps)),
                Case(
                    (between, last, fewer, _EPS),
                    f"the weights of layer {layers - 1}, num_heads = {fewer}, eps = {_EPS}",
                ),
            ],
            "bert": [
                Case((ids, types, self.weights, self.config)),
                Case((ids[:3], types[-3:], self.weights, some), f"3 tokens, config = {some}"),
                Case((ids[-3:], types[:3], turned, one_layer), f"other weights, 3 tokens, config = {one_layer}"),
            ],
            "batch": [
                Case(
                    (
                        texts * mask,
                        kinds * mask,
                        mask,
                        self.weights,
                        {**some, "num_attention_heads": heads, "layer_norm_eps": eps},
                    ),
                    "3 texts",
                ),
                Case(
                    (texts[:, ::-1], kinds, mask[::-1], turned, one_layer),
                    "3 texts, other weights and config, and ids that are not 0 in the padding",
                ),
            ],
        }
