"""`AutoModel`, its sisters with a head, and `AutoConfig`: transformers' names; here the classes are BERT's."""

from __future__ import annotations

import os
from typing import Any, ClassVar, NoReturn

from minibert.bert.config import BertConfig
from minibert.models.bert_model import BertModel
from minibert.models.heads import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.models.pretrained import BertPreTrainedModel

__all__ = [
    "AutoConfig",
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForPreTraining",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
]


class AutoModel:
    """The model of a BERT checkpoint: `from_pretrained` gives a `BertModel`."""

    _model: ClassVar[type[BertPreTrainedModel]] = BertModel

    def __init__(self, *arguments: object, **keywords: object) -> None:
        name = type(self).__name__
        raise TypeError(f"{name} is not a model. Call {name}.from_pretrained(name_or_path).")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Load a BERT model, as the `from_pretrained` of its class does; other types of models are refused by name.

        Raises
        ------
        ModelFormatError
            The checkpoint is not BERT, or does not have this head; or as in `BertModel.from_pretrained`.
        """
        return cls._model.from_pretrained(name_or_path, **options)

    @classmethod
    def from_config(cls, config: object, **options: object) -> NoReturn:
        """Refuse to make a model with random weights."""
        name = cls.__name__
        raise ValueError(f"{name}.from_config makes random weights; minibert loads trained ones: from_pretrained.")


class AutoModelForMaskedLM(AutoModel):
    """The masked-LM model of a BERT checkpoint: `from_pretrained` gives a `BertForMaskedLM`."""

    _model = BertForMaskedLM


class AutoModelForMultipleChoice(AutoModel):
    """The model of a BERT checkpoint that chooses among texts: `from_pretrained` gives a `BertForMultipleChoice`."""

    _model = BertForMultipleChoice


class AutoModelForNextSentencePrediction(AutoModel):
    """The judge of next sentences of a BERT checkpoint: its class is `BertForNextSentencePrediction`."""

    _model = BertForNextSentencePrediction


class AutoModelForPreTraining(AutoModel):
    """The model of a BERT checkpoint with both heads of pretraining: `from_pretrained` gives a `BertForPreTraining`."""

    _model = BertForPreTraining


class AutoModelForQuestionAnswering(AutoModel):
    """The model of a BERT checkpoint that finds answers: `from_pretrained` gives a `BertForQuestionAnswering`."""

    _model = BertForQuestionAnswering


class AutoModelForSequenceClassification(AutoModel):
    """The classifier of texts of a BERT checkpoint: `from_pretrained` gives a `BertForSequenceClassification`."""

    _model = BertForSequenceClassification


class AutoModelForTokenClassification(AutoModel):
    """The classifier of tokens of a BERT checkpoint: `from_pretrained` gives a `BertForTokenClassification`."""

    _model = BertForTokenClassification


class AutoConfig:
    """The config of a BERT checkpoint: `from_pretrained` gives a `BertConfig`."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError("AutoConfig is not a config. Call AutoConfig.from_pretrained(name_or_path).")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> BertConfig:
        """Read a BERT config, as `BertConfig.from_pretrained` does; other types of models are refused by name."""
        return BertConfig.from_pretrained(name_or_path, **options)
