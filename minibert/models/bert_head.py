"""What the models with heads share: the model below, one body of a call, logits that are filled step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.bert import heads
from minibert.bert.ops import Ops, PreparedLinear
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import HEADS, HeadWeights, Weights
from minibert.models.bert_model import BertModel
from minibert.models.embeddings import Embedding
from minibert.models.logits import SLICE_BYTES, SequenceLogits, TokenLogits, check_positions
from minibert.models.options import Selection
from minibert.models.outputs import ModelOutput
from minibert.models.pretrained import BertPreTrainedModel

__all__ = ["BertHead"]

_Part = TypeVar("_Part")
_Output = TypeVar("_Output", bound=ModelOutput)

_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
_Inputs: TypeAlias = Sequence[npt.ArrayLike | None]
_Options: TypeAlias = tuple[Selection | None, Selection | None, bool | None, Mapping[str, Any]]


class BertHead(BertPreTrainedModel):
    """What the classes of models/heads.py share. Threads may share a model; it does not change.

    Attributes
    ----------
    bert : BertModel        the model without the head, with the same weights and ops
    config : BertConfig     read-only; id2label names a classifier's labels
    weights : Weights       read-only; `weights.head` are those of the head
    ops : Ops               read-only
    """

    _head: ClassVar[str]
    _formula: ClassVar[Callable[..., FloatArray]]  # of bert/heads.py; the masked-LM head is apart
    bert: BertModel

    def __init__(
        self,
        weights: Weights | None = None,
        ops: Ops | None = None,
        *,
        output_hidden_states: Selection = False,
        output_attentions: Selection = False,
        return_dict: bool = True,
    ) -> None:
        super().__init__(weights, ops, return_dict)
        needed, there = HEADS[self._head], self.weights.head and HEADS[self.weights.head.name].rows
        if not set(needed.rows) <= set(there or ()) or (needed.pooled and self.weights.pooler is None):
            found = "no head" if self.weights.head is None else f"the head of {self.weights.head.name}"
            raise ValueError(
                f"{type(self).__name__} was given weights with {found}. Use {type(self).__name__}.from_pretrained, "
                "which loads the head that it needs."
            )
        bert = BertModel(
            self.weights, self.ops, output_hidden_states=output_hidden_states, output_attentions=output_attentions
        )
        vars(self).update(bert=bert)

    @property
    def num_labels(self) -> int:
        """The number of labels of the config; it is that of the logits if the head is a classifier."""
        return self.config.num_labels

    def get_input_embeddings(self) -> Embedding:
        """Return the word embeddings; see `BertModel.get_input_embeddings`."""
        return self.bert.get_input_embeddings()

    @property
    def _own(self) -> HeadWeights:
        return _there(self.weights.head)

    @property
    def _dense(self) -> PreparedLinear:
        """The weights of `_formula`."""
        return _there(getattr(self._own, HEADS[self._head].rows[-1].field))

    @property
    def _pooler(self) -> PreparedLinear:
        return _there(self.weights.pooler)

    def _compute(
        self,
        output: Callable[..., _Output],
        inputs: _Inputs,
        options: _Options,
        *logits_of: Callable[[PackedBatch], SequenceLogits | TokenLogits],
        **labels: None,
    ) -> _Output:
        """Do the work of a call: check, pack, run the model, and make the output.

        Parameters
        ----------
        output : callable
            Makes the output from the logits of each head, the hidden states and the attentions.
        inputs, options
            The arguments that all classes have.
        *logits_of
            Each head: a packed batch -> its logits, which are filled while the model runs.
        **labels
            The arguments for training.
        """
        hidden_states, attentions, return_dict, harmless = options
        self._check_keywords(harmless)
        _refuse_labels(**labels)
        batch = self._pack(dict(zip(_INPUTS, inputs, strict=True)))
        filled = [logits(batch) for logits in logits_of]
        states = self.bert.run_packed(batch, hidden_states, attentions, heads=filled)
        result = output(*(head.logits for head in filled), states.hidden_states, states.attentions)
        return self._finish(result, return_dict, *inputs)

    def _sequence_logits(self, batch: PackedBatch) -> SequenceLogits:
        """Return the logits of a head that reads [CLS]; they are not computed yet."""
        dense = self._dense
        return SequenceLogits(
            batch,
            dense.shape[0],
            lambda x, step: self._formula(x, self._pooler, dense, step, self.ops),
            dtype=self._result_dtype,
        )

    def _token_logits(self, batch: PackedBatch) -> TokenLogits:
        """Return the logits of a head that reads each token; they are not computed yet."""
        dense = self._dense
        return TokenLogits(
            batch,
            dense.shape[0],
            lambda x: self._formula(x, dense, self.ops),
            dtype=self._result_dtype,
            slice_bytes=self._slice_bytes,
        )

    def _word_logits(self, positions: npt.ArrayLike | None) -> Callable[[PackedBatch], TokenLogits]:
        """Return a function that returns the logits of the masked-LM head; they are not computed yet."""

        def logits(batch: PackedBatch) -> TokenLogits:
            num_sequences, length = batch.mask.shape
            return TokenLogits(
                batch,
                self.config.vocab_size,
                lambda x: heads.masked_lm(x, _there(self._own.predictions), self.config, self.ops),
                None if positions is None else check_positions(positions, (num_sequences, length)),
                dtype=self._result_dtype,
                slice_bytes=self._slice_bytes,
            )

        return logits

    # --- for trace and stream, see models/tracing.py ------------------------------------------------------------------

    _whole_steps = False

    @property
    def _slice_bytes(self) -> int:
        return sys.maxsize if self._whole_steps else SLICE_BYTES

    def with_ops(self, ops: Ops, dtype: npt.DTypeLike = np.float32) -> Self:
        """Return a model with the same weights and other ops; see `Traceable.with_ops`."""
        model = type(self)(self.weights, ops, return_dict=self._return_dict)
        vars(model).update(bert=self.bert.with_ops(ops, dtype))
        model._result_dtype = dtype
        return model

    def _steps(self, batch: PackedBatch) -> Iterator[tuple[slice, PackedBatch]]:
        return self.bert._steps(batch)

    def _packed_states(self, batch: PackedBatch, stop: int) -> Iterator[tuple[PackedBatch, int, FloatArray]]:
        return self.bert._packed_states(batch, stop)

    def _after_states(self, x: FloatArray, step: PackedBatch) -> None:
        has_decoder = "decoder" in (row.field for row in HEADS[self._head].rows)
        if has_decoder:
            heads.masked_lm(x, _there(self._own.predictions), self.config, self.ops)
        if HEADS[self._head].pooled:
            self._formula(x, self._pooler, self._dense, step, self.ops)
        elif not has_decoder:
            self._formula(x, self._dense, self.ops)

    def _output_nbytes(self, batch: PackedBatch) -> int:
        states = self.bert._output_nbytes(batch)
        row = HEADS[self._head].rows[-1 if len(HEADS[self._head].rows) == 1 else 2]
        width = row.sizes(self.config)[0]
        rows = batch.num_sequences if row.field in ("classifier", "seq_relationship") else batch.mask.size
        return states + np.dtype(self._result_dtype).itemsize * rows * width


def _there(part: _Part | None) -> _Part:
    """Return a part of the weights that the constructor or the loader has checked to be there."""
    if part is None:
        raise RuntimeError("a part of the head is missing")
    return part


def _refuse_labels(**labels: object) -> None:
    for name, value in labels.items():
        if value is not None:
            raise ValueError(
                f"{name}= was given, but minibert does not train, so it computes no loss. Leave {name} out; a loss can "
                "be computed from the logits."
            )
