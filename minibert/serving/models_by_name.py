"""The models that are served: how they are loaded, and how a request finds one by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from minibert.checkpoint.gguf_files import OLLAMA
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.loading import check_load, class_of_files, full_name
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving.classifier import Classifier
from minibert.serving.served_models import ServedModel, TextEmbedder
from minibert.serving.settings import ServiceError, Settings
from minibert.serving.token_embedder import TokenEmbedder
from minibert.tokenizer.texts import shown

Model = SentenceTransformer | CrossEncoder | MultiVectorEncoder
"""The models that can be served."""

_Served = TypeVar("_Served", bound=ServedModel[Any])
_CLASSES: Mapping[type[Any], type[ServedModel[Any]]] = {
    SentenceTransformer: TextEmbedder,
    CrossEncoder: Classifier,
    MultiVectorEncoder: TokenEmbedder,
}


def load_served(name: str, **options: Any) -> Model:
    """Load a folder or a hub id. `options` and errors are those of the class that loads it.

    It is `CrossEncoder` for a head for sequence classification, `MultiVectorEncoder` for late interaction, else
    `SentenceTransformer`. modules.json decides it; without this file, `architectures` of config.json.
    """
    files = check_load("load_served", options)[0].locate(full_name(name))
    classes: dict[str, Any] = {model_class.__name__: model_class for model_class in _CLASSES}
    return classes.get(class_of_files(files), SentenceTransformer)(name, **options)


def served_names(names: Sequence[str], served_model_name: str | None = None) -> dict[str, str]:
    """Return the models by their names for clients: a folder's is its last part, and one model may have another name.

    Raises
    ------
    ValueError
        Two models have one name, or there are several for another name.
    """
    paths = [os.path.expanduser(name) for name in names]
    folders = {path: os.path.basename(os.path.abspath(path)) for path in paths if os.path.exists(path)}
    served = [folders.get(path, path.removeprefix(OLLAMA)) for path in paths]
    if served_model_name is not None:
        if len(names) > 1:
            raise ValueError(f"served_model_name={served_model_name!r} is for one model; leave it out.")
        served = [served_model_name]
    if len(set(served)) < len(served):
        raise ValueError(f"two models have the name {max(served, key=served.count)}; rename a folder.")
    return dict(zip(served, names, strict=True))


class ModelsByName(dict[str, ServedModel[Any]]):
    """The models that are served; the first one of each class is the default for vectors, and for scores.

    Parameters
    ----------
    models : mapping of names to models
    settings : Settings

    Raises
    ------
    TypeError, ValueError
        There is no model, a model is something else, or it does not have the default prompt.
    """

    def __init__(self, models: Mapping[str, Model], settings: Settings) -> None:
        if not models:
            raise ValueError("models is empty; an engine needs at least one model.")
        super().__init__({name: _served(name, model, settings) for name, model in models.items()})
        self._any_name = settings.any_model_name

    def knows(self, name: str) -> bool:
        """Return whether `name` is a model's name as for `served`; `Settings.any_model_name` does not matter."""
        return name == "default" or self._find(name) is not None

    def served(self, name: str | None = None) -> ServedModel[Any]:
        """Return the model with this name, its last part ("org/name" has "name"), "default" or None.

        Raises
        ------
        ServiceError
            There is no such model.
        """
        model = None if name is None else self._find(name)
        if model is None and not self._any_name and name not in (None, "default"):
            known = ", ".join(map(repr, self))  # clients of Ollama look for the beginning
            message = f"model {str(name)[:200]!r} not found: it is not served here; expected {known}."
            raise ServiceError("model", message, param="model")
        return model or next(iter(self.values()))

    def of(
        self,
        served_class: type[_Served] | tuple[Any, ...],
        name: str | None = None,
        best: Callable[[_Served], bool] = lambda served: True,
    ) -> _Served:
        """Return a model of a class, or of one of several; the name is as for `served`.

        If the name does not choose a model, it is the first one of the class, or the first one that is the best.

        Raises
        ------
        ServiceError
            There is no such model, or it is not of the class.
        """
        chosen = self.served(name)
        is_named = name is not None and self._find(name) is not None
        of_class = [served for served in self.values() if isinstance(served, served_class)]
        fitting = [served for served in of_class if served is chosen or not is_named]
        if not fitting:
            such_as = f", such as {of_class[0].name}" if of_class else ""
            message = f"the model {chosen.name} gives {chosen.gives} of texts; this route needs a model that gives"
            gives = (served_class[0] if isinstance(served_class, tuple) else served_class).gives
            raise ServiceError("unsupported", f"{message} {gives}{such_as}.")
        return next(filter(best, fitting), fitting[0])

    def _find(self, name: str) -> ServedModel[Any] | None:
        """Return the model with a name; "name" and "org/name" are the same, "other/name" is another one."""
        last = name.rpartition("/")[2]
        same = (key for key in self if key.rpartition("/")[2] == last and not ("/" in name and "/" in key))
        return self.get(name) or self.get(next(same, name))


def _served(name: str, model: Any, settings: Settings) -> ServedModel[Any]:
    for model_class, served_class in _CLASSES.items():
        if isinstance(model, model_class):
            return served_class(name, model, settings)
    expected = "expected a SentenceTransformer, a CrossEncoder or a MultiVectorEncoder"
    raise TypeError(f"models: {name!r} is {shown(model)}; {expected}.")
