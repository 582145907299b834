"""The embeddings as separate steps: three tables, their sum, LayerNorm. Callable, with a .weight, as in torch."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from minibert.base.arrays import FloatArray
from minibert.bert import encoder, ops
from minibert.bert.ops import Ops
from minibert.bert.weights import Weights
from minibert.models.inputs import as_array, check_ids, pack, usable_rows

__all__ = ["BertEmbeddings", "Embedding", "LayerNorm"]

_Anything = TypeVar("_Anything")


class Embedding:
    """A table that is looked up by ids: ``table(ids) == table.weight[ids]``, with the ids checked.

    Parameters
    ----------
    name : str                             for messages
    weight : ndarray of shape (rows, H)    float32, read-only
    """

    def __init__(self, name: str, weight: FloatArray) -> None:
        self.name = name
        self.weight = weight

    def __call__(self, ids: npt.ArrayLike) -> FloatArray:
        """Look up integer ids of any shape; returns a new float32 array of shape ids.shape + (H,).

        Raises
        ------
        TypeError, ValueError
            The ids are not integers, or not in [0, rows); the message names the place.
        """
        return self.weight[check_ids(f"{self.name} ids", ids, len(self.weight), "rows", ndim=None)]

    def __repr__(self) -> str:
        return f"Embedding({self.name}, {self.weight.shape[0]} x {self.weight.shape[1]})"


class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""

    def __init__(self, norm: ops.LayerNorm, ops: Ops) -> None:
        self._norm = norm
        self._ops = ops
        self.weight = norm.weight
        self.bias = norm.bias
        self.eps = norm.eps

    def __call__(self, x: npt.ArrayLike) -> FloatArray:
        """Normalise a float array of shape (..., H); returns a new float32 array of the same shape.

        Raises
        ------
        TypeError, ValueError
            The values are not finite floats, or the last axis is not H long.
        """
        array = as_array("LayerNorm's input", x)
        if array.dtype.kind != "f":
            raise TypeError(f"LayerNorm's input holds {array.dtype} values; expected floats.")
        if array.ndim < 1 or array.shape[-1] != len(self.weight):
            raise ValueError(f"LayerNorm's input has shape {array.shape}; expected (..., {len(self.weight)}).")
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinity, refused below
            rows = np.ascontiguousarray(array.reshape(-1, len(self.weight)), dtype=np.float32)
        usable = usable_rows(rows)
        if not usable.all():
            place = [int(i) for i in np.unravel_index(np.argmin(usable), array.shape[:-1])]
            raise ValueError(f"LayerNorm's input at {place} holds NaN, infinity or a value beyond 1e17.")
        return self._ops.layer_norm(rows, self._norm).reshape(array.shape)

    def __repr__(self) -> str:
        return f"LayerNorm({len(self.weight)}, eps={self.eps})"


class BertEmbeddings:
    """The embedding layer of a model: LayerNorm(word + token_type + position), whole or step by step.

    Attributes
    ----------
    word_embeddings, position_embeddings, token_type_embeddings : Embedding
    LayerNorm : LayerNorm
    """

    def __init__(self, weights: Weights, ops: Ops) -> None:
        self._weights = weights
        self._ops = ops
        self.word_embeddings = Embedding("word_embeddings", weights.word_embeddings)
        self.position_embeddings = Embedding("position_embeddings", weights.position_embeddings)
        self.token_type_embeddings = Embedding("token_type_embeddings", weights.token_type_embeddings)
        self.LayerNorm = LayerNorm(weights.embeddings_norm, ops)

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
        """Return the full embedding without running the encoder: ``model(...).hidden_states[0]``.

        Parameters
        ----------
        input_ids : int array of shape (B, S)
        token_type_ids, position_ids : int arrays of shape (B, S), optional
        inputs_embeds : float array of shape (B, S, H)
            Word vectors instead of `input_ids`: what ``word_embeddings(ids)`` gives, processed as you like. The result
            of *this* call (or hidden_states[0]) is not such a thing: positions, token types and LayerNorm are already
            in it, and would be added a second time.

        Returns
        -------
        ndarray of shape (B, S, H), float32
        """
        batch = pack(
            self._weights.config,
            input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
        )
        return batch.pad(encoder.embeddings(self._weights, batch, self._ops))

    def __repr__(self) -> str:
        steps = (self.word_embeddings, self.position_embeddings, self.token_type_embeddings, self.LayerNorm)
        return f"BertEmbeddings({', '.join(map(repr, steps))})"
