"""The models of a service by the names that requests give them, and the class that each one needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from minibert.checkpoint.files import locate
from minibert.models.options import Backend, ComputeType
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.model import full_name
from minibert.sentence.modules import list_modules, loader_of
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving.classifier import ServedClassifier
from minibert.serving.embedder import ServedModel
from minibert.serving.settings import ServiceError

_Served = TypeVar("_Served", ServedModel, ServedClassifier)


class ModelsByName(dict[str, ServedModel | ServedClassifier]):
    """The models that are served; the first one of each class is the default for vectors, and for scores.

    Parameters
    ----------
    models : mapping of str to SentenceTransformer or CrossEncoder
    any_name : bool
        A name that no model has means the first model.
    """

    def __init__(self, models: Mapping[str, SentenceTransformer | CrossEncoder], *, any_name: bool) -> None:
        super().__init__()
        for name, model in models.items():
            self[name] = ServedClassifier(name, model) if isinstance(model, CrossEncoder) else ServedModel(name, model)
        self._any_name = any_name

    def knows(self, name: str) -> bool:
        """Say if `name` is the name of a model, whatever `any_name` says; the name is as for `served`."""
        return name == "default" or self._find(name) is not None

    def served(self, name: str | None = None) -> ServedModel | ServedClassifier:
        """Return the model with this name, its last part ("org/name" has "name"), "default" or None.

        Raises
        ------
        ServiceError
            There is no such model.
        """
        if name is None or name == "default" or (self._any_name and not self.knows(name)):
            return next(iter(self.values()))
        found = self._find(name)
        if found is None:
            raise ServiceError(
                "model",
                f"the model {name[:200]!r} is not served here; expected {', '.join(map(repr, self))}.",
                param="model",
            )
        return found

    def embedder(self, name: str | None = None) -> ServedModel:
        """Return a model that gives vectors; the name is as for `served`.

        Raises
        ------
        ServiceError
            There is no such model.
        """
        return self._of_class(name, ServedModel)

    def classifier(self, name: str | None = None, *, for_ranking: bool = False) -> ServedClassifier:
        """Return a model that gives scores; the name is as for `served`.

        Parameters
        ----------
        name : str, optional
        for_ranking : bool
            If the name does not choose a model, take the first one with one label.

        Raises
        ------
        ServiceError
            There is no such model.
        """
        found = self._of_class(name, ServedClassifier)
        if for_ranking and (name is None or self._find(name) is None):
            all_of_them = [served for served in self.values() if isinstance(served, ServedClassifier)]
            return next((served for served in all_of_them if served.model.num_labels == 1), found)
        return found

    def _of_class(self, name: str | None, kind: type[_Served]) -> _Served:
        found = self.served(name)
        if isinstance(found, kind):
            return found
        first = next((served for served in self.values() if isinstance(served, kind)), None)
        named = name is not None and self._find(name) is not None
        if first is None or named:
            raise ServiceError(
                "unsupported",
                f"the model {found.name} gives {found.gives} of texts; this route needs a model that gives "
                f"{kind.gives}{f', such as {first.name}' if first else ''}.",
            )
        return first

    def _find(self, name: str) -> ServedModel | ServedClassifier | None:
        """Return the model with a name; "name" and "org/name" are the same, "other/name" is another one."""
        if name in self:
            return self[name]
        organisation, _, last = name.rpartition("/")
        for key, served in self.items():
            own, _, own_last = key.rpartition("/")
            if last == own_last and not (organisation and own):
                return served
        return None


def load_served(
    name: str,
    *,
    revision: str | None = None,
    backend: Backend | None = None,
    num_threads: int | None = None,
    compute_type: ComputeType | None = None,
    shared_weights: bool | None = None,
) -> SentenceTransformer | CrossEncoder:
    """Load a folder or a hub id: as a `CrossEncoder` if it has a head for sequence classification.

    modules.json decides if the model has it, else `architectures` of config.json.

    Raises
    ------
    ModelFormatError, DownloadError, TypeError, ValueError
        As for the two classes.
    """
    files = locate(full_name(name), revision=revision)
    listed = list_modules(files)
    if listed is None:
        named = files.settings("config.json").get("architectures")
        scores = isinstance(named, list) and "BertForSequenceClassification" in named
    else:
        scores = loader_of(listed) == "CrossEncoder"
    kind = CrossEncoder if scores else SentenceTransformer
    return kind(
        name,
        revision=revision,
        backend=backend,
        num_threads=num_threads,
        compute_type=compute_type,
        shared_weights=shared_weights,
    )
