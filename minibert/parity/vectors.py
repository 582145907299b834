"""One vector of a text: how it is made of the hidden states, and mistakes with that (P); names of arrays (H)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.parity.mistake import Dump, Mistake, Recipe
from minibert.parity.subject import Padded
from minibert.sentence.pooling import POOLING_MODES

__all__ = [
    "DUMP_MISTAKES",
    "POOLINGS",
    "SCALINGS",
    "VECTOR",
    "VECTOR_MISTAKES",
    "find_recipe",
    "mask_of",
    "state_name",
    "vector",
]

VECTOR = "sentence_embedding"
"""The name of one vector per text, (B, H), which is that of sentence-transformers."""


def mask_of(name: str, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which places of a value count: a text has a vector if any of its tokens is visible, not only [CLS]."""
    shown: npt.NDArray[np.bool_] = np.any(mask, axis=1, keepdims=True) if name == VECTOR else mask
    return shown


Pooling = Callable[[Mapping[str, FloatArray], Padded, int], FloatArray]


def state_name(index: int) -> str:
    """Return the name in trace/names.py of hidden state `index`."""
    return "embeddings" if index == 0 else f"encoder.layer.{index - 1}"


def _rows(
    x: FloatArray, chosen: npt.NDArray[np.bool_], formula: Callable[[FloatArray, npt.NDArray[np.int64]], FloatArray]
) -> FloatArray:
    """Apply a formula of sentence/pooling.py to the chosen tokens of each row; zeros for a row without any."""
    vectors = np.zeros((len(x), x.shape[-1]), x.dtype)
    for row, (states, some) in enumerate(zip(x, chosen, strict=True)):
        if some.any():
            vectors[row] = formula(states[some], np.arange(int(some.sum())))
    return vectors


def _mode(mode: str) -> Pooling:
    return lambda values, inputs, depth: _rows(values[state_name(depth)], inputs.mask, POOLING_MODES[mode])


def _padding(values: Mapping[str, FloatArray], inputs: Padded, depth: int) -> FloatArray:
    return values[state_name(depth)].mean(axis=1)


def _without_special(values: Mapping[str, FloatArray], inputs: Padded, depth: int) -> FloatArray:
    count = inputs.mask.cumsum(axis=1)
    inside = inputs.mask & (count > 1) & (count < count.max(axis=1, keepdims=True))
    return _rows(values[state_name(depth)], inside, POOLING_MODES["mean"])


def _first_last(values: Mapping[str, FloatArray], inputs: Padded, depth: int) -> FloatArray:
    both = (values[state_name(0)] + values[state_name(depth)]) / 2
    return _rows(both, inputs.mask, POOLING_MODES["mean"])


def _second_last(values: Mapping[str, FloatArray], inputs: Padded, depth: int) -> FloatArray:
    return _rows(values[state_name(max(depth - 1, 0))], inputs.mask, POOLING_MODES["mean"])


POOLINGS: dict[str, Pooling] = {
    **{mode: _mode(mode) for mode in POOLING_MODES},
    "sum": lambda values, inputs, depth: _rows(
        values[state_name(depth)], inputs.mask, lambda x, positions: x.sum(axis=0)
    ),
    "pooler": lambda values, inputs, depth: values["pooler"],
    "mean with padding": _padding,
    "mean without [CLS] and [SEP]": _without_special,
    "mean of the first and last state": _first_last,
    "mean of the last state but one": _second_last,
}
"""The vector before it is scaled, by name: of the values of all names, the inputs, and the number of layers."""


def _length(x: FloatArray) -> FloatArray:
    norms: FloatArray = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return np.where(norms > 0, norms, 1)


SCALINGS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "unit": lambda x: x / _length(x),
    "none": lambda x: x,
    "twice": lambda x: x / _length(x) ** 2,
}
"""Normalised to length 1, left as it is, or divided by its length twice."""


def vector(values: Mapping[str, FloatArray], inputs: Padded, depth: int, recipe: Recipe) -> FloatArray:
    """Make one vector per text, (B, H); `values` has the hidden states and the pooler that the recipe needs."""
    return SCALINGS[recipe.scaling](POOLINGS[recipe.pooling](values, inputs, depth))


def find_recipe(values: Mapping[str, FloatArray], inputs: Padded, depth: int, wanted: FloatArray) -> Recipe | None:
    """Return the recipe that makes the vectors `wanted` of the true values, or None."""
    usual = (*POOLING_MODES, "pooler")
    shown = inputs.mask.any(axis=1)
    size = float(np.abs(wanted[shown]).max(initial=0))
    for pooling in usual:
        for scaling in ("unit", "none"):
            if pooling == "pooler" and "pooler" not in values:
                continue
            made = vector(values, inputs, depth, Recipe(pooling, scaling))
            if made.shape == wanted.shape and np.abs(made - wanted)[shown].max(initial=0) <= 1e-4 * size:
                return Recipe(pooling, scaling)
    return None


# --- mistakes ---------------------------------------------------------------------------------------------------------

_POOLING_REMEDY = "Take the pooling of 1_Pooling/config.json: {}."
_REMEDIES = {
    "mean with padding": "average the visible tokens, (x * mask).sum(1) / mask.sum(1)",
    "cls": "this model may average all tokens (pooling_mode_mean_tokens)",
    "mean": "this model may take the first token (pooling_mode_cls_token)",
}
_POOLED = (
    *(
        Mistake(
            id,
            f"pooling: {text}",
            _POOLING_REMEDY.format(_REMEDIES.get(pooling, "which tokens count, and of which hidden state")),
            (VECTOR,),
            vector=lambda right, pooling=pooling: right._replace(pooling=pooling),  # type: ignore[misc]
        )
        for id, pooling, text in (
            ("P1.padding", "mean with padding", "the mean is over the padding too"),
            ("P2.cls", "cls", "the vector is that of the first token, [CLS]"),
            ("P2.mean", "mean", "the vector is the mean of the tokens"),
            ("P2.max", "max", "the vector is the maximum over the tokens"),
            ("P2.last", "lasttoken", "the vector is that of the last visible token"),
            ("P2.pooler", "pooler", "the vector is pooler_output"),
            ("P2.weighted", "weightedmean", "the mean is weighted by position"),
            ("P2.sum", "sum", "the vector is the sum of the tokens, not divided by their number"),
            ("P2.special", "mean without [CLS] and [SEP]", "the mean leaves out [CLS] and [SEP]"),
            ("P2.first-last", "mean of the first and last state", "it is the mean of the first and the last state"),
            ("P2.second-last", "mean of the last state but one", "the hidden state is that before the last layer"),
        )
    ),
    *(
        Mistake(
            id,
            f"normalisation: {text}",
            remedy,
            (VECTOR,),
            vector=lambda right, scaling=scaling: right._replace(scaling=scaling),  # type: ignore[misc]
        )
        for id, scaling, text, remedy in (
            (
                *("P3.raw", "none", "the vector does not have length 1; the model has a Normalize module"),
                "Divide by the length: torch.nn.functional.normalize(x, dim=-1).",
            ),
            (
                *("P3.unit", "unit", "the vector has length 1; the model does not have a Normalize module"),
                "Leave the vector as it is; modules.json has no Normalize.",
            ),
            (
                *("P3.twice", "twice", "the vector is divided by its length twice"),
                "Divide by the length once, not by its square.",
            ),
        )
    ),
)
VECTOR_MISTAKES: tuple[Mistake, ...] = _POOLED


def _late(values: dict[str, FloatArray], depth: int) -> dict[str, FloatArray]:
    """Give each hidden state the name of the next one."""
    moved = dict(values)
    for i in range(1, depth + 1):
        if state_name(i - 1) in values:
            moved[state_name(i)] = values[state_name(i - 1)]
    return moved


def _early(values: dict[str, FloatArray], depth: int) -> dict[str, FloatArray]:
    """Give each hidden state the name of the one before it; the last name keeps its own."""
    return values | {state_name(i): values[state_name(i + 1)] for i in range(depth) if state_name(i + 1) in values}


def _renamed(pairs: Callable[[int], dict[str, str]]) -> Dump:
    """Return a change of a dump in which names have the arrays of other names."""

    def change(values: dict[str, FloatArray], depth: int) -> dict[str, FloatArray]:
        return values | {to: values[source] for to, source in pairs(depth).items() if source in values}

    return change


_H_REMEDY = (
    "hidden_states[0] is the output of embeddings.LayerNorm, hidden_states[i + 1] that of "
    "encoder.layer.i.output.LayerNorm."
)
DUMP_MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "H1.late",
        "names: each hidden state has the name of the next one (off by one)",
        *(_H_REMEDY, ("output",)),
        dump=_late,
    ),
    Mistake(
        "H1.early",
        "names: each hidden state has the name of the one before it (off by one)",
        *(_H_REMEDY, ("embeddings", "output")),
        dump=_early,
    ),
    Mistake(
        "H1.look-up",
        "names: hidden state 0 is the look-up of word_embeddings, not the output of embeddings.LayerNorm",
        *(_H_REMEDY, ("embeddings",)),
        dump=_renamed(lambda depth: {"embeddings": "embeddings.word_embeddings"}),
    ),
    Mistake(
        "H1.before-norm",
        "names: the hidden states are the inputs of the LayerNorms, not their outputs",
        *(_H_REMEDY, ("embeddings", "output")),
        dump=_renamed(
            lambda depth: (
                {"embeddings": "embeddings.LayerNorm.input"}
                | {f"encoder.layer.{i}": f"encoder.layer.{i}.output.LayerNorm.input" for i in range(depth)}
            )
        ),
    ),
)
