"""`BertModel`: ids in, every hidden state out; and its embedding layer as separate steps.

Loading is in pretrained.py, and the call in base.py.

`BertEmbeddings` has three tables, their sum, and LayerNorm. Each step is callable and has a `.weight`. A tensor of
torch gives a tensor; `.weight` is an array.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.system import require_memory
from minibert._utils.torch_interop import Scores, holds_tensor, to_tensor
from minibert._utils.validation import FloatArray, IntArray, check_int
from minibert.bert import encoder, ops
from minibert.bert.ops import Ops, Table, look_up
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import Weights
from minibert.models.inputs import as_vectors, check_ids, ordered_inputs, pack, usable_rows
from minibert.models.outputs import BertModelOutput
from minibert.models.pretrained import BertPreTrainedModel
from minibert.models.torch_like import Fixed

_Anything = TypeVar("_Anything")


class Encoder(Fixed):
    """The value of `model.encoder`. It does not have layers; the error says what to use instead."""


class BertModel(BertPreTrainedModel[BertModelOutput]):
    """A BERT encoder: ids in, every hidden state out. `from_pretrained` makes it; threads may share it.

    A model does not change after it was made.

    Attributes
    ----------
    config : BertConfig             read-only; the model compares ids with its sizes
    weights : Weights               read-only
    ops : Ops                       read-only; the set of ops that computes, see ops.py
    embeddings : BertEmbeddings     the embedding layer, whole or step by step
    """

    make_output = BertModelOutput
    encoder = Encoder()

    @property
    def base_model(self) -> BertModel:
        """The model itself; of a model with a head, the model without it."""
        return self

    @functools.cached_property
    def embeddings(self) -> BertEmbeddings:
        """The embedding layer."""
        return BertEmbeddings(self.weights, self.ops)

    def get_input_embeddings(self) -> Embedding:
        """Return the word embeddings; ``model.get_input_embeddings()(ids)`` looks up ids without a forward."""
        return self.embeddings.word_embeddings

    def states(
        self, batch: PackedBatch, layers: Iterable[int], needed_tokens: IntArray | None = None
    ) -> Iterator[tuple[PackedBatch, dict[int, FloatArray]]]:
        """Run the encoder step by step, up to the highest of `layers`, and yield the hidden states of each step.

        A caller that pools or writes each step before it asks for the next one needs memory for one step only.

        Parameters
        ----------
        batch : PackedBatch
        layers : indices of hidden states, 0 (the embeddings' output) to L; at least one
        needed_tokens : int ndarray, optional
            The tokens whose last hidden state is needed, increasing. Its other rows may be zeros; that saves time.

        Yields
        ------
        (PackedBatch, dict of int to ndarray of shape (t, H))
            A step of t tokens, about 1,024, and its hidden states by index. The steps are in the order of the batch.

        Raises
        ------
        TypeError, ValueError
            As for `run_packed`; or `layers` is empty.
        """
        depth = self.config.num_hidden_layers
        layers = frozenset(check_int("an index of layers", layer, 0, depth) for layer in layers)
        if not layers:
            raise ValueError("layers is empty; expected at least one index of a hidden state.")
        last, states = max(layers), dict[int, FloatArray]()
        for _, step, i, x in self.run_steps(batch, last, needed_tokens=needed_tokens, wanted=layers):
            if i in layers:
                states[i] = x
            if i == last:
                yield step, states
                states = {}


# --- the embedding layer ----------------------------------------------------------------------------------------------


class Embedding(Fixed):
    """A table for look-ups by ids: ``table(ids) == table.weight[ids]``, and the ids are checked.

    Parameters
    ----------
    name : str                             used in messages
    table : Table of shape (rows, H)       float32, read-only
    """

    name: str

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self._table = table

    @functools.cached_property
    def weight(self) -> FloatArray:
        """The table: an array that shares the model's memory and also has a tensor's `detach` and `numpy`.

        If the table is in a file, all of it is read, and kept from then on.
        """
        return np.asarray(self._table).view(Scores)

    def __call__(self, ids: npt.ArrayLike) -> FloatArray:
        """Look up integer ids of any shape; return a new float32 array (for a tensor: a tensor), ids.shape + (H,).

        Raises
        ------
        TypeError, ValueError
            The ids are not integers, or not in [0, rows); the message says where.
        """
        found = look_up(self._table, check_ids(f"{self.name} ids", ids, self._table.shape[0], "rows", ndim=None))
        return _like([ids], found.table[found.ids])

    def __repr__(self) -> str:
        return f"Embedding({self.name}, {self._table.shape[0]} x {self._table.shape[1]})"


class LayerNorm(Fixed):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""

    weight: FloatArray
    bias: FloatArray
    eps: float

    def __init__(self, norm: ops.LayerNorm, ops: Ops) -> None:
        self._norm = norm
        self._ops = ops
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def __call__(self, x: npt.ArrayLike) -> FloatArray:
        """Normalise a float array of shape (..., H); return a new float32 array of the same shape.

        Raises
        ------
        TypeError, ValueError
            The values are not floats, a value is not finite or beyond 1e17, or the last axis does not have length H.
        """
        array = as_vectors("LayerNorm's input", x, len(self.weight))

        def place(index: int) -> str:
            return str([int(i) for i in np.unravel_index(index, array.shape[:-1])])

        rows = usable_rows("LayerNorm's input", array.reshape(-1, len(self.weight)), place)
        return _like([x], self._ops.layer_norm(rows, self._norm).reshape(array.shape))

    def __repr__(self) -> str:
        return f"LayerNorm({len(self.weight)}, eps={self.eps})"


class BertEmbeddings(Fixed):
    """The embedding layer of a model: LayerNorm(word + token_type + position), as a whole or step by step.

    Attributes
    ----------
    word_embeddings, position_embeddings, token_type_embeddings : Embedding
        Those of positions and token types are None if the model does not have the table.
    LayerNorm : LayerNorm
    """

    word_embeddings: Embedding
    position_embeddings: Embedding | None
    token_type_embeddings: Embedding | None
    LayerNorm: LayerNorm

    def __init__(self, weights: Weights, ops: Ops) -> None:
        self._weights = weights
        self._ops = ops
        self.word_embeddings = Embedding("word_embeddings", weights.words)
        for name in ("position_embeddings", "token_type_embeddings"):
            table = getattr(weights, name)
            setattr(self, name, None if table is None else Embedding(name, table))
        if weights.embeddings_norm is not None:  # where norms come first, most models have none here
            self.LayerNorm = LayerNorm(weights.embeddings_norm, ops)

    def dropout(self, x: _Anything) -> _Anything:
        """Return `x` itself: dropout is the identity at inference."""
        return x

    @property
    def _inputs(self) -> list[str]:
        return [name for name in self._weights.config.family.positional(None) if name != "attention_mask"]

    @ordered_inputs
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
        batch = pack(self._weights.config, input_ids, None, token_type_ids, position_ids, inputs_embeds)
        size = 12 * batch.mask.size * self._weights.config.hidden_size  # the sum, its LayerNorm, and the padded result
        require_memory(size, f"The embeddings of {batch.num_tokens:,} tokens", "Give fewer texts at once.")
        embedded = batch.pad(encoder.embeddings(self._weights, batch, self._ops))
        return _like([input_ids, token_type_ids, position_ids, inputs_embeds], embedded)

    def __repr__(self) -> str:
        tables = self.word_embeddings, self.position_embeddings, self.token_type_embeddings
        steps = (*tables, vars(self).get("LayerNorm"))
        return f"BertEmbeddings({', '.join(repr(step) for step in steps if step is not None)})"


def _like(inputs: Iterable[object], result: FloatArray) -> FloatArray:
    """Return the result as a tensor if an input is one."""
    return to_tensor(result) if any(map(holds_tensor, inputs)) else result  # type: ignore[return-value]
