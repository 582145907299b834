"""`logit_lens`: the words that a masked-LM head reads out of each hidden state."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minibert._utils.reproducible_math import softmax
from minibert._utils.validation import FloatArray, IntArray, check_int
from minibert.bert import heads
from minibert.inside.checks import as_trace, check_layers, check_model, require
from minibert.models.logits import SLICE_BYTES

__all__ = ["LogitLens", "logit_lens"]


class LogitLens(NamedTuple):
    """The k most probable words for each token, read out of each hidden state.

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
        """Return the most probable word of each token, by hidden state, text and token; those of masked tokens too."""
        return [[tokenizer.convert_ids_to_tokens(row[:, 0].tolist()) for row in state] for state in self.ids]


def logit_lens(model: Any, trace: Any, k: int = 5, *, layers: Any = None) -> LogitLens:
    """Apply the masked-LM head to every hidden state, as if the model ended there, and return the most probable words.

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

    Returns
    -------
    LogitLens

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; or the model does not have a masked-LM head.
    """
    head = check_model("logit_lens", model).weights.head
    if head is None or head.predictions is None:
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
        found = [_most_probable(model, x[rows], k) for rows in _slices(len(x), config.vocab_size)]
        if found:
            ids[row][mask] = np.concatenate([one for one, _ in found])
            probs[row][mask] = np.concatenate([one for _, one in found])
    return LogitLens(chosen, ids, probs)


def _slices(rows: int, vocab_size: int) -> list[slice]:
    """Return slices of rows whose logits take a bounded memory."""
    size = max(1, SLICE_BYTES // (4 * vocab_size))
    return [slice(start, start + size) for start in range(0, rows, size)]


def _most_probable(model: Any, x: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return the ids and probabilities of the k most probable words of each row; of equal ones the lower id first."""
    probs = softmax(heads.masked_lm(x, model.weights.head.predictions, model.config, model.ops))
    best = np.sort(np.argpartition(-probs, k - 1, axis=1)[:, :k], axis=1)
    found = np.take_along_axis(probs, best, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(found, order, axis=1)
