"""`explain`: the forward pass of one text, step by step, so that a reader can compute each number again.

Each step has its formula, the shape, the line of code, and the numbers of one token: what goes in, what is added up,
and the result. Of a long sum the first three terms are shown, and the sum of the others.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_int
from minibert.bert.ops import LayerNorm, PreparedLinear
from minibert.bert.reference import erf
from minibert.inside.texts import trace_texts
from minibert.inside.validation import check_model
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.trace.names import LAYER
from minibert.trace.page.data import visible
from minibert.trace.page.steps import Step, steps
from minibert.trace.trace import Trace

WIDTH = 80

# Stands for a space at which a line is not broken; no token has it, because `visible` writes it as a number.
_JOIN = "\x00"

# Terms of a sum that are shown one by one, and features of a result.
_TERMS, _FEATURES = 3, 4


@dataclasses.dataclass(frozen=True)
class Line:
    """A label and numbers, which are printed with 6 digits; `last` marks a result, which is printed after "="."""

    label: str
    numbers: tuple[float, ...]
    last: bool = False

    def __str__(self) -> str:
        mark = "= " if self.last else "  "
        return f"     {mark}{self.label:21}" + "".join(f" {number:>12.6g}" for number in self.numbers)


@dataclasses.dataclass(frozen=True)
class StepNumbers:
    """One step with the numbers of the chosen token.

    Parameters
    ----------
    number : int           counted from 1
    layer : int or None    None for the embeddings and the pooler
    step : Step            the row of the table, the sentence, the lines of code
    shape : tuple of int   of the value for one text
    lines : tuple of Line  inputs, then terms; the last lines are results
    """

    number: int
    layer: int | None
    step: Step
    shape: tuple[int, ...]
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        entry, source = self.step.entry, self.step.lines[-1]
        title = f"{self.number:2}  {entry.symbol} = {entry.formula}"
        where = f"{self.shape}  {source.file}:{source.number}"
        if len(title) + len(where) + 2 <= WIDTH:
            head = [title + " " * (WIDTH - len(title) - len(where)) + where]
        else:
            head = [title, " " * (WIDTH - len(where)) + where]
        return "\n".join([*head, *map(str, self.lines)])


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The steps of one forward pass for one token. Its str is at most 80 columns wide.

    Parameters
    ----------
    text : str
    tokens : list of str
    token : int                       the token whose numbers are shown
    layers : list of int              the layers that are shown
    sizes : dict of letter to size    of H, A, D, F, L
    steps : list of StepNumbers
    trace : Trace                     of the whole forward
    """

    text: str
    tokens: list[str]
    token: int
    layers: list[int]
    sizes: dict[str, int]
    steps: list[StepNumbers]
    trace: Trace

    def __str__(self) -> str:
        names = "{L} layers, H = {H} features, A = {A} heads of D = {D}, F = {F}".format(**self.sizes)
        chosen = _cut(visible(self.tokens[self.token]), 40)
        parts = [
            *_wrapped(visible(self.text)),
            *_wrapped("  ".join(f"{i}{_JOIN}{visible(token)}" for i, token in enumerate(self.tokens))),
            "",
            names,
            f"The numbers are those of token {self.token}, {chosen}. Sums are those of feature 0 and",
            "head 0. x is the hidden state that comes in; W and b belong to the module.",
        ]
        before: int | str | None = ""
        for one in self.steps:
            if one.layer != before:
                parts += ["", self._title(one)]
                before = one.layer
            parts += ["", str(one)]
        if self.steps[-1].layer is not None and self.layers[-1] + 1 < self.sizes["L"]:
            parts += ["", f"The output is x of layer {self.layers[-1] + 1}."]
        return "\n".join(line.replace(_JOIN, " ").rstrip() for part in parts for line in part.split("\n"))

    def _title(self, first: StepNumbers) -> str:
        if first.layer is not None:
            return f"LAYER {first.layer} of 0 to {self.sizes['L'] - 1}"
        return "THE EMBEDDINGS" if first.number == 1 else "THE POOLER, of token 0"


def explain(
    model: Any, tokenizer: BertTokenizer, text: str, *, token: int | str | None = None, layers: Sequence[int] | int = 0
) -> Explanation:
    """Run a model on one text, and show the steps with numbers that can be computed again by hand.

    A text that is too long is truncated, and a warning says so.

    Parameters
    ----------
    model : BertModel
    tokenizer : BertTokenizer
    text : str
    token : int or str, optional
        The token whose numbers are shown; negative ones count from the end; a str is the first token that is this word.
        Default: the first that is not special.
    layers : int or ints
        The layers that are shown, after the embeddings; (): the embeddings alone.

    Returns
    -------
    Explanation

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.
    """
    model = check_model("explain", model)
    if not isinstance(text, str):
        raise TypeError(f"explain was given {brief(text)}; expected one text, a str.")
    trace, (encoding,) = trace_texts(model, tokenizer, [text])
    words = np.flatnonzero(encoding.special_tokens_mask == 0)
    count = len(encoding)
    if not count:
        raise ValueError(f"the text {brief(text)} has no token; give a text that is not empty.")
    assert trace.tokens is not None
    if token is None:
        token = int(words[0]) if len(words) else 0
    elif isinstance(token, str):
        token = _place(trace.tokens[0], token)
    token = check_int("token", token, -count, count - 1) % count
    depth = model.config.num_hidden_layers
    asked = [layers] if isinstance(layers, int) else list(layers)
    chosen = sorted({check_int("layers", one, -depth, depth - 1) % depth for one in asked})
    numbers = _Numbers(model, trace, token)
    found: list[StepNumbers] = []

    def add(part: str, layer: int | None) -> None:
        for step in steps(part):
            name = step.entry.path.format(i=layer)
            shape = trace.shapes[name][1:]
            lines = tuple(numbers.lines(step.entry.symbol, layer))
            found.append(StepNumbers(len(found) + 1, layer, step, shape, lines))

    add("embeddings", None)
    for layer in chosen:
        add("layer", layer)
    if model.weights.pooler is not None and depth - 1 in chosen:
        add("pooler", None)
    config = model.config
    sizes = {"L": depth, "H": config.hidden_size, "A": config.num_attention_heads}
    sizes |= {"D": config.head_size, "F": config.intermediate_size}
    return Explanation(text, trace.tokens[0], token, chosen, sizes, found, trace)


class _Numbers:
    """The lines of each step for one token of one text."""

    def __init__(self, model: Any, trace: Trace, token: int) -> None:
        self._model, self._weights, self._trace, self._token = model, model.weights, trace, token
        self._size = model.config.head_size

    def lines(self, symbol: str, layer: int | None) -> Iterator[Line]:
        """Yield the lines of a step of the table."""
        weights = self._weights
        own = None if layer is None else weights.layers[layer]
        x = "embeddings" if not layer else f"encoder.layer.{layer - 1}"
        if symbol in ("words", "types", "positions"):
            yield from self._row(symbol)
        elif symbol == "embeddings_sum":
            yield from self._sum(symbol, None, ("words", "types", "positions"))
        elif symbol == "embeddings":
            yield from self._norm(symbol, None, "embeddings_sum", weights.embeddings_norm)
        elif symbol in ("scores", "probs", "context"):
            yield from getattr(self, f"_{symbol}")(layer)
        elif symbol in ("query", "key", "value"):
            place = ("query", "key", "value").index(symbol) * self._model.config.hidden_size
            yield from self._linear(symbol, layer, "x", self._of(x), own.query_key_value, place)  # type: ignore[union-attr]
        elif symbol == "intermediate":
            yield from self._activation(layer)
        elif symbol in ("pooler_dense", "pooler"):
            yield from self._pooler(symbol)
        else:
            yield from self._mapped(symbol, layer, own, x)

    def _mapped(self, symbol: str, layer: int | None, own: Any, x: str) -> Iterator[Line]:
        if symbol == "attention_sum":
            yield from self._sum(symbol, layer, ("attention_dense",), ("x", self._of(x)))
        elif symbol == "output_sum":
            yield from self._sum(symbol, layer, ("output_dense", "attention"))
        elif symbol in ("attention", "output"):
            norm = own.attention_norm if symbol == "attention" else own.output_norm
            yield from self._norm(symbol, layer, f"{symbol}_sum", norm)
        else:
            field, given = {
                "attention_dense": ("attention_output", "context"),
                "intermediate_dense": ("intermediate", "attention"),
                "output_dense": ("output", "intermediate"),
            }[symbol]
            yield from self._linear(symbol, layer, given, self._symbol(layer, given), getattr(own, field))

    # --- values -------------------------------------------------------------------------------------------------------

    def _of(self, name: str) -> FloatArray:
        """Return the vector of the token, in float64."""
        return np.asarray(self._trace.value_of(name, 0), dtype=np.float64)[self._token]

    def _whole(self, layer: int | None, symbol: str) -> FloatArray:
        return np.asarray(self._trace.value_of(_name(layer, symbol), 0), dtype=np.float64)

    def _symbol(self, layer: int | None, symbol: str) -> FloatArray:
        return self._whole(layer, symbol)[self._token]

    # --- kinds of steps -----------------------------------------------------------------------------------------------

    def _row(self, symbol: str) -> Iterator[Line]:
        batch_ids = self._trace.ids
        assert batch_ids is not None
        row = {"words": int(batch_ids[0][self._token]), "types": 0, "positions": self._token}[symbol]
        found = self._symbol(None, symbol)
        yield _line("row of the table", [row])
        yield _line(symbol, found[:_FEATURES], last=True)

    def _sum(
        self, symbol: str, layer: int | None, parts: Sequence[str], extra: tuple[str, FloatArray] | None = None
    ) -> Iterator[Line]:
        for part in parts:
            yield _line(part, self._symbol(layer, part)[:_FEATURES])
        if extra is not None:
            yield _line(extra[0], extra[1][:_FEATURES])
        yield _line(symbol, self._symbol(layer, symbol)[:_FEATURES], last=True)

    def _norm(self, symbol: str, layer: int | None, given: str, norm: LayerNorm) -> Iterator[Line]:
        x = self._symbol(layer, given)
        yield _line(given, x[:_FEATURES])
        yield _line(f"mean of all {len(x)}", [x.mean()])
        yield _line(f"variance of all {len(x)}", [x.var()])
        yield _line("eps", [norm.eps])
        yield _line("weight", norm.weight[:_FEATURES])
        yield _line("bias", norm.bias[:_FEATURES])
        yield _line(symbol, self._symbol(layer, symbol)[:_FEATURES], last=True)

    def _linear(
        self, symbol: str, layer: int | None, label: str, x: FloatArray, linear: PreparedLinear, first_row: int = 0
    ) -> Iterator[Line]:
        """Show feature 0 as a sum; the row of the weight is `first_row`, because W_Q, W_K and W_V are stacked."""
        row = np.asarray(linear.weight[first_row], dtype=np.float64)
        yield from _products(label, x, "W[0]", row)
        yield _line("b[0]", [linear.bias[first_row]])
        yield _line(f"{symbol}[0]", self._symbol(layer, symbol)[:1], last=True)
        yield _line(f"{symbol}", self._symbol(layer, symbol)[:_FEATURES], last=True)

    def _scores(self, layer: int | None) -> Iterator[Line]:
        query = self._symbol(layer, "query")[: self._size]
        key = self._whole(layer, "key")[0, : self._size]
        yield from _products("query of this token", query, "key of token 0", key)
        yield _line("sqrt(D)", [self._size**0.5])
        scores = self._whole(layer, "scores")[0, self._token]
        yield _line("score of token 0", scores[:1], last=True)
        yield _line(f"scores of {_first(len(scores))}", scores[:_FEATURES], last=True)

    def _probs(self, layer: int | None) -> Iterator[Line]:
        scores = self._whole(layer, "scores")[0, self._token]
        powers = np.exp(scores - scores.max())
        yield _line("scores", scores[:_FEATURES])
        yield _line(f"largest of all {len(scores)}", [scores.max()])
        yield _line("exp(score - largest)", powers[:_FEATURES])
        yield _line(f"sum of all {len(scores)}", [powers.sum()])
        yield _line("probs", self._whole(layer, "probs")[0, self._token][:_FEATURES], last=True)

    def _context(self, layer: int | None) -> Iterator[Line]:
        probs = self._whole(layer, "probs")[0, self._token]
        value = self._whole(layer, "value")[:, 0]
        yield from _products("probs of tokens 0-2", probs, "value[0] of the same", value)
        context = self._symbol(layer, "context")
        yield _line("context[0]", context[:1], last=True)
        yield _line("context", context[:_FEATURES], last=True)

    def _activation(self, layer: int | None) -> Iterator[Line]:
        x = self._symbol(layer, "intermediate_dense")[:_FEATURES]
        name = self._model.config.activation
        yield _line("intermediate_dense", x)
        label = {"gelu": "x / 2 * (1 + erf)", "relu": "max(x, 0)"}.get(name, f"{name}(x)")
        if name == "gelu":
            yield _line("erf(x / sqrt(2))", erf(x * 0.5**0.5))
        elif name == "gelu_tanh":
            cubic, slope = x + 0.044715 * x**3, (2 / np.pi) ** 0.5
            yield _line("x + 0.044715 x^3", cubic)
            yield _line("tanh(0.797885 * that)", np.tanh(slope * cubic))
            label = "x / 2 * (1 + tanh)"
        elif name == "silu":
            # Above 700 exp(-x) would be infinite, and the result is 0 in any case.
            yield _line("exp(-x)", np.exp(-np.maximum(x, -700)))
            label = "x / (1 + exp(-x))"
        yield _line(label, self._symbol(layer, "intermediate")[:_FEATURES], last=True)

    def _pooler(self, symbol: str) -> Iterator[Line]:
        dense = np.asarray(self._trace.value_of("pooler.dense", 0), dtype=np.float64)
        if symbol == "pooler":
            yield _line("pooler_dense", dense[:_FEATURES])
            pooled = np.asarray(self._trace.value_of("pooler", 0), dtype=np.float64)
            yield _line("tanh of each", pooled[:_FEATURES], last=True)
            return
        linear = self._weights.pooler
        last = self._model.config.num_hidden_layers - 1
        x = np.asarray(self._trace.value_of(_name(last, "output"), 0), dtype=np.float64)[0]
        yield from _products("x of token 0", x, "W[0]", np.asarray(linear.weight[0], dtype=np.float64))
        yield _line("b[0]", [linear.bias[0]])
        yield _line("pooler_dense[0]", dense[:1], last=True)
        yield _line("pooler_dense", dense[:_FEATURES], last=True)


def _place(tokens: list[str], word: str) -> int:
    """Return the first place of a token."""
    for one in (word, word.lower()):
        if one in tokens:
            return tokens.index(one)
    raise ValueError(
        f"token={brief(word)}; the text has no such token. Its tokens are {brief(tokens)}; give one of them or its "
        "number."
    )


def _name(layer: int | None, symbol: str) -> str:
    if layer is None:
        return next(one.entry.path for one in steps("embeddings") if one.entry.symbol == symbol)
    return next(entry.path for entry in LAYER if entry.symbol == symbol).format(i=layer)


def _line(label: str, numbers: Any, *, last: bool = False) -> Line:
    return Line(label, tuple(float(number) for number in numbers), last)


def _products(x_label: str, x: FloatArray, y_label: str, y: FloatArray) -> Iterator[Line]:
    """Yield the first terms of a sum of products, and the sum of the others."""
    products = x * y
    yield _line(x_label, x[:_TERMS])
    yield _line(y_label, y[:_TERMS])
    yield _line("products", products[:_TERMS])
    if len(products) > _TERMS:
        rest = len(products) - _TERMS
        yield _line("the other product" if rest == 1 else f"sum of the other {rest}", [products[_TERMS:].sum()])


def _first(count: int) -> str:
    return f"tokens 0-{min(count, _FEATURES) - 1}"


def _columns(text: str) -> int:
    """Return the width of a text in a terminal."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def _cut(text: str, width: int) -> str:
    """Return a text of at most `width` columns."""
    if _columns(text) <= width:
        return text
    while text and _columns(text) > width - 3:
        text = text[:-1]
    return text + "..."


def _wrapped(text: str) -> Iterator[str]:
    """Yield lines of at most `WIDTH` columns, broken at spaces where there are any."""
    line = ""
    for word in text.split(" "):
        while _columns(word) > WIDTH:
            part = word
            while _columns(part) > WIDTH:
                part = part[: max(1, len(part) // 2)] if _columns(part) > 2 * WIDTH else part[:-1]
            if line:
                yield line
            yield part
            line, word = "", word[len(part) :]
        joined = f"{line} {word}" if line else word
        if _columns(joined) > WIDTH:
            yield line
            line = word.lstrip()
        else:
            line = joined
    if line:
        yield line
