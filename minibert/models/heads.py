"""The models with heads: ids in, logits out. Their names, inputs and outputs are as in transformers.

`load`, `AutoModel` and the AutoModelFor... classes choose the class of a checkpoint.

Each class takes the inputs of `BertModel.__call__`. While the encoder runs, step by step, the head of bert/heads.py
computes the logits of each step (base.py). Its `bert` is a `BertModel` with the same weights and ops.

- hidden_states and attentions are given only if they are asked for, as in transformers. (`BertModel` itself keeps
  hidden states unless it is told not to.)
- Logits of masked tokens are zeros, and so are those of a sequence whose [CLS] is masked if its head reads [CLS].
- If an input is a tensor of torch, the output holds tensors. ``return_dict=False`` gives a tuple.
- Other keywords of transformers, such as ``head_mask=``, are taken at values that change nothing.
- There is no loss: ``labels=`` is refused, because minibert does not train.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.families import Family, architectures
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from minibert.bert.rows import HEADS, head_of
from minibert.bert.weights import Weights
from minibert.checkpoint.files import ModelFiles
from minibert.models import outputs
from minibert.models.bert import BertModel, Embedding
from minibert.models.inputs import as_numbers
from minibert.models.loading import find_model
from minibert.models.options import lists_keywords
from minibert.models.pretrained import BertPreTrainedModel, class_of
from minibert.models.stored import find_heads, is_part

_Output = TypeVar("_Output", bound=outputs.ModelOutput)
_Kind = TypeVar("_Kind", bound=BertPreTrainedModel[Any])


# --- the models ------------------------------------------------------------------------------------------------------


class BertHead(BertPreTrainedModel[_Output]):
    """The base class of the models with heads. Threads may share a model, because it does not change.

    Attributes
    ----------
    bert : BertModel        the model without the head, with the same weights and ops
    config : BertConfig     read-only; id2label names a classifier's labels
    weights : Weights       read-only; `weights.head` are the head's
    ops : Ops               read-only
    """

    bert: BertModel

    def __init_subclass__(cls) -> None:
        if cls.__name__ in HEADS:
            cls.head_name = cls.__name__

    def __init__(self, weights: Weights | None = None, ops: Ops | None = None, **options: Any) -> None:
        super().__init__(weights, ops, **options)
        family, of_head = self.config.family, self.weights.head
        needed, there = head_of(family, self.head_name or ""), of_head and head_of(family, of_head.name).rows
        if not set(needed.rows) <= set(there or ()) or (needed.pooled and self.weights.pooler is None):
            name = type(self).__name__
            head = "no head" if self.weights.head is None else f"the head of {self.weights.head.name}"
            raise ValueError(f"{name} was given weights with {head}. Use {name}.from_pretrained.")
        self.bert = class_of(BertModel, self.config.family)(self.weights, self.ops, **self.kept)
        vars(self)[self.base_model_prefix] = self.bert

    @property
    def base_model(self) -> BertModel:
        """The model without its head; of a `BertModel`, the model itself."""
        return self.bert

    @property
    def num_labels(self) -> int:
        """The number of labels in the config; if the head is a classifier, each result has as many logits."""
        return self.config.num_labels

    def get_input_embeddings(self) -> Embedding:
        """Return the word embeddings, as `BertModel.get_input_embeddings`."""
        return self.bert.get_input_embeddings()


class BertForMaskedLM(BertHead[outputs.MaskedLMOutput]):
    """BERT with the masked-LM head: for each token, a logit of each word of the vocabulary.

    ``logits`` have the shape (B, S, V), or (n, V) in the order of ``positions=``.
    """

    make_output = outputs.MaskedLMOutput


class BertForNextSentencePrediction(BertHead[outputs.NextSentencePredictorOutput]):
    """BERT with the next-sentence head. It says whether the second text of a pair follows the first one.

    ``logits`` have the shape (B, 2): "it follows", "it is a random one". A pair is one sequence, as
    ``tokenizer(first, second)`` gives it.
    """

    make_output = outputs.NextSentencePredictorOutput


class BertForPreTraining(BertHead[outputs.BertForPreTrainingOutput]):
    """BERT with both heads of its pre-training, masked LM and next sentence, computed in one forward."""

    make_output = outputs.BertForPreTrainingOutput


class BertForSequenceClassification(BertHead[outputs.SequenceClassifierOutput]):
    """BERT with a classifier of whole sequences; ``config.problem_type`` says what its logits mean.

    ``logits`` have the shape (B, num_labels). Single label: softmax over the labels. Multi label: a sigmoid of each.
    Regression: the number itself. The logits are computed in the same way.
    """

    make_output = outputs.SequenceClassifierOutput


class BertForTokenClassification(BertHead[outputs.TokenClassifierOutput]):
    """BERT with a classifier of tokens, for example for named entities.

    ``logits`` have the shape (B, S, num_labels).
    """

    make_output = outputs.TokenClassifierOutput


class BertForQuestionAnswering(BertHead[outputs.QuestionAnsweringModelOutput]):
    """BERT with a head that finds the answer to a question in a text: its first and its last token.

    ``start_logits`` and ``end_logits`` have the shape (B, S).
    """

    @staticmethod
    def make_output(logits: FloatArray, *others: Any) -> outputs.QuestionAnsweringModelOutput:
        """Make the output of a call: the first tokens' logits, the last tokens', hidden states and attentions."""
        starts, ends = (np.ascontiguousarray(logits[:, :, i]) for i in range(2))
        return outputs.QuestionAnsweringModelOutput(starts, ends, *others)


class BertForMultipleChoice(BertHead[outputs.MultipleChoiceModelOutput]):
    """BERT with a head that scores the choices of a question against each other.

    ``logits`` have the shape (B, choices). The inputs have the shape (B, choices, S), `inputs_embeds` (B, choices, S,
    H): each choice is a sequence, the question, then the answer. position_ids may have the shape (1, 1, S).
    hidden_states and attentions are given with B x choices sequences, as in transformers, and messages count rows
    through all choices.
    """

    make_output = outputs.MultipleChoiceModelOutput

    def pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        """Check the inputs of a call, and pack each choice as a sequence."""
        return super().pack(_flatten_choices(inputs))

    def finish(self, output: Any, inputs: Mapping[str, Any], return_dict: bool | None = None) -> Any:
        """Return an output with a row of logits for each question, as the caller wants it."""
        ids_or_embeds = inputs["input_ids"] if inputs["inputs_embeds"] is None else inputs["inputs_embeds"]
        output = dataclasses.replace(output, logits=output.logits.reshape(np.shape(ids_or_embeds)[:2]))
        return super().finish(output, inputs, return_dict)


def _flatten_choices(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with B x choices rows; `pack` checks the rest."""
    arrays = {name: as_numbers(name, value) for name, value in inputs.items() if value is not None}
    ids_or_embeds = arrays.get("input_ids", arrays.get("inputs_embeds"))
    leading = (0, 1) if ids_or_embeds is None else ids_or_embeds.shape[:2]  # `pack` says what is missing
    for name, array in arrays.items():
        allowed = [leading, (1, 1)] if name == "position_ids" else [leading]
        if array.ndim != (4 if name == "inputs_embeds" else 3) or array.shape[:2] not in allowed:
            raise ValueError(
                f"{name} has shape {array.shape}; expected (B, choices, S), one axis more for inputs_embeds, and "
                f"the same {leading} in all inputs."
            )
    if leading[1] == 0:
        raise ValueError("The input has no choices; give at least one for each row.")
    return {name: array.reshape(math.prod(array.shape[:2]), *array.shape[2:]) for name, array in arrays.items()}


# --- the class of a checkpoint ----------------------------------------------------------------------------------------

Model: TypeAlias = BertModel | BertHead[Any]


@lists_keywords()
def load(name_or_path: str | os.PathLike[str] | None = None, **harmless: Any) -> Model:
    """Load a model with the head that its checkpoint has; the arguments are as for `BertModel.from_pretrained`.

    The class is the one that config.json names in ``architectures`` if the checkpoint has the tensors of its head.
    Otherwise the tensors decide, and a warning says so. A checkpoint without a head is a `BertModel`.

    Returns
    -------
    BertModel, or one of the classes with a head
        `BertModel` keeps all hidden states by default, a model with a head keeps none.

    Warns
    -----
    UserWarning
        config.json and the tensors disagree, or the tensors fit several classes and config.json names none of them.

    Raises
    ------
    ModelFormatError, DownloadError, TypeError, ValueError
        As for `BertModel.from_pretrained`.
    """
    files, options, family = find_model("minibert.load", name_or_path, harmless, load)
    return choose_class(files, family).from_files(files, options)


def choose_class(files: ModelFiles, family: Family) -> type[Model]:
    """Choose the class of a checkpoint by its config.json and its tensors' names; warn if the two disagree."""
    names, heads = architectures(files.settings("config.json")), find_heads(files, family)
    for name in names:
        if name in heads or (name == "BertModel" and not heads):
            return globals()[name]
    chosen = heads[0] if heads else "BertModel"  # the first one in `HEADS` that fits: it uses most of the tensors
    certain = not names and all(name == chosen or is_part(name, chosen) for name in heads)
    if any(name in HEADS for name in names) or (heads and not certain):
        says = f"names {family.own_class(names[0])[:60]!a}" if names else "names no class"
        there = ", ".join(map(family.own_class, heads)) or "no head"
        warn_caller(
            f"config.json {says}, but {files.source} has the tensors of {there}, so it is loaded as "
            f"{family.own_class(chosen)}. To choose the class, call its from_pretrained."
        )
    return globals()[chosen]


class _Auto:
    def __init__(self, *arguments: object, **keywords: object) -> None:
        name = type(self).__name__
        raise TypeError(f"{name} does not make objects. Call {name}.from_pretrained(name_or_path).")


class _AutoModel(_Auto, Generic[_Kind]):
    _model: ClassVar[type[Any]] = BertModel

    @classmethod
    @lists_keywords()
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **harmless: Any) -> _Kind:
        """Load a model, as the `from_pretrained` of its class does; types without BERT's forward are refused by name.

        Raises
        ------
        ModelFormatError
            The checkpoint is of such a type, or does not have this head; or as in `BertModel.from_pretrained`.
        """
        call, kind = f"{cls.__name__}.from_pretrained", cls._model
        files, options, family = find_model(call, name_or_path, harmless, cls.from_pretrained)
        if kind is BertForPreTraining and family.field not in ("bert", "electra"):
            kind = BertForMaskedLM  # the pre-training of the others has one task
        return kind.from_files(files, options)


class AutoModel(_AutoModel[BertModel]):
    """The model of a checkpoint: `from_pretrained` gives the `BertModel` of its family, such as `RobertaModel`."""


def _auto(model: type[_Kind]) -> type[_AutoModel[_Kind]]:
    """Make the class AutoModelFor... of a model with a head."""
    text = f"The model of a checkpoint with this head: `from_pretrained` gives the `{model.__name__}` of its family."
    name = model.__name__.replace("Bert", "AutoModel")
    return type(name, (AutoModel,), {"_model": model, "__doc__": text, "__module__": __name__})


AutoModelForMaskedLM = _auto(BertForMaskedLM)
AutoModelForMultipleChoice = _auto(BertForMultipleChoice)
AutoModelForNextSentencePrediction = _auto(BertForNextSentencePrediction)
AutoModelForPreTraining: type[_AutoModel[BertForPreTraining | BertForMaskedLM]] = _auto(BertForPreTraining)
AutoModelForQuestionAnswering = _auto(BertForQuestionAnswering)
AutoModelForSequenceClassification = _auto(BertForSequenceClassification)
AutoModelForTokenClassification = _auto(BertForTokenClassification)


class AutoConfig(_Auto):
    """The config of a checkpoint of any family: `from_pretrained` gives a `BertConfig`."""

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> BertConfig:
        """Read a config, as `BertConfig.from_pretrained` does; types without BERT's forward are refused by name."""
        return BertConfig.from_pretrained(name_or_path, **options)
