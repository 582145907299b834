"""Why a sentence model finds two texts similar: exact parts of the cosine, and leaving out one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray, check_int, counted
from minibert.encode.modules import LAYER_NORM_EPS, VectorModule
from minibert.encode.options import EncodeOptions
from minibert.encode.plan import Plan
from minibert.encode.pooling import POOLING_MODES, pool
from minibert.inside.validation import finite_numbers, shares
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.tokenizer.texts import check_text
from minibert.tokenizer.too_long import TooLong
from minibert.trace.page.steps import VectorStep, source_line

# The modes whose vector is a weighted sum of the tokens' vectors.
_LINEAR = tuple(mode for mode in POOLING_MODES if mode != "max")

_REMEDY = "leave_one_out measures the effect of each token instead."


class SimilarityParts(NamedTuple):
    """The token x token parts of a cosine.

    Parameters
    ----------
    tokens_a : list of Sa str
    tokens_b : list of Sb str
    parts : ndarray of shape (Sa, Sb), float64      they add up to the cosine
    """

    tokens_a: list[str]
    tokens_b: list[str]
    parts: FloatArray

    @property
    def cosine(self) -> float:
        """The cosine of the two texts, the sum of all parts."""
        return float(self.parts.sum())

    def largest(self, count: int = 10) -> list[tuple[str, str, float]]:
        """Return the parts with the largest absolute values, as (token, token, part)."""
        order = np.argsort(-np.abs(self.parts), axis=None, kind="stable")[: check_int("count", count, 1)]
        places = zip(*np.unravel_index(order, self.parts.shape), strict=True)
        return [(self.tokens_a[i], self.tokens_b[j], float(self.parts[i, j])) for i, j in places]


def explain_similarity(
    model: SentenceTransformer,
    a: str,
    b: str,
    *,
    prompt_names: tuple[str | None, str | None] = (None, None),
    pooling: str | Sequence[str] | None = None,
) -> SimilarityParts:
    """Split the cosine of two texts into a part for each pair of their tokens; the parts add up to the cosine.

    The vector of a text is a weighted sum of the vectors of its tokens if the pooling is "mean", "cls", "weightedmean",
    "mean_sqrt_len_tokens" or "lasttoken", and so is its image under linear modules. So the cosine is a sum over
    pairs of tokens: part[i, j] = a_i . b_j / (|a| |b|). Nothing is approximated. A bias of a module is shared out by
    the weights of the pooling; a LayerNorm is taken with the deviation that it has for the whole text.

    A part says what a pair of contextual vectors adds. It does not say what the words would add in other texts.

    Parameters
    ----------
    model : SentenceTransformer
    a, b : str
    prompt_names : pair of str or None
        The prompts to put before `a` and before `b`, as `prompt_name` of `encode`. Tokens of a prompt are tokens here.
    pooling : str, optional
        As for `encode`; default: the model's.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; or the vector is not a weighted sum, because of "max" or of the pooler, or of a Dense
        module with an activation. `leave_one_out` is for these.
    """
    _check("explain_similarity", model, a, b)
    of_both = [_weighted(model, text, name, pooling) for text, name in zip((a, b), prompt_names, strict=True)]
    (tokens_a, x), (tokens_b, y) = of_both
    lengths = float(np.linalg.norm(x.sum(axis=0)) * np.linalg.norm(y.sum(axis=0)))
    parts = x @ y.T
    return SimilarityParts(tokens_a, tokens_b, parts / lengths if lengths else 0 * parts)


def _weighted(
    model: SentenceTransformer, text: str, prompt_name: str | None, pooling: str | Sequence[str] | None
) -> tuple[list[str], FloatArray]:
    """Return the tokens of a text, and vectors (S, width) that add up to the vector of the text."""
    plan = model.plan(EncodeOptions(prompt_name=prompt_name, pooling=pooling))
    modes = plan.pooling
    if wrong := [mode for mode in modes if mode not in _LINEAR]:
        raise ValueError(
            f"explain_similarity needs a vector that is a weighted sum of the tokens' vectors; the pooling "
            f"{wrong[0]!r} is not one. {_REMEDY}"
        )
    tokens, states, counts = _encoded(model, plan, text, prompt_name=prompt_name, pooling=pooling)
    vectors, positions = states.astype(np.float64), np.flatnonzero(counts)
    # Each mode is linear, so its weights are what it makes of the unit vectors.
    weights = np.zeros((len(modes), len(vectors)))
    for row, mode in zip(weights, modes, strict=True):
        if len(positions):
            row[positions] = POOLING_MODES[mode](np.eye(len(positions)), positions)
    parts = np.concatenate([row[:, None] * vectors for row in weights], axis=1)
    share = shares(weights).mean(axis=0)
    for module in plan.pipeline.modules:
        parts = _through(module, parts, share[:, None])
    return tokens, parts[:, : plan.width]


def _through(module: VectorModule, parts: FloatArray, share: FloatArray) -> FloatArray:
    """Return the parts of a module's output from the parts of its input."""
    tensors = {key: np.asarray(value, dtype=np.float64) for key, value in module.tensors.items()}
    if module.kind == "Normalize":
        length = np.linalg.norm(parts.sum(axis=0))
        return parts / length if length else parts
    if module.kind == "LayerNorm":
        deviation = np.sqrt(parts.sum(axis=0).var() + LAYER_NORM_EPS)
        centred = (parts - parts.mean(axis=1, keepdims=True)) / deviation
        return centred * tensors["norm.weight"] + share * tensors["norm.bias"]
    if module.kind != "Dense" or not module.config["activation_function"].endswith(".Identity"):
        needed = "explain_similarity needs linear modules after the pooling"
        raise ValueError(f"{needed}; this model has {module}. {_REMEDY}")
    image = parts @ tensors["linear.weight"].T + share * tensors.get("linear.bias", 0.0)
    if module.config.get("use_residual"):
        image += parts @ tensors["residual.weight"].T if "residual.weight" in tensors else parts
    return image


class LeftOut(NamedTuple):
    """The result of `leave_one_out` for the n tokens of a text, without special tokens.

    Parameters
    ----------
    tokens : list of n str
    positions : int ndarray of shape (n,)         the index of each among all tokens of the text
    changes : ndarray of shape (n,), float64      the score of the whole text minus the score without the token
    score : float                                 the score of the whole text
    """

    tokens: list[str]
    positions: IntArray
    changes: FloatArray
    score: float


def leave_one_out(
    model: SentenceTransformer,
    text: str,
    score: str | npt.ArrayLike | Callable[[FloatArray], npt.ArrayLike],
    *,
    prompt_name: str | None = None,
    pooling: str | Sequence[str] | None = None,
) -> LeftOut:
    """Leave out each token of a text in turn, and return how much the score falls.

    Li et al. 2016, "Understanding Neural Networks through Representation Erasure" (arXiv 1612.08220), section 2. The
    whole model runs on each shortened text, all of them packed together, so it works for every pooling and every
    module. The tokens after the one that is left out move up by one position.

    Parameters
    ----------
    model : SentenceTransformer
    text : str
    score : str, array of shape (width,), or function
        Another text, or a vector: the model's similarity with it. Or a function of vectors (n, width) that returns n
        numbers.
    prompt_name, pooling : as for `encode`
    """
    _check("leave_one_out", model, text)
    plan = model.plan(EncodeOptions(prompt_name=prompt_name, pooling=pooling))
    measure = _make_score(model, score, pooling, plan.width)
    ((_, groups),) = plan.windows.of([text], [0])
    whole = groups[0][0]
    special = whole.special_tokens_mask == 1
    special[: plan.windows.num_prompt_tokens] = True  # the prompt's tokens stay
    positions = np.flatnonzero(~special)
    everything = np.arange(len(whole))
    encodings = [whole, *(whole.take(np.delete(everything, position)) for position in positions)]
    scores = measure(plan.pipeline.finish(plan.pool_windows(encodings))[:, : plan.width])
    TooLong("warn", model.max_seq_length, silence="").add([whole.n_truncated]).warn()
    tokens = whole.tokens
    return LeftOut([tokens[i] for i in positions], positions, scores[0] - scores[1:], float(scores[0]))


def _make_score(model: SentenceTransformer, score: Any, pooling: str | Sequence[str] | None, width: int) -> Any:
    """Return a function of vectors (n, width) that gives n finite numbers."""
    if callable(score):
        return lambda vectors: finite_numbers("The score", score(vectors.copy()), (len(vectors),))
    if isinstance(score, str):
        _check("leave_one_out", model, score)
        other = model.encode(score, pooling=pooling)
    else:
        other = finite_numbers("score", score, (width,), "a text, a function of vectors, or an array of finite numbers")
    return lambda vectors: finite_numbers("The similarity", model.similarity(vectors, other)[:, 0], (len(vectors),))


def _check(function: str, model: object, *texts: object) -> None:
    """Raise a TypeError if a model is not a SentenceTransformer, or a text is not a str."""
    if not isinstance(model, SentenceTransformer):
        raise TypeError(
            f"{function} was given a {type(model).__name__} as the model; expected a SentenceTransformer of minibert, "
            "because a sentence vector needs its pooling."
        )
    for text in texts:
        check_text(text, f"the text of {function}")


def _encoded(
    model: SentenceTransformer, plan: Plan, text: str, **options: Any
) -> tuple[list[str], FloatArray, npt.NDArray[np.bool_]]:
    """Return the tokens of a text, their last hidden states, and which of them the pooling counts."""
    encoded = model.encode(text, output_value=None, **options)
    counts = np.ones(len(encoded["input_ids"]), dtype=np.bool_)
    counts[: plan.num_skipped] = False
    tokens: Any = model.tokenizer.convert_ids_to_tokens(encoded["input_ids"].tolist())
    return tokens, encoded["token_embeddings"], counts


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
        ("minibert/vectors/similarity.py", "return (x / np.sqrt(squares)"),
    ),
    "Dense": ("{x} @ W.T + b", "A linear map.", ("minibert/encode/modules.py", "return ops.linear(vectors, maps")),
    "LayerNorm": (
        "layer_norm({x})",
        "LayerNorm, with a weight and bias of its own.",
        ("minibert/encode/modules.py", "return ops.layer_norm(vectors, norm)"),
    ),
}


class TextVectors(NamedTuple):
    """The steps from texts to their vectors.

    Parameters
    ----------
    tokens : list of lists of str     the tokens of each text, as the model takes them for its vector
    steps : list of VectorStep        the last values are the vectors that `encode` returns
    """

    tokens: list[list[str]]
    steps: list[VectorStep]


def vector_steps(model: SentenceTransformer, texts: Sequence[str]) -> TextVectors:
    """Run a model on texts, and return its pooling and the modules after it, with the vector after each step."""
    _check("vector_steps", model, *texts)
    plan = model.plan(EncodeOptions())
    encoded = [_encoded(model, plan, text) for text in texts]
    pooled: list[FloatArray] = []
    steps = []
    modes = plan.pooling
    for mode in modes:
        symbol = "pooling" if len(modes) == 1 else f"pooling_{mode}"
        values = [pool(state, np.array([0, len(state)]), [mode], count)[0] for _, state, count in encoded]
        notes = [f"n = {counted(int(count.sum()), 'token')}" for *_, count in encoded]
        line = source_line("minibert/encode/pooling.py", f'"{mode}": ')
        steps.append(VectorStep(symbol, "Pooling", *_POOLING[mode], (line,), values, notes))
        pooled = values if not pooled else [np.concatenate(both) for both in zip(pooled, values, strict=True)]
    source = "pooling" if len(modes) == 1 else "joined"
    for module in plan.pipeline.modules:
        formula, words, where = _MODULES[module.kind]
        after = [module(vector[None])[0] for vector in pooled]
        symbol, formula = module.kind.lower(), formula.format(x=source)
        if module.kind == "Dense":
            formula = _dense(formula, source, module.config, module.tensors)
        notes = [f"length before: {np.linalg.norm(vector.astype(np.float64)):#.3g}" for vector in pooled]
        steps.append(VectorStep(symbol, module.name, formula, words, (source_line(*where),), after, notes))
        source, pooled = symbol, after
    width = plan.width
    if pooled and width < len(pooled[0]):
        line = source_line("minibert/vectors/similarity.py", "def truncate_embeddings(")
        cut = [vector[:width] for vector in pooled]
        words = f"The first {width} features are kept."
        formula = f"{source}[:{width}]"
        steps.append(VectorStep("truncated", "truncate_dim", formula, words, (line,), cut, [""] * len(cut)))
    return TextVectors([tokens for tokens, *_ in encoded], steps)


def _dense(formula: str, source: str, config: Mapping[str, Any], tensors: Mapping[str, FloatArray]) -> str:
    """Return the formula of a Dense module with its activation and its residual."""
    activation = config["activation_function"].rpartition(".")[2].lower()
    if activation != "identity":
        formula = f"{activation}({formula})"
    if not config.get("use_residual"):
        return formula
    return f"{formula} + {source}" + (" @ R.T" if "residual.weight" in tensors else "")
