"""`pipeline`: a task on a model, with the names of transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, overload

from minibert._utils.keywords import PIPELINE_KEYWORDS, arguments_of, check_keywords
from minibert._utils.validation import brief
from minibert.bert.families import architectures, bert_class
from minibert.bert.rows import HEADS
from minibert.models import heads
from minibert.models.bert import BertModel
from minibert.models.loading import find_model
from minibert.models.options import LoadOptions, lists_keywords
from minibert.models.pretrained import BertPreTrainedModel
from minibert.models.stored import is_part
from minibert.tasks.base import TaskPipeline
from minibert.tasks.feature_extraction import FeatureExtractionPipeline
from minibert.tasks.fill_mask import FillMaskPipeline
from minibert.tasks.question_answering import QuestionAnsweringPipeline
from minibert.tasks.text_classification import NextSentencePipeline, TextClassificationPipeline
from minibert.tasks.token_classification import TokenClassificationPipeline
from minibert.tasks.zero_shot import ZeroShotClassificationPipeline
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.texts import shown

TASKS: Mapping[str, tuple[type[TaskPipeline], type[heads.Model]]] = {
    "fill-mask": (FillMaskPipeline, heads.BertForMaskedLM),
    "text-classification": (TextClassificationPipeline, heads.BertForSequenceClassification),
    "token-classification": (TokenClassificationPipeline, heads.BertForTokenClassification),
    "question-answering": (QuestionAnsweringPipeline, heads.BertForQuestionAnswering),
    "zero-shot-classification": (ZeroShotClassificationPipeline, heads.BertForSequenceClassification),
    "next-sentence": (NextSentencePipeline, heads.BertForNextSentencePrediction),
    "feature-extraction": (FeatureExtractionPipeline, BertModel),
}
"""The tasks: the pipeline of each, and the class of its model. The first task of a class is the one of its head."""

ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification"}
"""Other names of tasks, as in transformers."""

# The class with both heads of pre-training is used for the first one.
_TASK_OF = {"BertForPreTraining": "fill-mask"} | {
    model.__name__: task for task, (_, model) in reversed(list(TASKS.items()))
}


_OPTIONS = ("config", *LoadOptions.__dataclass_fields__)


# fmt: off
@overload
def pipeline(task: Literal["fill-mask"], model: Any = ..., **arguments: Any) -> FillMaskPipeline: ...
@overload
def pipeline(task: Literal["text-classification", "sentiment-analysis"], model: Any = ..., **arguments: Any
) -> TextClassificationPipeline: ...
@overload
def pipeline(task: Literal["token-classification", "ner"], model: Any = ..., **arguments: Any
) -> TokenClassificationPipeline: ...
@overload
def pipeline(task: Literal["question-answering"], model: Any = ..., **arguments: Any) -> QuestionAnsweringPipeline: ...
@overload
def pipeline(task: Literal["zero-shot-classification"], model: Any = ..., **arguments: Any
) -> ZeroShotClassificationPipeline: ...
@overload
def pipeline(task: Literal["next-sentence"], model: Any = ..., **arguments: Any) -> NextSentencePipeline: ...
@overload
def pipeline(task: Literal["feature-extraction"], model: Any = ..., **arguments: Any) -> FeatureExtractionPipeline: ...
@overload
def pipeline(task: str | None = ..., model: Any = ..., **arguments: Any) -> TaskPipeline: ...
# fmt: on
@lists_keywords(_OPTIONS)
def pipeline(
    task: str | None = None,
    model: Any = None,
    *,
    tokenizer: Any = None,
    batch_size: int | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """Make a task: a function from texts to answers, with the names, arguments and results of transformers.

    Parameters
    ----------
    task : str, optional
        A name in `TASKS` or `ALIASES`. Default: the task of the model's head.
    model : str or path, or a loaded model
        A hub id or a folder; or a `BertModel` or a model with a head, together with `tokenizer`.
    tokenizer : BertTokenizer, or str or path, optional
        Default: the one of the model's files.
    config, revision, cache_dir, token, local_files_only, subfolder, backend, num_threads, compute_type,
    shared_weights, idle_release
        As in `BertModel.from_pretrained`; for a model that is loaded by name. A tokenizer that is named is looked for
        with cache_dir, token and local_files_only too.
    batch_size : int, optional
        Texts that are computed together: default 32 for a list, 1 for an iterable. It changes memory and time, and no
        answer.
    model_kwargs : mapping, optional
        More keywords of `BertModel.from_pretrained`.
    **arguments
        The arguments of the task (a call can replace them), and keywords of transformers' ``pipeline`` at values that
        change nothing, such as ``device="cpu"``.

    Returns
    -------
    TaskPipeline
        Call it with a text, a list of texts, or any iterable; its class says what an answer is.

    Raises
    ------
    TypeError, ValueError
        The task is not known or does not fit the model, no model is named, or an argument is wrong.
    ModelFormatError, DownloadError
        The model cannot be loaded, or does not have the head of the task.

    Examples
    --------
    >>> import minibert
    >>> features = minibert.pipeline("feature-extraction", "sentence-transformers/all-MiniLM-L6-v2")
    >>> vectors = features("Hello, BERT!", return_tensors="np")
    >>> vectors.shape
    (1, 6, 384)
    """
    name = _task_name(task)
    if model is None:
        raise TypeError("pipeline() needs model=: a hub id, a folder or a loaded model. minibert does not choose one.")
    loading = {option: arguments.pop(option) for option in _OPTIONS if option in arguments} | dict(model_kwargs or {})
    loaded: Any
    if isinstance(model, BertPreTrainedModel):
        asked = [option for option, value in loading.items() if value not in (None, False, "")]
        if asked:
            raise ValueError(f"{asked[0]}= is for a model that is loaded by name; leave it out for a loaded one.")
        name, used = name or _task_of(type(model)), _tokenizer(tokenizer, model)
        loaded = _with_head(model, name)
    elif isinstance(model, str | os.PathLike):
        files, options, family = find_model("minibert.pipeline", model, loading, BertModel.from_pretrained)
        kind = heads.choose_class(files, family) if name is None else TASKS[name][1]
        name = name or _task_of(kind)
        names = architectures(files.settings("config.json"))
        for named in names if kind.__name__ in HEADS and kind.__name__ not in names else ():
            # The classifiers of texts and of tokens have tensors of the same names.
            if named in HEADS and _paths(named) == _paths(kind.__name__):
                raise _other_head(name, options.config, named, f"{files.source}, as its config.json says,")
        loaded = _with_head(kind.from_files(files, options, output_hidden_states=False), name)
        where = {option: getattr(options, option) for option in ("cache_dir", "token", "local_files_only")}
        used = BertTokenizer.from_files(files) if tokenizer is None else _tokenizer(tokenizer, None, **where)
    else:
        raise TypeError(
            f"model is {shown(model)}; expected a hub id, a folder, or a model of minibert, such as BertForMaskedLM. A "
            "model of another library: save it with save_pretrained(folder), and give the folder."
        )
    task_class = TASKS[name][0]
    own = {key: arguments.pop(key) for key in task_class.argument_names() if key in arguments}
    for key in arguments:
        if key not in PIPELINE_KEYWORDS:
            raise TypeError(task_class.unknown_argument(key, arguments_of(pipeline)))
    check_keywords("minibert.pipeline", arguments, PIPELINE_KEYWORDS)
    made = task_class(loaded, used, batch_size=batch_size, **own)
    made.owns_model = not isinstance(model, BertPreTrainedModel)
    return made


def _task_name(task: Any) -> str | None:
    """Return the name of a task, without aliases; None if none is given."""
    if task is None:
        return None
    if isinstance(task, str) and (ALIASES.get(task, task)) in TASKS:
        return ALIASES.get(task, task)
    known = ", ".join([*TASKS, *ALIASES])
    raise ValueError(f"task={brief(task)} is not a task of minibert, which has {known}. Give a model as model=.")


def _task_of(kind: type[Any]) -> str:
    """Return the task of a class of models."""
    task = _TASK_OF.get(bert_class(kind.__name__))
    if task is None:
        raise ValueError(f"a {kind.__name__} has no task. Call the model itself, or name a task: {', '.join(TASKS)}.")
    return task


def _with_head(model: Any, task: str) -> Any:
    """Return the model as the class of a task: itself, its `bert`, or one of the two heads of pre-training."""
    kind = TASKS[task][1]
    if isinstance(model, kind):
        return model
    if kind is BertModel:
        return model.bert
    if isinstance(model, heads.BertForPreTraining) and is_part(kind.__name__, "BertForPreTraining"):
        return kind(model.weights, model.ops)
    raise _other_head(task, model.config, type(model).__name__, "model")


def _paths(head: str) -> set[str]:
    return {row.path for row in HEADS[head].rows}


def _other_head(task: str, config: Any, head: str, source: str) -> ValueError:
    kind, head = (config.family.own_class(name) for name in (TASKS[task][1].__name__, head))
    return ValueError(
        f"the task {task!r} needs a {kind}, but {source} is a {head}. Use a checkpoint for this task; or, if it has "
        f"this head, give {kind}.from_pretrained(...) as model=, with tokenizer=."
    )


def _tokenizer(tokenizer: Any, model: Any, **where: Any) -> BertTokenizer:
    """Return the tokenizer that was given, or load the one that was named; `where` says how it is looked for."""
    if isinstance(tokenizer, BertTokenizer):
        return tokenizer
    if isinstance(tokenizer, str | os.PathLike):
        return BertTokenizer.from_pretrained(tokenizer, _from_auto=True, **where)
    if tokenizer is None:
        raise TypeError(f"a loaded {type(model).__name__} does not know its tokenizer. Give tokenizer=.")
    raise TypeError(f"tokenizer is {shown(tokenizer)}; expected a minibert.BertTokenizer, a hub id or a folder.")
