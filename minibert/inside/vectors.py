"""The steps from the last hidden states to the vector of a text: the pooling and the modules after it, with values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, counted
from minibert.inside.sentences import check_sentence_model
from minibert.sentence.encoding import sentence_width
from minibert.sentence.options import EncodeOptions
from minibert.sentence.pooling import pool
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.trace.page.steps import VectorStep, source_line

__all__ = ["TextVectors", "vector_steps"]

# Mode of pooling -> the formula and what it does. `place` counts the tokens from 1.
_POOLING = {
    "mean": ("sum(x) / n", "The mean of the last hidden states of all tokens, [CLS] and [SEP] too."),
    "cls": ("x[0]", "The last hidden state of the first token, [CLS]."),
    "max": ("max(x)", "For each feature, the largest number of all tokens."),
    "mean_sqrt_len_tokens": ("sum(x) / sqrt(n)", "The sum of the last hidden states, divided by the root of n."),
    "weightedmean": ("sum(place * x) / sum(place)", "A mean in which the first token counts once, the second twice."),
    "lasttoken": ("x[-1]", "The last hidden state of the last token."),
}

# Kind of a module -> its formula, its sentence, and where its line of code is.
_MODULES = {
    "Normalize": (
        "{x} / sqrt(sum({x}^2))",
        "The vector is divided by its length, so that its length is 1. The cosine of two such vectors is the sum of "
        "their products.",
        ("minibert/similarity.py", "return (scaled / lengths)"),
    ),
    "Dense": (
        "{x} @ W.T + b",
        "A linear map.",
        ("minibert/sentence/modules.py", "return self.ops.linear(vectors, self.linear"),
    ),
    "LayerNorm": (
        "layer_norm({x})",
        "LayerNorm, with a weight and bias of its own.",
        ("minibert/sentence/modules.py", "return self.ops.layer_norm(vectors"),
    ),
}


class TextVectors(NamedTuple):
    """The steps to the vectors of texts.

    Parameters
    ----------
    tokens : list of lists of str     the tokens of each text, as the model takes them for its vector
    steps : list of VectorStep        the last values are the vectors that `encode` returns
    """

    tokens: list[list[str]]
    steps: list[VectorStep]


def vector_steps(model: SentenceTransformer, texts: Sequence[str]) -> TextVectors:
    """Run a model on texts, and return its pooling and the modules after it, with the vector after each step.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.
    """
    check_sentence_model("vector_steps", model)
    task = model.encode_task(EncodeOptions(), return_info=False, exact=False)
    found = [model.encode(text, output_value=None) for text in texts]
    states = [one["token_embeddings"] for one in found]
    counts = [np.ones(len(state), dtype=np.bool_) for state in states]
    if not task.recipe.include_prompt:
        for count, one in zip(counts, found, strict=True):
            count[: one.get("prompt_length", 0)] = False
    pooled: list[FloatArray] = []
    steps = []
    modes = task.recipe.modes
    for mode in modes:
        symbol = "pooling" if len(modes) == 1 else f"pooling_{mode}"
        values = [
            pool(state, np.array([0, len(state)]), [mode], count)[0]
            for state, count in zip(states, counts, strict=True)
        ]
        notes = [f"n = {counted(int(count.sum()), 'token')}" for count in counts]
        line = source_line("minibert/sentence/pooling.py", f'"{mode}": ')
        steps.append(VectorStep(symbol, "Pooling", *_POOLING[mode], (line,), values, notes))
        pooled = values if not pooled else [np.concatenate(both) for both in zip(pooled, values, strict=True)]
    before = "pooling" if len(modes) == 1 else "joined"
    for name, step in zip(task.pipeline.names, task.pipeline.steps, strict=True):
        kind = name.partition("(")[0]
        formula, words, where = _MODULES[kind]
        after = [step(vector[None])[0] for vector in pooled]
        symbol, formula = kind.lower(), formula.format(x=before)
        if kind == "Dense":
            formula = _dense(formula, before, step.config(), step.tensors())
        notes = [f"length before: {np.linalg.norm(vector.astype(np.float64)):#.3g}" for vector in pooled]
        steps.append(VectorStep(symbol, name, formula, words, (source_line(*where),), after, notes))
        before, pooled = symbol, after
    width = sentence_width(task, model.truncate_dim)
    if pooled and width < len(pooled[0]):
        line = source_line("minibert/similarity.py", "def truncate_embeddings(")
        cut = [vector[:width] for vector in pooled]
        words = f"The first {width} features are kept."
        steps.append(
            VectorStep("truncated", "truncate_dim", f"{before}[:{width}]", words, (line,), cut, [""] * len(cut))
        )
    tokens = [list(model.tokenizer.convert_ids_to_tokens(one["input_ids"].tolist())) for one in found]
    return TextVectors(tokens, steps)


def _dense(formula: str, before: str, config: Mapping[str, Any], tensors: Mapping[str, FloatArray]) -> str:
    """Return the formula of a Dense module with its activation and its residual."""
    activation = config["activation_function"].rpartition(".")[2].lower()
    if activation != "identity":
        formula = f"{activation}({formula})"
    if not config.get("use_residual"):
        return formula
    return f"{formula} + {before}" + (" @ R.T" if "residual.weight" in tensors else "")
