"""Analyses of hidden states: their similarity between layers or models, and the words that a head reads from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minibert._utils.reproducible_math import largest, softmax
from minibert._utils.validation import FloatArray, IntArray, brief, check_indices, check_int
from minibert.bert import heads
from minibert.inside.validation import as_trace, check_layers, check_model, check_trace, require
from minibert.models.base import SLICE_BYTES
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.trace.page.data import Guesses
from minibert.trace.trace import Trace
from minibert.vectors.similarity import normalize_embeddings


class LayerSimilarity(NamedTuple):
    """The result of `compare_layers` for m hidden states of the first trace and n of the second; float64.

    Parameters
    ----------
    cka : ndarray of shape (m, n)              linear CKA, -1 to 1; near 0 if unrelated
    cosine : ndarray of shape (m, n), or None  mean cosine of the vectors of the same token; None if the sizes differ
    anisotropy_a : ndarray of shape (m,)       mean cosine of the vectors of two different tokens
    anisotropy_b : ndarray of shape (n,)
    """

    cka: FloatArray
    cosine: FloatArray | None
    anisotropy_a: FloatArray
    anisotropy_b: FloatArray


def compare_layers(
    trace_a: Trace | FloatArray, trace_b: Trace | FloatArray | None = None, *, layers: Any = None
) -> LayerSimilarity:
    """Compare each hidden state of a trace with each one of another trace, or of the same trace, over all tokens.

    Arrays (n, k, H), of n words or tokens in k layers, are compared in the same way.

    - Linear CKA: Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited" (arXiv 1905.00414),
      section 3. It does not depend on rotations or on the scale, so it compares models of different widths. HSIC is the
      unbiased estimate of Song et al. 2012, "Feature Selection via Dependence Maximization" (equation 4), which Nguyen
      et al. 2021 (arXiv 2010.15327) take for CKA: unrelated layers have about 0, also with fewer tokens than features.
    - Anisotropy: Ethayarajh 2019, "How Contextual are Contextualized Word Representations?" (arXiv 1909.00512), section
      3.3: the mean cosine of two different tokens, here over all pairs instead of a sample.

    Parameters
    ----------
    trace_a, trace_b : Trace, or float ndarray of shape (n, k, H)
        Of the same texts with the same mask, with ``hidden_states.*``; or of the same words. Of any two models, such as
        before and after fine-tuning.
    layers : int or ints, optional
        Hidden states, 0 to L, of both, or indices of the k layers of an array; default: all.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; there are fewer than 4 tokens; or all vectors of a layer are equal or equally far apart.
    """
    states_a, counts_a = _states(trace_a, layers)
    states_b, counts_b = (states_a, counts_a) if trace_b is None else _states(trace_b, layers)
    if counts_a != counts_b:
        raise ValueError(
            f"compare_layers was given texts of {brief(counts_a)} and {brief(counts_b)} tokens, so they do not "
            "belong together. Give two models the same texts with the same attention mask."
        )
    if len(states_a[0]) < 4:
        raise ValueError(f"compare_layers needs at least 4 tokens, and was given {len(states_a[0])}. Give more text.")
    centred_a, units_a = centred_b, units_b = _centred(states_a), list(map(normalize_embeddings, states_a))
    if states_b is not states_a:
        centred_b, units_b = _centred(states_b), list(map(normalize_embeddings, states_b))
    cosine = None
    if units_a[0].shape == units_b[0].shape:
        cosine = np.array([[float((x * y).sum(axis=1).mean()) for y in units_b] for x in units_a])
    return LayerSimilarity(
        _cka(centred_a, centred_b), cosine, *(np.array(list(map(_anisotropy, units))) for units in (units_a, units_b))
    )


def _states(source: object, layers: Any) -> tuple[list[FloatArray], list[int]]:
    """Return hidden states without padding, (T, H) each, in float64, and the number of tokens of each text."""
    if isinstance(source, np.ndarray):
        if source.ndim != 3 or source.dtype.kind != "f" or not np.isfinite(source).all():
            what = "a word without tokens has NaN, leave it out" if source.ndim == 3 else f"its shape is {source.shape}"
            raise ValueError(f"compare_layers takes arrays (words, layers, H) of finite floats; {what}.")
        count, wanted = source.shape[1], range(source.shape[1]) if layers is None else layers
        chosen = check_indices("layers", wanted, count, what="layers of the array", expected="an int or several")
        return [source[:, i].astype(np.float64) for i in chosen], [len(source)]
    if not isinstance(source, Trace):
        expected = "expected a Trace, or an array (words, layers, H)"
        raise TypeError(f"compare_layers was given a {type(source).__name__}; {expected}.")
    trace = check_trace("compare_layers", source)
    indices = check_layers(trace, layers, hidden_states=True)
    require("compare_layers", trace, [f"hidden_states.{i}" for i in indices], "'hidden_states.*'")
    states: list[FloatArray] = [trace[f"hidden_states.{i}"][trace.mask].astype(np.float64) for i in indices]
    return states, trace.mask.sum(axis=1).tolist()


def _centred(states: list[FloatArray]) -> list[FloatArray]:
    return [x - x[0] - (x - x[0]).mean(axis=0) for x in states]  # equal vectors give 0 exactly


def _cka(xs: list[FloatArray], ys: list[FloatArray]) -> FloatArray:
    """Return linear CKA of centred features: with T x T products if there are fewer tokens than features."""
    n = len(xs[0])
    few = n <= min(xs[0].shape[1], ys[0].shape[1])
    squares = {id(x): np.square(x).sum(axis=1) for x in [*xs, *ys]}

    def hsic(x: FloatArray, y: FloatArray) -> float:
        # Song et al., equation 4, times n (n - 3). The rows of X X' add up to 0, which makes its terms these.
        # |Y'X|² is the sum of the products of the numbers of X X' and Y Y'.
        product = float(np.vdot(grams[id(x)], grams[id(y)])) if few else float(np.square(y.T @ x).sum())
        of_x, of_y = squares[id(x)], squares[id(y)]
        return product - n / (n - 2) * float(of_x @ of_y) + float(of_x.sum() * of_y.sum()) / ((n - 1) * (n - 2))

    grams = {id(x): x @ x.T for x in [*xs, *ys]} if few else {}
    own = {id(x): hsic(x, x) for x in [*xs, *ys]}
    for layers in (xs, ys):
        for i, x in enumerate(layers):
            if own[id(x)] <= 1e-12 * squares[id(x)].sum() ** 2:
                raise ValueError(
                    f"The {n} vectors of layer {i} of those compared are equal, or all equally far apart, so CKA is "
                    "not defined. Leave the layer out with layers=, or give more text."
                )
    return np.array([[np.clip(hsic(x, y) / np.sqrt(own[id(x)] * own[id(y)]), -1, 1) for y in ys] for x in xs])


def _anisotropy(units: FloatArray) -> float:
    """Return the mean of u_s . u_t over all pairs of different rows of length 1."""
    n = len(units)
    total = float(np.square(units.sum(axis=0)).sum()) - float(np.square(units).sum())
    return total / (n * (n - 1))


class LogitLens(NamedTuple):
    """The k most probable words for each token, read from each hidden state.

    Parameters
    ----------
    states : list of int                                     the indices of the hidden states
    ids : int ndarray of shape (states, B, S, k)             the most probable first; 0 for masked tokens
    probs : float64 ndarray of shape (states, B, S, k)       0 for masked tokens
    """

    states: list[int]
    ids: IntArray
    probs: FloatArray

    def words(self, tokenizer: Any) -> list[list[list[str]]]:
        """Return the most probable word of each token, by hidden state, text and token, masked tokens included."""
        return [[tokenizer.convert_ids_to_tokens(row[:, 0].tolist()) for row in state] for state in self.ids]


def logit_lens(model: Any, trace: Any, k: int = 5, *, layers: Any = None) -> LogitLens:
    """Apply the masked-LM head to every hidden state, as if the model ended there; return the most probable words.

    nostalgebraist 2020, "interpreting GPT: the logit lens" (lesswrong.com). The last hidden state gives the words of
    `BertForMaskedLM` itself. The head was trained for that one only, so words of early states are a hint.

    Parameters
    ----------
    model : BertForMaskedLM or BertForPreTraining
    trace : Trace of this model, with ``hidden_states.*``; or inputs as the tokenizer gives them
    k : int
        How many words, 1 to V.
    layers : int or ints, optional
        Hidden states, 0 to L; default: all.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; or the model does not have a masked-LM head.
    """
    head = check_model("logit_lens", model).weights.head
    if head is None or head.decoder is None:
        raise ValueError(
            f"logit_lens was given a {type(model).__name__}, which has no masked-LM head. Load the model with "
            "BertForMaskedLM.from_pretrained(...), if its checkpoint has the head (cls.predictions)."
        )
    traced = as_trace("logit_lens", model, trace, "hidden_states.*")
    config, mask = model.config, traced.mask
    k = check_int("k", k, 1, config.vocab_size)
    chosen = check_layers(traced, layers, hidden_states=True)
    require("logit_lens", traced, [f"hidden_states.{i}" for i in chosen], "'hidden_states.*'")
    ids = np.zeros((len(chosen), *mask.shape, k), dtype=np.int64)
    probs = np.zeros(ids.shape, dtype=np.float64)
    for row, state in enumerate(chosen):
        x = np.ascontiguousarray(traced[f"hidden_states.{state}"][mask], dtype=np.float32)
        size = max(1, SLICE_BYTES // (4 * config.vocab_size))  # of the logits of several rows
        blocks = [_most_probable(model, x[start : start + size], k) for start in range(0, len(x), size)]
        if blocks:
            ids[row][mask] = np.concatenate([best for best, _ in blocks])
            probs[row][mask] = np.concatenate([shares for _, shares in blocks])
    return LogitLens(chosen, ids, probs)


def _most_probable(model: Any, x: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return the ids and probabilities of the k most probable words of each row; of equal ones the lower id first."""
    probs = softmax(heads.masked_lm(x, model.weights.head, model.config, model.ops))
    best = np.array([largest(row, k) for row in probs])
    return best, np.take_along_axis(probs, best, axis=1)


def page_guesses(model: Any, trace: Trace, tokenizer: BertTokenizer, k: int = 3) -> Guesses:
    """Return the k words that a model's masked-LM head reads from each hidden state, for `Trace.page`."""
    lens = logit_lens(model, trace, k)
    named = tokenizer.convert_ids_to_tokens
    words: Any = [[[named(best.tolist()) for best in row] for row in state] for state in lens.ids]
    return Guesses(lens.states, words, lens.probs)
