"""Choose the class of a checkpoint: `load`, `AutoModel`, the AutoModelFor... classes with a head, and `AutoConfig`."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Unpack

from minibert._utils.reporting import warn_caller
from minibert.bert.config import BertConfig
from minibert.bert.weights import HEADS
from minibert.checkpoint.files import ModelFiles
from minibert.models import heads
from minibert.models.bert import BertModel
from minibert.models.heads import BertHead
from minibert.models.loading import find_heads, find_model
from minibert.models.options import FromPretrainedKwargs, lists_keywords
from minibert.models.pretrained import BertPreTrainedModel


@lists_keywords()
def load(
    name_or_path: str | os.PathLike[str] | None = None, **harmless: Unpack[FromPretrainedKwargs]
) -> BertModel | BertHead[Any]:
    """Load a model with the head that its checkpoint has; the arguments are those of `BertModel.from_pretrained`.

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
    files, options = find_model("minibert.load", name_or_path, harmless, load)
    return choose_class(files).from_files(files, options)


def choose_class(files: ModelFiles) -> type[BertModel | BertHead[Any]]:
    """Choose the class of a checkpoint by its config.json and its tensors' names; warn if the two disagree."""
    named = files.settings("config.json").get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    found = find_heads(files)
    for name in names:
        if name in found or (name == "BertModel" and not found):
            return _class_of(name)
    chosen = found[0] if found else "BertModel"  # the first one in `HEADS` that fits: it uses most of the tensors
    certain = not names and all(name == chosen or _is_part(name, chosen) for name in found)
    if any(name in HEADS for name in names) or (found and not certain):
        says = f"names {names[0][:60]!a}" if names else "names no class"
        warn_caller(
            f"config.json {says}, but {files.source} has the tensors of {', '.join(found) or 'no head'}, so it is "
            f"loaded as {chosen}. To choose the class, call its from_pretrained."
        )
    return _class_of(chosen)


def _is_part(name: str, whole: str) -> bool:
    """Return whether a class has some of the modules of another one, and no other modules."""
    return set(HEADS[name].rows) < set(HEADS[whole].rows)


def _class_of(name: str) -> type[BertModel | BertHead[Any]]:
    return BertModel if name == "BertModel" else getattr(heads, name)


class AutoModel:
    """The model of a BERT checkpoint: `from_pretrained` gives a `BertModel`."""

    _model: ClassVar[type[BertPreTrainedModel[Any]]] = BertModel

    def __init__(self, *arguments: object, **keywords: object) -> None:
        name = type(self).__name__
        raise TypeError(f"{name} is not a model. Call {name}.from_pretrained(name_or_path).")

    @classmethod
    @lists_keywords()
    def from_pretrained(
        cls, name_or_path: str | os.PathLike[str] | None = None, **harmless: Unpack[FromPretrainedKwargs]
    ) -> Any:
        """Load a BERT model, as the `from_pretrained` of its class does; other types of models are refused by name.

        Raises
        ------
        ModelFormatError
            The checkpoint is not BERT, or does not have this head; or as in `BertModel.from_pretrained`.
        """
        return cls._model.from_pretrained(name_or_path, **harmless)


class AutoModelForMaskedLM(AutoModel):
    """The masked-LM model of a BERT checkpoint: `from_pretrained` gives a `BertForMaskedLM`."""

    _model = heads.BertForMaskedLM


class AutoModelForMultipleChoice(AutoModel):
    """The model of a BERT checkpoint that scores choices: `from_pretrained` gives a `BertForMultipleChoice`."""

    _model = heads.BertForMultipleChoice


class AutoModelForNextSentencePrediction(AutoModel):
    """The next-sentence model of a BERT checkpoint; `from_pretrained` gives a `BertForNextSentencePrediction`."""

    _model = heads.BertForNextSentencePrediction


class AutoModelForPreTraining(AutoModel):
    """The model of a BERT checkpoint with both heads of pretraining: `from_pretrained` gives a `BertForPreTraining`."""

    _model = heads.BertForPreTraining


class AutoModelForQuestionAnswering(AutoModel):
    """The question-answering model of a BERT checkpoint: `from_pretrained` gives a `BertForQuestionAnswering`."""

    _model = heads.BertForQuestionAnswering


class AutoModelForSequenceClassification(AutoModel):
    """The text classifier of a BERT checkpoint: `from_pretrained` gives a `BertForSequenceClassification`."""

    _model = heads.BertForSequenceClassification


class AutoModelForTokenClassification(AutoModel):
    """The token classifier of a BERT checkpoint: `from_pretrained` gives a `BertForTokenClassification`."""

    _model = heads.BertForTokenClassification


class AutoConfig:
    """The config of a BERT checkpoint: `from_pretrained` gives a `BertConfig`."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError("AutoConfig is not a config. Call AutoConfig.from_pretrained(name_or_path).")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> BertConfig:
        """Read a BERT config, as `BertConfig.from_pretrained` does; other types of models are refused by name."""
        return BertConfig.from_pretrained(name_or_path, **options)
