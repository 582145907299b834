"""The data of a model card, which evaluators of sentence-transformers fill in."""

from __future__ import annotations

from typing import Any

from minibert._utils.validation import brief

__all__ = ["ModelCardData"]


class ModelCardData:
    """Keep what programs write about a model: any attribute, and the scores of evaluators. Nothing reads it here.

    Parameters
    ----------
    **fields
        Attributes, such as ``language="en"``.

    Attributes
    ----------
    base_model, base_model_revision, model_id, model_name, language, license : str or None
    tags : list of str
    evaluations : dict of str to dict
        The metrics of each evaluator, by its name; the latest ones are kept.
    """

    def __init__(self, **fields: Any) -> None:
        self.base_model: str | None = None
        self.base_model_revision: str | None = None
        self.model_id: str | None = None
        self.model_name: str | None = None
        self.language: Any = None
        self.license: str | None = None
        self.tags: list[str] = []
        self.evaluations: dict[str, dict[str, Any]] = {}
        self.__dict__.update(fields)

    def set_evaluation_metrics(self, evaluator: Any, metrics: dict[str, Any], epoch: int = 0, step: int = 0) -> None:
        """Keep the metrics that an evaluator computed."""
        name = getattr(evaluator, "name", "") or type(evaluator).__name__
        self.evaluations[str(name)] = dict(metrics)

    def set_base_model(self, model_id: str, revision: str | None = None) -> None:
        """Keep the name of the model that this one was made from."""
        self.base_model, self.base_model_revision = model_id, revision

    def set_model_id(self, model_id: str) -> None:
        """Keep the hub id of the model."""
        self.model_id = model_id

    def set_language(self, language: Any) -> None:
        """Keep the language of the model."""
        self.language = language

    def set_license(self, license: str) -> None:
        """Keep the license of the model."""
        self.license = license

    def add_tags(self, tags: str | list[str]) -> None:
        """Add one tag or several."""
        self.tags += [tags] if isinstance(tags, str) else tags

    def register_model(self, model: object) -> None:
        """Do nothing: the data do not depend on the model."""

    def __repr__(self) -> str:
        return f"ModelCardData({', '.join(f'{name}={brief(value)}' for name, value in vars(self).items() if value)})"
