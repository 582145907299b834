"""The models with heads: ids in, logits out. Their names, inputs and outputs are those of transformers.

Each class takes the inputs of `BertModel.__call__` and gives them to its `bert`, a `BertModel` with the same weights
and ops. While that runs, step by step, the head of bert/heads.py computes the logits of each step.

- hidden_states and attentions are given only if they are asked for, as in transformers. (`BertModel` itself keeps
  hidden states unless it is told not to.)
- Logits of masked tokens are zeros, and so are those of a sequence whose [CLS] is masked if its head reads [CLS].
- If an input is a tensor of torch, the output holds tensors. ``return_dict=False`` gives a tuple.
- Other keywords of transformers, such as ``head_mask=``, are taken at values that change nothing.
- There is no loss: ``labels=`` is refused, because minibert does not train.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import heads
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import HEADS
from minibert.models.bert import BertModel
from minibert.models.inputs import as_numbers, check_ids, pack
from minibert.models.options import Selection
from minibert.models.outputs import (
    BertForPreTrainingOutput,
    MaskedLMOutput,
    ModelOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from minibert.models.pretrained import BertPreTrainedModel

SLICE_BYTES = 1 << 24
"""The most bytes of logits that are computed at once, before they are copied to their places."""

_Output = TypeVar("_Output", bound=ModelOutput)


class BertHead(BertPreTrainedModel[_Output]):
    """The base class of the models with heads. Threads may share a model, because it does not change.

    Attributes
    ----------
    bert : BertModel        the model without the head, with the same weights and ops
    config : BertConfig     read-only; id2label names a classifier's labels
    weights : Weights       read-only; `weights.head` are those of the head
    ops : Ops               read-only
    """

    _head: ClassVar[str]
    _formula: ClassVar[Callable[..., FloatArray]]  # of bert/heads.py; the masked-LM head is apart
    _output_type: ClassVar[Any]  # a class of models/outputs.py
    bert: BertModel

    def _make_parts(self, hidden_states: Selection, attentions: Selection) -> None:
        needed, there = HEADS[self._head], self.weights.head and HEADS[self.weights.head.name].rows
        if not set(needed.rows) <= set(there or ()) or (needed.pooled and self.weights.pooler is None):
            found = "no head" if self.weights.head is None else f"the head of {self.weights.head.name}"
            raise ValueError(
                f"{type(self).__name__} was given weights with {found}. Use {type(self).__name__}.from_pretrained, "
                "which loads the head that it needs."
            )
        bert = BertModel(self.weights, self.ops, output_hidden_states=hidden_states, output_attentions=attentions)
        vars(self).update(bert=bert)

    @property
    def num_labels(self) -> int:
        """The number of labels in the config; if the head is a classifier, each result has as many logits."""
        return self.config.num_labels

    @property
    def _dense(self) -> Any:
        """The weights of `_formula`; the constructor has checked that they are there."""
        return getattr(self.weights.head, HEADS[self._head].rows[-1].field)

    def _compute(self, inputs: Mapping[str, Any], kept: Mapping[str, Any], num_layers: Any, positions: Any) -> Any:
        batch = self._pack(inputs)
        filled = self._logits_of(batch, positions)
        states = self.bert.run_packed(batch, heads=filled, **kept)
        return self._output([head.logits for head in filled], states.hidden_states, states.attentions, inputs)

    def word_logits(self, x: FloatArray) -> FloatArray:
        """Compute the logits of the masked-LM head for some tokens: (t, H) -> (t, V)."""
        predictions: Any = self.weights.head and self.weights.head.predictions
        return heads.masked_lm(x, predictions, self.config, self.ops)

    def _logits_of(self, batch: PackedBatch, positions: npt.ArrayLike | None) -> Sequence[SequenceLogits | TokenLogits]:
        """Return the logits of each head; they are computed while the model runs."""
        found: list[SequenceLogits | TokenLogits] = []
        dtype = self._result_dtype
        if self._has_decoder:
            width, places = self.config.vocab_size, None
            if positions is not None:
                places = check_positions(positions, batch.mask.shape)
            found.append(TokenLogits(batch, width, self.word_logits, places, dtype, self._slice_bytes))
        if HEADS[self._head].pooled:
            found.append(SequenceLogits(batch, self._dense.shape[0], self.logits_of_sequences, dtype))
        elif not self._has_decoder:
            found.append(TokenLogits(batch, self._dense.shape[0], self._of_tokens, None, dtype, self._slice_bytes))
        return found

    def logits_of_sequences(self, x: FloatArray, step: PackedBatch) -> FloatArray:
        """Compute the logits of a head that reads [CLS], for the sequences of a step that show it."""
        return self._formula(x, self.weights.pooler, self._dense, step, self.ops)

    def _of_tokens(self, x: FloatArray) -> FloatArray:
        return self._formula(x, self._dense, self.ops)

    def _output(self, logits: list[FloatArray], hidden_states: Any, attentions: Any, inputs: Mapping[str, Any]) -> Any:
        """Make the output of a call."""
        return self._output_type(*logits, hidden_states, attentions)

    # --- for trace and stream, see models/tracing.py ------------------------------------------------------------------

    _whole_steps = False

    @property
    def _slice_bytes(self) -> int:
        return sys.maxsize if self._whole_steps else SLICE_BYTES

    def _after_states(self, x: FloatArray, step: PackedBatch) -> None:
        if self._has_decoder:
            self.word_logits(x)
        if HEADS[self._head].pooled:
            self.logits_of_sequences(x, step)
        elif not self._has_decoder:
            self._of_tokens(x)


class BertForMaskedLM(BertHead[MaskedLMOutput]):
    """BERT with the masked-LM head: for each token, a logit of each word of the vocabulary.

    ``logits`` have the shape (B, S, V), or (n, V) in the order of ``positions=``.
    """

    _head = "BertForMaskedLM"
    _output_type = MaskedLMOutput


class BertForNextSentencePrediction(BertHead[NextSentencePredictorOutput]):
    """BERT with the next-sentence head, which says whether the second text of a pair follows the first one.

    ``logits`` have the shape (B, 2): "it follows", "it is a random one". A pair is one sequence, as
    ``tokenizer(first, second)`` gives it.
    """

    _head = "BertForNextSentencePrediction"
    _formula = staticmethod(heads.next_sentence)
    _output_type = NextSentencePredictorOutput


class BertForPreTraining(BertHead[BertForPreTrainingOutput]):
    """BERT with both heads of its pre-training, masked LM and next sentence, which are computed in one forward."""

    _head = "BertForPreTraining"
    _formula = staticmethod(heads.next_sentence)
    _output_type = BertForPreTrainingOutput


class BertForSequenceClassification(BertHead[SequenceClassifierOutput]):
    """BERT with a classifier of whole sequences; ``config.problem_type`` says what its logits mean.

    ``logits`` have the shape (B, num_labels). Single label: softmax over the labels. Multi label: a sigmoid of each.
    Regression: the number itself. The logits are computed in the same way.
    """

    _head = "BertForSequenceClassification"
    _formula = staticmethod(heads.sequence_classification)
    _output_type = SequenceClassifierOutput


class BertForTokenClassification(BertHead[TokenClassifierOutput]):
    """BERT with a classifier of tokens, for example for named entities.

    ``logits`` have the shape (B, S, num_labels).
    """

    _head = "BertForTokenClassification"
    _formula = staticmethod(heads.token_classification)
    _output_type = TokenClassifierOutput


class BertForQuestionAnswering(BertHead[QuestionAnsweringModelOutput]):
    """BERT with a head that finds the answer to a question in a text: its first and its last token.

    ``start_logits`` and ``end_logits`` have the shape (B, S).
    """

    _head = "BertForQuestionAnswering"
    _formula = staticmethod(heads.question_answering)
    _output_type = QuestionAnsweringModelOutput

    def _output(self, logits: list[FloatArray], hidden_states: Any, attentions: Any, inputs: Mapping[str, Any]) -> Any:
        starts, ends = (np.ascontiguousarray(logits[0][:, :, i]) for i in range(2))
        return QuestionAnsweringModelOutput(starts, ends, hidden_states, attentions)


class BertForMultipleChoice(BertHead[MultipleChoiceModelOutput]):
    """BERT with a head that scores the choices of a question against each other.

    ``logits`` have the shape (B, choices). The inputs have the shape (B, choices, S), `inputs_embeds` (B, choices, S,
    H): each choice is a sequence, the question, then the answer. position_ids may have the shape (1, 1, S).
    hidden_states and attentions are given with B x choices sequences, as in transformers, and messages count rows
    through all choices.
    """

    _head = "BertForMultipleChoice"
    _formula = staticmethod(heads.multiple_choice)
    _output_type = MultipleChoiceModelOutput

    def _pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        return pack(self.config, **_flatten_choices(inputs))

    def _output(self, logits: list[FloatArray], hidden_states: Any, attentions: Any, inputs: Mapping[str, Any]) -> Any:
        given = inputs["input_ids"] if inputs["inputs_embeds"] is None else inputs["inputs_embeds"]
        return MultipleChoiceModelOutput(logits[0].reshape(np.shape(given)[:2]), hidden_states, attentions)


def _flatten_choices(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with B x choices rows; `pack` checks the rest."""
    arrays = {name: as_numbers(name, value) for name, value in inputs.items() if value is not None}
    given = arrays.get("input_ids", arrays.get("inputs_embeds"))
    leading = (0, 1) if given is None else given.shape[:2]  # `pack` says what is missing
    for name, array in arrays.items():
        allowed = [leading, (1, 1)] if name == "position_ids" else [leading]
        if array.ndim != (4 if name == "inputs_embeds" else 3) or array.shape[:2] not in allowed:
            raise ValueError(
                f"{name} has shape {array.shape}; expected (B, choices, S), with one axis more for inputs_embeds, and "
                f"the same {leading} in all inputs."
            )
    if leading[1] == 0:
        raise ValueError("The input has no choices; give at least one for each row.")
    return {
        name: array.reshape(-1 if array.size else array.shape[0] * array.shape[1], *array.shape[2:])
        for name, array in arrays.items()
    }


# --- the logits of a batch: filled step by step, in padded form, with zeros for masked tokens ---


class _Logits:
    """Logits of a fixed shape, zeros until they are computed; a `StepHead`."""

    def __init__(self, *shape: int, dtype: npt.DTypeLike) -> None:
        self._shape = shape
        self._dtype = np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        """The size of all logits in bytes."""
        return self._dtype.itemsize * math.prod(self._shape)

    @functools.cached_property
    def logits(self) -> FloatArray:
        """The logits; their memory is allocated at the first use, after `BertModel` has checked `nbytes`."""
        return np.zeros(self._shape, dtype=self._dtype)


class SequenceLogits(_Logits):
    """`width` logits for each of B sequences; zeros for a sequence whose first token is masked.

    Parameters
    ----------
    batch : PackedBatch
    width : int
    compute : (x of shape (t, H), step) -> ndarray with one row for each sequence of the step that shows its first token
    dtype : of the logits
    """

    def __init__(
        self,
        batch: PackedBatch,
        width: int,
        compute: Callable[[FloatArray, PackedBatch], FloatArray],
        dtype: npt.DTypeLike,
    ) -> None:
        super().__init__(batch.num_sequences, width, dtype=dtype)
        self._compute = compute
        self._places = np.flatnonzero(batch.shows_first)
        self._done = 0

    def __call__(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Compute the logits of a step."""
        rows = self._compute(x, step)
        self.logits[self._places[self._done : self._done + len(rows)]] = rows
        self._done += len(rows)


class TokenLogits(_Logits):
    """`width` logits for each token position, (B, S, width), or only for the requested `positions`, (n, width).

    Parameters
    ----------
    batch : PackedBatch
    width : int
    compute : (rows of the last hidden state, of shape (t, H)) -> ndarray of shape (t, width)
        It is called with at most `slice_bytes` of logits at once, so that it does not double the memory of a large
        vocabulary.
    positions : int array of shape (n, 2), or None
        A row and a column of the padded batch each; see `check_positions`.
    dtype : of the logits
    slice_bytes : int
    """

    def __init__(
        self,
        batch: PackedBatch,
        width: int,
        compute: Callable[[FloatArray], FloatArray],
        positions: IntArray | None,
        dtype: npt.DTypeLike,
        slice_bytes: int,
    ) -> None:
        self._compute = compute
        self._rows_at_once = max(1, slice_bytes // (4 * width))
        if positions is None:
            super().__init__(*batch.mask.shape, width, dtype=dtype)
            self._places = np.flatnonzero(batch.mask)
            self._tokens = np.arange(batch.num_tokens)
            return
        super().__init__(len(positions), width, dtype=dtype)
        rows, columns = positions.T
        shown = np.flatnonzero(batch.mask[rows, columns])
        # A token's index among the T tokens is the number of tokens before it that are not masked.
        tokens = (np.cumsum(batch.mask) - 1).reshape(batch.mask.shape)[rows[shown], columns[shown]]
        order = np.argsort(tokens, kind="stable")
        self._places, self._tokens = shown[order], tokens[order]

    def __call__(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Compute the logits of a step."""
        first, last = np.searchsorted(self._tokens, [tokens.start, tokens.stop])
        flat = self.logits.reshape(-1, self._shape[-1])
        for start in range(first, last, self._rows_at_once):
            some = slice(start, min(start + self._rows_at_once, last))
            flat[self._places[some]] = self._compute(x[self._tokens[some] - tokens.start])


def check_positions(positions: npt.ArrayLike, shape: tuple[int, ...]) -> IntArray:
    """Return positions in a padded batch of this shape as an int array of n rows and columns, (n, 2).

    Raises
    ------
    TypeError, ValueError
        They are not pairs of integers, or one is outside the batch; the message says which.
    """
    found = np.array(as_numbers("positions", positions))
    if found.size == 0 and not isinstance(positions, np.ndarray):
        return np.zeros((0, 2), dtype=np.int64)
    if found.ndim != 2 or found.shape[1] != 2:
        raise ValueError(
            f"positions has shape {found.shape}; expected (n, 2): the row and column of each token, as "
            "np.argwhere(input_ids == mask_token_id) gives them."
        )
    rows = check_ids("positions[:, 0]", found[:, 0], shape[0], "rows of the batch", ndim=1)
    columns = check_ids("positions[:, 1]", found[:, 1], shape[1], "columns of the batch", ndim=1)
    return np.stack([rows, columns], axis=1)
