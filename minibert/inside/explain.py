"""`explain`: the forward pass of one text, step by step, so that a reader can compute each number again.

Each step has its formula, the shape, the line of code, and the numbers of one token: what goes in, what is added up,
and the result. Of a long sum the first three terms are shown, and the sum of the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
import unicodedata
from collections.abc import Generator, Iterator, Sequence
from typing import Any, assert_never

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_indices, check_int
from minibert.bert.ops import LayerNorm
from minibert.bert.reference import ACTIVATION_FUNCTIONS, erf
from minibert.inside.validation import check_model
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_text
from minibert.tokenizer.too_long import TooLong
from minibert.trace.layout import Entry, Layout
from minibert.trace.page.data import visible
from minibert.trace.page.steps import Step, steps
from minibert.trace.trace import Trace
from minibert.vectors.token_vectors import token_limit

WIDTH = 80

# Stands for a space at which a line is not broken; no token has it, because `visible` writes it as a number.
_JOIN = "\x00"

# Stands before a character that takes two columns.
_FILL = "\x01"

# Terms of a sum that are shown one by one, and features of a result.
_TERMS, _FEATURES = 3, 4


@dataclasses.dataclass(frozen=True)
class Line:
    """A label and numbers, printed with 6 digits. `last` marks a result, printed after "="."""

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
        room = WIDTH - len(where)
        head = [f"{title:{room}}{where}"] if len(title) + 2 <= room else [title, f"{where:>{WIDTH}}"]
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
        chosen, *cut = _wrapped(visible(self.tokens[self.token]), 37) or [""]
        chosen += "..." if cut else ""
        parts = [
            *_wrapped(visible(self.text)),
            *_wrapped("  ".join(f"{i}{_JOIN}{visible(token)}" for i, token in enumerate(self.tokens))),
            "",
            names,
            f"The numbers are those of token {self.token}, {chosen}. Sums are those of feature 0 and",
            "head 0. x is the hidden state that comes in; W and b belong to the module.",
        ]
        for _, group in itertools.groupby(self.steps, lambda step: step.layer):
            first, *others = group
            parts += ["", self._title(first), *(f"\n{step}" for step in (first, *others))]
        if self.steps[-1].layer is not None and self.layers[-1] + 1 < self.sizes["L"]:
            parts += ["", f"The output is x of layer {self.layers[-1] + 1}."]
        return "\n".join(line.replace(_JOIN, " ").rstrip() for part in parts for line in part.split("\n"))

    def _title(self, first: StepNumbers) -> str:
        if first.layer is not None:
            return f"LAYER {first.layer} of 0 to {self.sizes['L'] - 1}"
        if first.step.entry.symbol == "final":
            return "THE FINAL LAYERNORM"
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

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.
    """
    model = check_model("explain", model)
    check_text(text, "the text of explain")
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
    chosen = sorted({*check_indices("layers", layers, depth, what="layers", expected="an int or several")})
    numbers = _Numbers(model, trace, token)
    layout, every = Layout.of(trace.sizes), list[StepNumbers]()

    def add(entries: tuple[Entry, ...], layer: int | None) -> None:
        for step in steps(entries):
            shape = trace.shapes[step.entry.path.format(i=layer)][1:]
            lines = tuple(numbers.lines(step.entry, depth - 1 if entries is layout.final else layer))
            every.append(StepNumbers(len(every) + 1, layer, step, shape, lines))

    add(layout.embeddings, None)
    for layer in chosen:
        add(layout.layer(layer), layer)
    if depth - 1 in chosen:
        add(layout.final, None)
        add(layout.pooler, None)
    config = model.config
    sizes = {"L": depth, "H": config.hidden_size, "A": config.num_attention_heads}
    sizes |= {"D": config.head_size, "F": config.intermediate_size}
    return Explanation(text, trace.tokens[0], token, chosen, sizes, every, trace)


def trace_texts(model: Any, tokenizer: BertTokenizer, texts: Sequence[str]) -> tuple[Trace, Sequence[Encoding]]:
    """Tokenize texts, run the model on them and record all its values; return the trace and the encoding of each text.

    A text that has more tokens than the model or the tokenizer takes is truncated, and a warning says so.
    """
    if not isinstance(tokenizer, BertTokenizer):
        raise TypeError(f"the tokenizer is {brief(tokenizer)}; expected a BertTokenizer.")
    limit = token_limit(model.config, tokenizer)
    inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=limit, return_tensors="np")
    TooLong("warn", limit, silence="").add([encoding.n_truncated for encoding in inputs.encodings]).warn()
    return model.trace(**inputs, record="*", tokens=tokenizer), inputs.encodings


class _Numbers:
    """The lines of each step for one token of one text."""

    def __init__(self, model: Any, trace: Trace, token: int) -> None:
        self._config, self._trace, self._token = model.config, trace, token
        weights = self._weights = model.weights
        linears = [linear for layer in weights.layers for linear in layer.linears]
        linears += filter(None, (weights.embeddings_project, weights.pooler))
        self._maps = {path: (linear, i) for linear in linears for i, path in enumerate(linear.paths)}
        norms = [norm for layer in weights.layers for norm in (layer.attention_norm, layer.output_norm)]
        self._norms = {norm.path: norm for norm in [weights.embeddings_norm, weights.final_norm, *norms] if norm}
        self._paths = {entry.symbol: entry.path for _, entry in Layout.of(trace.sizes).rows()}

    def lines(self, entry: Entry, layer: int | None) -> Iterator[Line]:
        """Yield the lines for an entry; its kind decides which lines."""
        label = symbol = entry.symbol
        module = entry.module.format(i=layer)
        match entry.kind:
            case "scores" | "probs" | "context":
                yield from getattr(self, f"_{entry.kind}")(layer)
                return
            case "rows":
                batch = self._trace.batch
                ids = {"words": batch.token_ids, "types": batch.token_types, "positions": batch.positions}[symbol]
                yield _line("row of the table", [ids[self._token]])
            case "linear":
                yield from self._linear(layer, entry.operand, module, has_bias="b" in entry.added)
                yield _line(f"{symbol}[0]", self._vector(layer, symbol)[:1], last=True)
            case "norm":
                yield from self._norm(layer, entry.needs[0], self._norms[module])
            case "rotated":
                yield from self._rotated(layer or 0, entry.needs[0])
            case "sum":
                for part in entry.needs:
                    yield _line(part, self._vector(layer, part)[:_FEATURES])
                if entry.function == "scale":
                    factors: Any = self._trace.batch.scale(self._config)
                    yield _line("factor", factors[[self._token]])
            case "activation":
                argument, *gated = entry.needs
                x = self._vector(layer, argument)[:_FEATURES]
                yield _line(argument, x)
                name = self._config.activation if entry.function == "act" else entry.function
                label = yield from _activation(name, x)
                for factor in gated:
                    yield _line(label, ACTIVATION_FUNCTIONS[name](x))
                    yield _line(factor, self._vector(layer, factor)[:_FEATURES])
                    label = "the product"
            case _:
                assert_never(entry.kind)
        yield _line(label, self._vector(layer, symbol)[:_FEATURES], last=True)

    def _value(self, layer: int | None, symbol: str) -> FloatArray:
        """Return the value of a symbol of the table, in float64; x is the hidden state that goes into the layer."""
        state = self._config.num_hidden_layers if layer is None else layer
        name = f"hidden_states.{state}" if symbol == "x" else self._paths[symbol].format(i=layer)
        return np.asarray(self._trace.value_of(name, 0), dtype=np.float64)

    def _vector(self, layer: int | None, symbol: str) -> FloatArray:
        """Return the numbers of the token; the pooler's numbers belong to token 0."""
        value = self._value(layer, symbol)
        return value if value.ndim == 1 else value[self._token]

    def _norm(self, layer: int | None, source: str, norm: LayerNorm) -> Iterator[Line]:
        x = self._vector(layer, source)
        yield _line(source, x[:_FEATURES])
        if norm.centered:
            yield _line(f"mean of all {len(x)}", [x.mean()])
            yield _line(f"variance of all {len(x)}", [x.var()])
        else:
            yield _line(f"mean square of all {len(x)}", [np.square(x).mean()])
        yield _line("eps", [norm.eps])
        yield _line("weight", norm.weight[:_FEATURES])
        if norm.centered:
            yield _line("bias", norm.bias[:_FEATURES])

    def _rotated(self, layer: int, source: str) -> Iterator[Line]:
        """Yield the first two numbers of head 0 that are turned together, and their angle."""
        rotation: Any = self._weights.layers[layer].rotation_of(self._trace.batch)
        half, x = rotation.table.shape[1] // 2, self._vector(layer, source)
        cos, sin = (rotation.table[rotation.positions[self._token], j] for j in (0, half))
        a, b = x[0], x[half]
        yield _line(f"numbers 0 and {half}", [a, b])
        yield _line("cos and sin", [cos, sin])
        yield _line("turned", [a * cos - b * sin, b * cos + a * sin])

    def _linear(self, layer: int | None, source: str, module: str, has_bias: bool) -> Iterator[Line]:
        """Yield feature 0 of a linear map as a sum."""
        linear, index = self._maps[module]
        row = index * (linear.shape[0] // len(linear.paths))  # W_Q, W_K and W_V are stacked
        if source == "x[0]":
            source, x = "x of token 0", self._value(layer, "x")[0]
        else:
            x = self._vector(layer, source)
        yield from _products(source, x, "W[0]", np.asarray(linear.weight[row], dtype=np.float64))
        if has_bias:
            yield _line("b[0]", [linear.bias[row]])

    def _scores(self, layer: int) -> Iterator[Line]:
        size = self._config.head_size
        turned = "rotated_" if self._weights.layers[layer].rotary else ""
        query, key = self._vector(layer, f"{turned}query")[:size], self._value(layer, f"{turned}key")[0, :size]
        yield from _products("query of this token", query, "key of token 0", key)
        yield _line("sqrt(D)", [size**0.5])
        if (table := self._weights.layers[layer].relative_bias) is not None:
            yield _line("bias", [table[0, table.shape[1] // 2 - self._token]])
        scores = self._value(layer, "scores")[0, self._token]
        yield _line("score of token 0", scores[:1], last=True)
        yield _line(f"scores of tokens 0-{min(len(scores), _FEATURES) - 1}", scores[:_FEATURES], last=True)

    def _probs(self, layer: int) -> Iterator[Line]:
        scores = self._value(layer, "scores")[0, self._token]
        powers = np.exp(scores - scores.max())
        yield _line("scores", scores[:_FEATURES])
        yield _line(f"largest of all {len(scores)}", [scores.max()])
        yield _line("exp(score - largest)", powers[:_FEATURES])
        yield _line(f"sum of all {len(scores)}", [powers.sum()])
        yield _line("probs", self._value(layer, "probs")[0, self._token][:_FEATURES], last=True)

    def _context(self, layer: int) -> Iterator[Line]:
        probs = self._value(layer, "probs")[0, self._token]
        yield from _products("probs of tokens 0-2", probs, "value[0] of the same", self._value(layer, "value")[:, 0])
        context = self._vector(layer, "context")
        yield _line("context[0]", context[:1], last=True)
        yield _line("context", context[:_FEATURES], last=True)


def _activation(name: str, x: FloatArray) -> Generator[Line, None, str]:
    """Yield the numbers on the way to an activation, and return the last step."""
    if name == "gelu":
        yield _line("erf(x / sqrt(2))", erf(x * 0.5**0.5))
        return "x / 2 * (1 + erf)"
    if name == "gelu_tanh":
        cubic, slope = x + 0.044715 * x**3, (2 / np.pi) ** 0.5
        yield _line("x + 0.044715 x^3", cubic)
        yield _line("tanh(0.797885 * that)", np.tanh(slope * cubic))
        return "x / 2 * (1 + tanh)"
    if name == "silu":
        # Above 700 exp(-x) would be infinite, and the result is 0 in any case.
        yield _line("exp(-x)", np.exp(-np.maximum(x, -700)))
        return "x / (1 + exp(-x))"
    return "max(x, 0)" if name == "relu" else f"{name}(x)"


def _place(tokens: list[str], word: str) -> int:
    """Return the first place of a token."""
    for spelling in (word, word.lower(), f"\u2581{word}", f"\u0120{word}"):  # the marks of a space before the word
        if spelling in tokens:
            return tokens.index(spelling)
    raise ValueError(f"token={brief(word)}; the text has no such token. Give one of {brief(tokens)}, or its number.")


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


def _wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Return lines of at most this number of columns, broken at spaces where there are any."""
    filled = "".join(_FILL + c if unicodedata.east_asian_width(c) in "WF" else c for c in text)
    return [line.replace(_FILL, "") for line in textwrap.wrap(filled, width, break_on_hyphens=False)]
