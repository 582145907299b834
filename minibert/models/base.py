"""The model without its files: the call, what a forward keeps, and what it computes from its last hidden state.

The forward itself, in steps, is in steps.py.

`ModelBase` does not know the classes that inherit it. `head_name` names a head in `HEADS` (bert/rows.py), and
`result_kinds` says what the model computes from its last hidden state.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.keywords import FORWARD_KEYWORDS, check_keywords
from minibert._utils.system import require_memory
from minibert._utils.torch_interop import holds_tensor, torch_is_loaded
from minibert._utils.validation import FloatArray, check_indices, check_int
from minibert.bert import encoder, heads
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from minibert.bert.rows import HEADS
from minibert.bert.weights import Weights
from minibert.models.inputs import named_inputs, ordered_inputs, pack
from minibert.models.options import Selection
from minibert.models.outputs import ModelOutput, with_tensors
from minibert.models.results import Result, rows_of_tokens
from minibert.models.steps import StepState, Stepwise
from minibert.models.torch_like import Fixed, TorchLike

SLICE_BYTES = 1 << 24
"""The most bytes of logits that are computed at once, before they are copied to their places."""

_Output = TypeVar("_Output", bound=ModelOutput)


class ModelBase(Stepwise, Fixed, TorchLike, Generic[_Output]):
    """Weights and ops that compute an output.

    Attributes
    ----------
    config : BertConfig    read-only; to use another one, load the model with ``config=``
    weights : Weights      read-only; ``BertModel(weights, ops)`` makes a model with other weights
    ops : Ops              read-only; ``BertModel(model.weights, ops)`` makes a model with other ops, as `with_ops`
    """

    head_name: ClassVar[str | None] = None  # a class in HEADS
    base_model_prefix: ClassVar[str] = "bert"
    make_output: ClassVar[Any]  # (each result, hidden states, attentions) -> the output

    def __init__(
        self,
        weights: Weights | None = None,
        ops: Ops | None = None,
        *,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection = False,
        return_dict: bool = True,
    ) -> None:
        name = type(self).__name__
        # Both are required. They may be None so that BertModel(config), which transformers allows, gets this message.
        if not isinstance(weights, Weights) or not isinstance(ops, Ops):
            types = f"{type(weights).__name__} and {type(ops).__name__}"
            raise TypeError(
                f"{name} was given {types}; expected trained Weights and Ops. Use {name}.from_pretrained(name_or_path)."
            )
        linears = [*(linear for layer in weights.layers for linear in layer.linears), *filter(None, [weights.pooler])]
        if ops.takes is not None and not all(map(ops.takes, linears)):
            raise ValueError(
                "These ops cannot compute with weights that other ops prepared, for another backend or compute type. "
                "Load the model with the backend= and compute_type= that you want."
            )
        self.config, self.weights, self.ops = weights.config, weights, ops
        self._return_dict = bool(return_dict)
        kept = self.head_name is None if output_hidden_states is None else output_hidden_states
        self._hidden_states = _select("output_hidden_states", kept, self.config.num_hidden_layers + 1)
        self._attentions = _select("output_attentions", output_attentions, self.config.num_hidden_layers)

    def close(self) -> None:
        """Give back weights, threads and buffers; a later call raises a RuntimeError.

        Arrays that the program has taken from the model, and other models with the same weights, keep them. A call that
        another thread makes meanwhile is computed to its end, or raises that error.
        """
        held = vars(self)
        for name in ("weights", "embeddings", "bert", self.base_model_prefix):  # from now on, it is closed
            if isinstance(part := held.pop(name, None), ModelBase):
                part.close()
        if (ops := held.pop("ops", None)) is not None:
            ops.release()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy has: a dict of its own, as another thread may close the model meanwhile."""
        return {**vars(self)}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("weights", "ops", "bert", self.base_model_prefix) and self.is_closed:
                raise RuntimeError(f"This {type(self).__name__} is closed. Load the model again.")
            return super().__getattr__(name)

    @property
    def _inputs(self) -> list[str]:
        return self.config.family.positional(self.head_name)

    @ordered_inputs
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
        positions: npt.ArrayLike | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> _Output:
        """Run the model on B sequences of S token positions; masked tokens are not computed.

        Arrays, lists and tensors of torch are accepted. If an input is a tensor, the output holds tensors.

        Parameters
        ----------
        input_ids : int array of shape (B, S), in [0, vocab_size)
            `BertForMultipleChoice` has one axis more in all inputs.
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
            Only for `BertModel`: stop after this number of layers, 0 to L. Below L, last_hidden_state and pooler_output
            are None.
        positions : int array of shape (n, 2), optional
            Only for a masked-LM head: the row and the column of each token whose logits are wanted, as
            ``np.argwhere(input_ids == tokenizer.mask_token_id)`` gives them. The decoder, H x V numbers, runs for these
            tokens only. Each result has the same bits as without `positions`. Default: all tokens.
        return_dict : bool, optional
            False: return the tuple of the output's values.
        **harmless
            Keywords of transformers at values that change nothing, such as ``labels=None`` or ``use_cache=False``.

        Returns
        -------
        BertModelOutput, or the output that belongs to the head
            New float32 arrays with zeros for masked tokens. B = 0 and S = 0 give empty arrays. The class of a model
            with a head says the shape of its logits.

        Raises
        ------
        TypeError, ValueError
            An input has the wrong kind, shape or range; the message names row, column and value. Or labels are given.
        MemoryError
            The result does not fit into the memory that this process may use.
        """
        check_keywords(type(self).__name__, harmless, FORWARD_KEYWORDS, function=type(self).__call__)
        inputs = named_inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        batch = self.pack(inputs)
        output = self.run_packed(batch, output_hidden_states, output_attentions, num_layers, positions=positions)
        return self.finish(output, inputs, return_dict)

    forward = __call__

    def pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        """Check the inputs of a call, by name, and pack the tokens that are not masked."""
        return pack(self.config, **inputs)

    def run_packed(
        self,
        batch: PackedBatch,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        num_layers: int | None = None,
        *,
        positions: npt.ArrayLike | None = None,
        start: encoder.Start | None = None,
        slice_bytes: int | None = None,
    ) -> _Output:
        """Run the model on a packed batch in steps of a bounded number of tokens, and pad the result.

        Parameters
        ----------
        batch : PackedBatch
            It is compared with the model here; see `PackedBatch.check`.
        output_hidden_states, output_attentions, num_layers, positions : as in `__call__`
        start : pair of an int and an ndarray of shape (T, H), optional
            The number of a hidden state, and its values. The forward begins with it instead of the embeddings, so ids
            are not used, and earlier states are None.
        slice_bytes : int, optional
            The most bytes of a head's logits that are computed at once.

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
        depth = self.config.num_hidden_layers
        if positions is not None and "words" not in self.result_kinds:
            raise TypeError(f"{type(self).__name__} has no masked-LM head, so it does not take positions=.")
        stop = self.stop_of(num_layers)
        first = check_int("start[0]", start[0], 0, stop) if start else 0
        hidden, attentions = self._hidden_states, self._attentions
        if output_hidden_states is not None:
            hidden = _select("output_hidden_states", output_hidden_states, depth + 1, reach=stop)
        if output_attentions is not None:
            attentions = _select("output_attentions", output_attentions, depth, reach=stop - 1)

        results = self.results(batch, positions, slice_bytes) if stop == depth else []
        kept = {i for i in hidden or () if first <= i <= stop}
        if self.head_name is None and stop == depth:
            kept.add(depth)  # the last hidden state is an output by itself
        probs = {i: list[FloatArray]() for i in sorted(attentions or ()) if first <= i < stop}
        self._check_memory(batch, len(kept), len(probs), results)

        wanted, needed_tokens = kept, None
        if results:
            wanted = kept | {depth}
            if depth not in kept:
                needed_tokens = np.unique(np.concatenate([result.tokens for result in results]))
        states = self._collect(batch, self.run_steps(batch, stop, start, needed_tokens, probs, wanted), kept, results)

        # Each one is released as soon as it is padded, so only one exists twice.
        padded = {i: batch.pad(states.pop(i)) for i in sorted(kept)}
        pairs = {i: batch.pad_pairs(probs.pop(i), self.config.num_attention_heads) for i in list(probs)}
        values: list[FloatArray | None] = [result.array for result in results]
        if self.head_name is None:  # the last hidden state, then the pooler's output
            values = [padded.get(depth), *(values or [None])]
        output: _Output = self.make_output(
            *values,
            None if hidden is None else tuple(padded.get(i) if i in hidden else None for i in range(depth + 1)),
            None if attentions is None else tuple(pairs.get(i) for i in range(depth)),
        )
        return output

    def _collect(
        self, batch: PackedBatch, steps: Iterable[StepState], kept: Collection[int], results: list[Result]
    ) -> dict[int, FloatArray]:
        """Run the steps; return the hidden states to keep, (T, H), by number, and add the last one to the results."""
        depth, T, states = self.config.num_hidden_layers, batch.num_tokens, dict[int, FloatArray]()
        shape = (T, self.config.hidden_size)
        for tokens, step, i, x in steps:
            if i in kept and step.num_tokens == T:
                states[i] = x
            elif i in kept:
                states.setdefault(i, np.empty(shape, dtype=x.dtype))[tokens] = x
            if i == depth:
                for result in results:
                    result.add(x, step, tokens)
        return states if T else {i: np.empty(shape, self.ops.dtype) for i in kept}

    def stop_of(self, num_layers: int | None) -> int:
        """Return after which layer a forward stops; a head needs all of them."""
        depth = self.config.num_hidden_layers
        if num_layers is None:
            return depth
        if self.head_name is not None:
            raise TypeError(f"{type(self).__name__} has a head, which needs all layers, so num_layers= is not for it.")
        return check_int("num_layers", num_layers, 0, depth)

    def _check_memory(self, batch: PackedBatch, num_states: int, num_attentions: int, results: list[Result]) -> None:
        """Refuse a result that does not fit into memory, because most systems kill a process that needs too much."""
        B, S = batch.mask.shape
        what = f"{num_states} hidden states and {num_attentions} attentions of {B:,} x {S:,} tokens"
        needed, less = self.output_bytes(batch, num_states, num_attentions), "output_hidden_states=False"
        if self.head_name is not None:
            needed += sum(result.nbytes for result in results)
            what, less = f"The logits, {what}", f"{less}, or positions= for a masked LM"
        require_memory(needed, what, f"Give fewer texts at once, or keep less: {less}.")

    def finish(self, output: _Output, inputs: Mapping[str, object], return_dict: bool | None = None) -> _Output:
        """Return an output as the caller wants it: tensors if an input is one, a tuple if that was asked for."""
        if torch_is_loaded() and any(map(holds_tensor, inputs.values())):
            output = with_tensors(output)
        if self._return_dict if return_dict is None else return_dict:
            return output
        return output.to_tuple()  # type: ignore[return-value]

    @property
    def kept(self) -> dict[str, Any]:
        """The hidden states and attentions that a call keeps by default, as keywords of the constructor."""
        return {"output_hidden_states": self._hidden_states or False, "output_attentions": self._attentions or False}

    @property
    def result_kinds(self) -> tuple[str, ...]:
        """The kinds of results that the model computes from its last hidden state.

        "pooler": the pooler's output, and "sequences": logits, both a row for each sequence whose first token is
        not masked. "tokens": logits of each token. "words": logits of each word of the vocabulary, for each token.
        """
        if self.head_name is not None:
            return HEADS[self.head_name].result_kinds
        return () if self.weights.pooler is None else ("pooler",)

    def compute(self, kind: str, x: FloatArray, step: PackedBatch | None = None) -> FloatArray:
        """Compute a kind of `result_kinds` for rows of the last hidden state, (t, H).

        A row for each sequence, as "pooler" and "sequences" have it, needs the step that the rows belong to.
        """
        return heads.result(self.head_name, kind, x, self.weights, self.ops, step)

    def results(
        self, batch: PackedBatch, positions: npt.ArrayLike | None = None, slice_bytes: int | None = None
    ) -> list[Result]:
        """Return what a forward of a batch computes from its last hidden state; `Result.add` computes it."""
        sizes = {"pooler": self.config.hidden_size, "words": self.config.vocab_size}
        results = []
        for kind in self.result_kinds:
            if kind not in sizes:  # the constructor has checked that the last linear map of the head is there
                sizes[kind] = getattr(self.weights.head, HEADS[self.head_name or ""].rows[-1].field).shape[0]
            width = sizes[kind]
            rows_at_once = None
            if kind in ("tokens", "words"):
                shape, places, tokens = rows_of_tokens(batch, positions)
                rows_at_once = max(1, (SLICE_BYTES if slice_bytes is None else slice_bytes) // (4 * width))
            else:
                has_result = batch.has_result(self.config.reads_any(self.head_name))
                shape, places = (batch.num_sequences,), np.flatnonzero(has_result)
                tokens = batch.cu_seqlens[:-1][has_result]
                if self.config.classifier_pooling in ("mean", "late"):
                    tokens = np.arange(batch.num_tokens)
            compute = functools.partial(self.compute, kind)
            results.append(Result(compute, (*shape, width), self.ops.dtype, places, tokens, rows_at_once))
        return results

    def output_bytes(self, batch: PackedBatch, num_states: int, num_attentions: int) -> int:
        """Return the size in bytes of hidden states and attentions of a batch.

        The zeros of padding count too: most of them lie in a large page that also holds other numbers.
        """
        B, S = batch.mask.shape
        config, itemsize = self.config, np.dtype(self.ops.dtype).itemsize
        return itemsize * B * S * (config.hidden_size * num_states + config.num_attention_heads * S * num_attentions)

    def with_ops(self, ops: Ops) -> Self:
        """Return a model with the same weights and other ops; this model does not change.

        The ops must be able to use the weights that the ops of this model prepared: a wrapped set of `model.ops`, or
        one that reads ``linear.weight``.
        """
        return type(self)(self.weights, ops, **self.kept, return_dict=self._return_dict)


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
