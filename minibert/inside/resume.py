"""Run a model from one of its layers on, for many copies of the same texts, each changed in another way.

The layers below the changed one are not computed again: the copies begin with the hidden state that the clean run had
there. The copies lie in one packed batch, as many as fit. A copy that is not changed gives the bits of the clean run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.ops import AttentionOutput, LayerNorm, Ops
from minibert.inside.checks import split_output
from minibert.models.bert_model import TOKENS_PER_STEP

__all__ = ["Change", "run_copies"]

# Copies are run together up to this number of tokens: more do not get faster, and take more memory.
_TOKENS_AT_ONCE = 8 * TOKENS_PER_STEP

# The numbers of an output that several copies may have together; the logits of words are many.
_NUMBERS_AT_ONCE = 1 << 24


class Change(Protocol):
    """Change the array of one sequence in place; `copy` is the number of the copy, `sequence` the row in the batch."""

    def __call__(self, copy: int, sequence: int, array: FloatArray, /) -> None:
        """Change `array`."""


def run_copies(
    model: Any,
    first: int,
    state: FloatArray,
    mask: Any,
    copies: int,
    *,
    last: int | None = None,
    change_state: Callable[[int, FloatArray], None] | None = None,
    change_value: Change | None = None,
    change_context: Change | None = None,
) -> Iterator[Any]:
    """Yield the output of each copy of a batch, computed from hidden state `first` on.

    Parameters
    ----------
    model : BertModel, or a model with a head
    first : int
        The index of the hidden state that is given, 0 to L; it goes into the layer of this number.
    state : ndarray of shape (B, S, H)
        That hidden state of the clean run; of a multiple choice, one row for each choice.
    mask : int array of shape (B, S), or (B, choices, S)
    copies : int
    last : int, optional
        Stop after this number of layers, counted from `first`; default: run all, and the head.
    change_state : called with the number of the copy and its hidden state (B, S, H)
    change_value : called with the value vectors (S, H) of each sequence in layer `first`, before attention
    change_context : called with the result of attention (S, H) of each sequence in layer `first`

    Yields
    ------
    The output that the model gives for the whole batch

    Raises
    ------
    TypeError
        The model computes in float64: the states of the copies are given as inputs_embeds, which are float32.
    """
    if np.dtype(model._result_dtype) != np.float32:
        raise TypeError("The model computes in float64; give the model itself, because copies of texts are float32.")
    mask = np.asarray(mask)
    tokens = max(1, int(np.count_nonzero(mask)))
    head = model.weights.head
    width = model.config.hidden_size if head is None or head.predictions is None else model.config.vocab_size
    most = max(1, min(_TOKENS_AT_ONCE // tokens, _NUMBERS_AT_ONCE // (width * max(1, mask.size))))
    rows = len(state)
    for start in range(0, copies, most):
        count = min(most, copies - start)
        states = np.repeat(state[None], count, axis=0)
        for i in range(count if change_state is not None else 0):
            change_state(start + i, states[i])  # type: ignore[misc]
        ops = _FromState(model, first, start * rows, rows, change_value, change_context).ops
        resumed = _shortened(model, first, last, ops)
        shape = (count * mask.shape[0], *mask.shape[1:])
        output = resumed(
            inputs_embeds=states.reshape(*shape, state.shape[-1]),
            attention_mask=np.broadcast_to(mask, (count, *mask.shape)).reshape(shape),
        )
        yield from split_output(output, count)


def _shortened(model: Any, first: int, last: int | None, ops: Ops) -> Any:
    """Return a model of the layers from `first` on, with these ops."""
    weights = model.weights
    layers = weights.layers[first : None if last is None else first + last]
    config = dataclasses.replace(weights.config, num_hidden_layers=len(layers))
    weights = dataclasses.replace(weights, config=config, layers=layers)
    return type(model)(weights, ops, output_hidden_states=False)


class _FromState:
    """Ops that take the hidden state out of `inputs_embeds`, and change the first attention.

    Parameters
    ----------
    skipped : int       sequences of the copies before
    rows : int          sequences of one copy
    """

    def __init__(
        self,
        model: Any,
        first: int,
        skipped: int,
        rows: int,
        change_value: Change | None,
        change_context: Change | None,
    ) -> None:
        weights = model.weights
        self._ops: Ops = model.ops
        self._norm = weights.embeddings_norm.path
        changed = change_value is not None or change_context is not None
        self._path = f"{weights.layers[first].path}.attention.self" if changed else None
        self._next, self._rows = skipped, rows
        self._value, self._context = change_value, change_context

    @property
    def ops(self) -> Ops:
        return self._ops._replace(embed=self._embed, layer_norm=self._layer_norm, attention=self._attention)

    def _embed(self, words: FloatArray, token_ids: IntArray, *others: Any) -> FloatArray:
        return words[token_ids]

    def _layer_norm(self, x: FloatArray, norm: LayerNorm) -> FloatArray:
        return x if norm.path == self._norm else self._ops.layer_norm(x, norm)

    def _attention(
        self,
        query: FloatArray,
        key: FloatArray,
        value: FloatArray,
        cu_seqlens: IntArray,
        num_heads: int,
        *,
        path: str = "",
        **returned: bool,
    ) -> AttentionOutput:
        if path != self._path:
            return self._ops.attention(query, key, value, cu_seqlens, num_heads, path=path)
        if self._value is not None:
            value = value.copy()
            self._apply(self._value, value, cu_seqlens)
        output = self._ops.attention(query, key, value, cu_seqlens, num_heads, path=path)
        if self._context is not None:
            self._apply(self._context, output.context, cu_seqlens)
        self._next += len(cu_seqlens) - 1
        return output

    def _apply(self, change: Change, array: FloatArray, cu_seqlens: IntArray) -> None:
        for j in range(len(cu_seqlens) - 1):
            copy, sequence = divmod(self._next + j, self._rows)
            change(copy, sequence, array[cu_seqlens[j] : cu_seqlens[j + 1]])
