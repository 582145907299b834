"""The outputs of the models, with the names and the behaviour of transformers' outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias, TypeVar

from minibert._utils.torch_interop import to_tensor
from minibert._utils.validation import FloatArray

Layers: TypeAlias = tuple[FloatArray | None, ...]
Output = TypeVar("Output")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ModelOutput:
    """The results of one forward pass; read them by attribute, ``["key"]``, index or iteration.

    Index, iteration and `to_tuple` skip fields that are None, as in transformers' ``ModelOutput``.
    If an input of the model was a tensor of torch, every array is a tensor.
    """

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values that are not None, in the order of the fields."""
        return tuple(getattr(self, key) for key in self.keys())

    def keys(self) -> tuple[str, ...]:
        """Return the names of the values that are not None, in order."""
        return tuple(field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None)

    values = to_tuple

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Return the pairs (name, value) of the values that are not None, in order."""
        return tuple((key, getattr(self, key)) for key in self.keys())

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a name, or `default` if it is None or not in the output."""
        return dict(self.items()).get(key, default)

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key not in self.keys():
                raise KeyError(f"{key!r} is not in this output, which has {', '.join(self.keys())}.")
            return getattr(self, key)
        return self.to_tuple()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_tuple())

    def __len__(self) -> int:
        return len(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __repr__(self) -> str:
        described = ", ".join(f"{key}={_describe(self[key])}" for key in self.keys())
        return f"{type(self).__name__}({described})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BertModelOutput(ModelOutput):
    """The arrays that a forward pass returned; read them by attribute, ``["key"]``, index or iteration.

    Parameters
    ----------
    last_hidden_state : ndarray of shape (B, S, H), float32, or None
        None if ``num_layers=`` stopped the forward early.
    pooler_output : ndarray of shape (B, H), float32, or None
        tanh of a linear map of [CLS]; zeros for a sequence whose first token is masked. None if the checkpoint does not
        have a pooler (minibert never makes random weights), or the forward stopped early.
    hidden_states : tuple of L + 1 ndarrays of shape (B, S, H), or None
        ``[0]`` is the embeddings' output after LayerNorm, ``[i + 1]`` that of layer i, ``[-1]`` last_hidden_state.
        States that were not asked for are None.
    attentions : tuple of L ndarrays of shape (B, A, S, S), or None
        Attention probs: ``attentions[i - 1][b, a, s]`` says how much token s of sequence b attends to each token, in
        attention head a of layer i; its sum is 1. Layers that were not asked for are None.

    Notes
    -----
    Every array holds zeros for masked tokens (attention_mask 0); transformers has arbitrary numbers there. Index,
    iteration and `to_tuple` skip fields that are None, as transformers' ``ModelOutput.to_tuple`` does.
    """

    last_hidden_state: FloatArray | None = None
    pooler_output: FloatArray | None = None
    hidden_states: Layers | None = None
    attentions: Layers | None = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _LogitsOutput(ModelOutput):
    logits: FloatArray | None = None
    hidden_states: Layers | None = None
    attentions: Layers | None = None


class MaskedLMOutput(_LogitsOutput):
    """The output of `BertForMaskedLM`; hidden_states and attentions are as in `BertModelOutput`.

    Parameters
    ----------
    logits : ndarray of shape (B, S, V), or (n, V) for n positions, float32
        Zeros where a token is masked by the attention_mask.
    """


class NextSentencePredictorOutput(_LogitsOutput):
    """The output of `BertForNextSentencePrediction`; hidden_states and attentions are as in `BertModelOutput`.

    Parameters
    ----------
    logits : ndarray of shape (B, 2), float32
        [b, 0] for "the second text follows the first", [b, 1] for "it is a random one". Zeros if [CLS] is masked.
    """


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BertForPreTrainingOutput(ModelOutput):
    """The output of `BertForPreTraining`; hidden_states and attentions are as in `BertModelOutput`.

    Parameters
    ----------
    prediction_logits : as `logits` of `MaskedLMOutput`
    seq_relationship_logits : as `logits` of `NextSentencePredictorOutput`
    """

    prediction_logits: FloatArray | None = None
    seq_relationship_logits: FloatArray | None = None
    hidden_states: Layers | None = None
    attentions: Layers | None = None


class SequenceClassifierOutput(_LogitsOutput):
    """The output of `BertForSequenceClassification`; hidden_states and attentions are as in `BertModelOutput`.

    Parameters
    ----------
    logits : ndarray of shape (B, num_labels), float32
        Before softmax or sigmoid; for a regression the number itself. Zeros if [CLS] is masked.
    """


class TokenClassifierOutput(_LogitsOutput):
    """The output of `BertForTokenClassification`; hidden_states and attentions are as in `BertModelOutput`.

    Parameters
    ----------
    logits : ndarray of shape (B, S, num_labels), float32
        Before softmax. Zeros where a token is masked by the attention_mask.
    """


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class QuestionAnsweringModelOutput(ModelOutput):
    """The output of `BertForQuestionAnswering`; hidden_states and attentions are as in `BertModelOutput`.

    Parameters
    ----------
    start_logits, end_logits : ndarrays of shape (B, S), float32
        Before softmax over the tokens of a text. Zeros where a token is masked by the attention_mask.
    """

    start_logits: FloatArray | None = None
    end_logits: FloatArray | None = None
    hidden_states: Layers | None = None
    attentions: Layers | None = None


class MultipleChoiceModelOutput(_LogitsOutput):
    """The output of `BertForMultipleChoice`; hidden_states and attentions are as in `BertModelOutput`.

    Parameters
    ----------
    logits : ndarray of shape (B, choices), float32
        Before softmax over the choices. Zeros if [CLS] is masked.
    """


def with_tensors(output: Output) -> Output:
    """Return a copy of an output (a dataclass of arrays and tuples of arrays) with torch tensors in place of arrays.

    They share the memory of the arrays. An array that two fields hold becomes one tensor.
    """
    made: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            return tuple(map(convert, value))
        if id(value) not in made:
            made[id(value)] = to_tensor(value)
        return made[id(value)]

    fields = {field.name: convert(getattr(output, field.name)) for field in dataclasses.fields(output)}  # type: ignore[arg-type]
    return dataclasses.replace(output, **fields)  # type: ignore[type-var]


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        kept = [array for array in value if array is not None]
        of = f" of {len(value)}" if len(kept) < len(value) else ""
        return f"<{len(kept)}{of} arrays{f' {tuple(kept[0].shape)}' if kept else ''}>"
    return f"<array {tuple(value.shape)}>"
