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

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.bert import heads
from minibert.bert.packed import PackedBatch
from minibert.models.bert_head import BertHead
from minibert.models.inputs import as_numbers, pack
from minibert.models.options import Selection
from minibert.models.outputs import (
    BertForPreTrainingOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

__all__ = [
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
]


class BertForMaskedLM(BertHead):
    """BERT with the masked-LM head: for each token, a logit of each word of the vocabulary."""

    _head = "BertForMaskedLM"

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        positions: npt.ArrayLike | None = None,
        labels: None = None,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> MaskedLMOutput:
        """Compute the logits of all tokens, or of the tokens at `positions`.

        Parameters
        ----------
        input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
            As for `BertModel.__call__`.
        positions : int array of shape (n, 2), optional
            The row and the column of each token whose logits are wanted, as
            ``np.argwhere(input_ids == tokenizer.mask_token_id)`` gives them. The decoder, H x V numbers, runs for these
            tokens only. Each result has the same bits as without `positions`. Default: all tokens.
        output_hidden_states, output_attentions : bool, int or ints, optional
            What else to keep; see `BertModel.__call__`.

        Returns
        -------
        MaskedLMOutput
            logits of shape (B, S, V), or (n, V) in the order of `positions`.

        Raises
        ------
        TypeError, ValueError
            An input has the wrong kind, shape or range; or `labels` is given.
        MemoryError
            The logits, 4 B S V bytes, do not fit into the memory that this process may use.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = (output_hidden_states, output_attentions, return_dict, harmless)
        words = self._word_logits(positions)
        return self._compute(MaskedLMOutput, inputs, options, words, labels=labels)

    forward = __call__


class BertForNextSentencePrediction(BertHead):
    """BERT with the next-sentence head, which says whether the second text of a pair follows the first one."""

    _head = "BertForNextSentencePrediction"
    _formula = staticmethod(heads.next_sentence)

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        labels: None = None,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> NextSentencePredictorOutput:
        """Compute two logits for each pair of texts, (B, 2): "it follows", "it is a random one".

        The inputs and errors are those of `BertModel.__call__`; a pair is one sequence, as
        ``tokenizer(first, second)`` gives it. `labels` is refused.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = (output_hidden_states, output_attentions, return_dict, harmless)
        return self._compute(NextSentencePredictorOutput, inputs, options, self._sequence_logits, labels=labels)

    forward = __call__


class BertForPreTraining(BertHead):
    """BERT with both heads of its pre-training: masked LM and next sentence."""

    _head = "BertForPreTraining"
    _formula = staticmethod(heads.next_sentence)

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        positions: npt.ArrayLike | None = None,
        labels: None = None,
        next_sentence_label: None = None,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> BertForPreTrainingOutput:
        """Compute what `BertForMaskedLM` and `BertForNextSentencePrediction` compute, in one forward.

        The inputs and errors are those of `BertForMaskedLM.__call__`; `positions` chooses the prediction_logits.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = (output_hidden_states, output_attentions, return_dict, harmless)
        logits = self._word_logits(positions), self._sequence_logits
        labels_given = {"labels": labels, "next_sentence_label": next_sentence_label}
        return self._compute(BertForPreTrainingOutput, inputs, options, *logits, **labels_given)

    forward = __call__


class BertForSequenceClassification(BertHead):
    """BERT with a classifier of whole sequences; ``config.problem_type`` says what its logits mean.

    Single label: softmax over the labels. Multi label: a sigmoid of each. Regression: the number itself. The logits are
    computed in the same way.
    """

    _head = "BertForSequenceClassification"
    _formula = staticmethod(heads.sequence_classification)

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        labels: None = None,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> SequenceClassifierOutput:
        """Compute a logit of each label for each sequence, (B, num_labels).

        The inputs and errors are those of `BertModel.__call__`; `labels` is refused.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = (output_hidden_states, output_attentions, return_dict, harmless)
        return self._compute(SequenceClassifierOutput, inputs, options, self._sequence_logits, labels=labels)

    forward = __call__


class BertForTokenClassification(BertHead):
    """BERT with a classifier of tokens, for example for named entities."""

    _head = "BertForTokenClassification"
    _formula = staticmethod(heads.token_classification)

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        labels: None = None,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> TokenClassifierOutput:
        """Compute a logit of each label for each token, (B, S, num_labels).

        The inputs and errors are those of `BertModel.__call__`; `labels` is refused.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = (output_hidden_states, output_attentions, return_dict, harmless)
        return self._compute(TokenClassifierOutput, inputs, options, self._token_logits, labels=labels)

    forward = __call__


class BertForQuestionAnswering(BertHead):
    """BERT with a head that finds the answer to a question in a text: its first and its last token."""

    _head = "BertForQuestionAnswering"
    _formula = staticmethod(heads.question_answering)

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        start_positions: None = None,
        end_positions: None = None,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> QuestionAnsweringModelOutput:
        """Compute the logits of "the answer starts here" and "the answer ends here" for each token, (B, S) each.

        The inputs and errors are those of `BertModel.__call__`; `start_positions` and `end_positions`, the labels, are
        refused.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = (output_hidden_states, output_attentions, return_dict, harmless)
        labels = {"start_positions": start_positions, "end_positions": end_positions}
        return self._compute(_starts_and_ends, inputs, options, self._token_logits, **labels)

    forward = __call__


class BertForMultipleChoice(BertHead):
    """BERT with a head that scores the choices of a question against each other."""

    _head = "BertForMultipleChoice"
    _formula = staticmethod(heads.multiple_choice)

    def _pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        return pack(self.config, **_flatten_choices(inputs))

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        labels: None = None,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> MultipleChoiceModelOutput:
        """Compute a logit of each choice, (B, choices).

        Parameters
        ----------
        input_ids, attention_mask, token_type_ids, position_ids : int arrays of shape (B, choices, S)
            Each choice is a sequence: the question, then the answer. The limits are those of `BertModel.__call__`.
            position_ids may have the shape (1, 1, S).
        inputs_embeds : float array of shape (B, choices, S, H), optional
        output_hidden_states, output_attentions : bool, int or ints, optional
            They are given with B x choices sequences, as in transformers.

        Raises
        ------
        TypeError, ValueError
            An input has the wrong kind, shape or range (messages count rows through all choices); there are no choices;
            or `labels` is given.
        """

        def in_rows(logits: FloatArray, *others: Any) -> MultipleChoiceModelOutput:
            shape = np.shape(input_ids if inputs_embeds is None else inputs_embeds)[:2]  # type: ignore[arg-type]
            return MultipleChoiceModelOutput(logits.reshape(shape), *others)

        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = (output_hidden_states, output_attentions, return_dict, harmless)
        return self._compute(in_rows, inputs, options, self._sequence_logits, labels=labels)

    forward = __call__


def _starts_and_ends(logits: FloatArray, *others: Any) -> QuestionAnsweringModelOutput:
    """Split the two logits of each token."""
    starts, ends = (np.ascontiguousarray(logits[:, :, i]) for i in range(2))
    return QuestionAnsweringModelOutput(starts, ends, *others)


def _flatten_choices(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with B x choices rows; `pack` checks the rest."""
    arrays = {name: as_numbers(name, value) for name, value in inputs.items() if value is not None}
    leading: tuple[int, ...] | None = None
    for name, array in arrays.items():
        ndim = 4 if name == "inputs_embeds" else 3
        if array.ndim != ndim:
            expected = "(B, choices, S, H)" if ndim == 4 else "(B, choices, S)"
            raise ValueError(
                f"{name} has shape {array.shape}; expected {expected}: choices of S tokens for each of B rows."
            )
        if name in ("input_ids", "inputs_embeds"):
            leading = array.shape[:2]
    if leading is None:
        leading = (0, 1)  # `pack` says what is missing
    if leading[1] == 0:
        raise ValueError("The input has no choices; give at least one for each row.")
    for name, array in arrays.items():
        if array.shape[:2] not in (leading, (1, 1) if name == "position_ids" else leading):
            raise ValueError(f"{name} has shape {array.shape}; expected {(*leading, '...')}, as the input has.")
    return {
        name: array.reshape(-1 if array.size else array.shape[0] * array.shape[1], *array.shape[2:])
        for name, array in arrays.items()
    }
