"""The embedding layer as separate steps: three tables, their sum, LayerNorm.

Each step is callable and has a `.weight`, as in torch. A tensor gives a tensor; `.weight` is an array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.torch_interop import Scores, holds_tensor, to_tensor
from minibert._utils.validation import FloatArray
from minibert.bert import encoder, ops
from minibert.bert.ops import Ops
from minibert.bert.weights import Weights
from minibert.models.inputs import as_numbers, check_ids, pack, usable_rows
from minibert.models.torch_like import Fixed

_Anything = TypeVar("_Anything")


class Embedding(Fixed):
    """A table for look-ups by ids: ``table(ids) == table.weight[ids]``, and the ids are checked.

    Parameters
    ----------
    name : str                             used in messages
    weight : ndarray of shape (rows, H)    float32, read-only
    """

    name: str

    def __init__(self, name: str, weight: FloatArray) -> None:
        vars(self).update(name=name)
        self._weight = weight

    @property
    def weight(self) -> FloatArray:
        """The table: an array that shares the model's memory and also has a tensor's `detach` and `numpy`."""
        return self._weight.view(Scores)

    def __call__(self, ids: npt.ArrayLike) -> FloatArray:
        """Look up integer ids of any shape; return a new float32 array (for a tensor: a tensor), ids.shape + (H,).

        Raises
        ------
        TypeError, ValueError
            The ids are not integers, or not in [0, rows); the message says where.
        """
        rows = self._weight[check_ids(f"{self.name} ids", ids, len(self._weight), "rows", ndim=None)]
        return _like([ids], rows)

    def __repr__(self) -> str:
        return f"Embedding({self.name}, {self._weight.shape[0]} x {self._weight.shape[1]})"


class LayerNorm(Fixed):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""

    weight: FloatArray
    bias: FloatArray
    eps: float

    def __init__(self, norm: ops.LayerNorm, ops: Ops) -> None:
        self._norm = norm
        self._ops = ops
        vars(self).update(weight=norm.weight, bias=norm.bias, eps=norm.eps)

    def __call__(self, x: npt.ArrayLike) -> FloatArray:
        """Normalise a float array of shape (..., H); return a new float32 array of the same shape.

        Raises
        ------
        TypeError, ValueError
            The values are not floats, a value is not finite or beyond 1e17, or the last axis does not have length H.
        """
        array = as_numbers("LayerNorm's input", x)
        if array.dtype.kind != "f":
            raise TypeError(f"LayerNorm's input holds {array.dtype} values; expected floats.")
        if array.ndim < 1 or array.shape[-1] != len(self.weight):
            raise ValueError(f"LayerNorm's input has shape {array.shape}; expected (..., {len(self.weight)}).")
        with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinity, which is refused below
            rows = np.ascontiguousarray(array.reshape(-1, len(self.weight)), dtype=np.float32)
        usable = usable_rows(rows)
        if not usable.all():
            index = [int(i) for i in np.unravel_index(np.argmin(usable), array.shape[:-1])]
            raise ValueError(f"LayerNorm's input at {index} holds NaN, infinity or a value beyond 1e17.")
        return _like([x], self._ops.layer_norm(rows, self._norm).reshape(array.shape))

    def __repr__(self) -> str:
        return f"LayerNorm({len(self.weight)}, eps={self.eps})"


class BertEmbeddings(Fixed):
    """The embedding layer of a model: LayerNorm(word + token_type + position), as a whole or step by step.

    Attributes
    ----------
    word_embeddings, position_embeddings, token_type_embeddings : Embedding
    LayerNorm : LayerNorm
    """

    word_embeddings: Embedding
    position_embeddings: Embedding
    token_type_embeddings: Embedding
    LayerNorm: LayerNorm

    def __init__(self, weights: Weights, ops: Ops) -> None:
        self._weights = weights
        self._ops = ops
        names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        vars(self).update({name: Embedding(name, getattr(weights, name)) for name in names})
        vars(self).update(LayerNorm=LayerNorm(weights.embeddings_norm, ops))

    def dropout(self, x: _Anything) -> _Anything:
        """Return `x` itself: dropout is the identity at inference."""
        return x

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the full embedding, equal to ``model(...).hidden_states[0]``, without running the encoder.

        Parameters
        ----------
        input_ids : int array of shape (B, S)
        token_type_ids, position_ids : int arrays of shape (B, S), optional
        inputs_embeds : float array of shape (B, S, H)
            Word vectors instead of `input_ids`: the result of ``word_embeddings(ids)``, changed as you like. Do not
            give the result of *this* call (or hidden_states[0]): it already contains positions, token types and
            LayerNorm, which would be applied a second time.

        Returns
        -------
        ndarray of shape (B, S, H), float32; a tensor if an input is one
        """
        batch = pack(
            self._weights.config,
            input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
        )
        embedded = batch.pad(encoder.embeddings(self._weights, batch, self._ops))
        return _like([input_ids, token_type_ids, position_ids, inputs_embeds], embedded)

    def __repr__(self) -> str:
        steps = (self.word_embeddings, self.position_embeddings, self.token_type_embeddings, self.LayerNorm)
        return f"BertEmbeddings({', '.join(map(repr, steps))})"


def _like(inputs: Iterable[object], result: FloatArray) -> FloatArray:
    """Return the result as a tensor if an input is one."""
    return to_tensor(result) if any(map(holds_tensor, inputs)) else result  # type: ignore[return-value]
