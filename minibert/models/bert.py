"""`BertModel`: ids in, every hidden state out; and its embedding layer as separate steps.

`BertEmbeddings` has three tables, their sum, and LayerNorm. Each step is callable and has a `.weight`. A tensor of
torch gives a tensor; `.weight` is an array.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.system import require_memory
from minibert._utils.torch_interop import Scores, holds_tensor, to_tensor
from minibert._utils.validation import FloatArray, check_indices, check_int
from minibert.bert import encoder, ops
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import Weights
from minibert.models.inputs import as_vectors, check_ids, ordered_inputs, pack, usable_rows
from minibert.models.options import Selection
from minibert.models.outputs import BertModelOutput
from minibert.models.pretrained import BertPreTrainedModel, Fixed

# Tokens that go through the encoder together. They are enough for fast matrix products, and so few that the arrays
# between two products stay in cache. The number also limits the memory of a forward beyond its result. Callers that
# pool each step before the next one is computed do not need memory for the full result either.
TOKENS_PER_STEP = 1024

_Anything = TypeVar("_Anything")


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

    embeddings: BertEmbeddings

    _keeps_hidden_states = True

    def _make_parts(self, hidden_states: Selection, attentions: Selection) -> None:
        vars(self).update(embeddings=BertEmbeddings(self.weights, self.ops), encoder=Encoder())
        num_layers = self.config.num_hidden_layers
        self._hidden_states = _select("output_hidden_states", hidden_states, num_layers + 1)
        self._attentions = _select("output_attentions", attentions, num_layers)

    def _compute(
        self, inputs: Mapping[str, Any], kept: Mapping[str, Any], num_layers: Any, positions: Any
    ) -> BertModelOutput:
        return self.run_packed(self._pack(inputs), num_layers=num_layers, **kept)

    def run_packed(
        self,
        batch: PackedBatch,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        num_layers: int | None = None,
        heads: Sequence[Any] = (),
    ) -> BertModelOutput:
        """Run the model on a packed batch in steps of a bounded number of tokens, and pad the result.

        Parameters
        ----------
        batch : PackedBatch
            It is compared with the model here; see `PackedBatch.check`.
        output_hidden_states, output_attentions, num_layers : as in `__call__`
        heads : sequence of callables
            Each is called with the last hidden state of each step, of shape (t, H), the step, and the slice of the T
            tokens that it holds. It keeps its results; `nbytes` is the memory that they take. With heads,
            last_hidden_state and pooler_output are None, because the heads compute what they need of them.

        Returns
        -------
        BertModelOutput

        Raises
        ------
        TypeError, ValueError
            An index is not an int or is out of range, or an id, a token type or a position is not in the model's
            tables. Nothing has been computed then.
        MemoryError
            The result alone does not fit into the memory that this process may use. Nothing has been computed then.

        Notes
        -----
        Memory in bytes, in addition to the weights: the result takes 4 B S H for each hidden state that is kept, and
        4 B A S^2 for each layer of attentions; while one of them is padded, it exists twice. The work of one step takes
        4 t (F + 7 H), which minibert's kernels keep for the next step. t is 1,024, or the length of the longest
        sequence if that is larger, but at most T. A result of a step that takes 1 to 2 MB is in a memory page of 2 MB.
        """
        depth, hidden_size = self.config.num_hidden_layers, self.config.hidden_size
        stop = depth if num_layers is None else check_int("num_layers", num_layers, 0, depth)
        hidden, attentions = self._hidden_states, self._attentions
        if output_hidden_states is not None:
            hidden = _select("output_hidden_states", output_hidden_states, depth + 1, reach=stop)
        if output_attentions is not None:
            attentions = _select("output_attentions", output_attentions, depth, reach=stop - 1)
        whole = stop == depth and not heads
        asked = {*(hidden or ()), depth} if whole else hidden or ()
        self._check_memory(batch, len(asked), len(attentions or ()), sum(head.nbytes for head in heads))
        pooler = self.weights.pooler if whole else None
        kept = [i for i in sorted(asked) if i <= stop]
        states: dict[int, FloatArray] = {}
        probs: dict[int, list[FloatArray]] = {i: [] for i in sorted(attentions or ()) if i < stop}
        pooled: list[FloatArray] = []
        for tokens, step, i, (x, layer_probs) in self._run(batch, stop, probs):
            if i in kept and step.num_tokens == batch.num_tokens:
                states[i] = x
            elif i in kept:
                states.setdefault(i, np.empty((batch.num_tokens, hidden_size), dtype=x.dtype))[tokens] = x
            if i - 1 in probs:
                probs[i - 1].extend(layer_probs or ())
            if i == stop and pooler is not None:
                pooled.append(encoder.pooler(x, pooler, step, self.ops))
            if i == depth:
                for head in heads:
                    head(x, step, tokens)

        nothing = np.zeros((0, hidden_size), dtype=self._result_dtype)
        # Each one is released as soon as it is padded, so only one exists twice.
        padded = {i: batch.pad(states.pop(i, nothing)) for i in kept}
        pairs = {i: batch.pad_pairs(probs.pop(i), self.config.num_attention_heads) for i in list(probs)}
        pooler_output = None
        if pooler is not None:
            pooler_output = rows = pooled[0] if len(pooled) == 1 else np.concatenate([*pooled, nothing])
            if len(rows) < batch.num_sequences:
                pooler_output = np.zeros((batch.num_sequences, hidden_size), rows.dtype)
                pooler_output[batch.shows_first] = rows
        return BertModelOutput(
            last_hidden_state=padded[depth] if whole else None,
            pooler_output=pooler_output,
            hidden_states=None
            if hidden is None
            else tuple(padded.get(i) if i in hidden else None for i in range(depth + 1)),
            attentions=None if attentions is None else tuple(pairs.get(i) for i in range(depth)),
        )

    def states(self, batch: PackedBatch, layers: Iterable[int]) -> Iterator[tuple[PackedBatch, dict[int, FloatArray]]]:
        """Run the encoder step by step, up to the highest of `layers`, and yield the hidden states of each step.

        A caller that pools or writes each step before it asks for the next one needs memory for one step only.

        Parameters
        ----------
        batch : PackedBatch
        layers : indices of hidden states, 0 (the embeddings' output) to L; at least one

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
        last, found = max(layers), dict[int, FloatArray]()
        for _, step, i, state in self._run(batch, last, ()):
            if i in layers:
                found[i] = state.hidden_state
            if i == last:
                yield step, found
                found = {}

    def _run(
        self, batch: PackedBatch, stop: int, return_probs: Collection[int]
    ) -> Iterator[tuple[slice, PackedBatch, int, encoder.HiddenState]]:
        """Yield the hidden states 0 to `stop` of each step, with the step and its slice of the T tokens.

        Every forward of the model calls this method, so the ids are compared with the model's tables here.
        """
        batch = batch.private()
        batch.check(self.config)
        for tokens, step in self._steps(batch):
            for i, state in enumerate(encoder.forward(self.weights, step, self.ops, probs_layers=return_probs)):
                yield tokens, step, i, state
                if i == stop:
                    break

    def _steps(self, batch: PackedBatch) -> Iterator[tuple[slice, PackedBatch]]:
        return batch.steps(TOKENS_PER_STEP)

    def _after_states(self, x: FloatArray, step: PackedBatch) -> None:
        if self.weights.pooler is not None:
            encoder.pooler(x, self.weights.pooler, step, self.ops)

    def _check_memory(self, batch: PackedBatch, num_states: int, num_attentions: int, logits: int) -> None:
        """Refuse a result that does not fit into memory, because most systems kill a process that needs too much.

        `logits` are the bytes that heads need.
        """
        # The zeros of padding count too: most of them lie in a large page that also holds other numbers.
        B, S = batch.mask.shape
        size = np.dtype(self._result_dtype).itemsize * B * S
        needed = size * (self.config.hidden_size * num_states + self.config.num_attention_heads * S * num_attentions)
        result = f"{num_states} hidden states and {num_attentions} attentions of {B:,} x {S:,} tokens"
        less = "output_hidden_states=False"
        if logits:
            result, less = f"The logits, {result}", f"{less}, or positions= for a masked LM"
        require_memory(needed + logits, result, f"Give fewer texts at once, or keep less: {less}.")


def _select(name: str, selection: Selection, count: int, *, reach: int | None = None) -> frozenset[int] | None:
    """Turn True, False, an index or several indices into the set of indices to keep; False gives None.

    `reach` is the last index that is computed with num_layers=. An explicit index beyond it is refused.
    """
    if isinstance(selection, bool | np.bool_):
        return frozenset(range(count)) if selection else None
    what = name.removeprefix("output_").replace("_", " ")  # "hidden states", "attentions"
    indices = check_indices(name, selection, count, what=what, expected="True, False, an int or several ints")
    for index in indices:
        if reach is not None and index > reach:
            raise ValueError(f"{name} names {index}, which this num_layers= does not compute; give a larger one.")
    return frozenset(indices)


# --- the embedding layer ----------------------------------------------------------------------------------------------


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
        array = as_vectors("LayerNorm's input", x, len(self.weight))

        def place(index: int) -> str:
            return str([int(i) for i in np.unravel_index(index, array.shape[:-1])])

        rows = usable_rows("LayerNorm's input", array.reshape(-1, len(self.weight)), place)
        return _like([x], self._ops.layer_norm(rows, self._norm).reshape(array.shape))

    def __repr__(self) -> str:
        return f"LayerNorm({len(self.weight)}, eps={self.eps})"


class Encoder(Fixed):
    """The value of `model.encoder`. It does not have layers; the error says what to use instead."""


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
        steps = (self.word_embeddings, self.position_embeddings, self.token_type_embeddings, self.LayerNorm)
        return f"BertEmbeddings({', '.join(map(repr, steps))})"


def _like(inputs: Iterable[object], result: FloatArray) -> FloatArray:
    """Return the result as a tensor if an input is one."""
    return to_tensor(result) if any(map(holds_tensor, inputs)) else result  # type: ignore[return-value]
