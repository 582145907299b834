"""The steps of the forward pass: for each value of trace/table.py a sentence and its line of source code."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from minibert._utils.validation import FloatArray
from minibert.trace.table import Entry


class SourceLine(NamedTuple):
    """One line of code: its file, the line's number, and its text without indent.

    The file is one of the folder ``minibert/bert``, or has its whole path: "minibert/encode/modules.py".
    """

    file: str
    number: int
    text: str


class Step(NamedTuple):
    """One step: its row of the table, what it does in words, and the lines of code that compute it."""

    entry: Entry
    words: str
    lines: tuple[SourceLine, ...]


class VectorStep(NamedTuple):
    """One step from the last hidden states to the vector of a text; `minibert.inside.sentences` makes them.

    Parameters
    ----------
    symbol, name, formula, words : str     `name` is the module's
    lines : tuple of SourceLine
    values : list of B ndarrays            the vector of each text after the step
    notes : list of B str                  numbers of each text that the formula needs
    """

    symbol: str
    name: str
    formula: str
    words: str
    lines: tuple[SourceLine, ...]
    values: Sequence[FloatArray]
    notes: Sequence[str]


_EMBED = (("encoder.py", "x = ops.embed("), ("reference.py", "total = words.table["))
_PROJECT = (("encoder.py", "projected = ops.linear("),)
_ATTENTION = ("encoder.py", "return ops.attention(")
_ADD = (("encoder.py", "x = ops.linear(context"),)
_EXPAND = ("encoder.py", "intermediate = ops.linear(")
_BACK = (("encoder.py", "x = ops.linear(intermediate"),)
_TURN = (("encoder.py", "places = layer.bias_of"), ("reference.py", "rotated = np.concatenate("))
_POOL = (("encoder.py", "return ops.linear(first_tokens"),)

# The symbol of a row of the table -> what the step does, and the beginning of the lines that compute it.
_EXPLAINED: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "words": ("The row of the word table at the token's id.", _EMBED),
    "types": ("The row for the first or the second text of a pair.", _EMBED),
    "positions": ("The row for the place of the token in the text.", _EMBED),
    "embeddings_sum": ("The rows are added.", (_EMBED[0], ("reference.py", "total = total + table[ids]"))),
    "embeddings": (
        "LayerNorm: the numbers of each token get mean 0 and variance 1, then a learned scale and shift: "
        "(number - mean) / sqrt(variance + eps) * weight + bias.",
        (("encoder.py", "x = ops.layer_norm(x, weights.embeddings_norm"),),
    ),
    "projected": ("A linear map to H features.", (("encoder.py", "return x if weights.embeddings_project"),)),
    "query": ("A linear map of x, the hidden state that comes in. It is compared with the keys.", _PROJECT),
    "key": ("A second linear map of x. The queries of all tokens are compared with it.", _PROJECT),
    "value": ("A third linear map of x. It is what other tokens take from this one.", _PROJECT),
    "scores": (
        "In each head: the product of the token's query with the key of every token, divided by the root of D. by_head "
        "gives each head its own D numbers of a vector; transposed swaps rows and columns.",
        (_ATTENTION, ("reference.py", "scores = q @ k")),
    ),
    "probs": (
        "softmax turns the scores of one token into weights that add up to 1: exp(score), divided by the sum of the "
        "exp of all scores of the token.",
        (_ATTENTION, ("reference.py", "probs = softmax(")),
    ),
    "context": (
        "Each head adds up the values of all tokens, weighted by the probs. joined puts the results of the heads side "
        "by side into one vector.",
        (_ATTENTION, ("reference.py", "context[first:last] = ")),
    ),
    "attention_dense": ("A linear map mixes the heads.", _ADD),
    "attention_sum": ("x is added: the residual connection.", _ADD),
    "attention": (
        "LayerNorm, with a weight and bias of its own.",
        (("encoder.py", "x = ops.layer_norm(x, layer.attention_norm"),),
    ),
    "intermediate_dense": ("A linear map to F features, for each token alone.", (_EXPAND,)),
    "intermediate": (
        "The activation function, number by number.",
        (_EXPAND, ("reference.py", "y = ACTIVATION_FUNCTIONS[activation](y)")),
    ),
    "output_dense": ("A linear map back to H features.", _BACK),
    "output_sum": ("The attention output is added: the second residual connection.", _BACK),
    "output": (
        "LayerNorm. The result is the hidden state that goes into the next layer.",
        (("encoder.py", "x = ops.layer_norm(x, layer.output_norm"),),
    ),
    "rotated_query": (
        "In each head, numbers j and j + D / 2 are a point of a plane. It is turned by the position of the token times "
        "theta ** (-2 j / D). So the product of a query and a key depends on the distance of their tokens.",
        _TURN,
    ),
    "rotated_key": ("The keys are turned in the same way.", _TURN),
    "gate": ("A linear map to F features, for each token alone.", (_EXPAND,)),
    "up": ("A second linear map to F features.", (_EXPAND,)),
    "normed": (
        "LayerNorm, before attention; in the first layer there is none.",
        (("modernbert.py", "normed = x if layer.attention_norm"),),
    ),
    "attention_normed": (
        "LayerNorm, before the feed forward.",
        (("modernbert.py", "normed = ops.layer_norm(x, layer.output_norm"),),
    ),
    "final": ("LayerNorm. The result is the last hidden state.", (("modernbert.py", "x = ops.layer_norm(x, weights"),)),
    "pooler_dense": ("A linear map of the last hidden state of the first token, [CLS].", _POOL),
    "pooler": ("The activation function, number by number.", _POOL),
}

_GATED = (_EXPAND, ("reference.py", "return ACTIVATION_FUNCTIONS[activation](gate) * up"))
_OF_BLOCKS = ("attention_dense", "attention", "gate", "up", "output_dense", "output")

ACTIVATION_WORDS = {
    "gelu": "GELU: x / 2 * (1 + erf(x / sqrt(2))). It keeps large numbers and brings negative ones near 0.",
    "gelu_tanh": "GELU in its tanh form: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))). It differs from GELU "
    "by less than 0.0005. It keeps large numbers and brings negative ones near 0.",
    "relu": "ReLU: max(x, 0). It keeps positive numbers and makes negative ones 0.",
    "silu": "SiLU, also called swish: x / (1 + exp(-x)). It keeps large numbers and brings very negative ones near 0.",
    "tanh": "tanh(x). It brings every number between -1 and 1.",
}
"""What each activation that `hidden_act` can mean does (`ACTIVATIONS` of minibert/bert/reference.py)."""


@functools.cache
def _code(file: str) -> tuple[str, ...]:
    place = files("minibert").joinpath(*file.split("/")[1:]) if "/" in file else files("minibert.bert") / file
    return tuple(place.read_text(encoding="utf-8").splitlines())


def source_line(file: str, beginning: str) -> SourceLine:
    """Return the first line of a file that starts with `beginning`; see `SourceLine` for the file."""
    texts = enumerate(map(str.strip, _code(file)), 1)
    number, text = next((number, text) for number, text in texts if text.startswith(beginning))
    return SourceLine(file, number, text)


def steps(entries: Iterable[Entry], activation: str | None = None) -> Iterator[Step]:
    """Yield the steps that compute rows of the table; `activation` is the feed forward's, if it is known."""
    entries = list(entries)
    norms_first = any(entry.symbol == "attention_normed" for entry in entries)
    for entry in entries:
        words, lines = _EXPLAINED[entry.symbol]
        if norms_first and entry.symbol in ("attention", "output"):  # sums there, and LayerNorms in BERT
            words, lines = _EXPLAINED[f"{entry.symbol}_sum"]
        if norms_first and entry.symbol in _OF_BLOCKS:
            lines = tuple(("modernbert.py" if file == "encoder.py" else file, beginning) for file, beginning in lines)
        if entry.formula == "act(gate) * up":
            words, lines = "The activation function of the gate, times up, number by number.", _GATED
        if entry.symbol == "intermediate" and activation is not None:
            words += f" {ACTIVATION_WORDS[activation]}"
        if entry.formula.endswith("+ window"):
            words += (
                " In a layer with a window, the scores of tokens that are too far away are -inf, and their probs 0."
            )
        if entry.formula.endswith("+ bias"):
            words += " Then a bias is added: a number for the head and the distance of the two tokens."
        yield Step(entry, words, tuple(source_line(file, beginning) for file, beginning in lines))
