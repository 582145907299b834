"""The steps of the forward pass: for each value of trace/layout.py a sentence and its lines of source code."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from minibert._utils.validation import FloatArray
from minibert.trace.layout import Entry


class SourceLine(NamedTuple):
    """One line of code: its file, the line's number, and its text without indent.

    The file is one of the folder ``minibert/bert``, or has its whole path: "minibert/encode/modules.py".
    """

    file: str
    number: int
    text: str


class Step(NamedTuple):
    """One step: its entry, what it does in words, and the lines of code that compute it."""

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


# What the step of a symbol does, and the beginning of the line of reference.py that computes it. A sum whose symbol is
# that of a LayerNorm in BERT has the words of BERT's sum.
_EXPLAINED: dict[str, tuple[str, str]] = {
    "words": ("The row of the word table at the token's id.", "total = words.table["),
    "types": ("The row for the first or the second text of a pair.", "total = words.table["),
    "positions": ("The row for the place of the token in the text.", "total = words.table["),
    "embeddings_sum": ("The rows are added.", "total = total + table[ids]"),
    "embeddings": (
        "LayerNorm: the numbers of each token get mean 0 and variance 1, then a learned scale and shift: "
        "(number - mean) / sqrt(variance + eps) * weight + bias.",
        "",
    ),
    "projected": ("A linear map to H features.", ""),
    "query": ("A linear map of x, the hidden state that comes in. It is compared with the keys.", ""),
    "key": ("A second linear map of x. The queries of all tokens are compared with it.", ""),
    "value": ("A third linear map of x. It is what other tokens take from this one.", ""),
    "scores": (
        "In each head: the product of the token's query with the key of every token, divided by the root of D. by_head "
        "gives each head its own D numbers of a vector; transposed swaps rows and columns.",
        "scores: FloatArray = q @ k",
    ),
    "probs": (
        "softmax turns the scores of one token into weights that add up to 1: exp(score), divided by the sum of the "
        "exp of all scores of the token.",
        "probs = softmax(",
    ),
    "context": (
        "Each head adds up the values of all tokens, weighted by the probs. joined puts the results of the heads side "
        "by side into one vector.",
        "context[first:last] = ",
    ),
    "attention_dense": ("A linear map mixes the heads.", ""),
    "attention_sum": ("x is added: the residual connection.", ""),
    "attention": ("LayerNorm, with a weight and bias of its own.", ""),
    "intermediate_dense": ("A linear map to F features, for each token alone.", ""),
    "intermediate": ("The activation function, number by number.", "y = ACTIVATION_FUNCTIONS[activation](y)"),
    "output_dense": ("A linear map back to H features.", ""),
    "output_sum": ("The attention output is added: the second residual connection.", ""),
    "output": ("LayerNorm. The result is the hidden state that goes into the next layer.", ""),
    "rotated_query": (
        "In each head, numbers j and j + D / 2 are a point of a plane. It is turned by the position of the token times "
        "theta ** (-2 j / D). So the product of a query and a key depends on the distance of their tokens.",
        "rotated = np.concatenate(",
    ),
    "rotated_key": ("The keys are turned in the same way.", "rotated = np.concatenate("),
    "gate": ("A linear map to F features, for each token alone.", ""),
    "up": ("A second linear map to F features.", ""),
    "normed": ("LayerNorm, before attention; the first layer has none if the embeddings end with one.", ""),
    "attention_normed": ("LayerNorm, before the feed forward.", ""),
    "final": ("LayerNorm. The result is the last hidden state.", ""),
    "pooler_dense": ("A linear map of the last hidden state of the first token, [CLS].", ""),
    "pooler": ("The activation function, number by number.", ""),
}
_GATED = (
    "The activation function of the gate, times up, number by number.",
    "return ACTIVATION_FUNCTIONS[activation](gate) * up",
)

_SCALED = (
    "scale multiplies the row by 0.88 / (1 - the share of <mask> in the text), and the row of <mask> by 0.",
    "total = total * scale",
)

_ADDED = {
    "b": "",
    "bias": " Then a bias is added: a number for the head and the distance of the two tokens.",
    "window": " Tokens that are too far away have the score -inf, and their probs are 0.",
}

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
    """Yield the steps that compute entries; `activation` is the feed forward's, if it is known."""
    for entry in entries:
        words, beginning = _EXPLAINED[entry.symbol]
        match entry.kind:
            case "sum" if entry.function == "scale":
                words, beginning = _SCALED
            case "sum" if not entry.symbol.endswith("_sum"):  # a LayerNorm in BERT
                words, beginning = _EXPLAINED[f"{entry.symbol}_sum"]
            case "norm" if entry.function == "rms_norm":
                words = words.replace("LayerNorm", "RMSNorm, a LayerNorm that does not subtract the mean")
            case "activation" if len(entry.needs) > 1:
                words, beginning = _GATED
        if entry.symbol == "intermediate" and activation is not None:
            words += f" {ACTIVATION_WORDS[activation]}"
        words += "".join(_ADDED[term] for term in entry.added)
        file, number = entry.line
        lines = [SourceLine(file, number, _code(file)[number - 1].strip())]
        if beginning:
            lines.append(source_line("reference.py", beginning))
        yield Step(entry, words, tuple(lines))
