"""`Embedder`: a class for `map_batches` of Ray Data. This module does not import Ray."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert._utils.validation import check_choice
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.corpus.sources import ON_ERROR
from minibert.encode.options import EncodeOptions
from minibert.integrations import load_model
from minibert.models.backend import choose_backend
from minibert.tokenizer.texts import as_texts, check_texts


class Embedder:
    """A class for `map_batches` of Ray Data: it adds the sentence vectors of a column of texts to batches.

    Each actor of the pool makes one object; it loads the model. A text's vector has the same bits as on one machine,
    in any batch and with any number of actors and threads.

    Parameters
    ----------
    model : str
        Name or folder of the model. A folder must exist on each machine of the cluster.
    column : str
        Name of the column that holds the texts.
    output : str
        Name of the column of vectors that is added to a batch: float32 of shape (B, width).
    num_threads : int, optional
        Default: the CPUs that Ray has assigned to the actor (``num_cpus=`` of `map_batches`), at least 1. Ray does not
        prevent an actor from using more.
    on_error : {"stop", "skip", "null"}
        If a text cannot be used: raise, leave its row out, or give it a vector of NaN. A text cannot be used if it is
        not a str (such as None), holds a lone surrogate, or is too long with ``truncation="error"``.
    model_options : mapping, optional
        Further arguments of `SentenceTransformer`, such as ``{"revision": "main"}``. The actors of a machine hold the
        weights once, unless it has ``"shared_weights": False`` or MINIBERT_SHARED_WEIGHTS is 0. The variables are those
        of the actor's machine; ``ray.init(runtime_env={"env_vars": {...}})`` sets them on all machines.
    **encode_options
        The fields of `EncodeOptions`, as in `SentenceTransformer.encode`.

    Attributes
    ----------
    cut : TooLong
        How many texts were cut: `num_cut` of `num_texts`. The first batch with such a text gives a warning, later ones
        do not.

    Raises
    ------
    TypeError, ValueError
        An option is not one of `encode`, or its value is wrong.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        column: str = "text",
        output: str = "vector",
        num_threads: int | None = None,
        on_error: str = "stop",
        model_options: Mapping[str, Any] | None = None,
        **encode_options: Any,
    ) -> None:
        check_choice("on_error", on_error, ON_ERROR)
        self._options = EncodeOptions(**encode_options)  # before anything is downloaded
        self._column, self._output, self._on_error = column, output, on_error
        threads = _assigned_threads() if num_threads is None else num_threads
        self.model = load_model(model, vars(self._options), num_threads=threads, **_shared(model_options or {}))
        # Texts that are too long are dealt with here, because `on_error` says what happens to them.
        truncation = self._options.truncation
        self._plan = self.model.plan(
            dataclasses.replace(self._options, truncation="split" if truncation == "split" else "silent")
        )
        self.cut = dataclasses.replace(self._plan.windows, truncation=truncation).too_long()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the column of vectors.

        Parameters
        ----------
        batch : mapping
            Name of a column -> its B values; with `batch_format="numpy"` of `map_batches`, the default.

        Raises
        ------
        TypeError, ValueError
            The batch is not a mapping or does not have the column. A text cannot be used, with on_error="stop".
        """
        if self._column not in batch:
            raise ValueError(f"the batch does not have the column {self._column!r}; it has {', '.join(batch)}.")
        values, single = as_texts(f"batch[{self._column!r}]", batch[self._column])
        if single:
            raise TypeError(f"batch[{self._column!r}] is a str; expected an array or list of texts.")
        problems = [self._problem(value, index) for index, value in enumerate(values)]
        usable = [index for index, problem in enumerate(problems) if problem is None]
        refuses, warned = self._options.truncation == "error", self.cut.num_cut > 0
        vectors = np.full((len(values), self._plan.width), np.nan, dtype=np.float32)
        for encoded in self._plan.run(
            [values[index] for index in usable], exact=refuses, chunk_size=max(1, len(usable))
        ):
            vectors[usable] = encoded.vectors
            if not refuses:
                self.cut.add(encoded.n_truncated)
                continue
            for row in np.flatnonzero(encoded.n_truncated):
                index = usable[row]
                error = self.cut.error(f"{self._column}[{index}]", int(encoded.n_tokens[row]))
                if self._on_error == "stop":
                    raise error
                problems[index], vectors[index] = str(error), np.nan
        if not warned:
            self.cut.warn()
        if self._on_error == "skip":
            kept = np.array([problem is None for problem in problems], dtype=np.bool_)
            return {name: np.asarray(column)[kept] for name, column in {**batch, self._output: vectors}.items()}
        return {**batch, self._output: vectors}

    def _problem(self, value: Any, index: int) -> str | None:
        try:
            check_texts([value], index, self._column)
        except (TypeError, ValueError) as error:
            if self._on_error == "stop":
                raise
            return str(error)
        return None


def _shared(model_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model with shared weights, unless an option or MINIBERT_SHARED_WEIGHTS decides it.

    The reason is that a machine has several actors. The weights of NumPy's backend cannot be shared.
    """
    decided = model_options.get("shared_weights") is not None or os.environ.get("MINIBERT_SHARED_WEIGHTS")
    if decided or choose_backend(model_options.get("backend")) == "numpy":
        return {**model_options}
    return {**model_options, "shared_weights": True}


def _assigned_threads() -> int | None:
    """Return the CPUs that Ray has assigned to this actor or task, at least 1; None outside of Ray's workers.

    Ray also sets OMP_NUM_THREADS, but that is 1 in a placement group, for any number of CPUs (ray#37384).
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
