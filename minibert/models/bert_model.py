"""`BertModel`: runs the forward pass on padded arrays and returns padded arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from minibert._utils.system import require_memory
from minibert._utils.validation import FloatArray, check_indices, check_int
from minibert.bert import encoder
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import Weights
from minibert.models.embeddings import BertEmbeddings, Embedding
from minibert.models.habits import Encoder
from minibert.models.inputs import pack
from minibert.models.options import Selection
from minibert.models.outputs import BertModelOutput
from minibert.models.pretrained import BertPreTrainedModel

__all__ = ["TOKENS_PER_STEP", "BertModel", "PackedOutput", "StepHead"]

# Tokens that go through the encoder together. They are enough for fast matrix products, and so few that the arrays
# between two products stay in cache. The number also limits the memory of a forward beyond its result. Callers that
# pool each step before the next one is computed do not need memory for the full result either.
TOKENS_PER_STEP = 1024

# Results of fewer bytes skip the memory check, because asking the system takes longer than a short text.


@dataclasses.dataclass(frozen=True, eq=False)
class PackedOutput:
    """The result of a forward on a packed batch, before it is padded.

    Parameters
    ----------
    hidden_states : dict of int to ndarray of shape (T, H)
        By index; 0 is the embeddings' output.
    attentions : dict of int to list of B ndarrays of shape (A, S_b, S_b)
        By index; 0 is the first layer.
    pooled : ndarray of shape (sequences whose first token is not masked, H), or None
    """

    hidden_states: dict[int, FloatArray]
    attentions: dict[int, list[FloatArray]]
    pooled: FloatArray | None


class StepHead(Protocol):
    """A head that `BertModel.forward_packed` calls with the last hidden state of each step.

    It keeps the results, because it knows where they belong; `nbytes` is the memory that they take.
    """

    @property
    def nbytes(self) -> int:
        """The bytes of its results."""

    def __call__(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Take in the last hidden state of a step, of shape (t, H); `tokens` says which of the T tokens these are."""


class BertModel(BertPreTrainedModel):
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

    def __init__(
        self,
        weights: Weights | None = None,
        ops: Ops | None = None,
        *,
        output_hidden_states: Selection = True,
        output_attentions: Selection = False,
        return_dict: bool = True,
    ) -> None:
        super().__init__(weights, ops, return_dict)
        vars(self).update(embeddings=BertEmbeddings(self.weights, self.ops), encoder=Encoder())
        num_layers = self.config.num_hidden_layers
        self._hidden_states = _select("output_hidden_states", output_hidden_states, num_layers + 1)
        self._attentions = _select("output_attentions", output_attentions, num_layers)

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        num_layers: int | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> BertModelOutput:
        """Run the model on B sequences of S token positions; masked tokens are not computed.

        Arrays, lists and tensors of torch are accepted. If an input is a tensor, the output holds tensors.

        Parameters
        ----------
        input_ids : int array of shape (B, S), in [0, vocab_size)
        attention_mask : array of 0 and 1, or bool, of shape (B, S), optional
            0 masks a token. Any tokens may be masked, also a whole row. Default: none is masked.
        token_type_ids : int array of shape (B, S), in [0, type_vocab_size), optional
            Default: zeros.
        position_ids : int array of shape (B, S) or (1, S), in [0, max_position_embeddings), optional
            Default: the column; the mask does not change it.
        inputs_embeds : float array of shape (B, S, H), optional
            Word vectors instead of `input_ids`. Do not give hidden_states[0]; see `BertEmbeddings.__call__`.
        output_hidden_states : bool, int or ints, optional
            Which of the L + 1 hidden states to keep; the others are None. 0 is the embeddings' output, not False.
        output_attentions : bool, int or ints, optional
            Which of the L layers' attention probs to keep; 0 is the first layer.
        num_layers : int, optional
            Stop after this number of layers, 0 to L. Below L, last_hidden_state and pooler_output are None.
        return_dict : bool, optional
            False: return the tuple of the output's values.
        **harmless
            Keywords of transformers at values that change nothing, such as ``head_mask=None`` or ``use_cache=False``.

        Returns
        -------
        BertModelOutput
            New float32 arrays with zeros for masked tokens. B = 0 and S = 0 give empty arrays.

        Raises
        ------
        TypeError, ValueError
            An input has the wrong kind, shape or range; the message names row, column and value.
        """
        self._check_keywords(harmless)
        batch = pack(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        output = self.run_packed(batch, output_hidden_states, output_attentions, num_layers)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return self._finish(output, return_dict, *inputs)

    forward = __call__

    def run_packed(
        self,
        batch: PackedBatch,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        num_layers: int | None = None,
        heads: Sequence[StepHead] = (),
    ) -> BertModelOutput:
        """Run the model on a packed batch, and pad the result; the arguments are those of `__call__`.

        With `heads`, last_hidden_state and pooler_output are None, because the heads compute what they need of them.
        """
        depth = self.config.num_hidden_layers
        stop = depth if num_layers is None else check_int("num_layers", num_layers, 0, depth)
        hidden, attentions = self._hidden_states, self._attentions
        if output_hidden_states is not None:
            hidden = _select("output_hidden_states", output_hidden_states, depth + 1, reach=stop)
        if output_attentions is not None:
            attentions = _select("output_attentions", output_attentions, depth, reach=stop - 1)

        whole = stop == depth and not heads
        packed = self.forward_packed(
            batch,
            hidden_states={*(hidden or ()), depth} if whole else hidden or (),
            attentions=attentions or (),
            num_layers=stop,
            pool=whole,
            heads=heads,
        )
        states = {index: batch.pad(state) for index, state in packed.hidden_states.items()}
        num_heads = self.config.num_attention_heads
        probs = {index: batch.pad_pairs(pairs, num_heads) for index, pairs in packed.attentions.items()}
        pooled = None
        if packed.pooled is not None:
            pooled = np.zeros((batch.num_sequences, self.config.hidden_size), dtype=packed.pooled.dtype)
            pooled[batch.shows_first] = packed.pooled
        return BertModelOutput(
            last_hidden_state=states[depth] if whole else None,
            pooler_output=pooled,
            hidden_states=None
            if hidden is None
            else tuple(states.get(i) if i in hidden else None for i in range(depth + 1)),
            attentions=None if attentions is None else tuple(probs.get(i) for i in range(depth)),
        )

    def forward_packed(
        self,
        batch: PackedBatch,
        *,
        hidden_states: Collection[int],
        attentions: Collection[int] = (),
        num_layers: int | None = None,
        pool: bool = False,
        heads: Sequence[StepHead] = (),
    ) -> PackedOutput:
        """Run the encoder on a packed batch in steps of a bounded number of tokens; nothing is padded.

        Parameters
        ----------
        batch : PackedBatch
            It is compared with the model here; see `PackedBatch.check`.
        hidden_states : indices of the hidden states to keep, 0 (the embeddings' output) to L
        attentions : layers whose attention probs are kept, 0 to L - 1
        num_layers : int, optional
            Number of layers to run; default: all.
        pool : bool
            Also run the pooler, if the model has one and all layers run.
        heads : StepHeads
            Each is called with the last hidden state of each step, in the order of the batch.

        Returns
        -------
        PackedOutput

        Raises
        ------
        TypeError, ValueError
            An index is not an int or is out of range, or an id, a token type or a position is not in the model's
            tables. Nothing has been computed then.
        MemoryError
            The result alone does not fit into the memory that this process may use. Nothing has been computed then.

        Notes
        -----
        Memory in bytes, in addition to the weights: the result takes 4 T H for each hidden state that is kept, and
        4 A S^2 for each sequence and layer of attentions. The work of one step takes 4 t (F + 7 H), which minibert's
        kernels keep for the next step. t is 1,024, or the length of the longest sequence if that is larger, but at most
        T. `__call__` needs memory for the result a second time if the batch has padding.
        """
        depth = self.config.num_hidden_layers
        stop = depth if num_layers is None else check_int("num_layers", num_layers, 0, depth)
        hidden_states = _check_indices("hidden_states", hidden_states, depth + 1)
        attentions = _check_indices("attentions", attentions, depth)
        pooler = self.weights.pooler if pool else None
        self._check_memory(batch, len(hidden_states), len(attentions), sum(head.nbytes for head in heads))
        kept = [i for i in sorted(hidden_states) if i <= stop]
        hidden_size = self.config.hidden_size
        states: dict[int, FloatArray] = {}
        probs: dict[int, list[FloatArray]] = {i: [] for i in sorted(attentions) if i < stop}
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
        return PackedOutput(
            hidden_states={i: states.get(i, nothing) for i in kept},
            attentions=probs,
            pooled=None if pooler is None else np.concatenate([*pooled, nothing]),
        )

    def states(
        self, batch: PackedBatch, layers: Collection[int]
    ) -> Iterator[tuple[PackedBatch, dict[int, FloatArray]]]:
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
            As for `forward_packed`; or `layers` is empty.
        """
        layers = _check_indices("layers", layers, self.config.num_hidden_layers + 1)
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

    def with_ops(self, ops: Ops, dtype: npt.DTypeLike = np.float32) -> Self:
        """Return a model with the same weights and other ops; see `Traceable.with_ops`."""
        hidden, attentions = (False if kept is None else kept for kept in (self._hidden_states, self._attentions))
        model = type(self)(
            self.weights, ops, output_hidden_states=hidden, output_attentions=attentions, return_dict=self._return_dict
        )
        model._result_dtype = dtype
        return model

    def _packed_states(self, batch: PackedBatch, stop: int) -> Iterator[tuple[PackedBatch, int, FloatArray]]:
        return ((step, i, state.hidden_state) for _, step, i, state in self._run(batch, stop, ()))

    def _after_states(self, x: FloatArray, step: PackedBatch) -> None:
        if self.weights.pooler is not None:
            encoder.pooler(x, self.weights.pooler, step, self.ops)

    def _output_nbytes(self, batch: PackedBatch) -> int:
        config, itemsize = self.config, np.dtype(self._result_dtype).itemsize
        states = max(1, len(self._hidden_states or ())) * config.hidden_size
        pairs = len(self._attentions or ()) * config.num_attention_heads * batch.mask.shape[1]
        return itemsize * batch.mask.size * (states + pairs)

    def _check_memory(self, batch: PackedBatch, num_states: int, num_attentions: int, logits: int) -> None:
        """Refuse a result that does not fit into memory, because most systems kill a process that needs too much.

        `logits` are the bytes that heads need.
        """
        hidden_size, heads = self.config.hidden_size, self.config.num_attention_heads
        most = 4 * batch.num_tokens * (hidden_size * num_states + heads * batch.max_seqlen * num_attentions)
        if most + logits < 1 << 28:
            return
        pairs = heads * float((np.diff(batch.cu_seqlens).astype(np.float64) ** 2).sum())
        needed = 4 * (batch.num_tokens * hidden_size * num_states + pairs * num_attentions) + logits
        result = f"{num_states} hidden states and {num_attentions} attentions of {batch.num_tokens:,} tokens"
        less = "output_hidden_states=False"
        if logits:
            result, less = f"The logits, {result}", f"{less}, or positions= for a masked LM"
        require_memory(needed, result, f"Give fewer texts at once, or keep less: {less}.")

    def get_input_embeddings(self) -> Embedding:
        """Return the word embeddings; ``model.get_input_embeddings()(ids)`` looks up ids without a forward."""
        return self.embeddings.word_embeddings


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
            raise ValueError(
                f"{name} names {index}, which is not computed with this num_layers=. Give a larger num_layers."
            )
    return frozenset(indices)


def _check_indices(name: str, asked: Collection[int], count: int) -> frozenset[int]:
    """Check that each index is an int from 0 to count - 1, and return the set of them."""
    return frozenset(check_int(f"an index of {name}", index, 0, count - 1) for index in asked)
