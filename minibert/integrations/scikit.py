"""A scikit-learn transformer from texts to vectors. Importing this module imports scikit-learn."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.system import needs
from minibert._utils.validation import FloatArray
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.encode.options import EncodeOptions
from minibert.models.options import lists_keywords
from minibert.sentence.sentence_transformers import SentenceTransformer

with needs("minibert.scikit", "scikit-learn"):
    from sklearn.base import BaseEstimator, TransformerMixin


_OF_MODEL = ("model_name_or_path", "prompts", "revision", "backend", "num_threads", "compute_type", "shared_weights")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters(EncodeOptions):
    """The parameters of `MinibertTransformer`, besides the name of the model."""

    prompts: dict[str, str] | str | None = None
    revision: str | None = None
    backend: str | None = None
    num_threads: int | None = None
    compute_type: str | None = None
    shared_weights: bool | None = None


class MinibertTransformer(TransformerMixin, BaseEstimator):
    """A transformer from texts to sentence vectors in a scikit-learn pipeline.

    `fit` learns nothing. The model is loaded at its first use. Clones and pickles hold only the parameters, not the
    weights, so each copy loads the model again.

    Parameters
    ----------
    model_name_or_path, prompts, revision, backend, num_threads, compute_type, shared_weights
        As in `SentenceTransformer`.
    pooling, layers, layer_pooling, special_tokens, normalize_embeddings, truncate_dim
        As in `SentenceTransformer.encode`.
    prompt_name, prompt, truncation, stride, batch_size
        As in `SentenceTransformer.encode`.
    """

    @lists_keywords(options=Parameters)
    def __init__(self, model_name_or_path: str = DEFAULT_MODEL, **parameters: Any) -> None:
        for name, value in {"model_name_or_path": model_name_or_path, **vars(Parameters(**parameters))}.items():
            setattr(self, name, value)

    def fit(self, X: Any, y: Any = None) -> MinibertTransformer:
        """Return the transformer itself, because it does not learn anything."""
        return self

    def transform(self, X: Any) -> FloatArray:
        """Return the vectors of B texts, (B, width), float32.

        Parameters
        ----------
        X : sequence, 1-D array, or pandas or Arrow column of B str

        Raises
        ------
        TypeError, ValueError
            As in `SentenceTransformer.encode`.
        """
        if isinstance(X, str):
            raise TypeError("X is one str; expected a list of texts: [text].")
        return self._encode(X)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Return the names of the features: minibert0, minibert1, ..."""
        return np.array([f"minibert{i}" for i in range(self._encode([]).shape[1])], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.input_tags.string = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_loaded", None)
        return state

    def _encode(self, texts: Any) -> FloatArray:
        return self._model().encode(texts, **{name: getattr(self, name) for name in EncodeOptions.__dataclass_fields__})

    def _model(self) -> SentenceTransformer:
        """Return the model for the current parameters; load it only once."""
        if not hasattr(self, "_loaded"):
            self._loaded = SentenceTransformer(**{name: getattr(self, name) for name in _OF_MODEL})
        return self._loaded

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in _OF_MODEL:
            self.__dict__.pop("_loaded", None)
