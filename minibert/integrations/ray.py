"""`Embedder` for Ray Data's `map_batches`. The functions here import Ray, this module itself does not."""

from __future__ import annotations

import copyreg
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief, check_choice
from minibert.corpus.survey import ON_ERROR
from minibert.integrations.options import DEFAULT_MODEL, SentenceTransformer, check_options, missing
from minibert.models.options import BACKENDS, COMPUTE_TYPES
from minibert.sentence.encoding import CutTexts
from minibert.sentence.options import EncodeOptions
from minibert.tokenizer.texts import check_inputs

__all__ = ["Embedder", "assigned_threads", "import_ray", "resolved_options"]

_VARIABLES = ("MINIBERT_BACKEND", "MINIBERT_COMPUTE_TYPE", "MINIBERT_SHARED_WEIGHTS")


class _WithVariables(type):
    """The type of `Embedder`, which takes the variables above along when it is pickled.

    Ray pickles the class in a program, and constructs it in actors. Their machines may have other variables, with which
    the vectors would be other ones.
    """

    of_program: Mapping[str, str] | None = None


def _pickled(kind: type) -> str | tuple[Any, ...]:
    # Ray pickles the code of a class that a program derives, and then `Embedder`. A class that a module derives is
    # found there by its name, and takes nothing along.
    if kind is not Embedder:
        return kind.__qualname__
    return _unpickled, ({name: os.environ[name] for name in _VARIABLES if os.environ.get(name)},)


def _unpickled(variables: Mapping[str, str]) -> type[Embedder]:
    _WithVariables.of_program = variables
    return Embedder


copyreg.pickle(_WithVariables, _pickled)


class Embedder(metaclass=_WithVariables):
    """Add the sentence vectors of a column of texts to batches: a class for `map_batches` of Ray Data.

    Each actor of the pool makes one object, which loads the model. A text's vector has the same bits as on one machine,
    in any batch and with any number of actors and threads.

    Parameters
    ----------
    model : str
        Name or folder of the model. A folder must exist on each machine of the cluster.
    column : str
        Name of the column that holds the texts.
    output : str
        Name of the column of vectors, which is added to a batch: float32 of shape (B, width).
    num_threads : int, optional
        Default: the CPUs that Ray has assigned to the actor (``num_cpus=`` of `map_batches`), at least 1. Ray does not
        prevent an actor from using more.
    on_error : {"stop", "skip", "null"}
        If a text cannot be used: raise, leave its row out, or give it a vector of NaN. A text cannot be used if it is
        not a str (such as None), holds a lone surrogate, or is too long with ``truncation="error"``.
    model_options : mapping, optional
        Further arguments of `SentenceTransformer`, such as ``{"revision": "main"}``. The actors of a machine hold the
        weights once, unless it has ``"shared_weights": False`` or MINIBERT_SHARED_WEIGHTS is 0. What it leaves out,
        MINIBERT_BACKEND, MINIBERT_COMPUTE_TYPE and MINIBERT_SHARED_WEIGHTS say; those of your program, not those of
        the machine of an actor. A class that a module of yours derives from this one has those of the actor.
    **encode_options
        The fields of `EncodeOptions`, as in `SentenceTransformer.encode`.

    Attributes
    ----------
    cut : CutTexts
        How many texts were cut. The first batch with such a text gives a warning, the others do not.

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
        for name, value in (("column", column), ("output", output)):
            if not isinstance(value, str):
                raise TypeError(f"{name}={brief(value)}; expected the name of a column, a str.")
        if not isinstance(model_options or {}, Mapping):
            raise TypeError(
                f"model_options={brief(model_options)}; expected a mapping, such as {{'revision': 'main'}}."
            )
        if "num_threads" in (model_options or {}):
            raise TypeError("model_options has num_threads; give it to Embedder itself, num_threads=.")
        self._options = EncodeOptions.of(encode_options)  # before anything is downloaded
        self._column, self._output, self._on_error = column, output, on_error
        threads = assigned_threads() if num_threads is None else num_threads
        variables = _WithVariables.of_program if _in_worker() else None
        resolved = resolved_options(model_options or {}, os.environ if variables is None else variables)
        self.model = SentenceTransformer(model, num_threads=threads, **resolved)
        check_options(self.model, vars(self._options))
        self._width = self.model.encode([], **vars(self._options)).shape[1]
        self.cut = CutTexts()

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
        values = self._texts(batch)
        problems = [self._problem(value, index) for index, value in enumerate(values)]
        usable = [index for index, problem in enumerate(problems) if problem is None]
        # Of texts that are too long, only the message about them needs the whole length.
        how = {"error": "warn", "warn": "silent"}.get(self._options.truncation, self._options.truncation)
        options = {**vars(self._options), "truncation": how}
        texts = [values[index] for index in usable]
        encoded = next(self.model.encode_chunks(texts, chunk_size=max(1, len(texts)), **options), None)
        vectors = np.full((len(values), self._width), np.nan, dtype=np.float32)
        if encoded is not None:
            vectors[usable] = encoded.vectors
            if self._options.truncation == "error":
                self._refuse_long(encoded, usable, problems, vectors)
            elif self._options.truncation != "split":
                self._count_cut(encoded.n_truncated)
        if self._on_error == "skip":
            kept = np.array([problem is None for problem in problems], dtype=np.bool_)
            return {name: np.asarray(column)[kept] for name, column in {**batch, self._output: vectors}.items()}
        return {**batch, self._output: vectors}

    def _texts(self, batch: Mapping[str, Any]) -> list[Any]:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"the batch is a {type(batch).__name__}; expected a mapping of columns. In map_batches leave "
                "batch_format out, or give 'numpy'."
            )
        if self._column not in batch:
            raise ValueError(f"the batch does not have the column {self._column!r}; it has {', '.join(batch)}.")
        values = batch[self._column]
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise TypeError(
                f"batch[{self._column!r}] is a {type(values).__name__}; expected an array or list of texts."
            )
        # A str of NumPy is a str, but its pickled and hashed forms are not those of one.
        return [str(value) if isinstance(value, np.str_) else value for value in values]

    def _problem(self, value: Any, index: int) -> str | None:
        try:
            check_inputs([value], index, self._column)
        except (TypeError, ValueError) as error:
            if self._on_error == "stop":
                raise
            return str(error)
        return None

    def _refuse_long(self, encoded: Any, usable: list[int], problems: list[str | None], vectors: Any) -> None:
        """Raise, or note the problem, for texts that have more tokens than the model takes."""
        for row, index in enumerate(usable):
            if encoded.n_truncated[row]:
                problem = (
                    f"{self._column}[{index}] has {encoded.n_tokens[row]} tokens, the limit is "
                    f"{self.model.max_seq_length} (max_seq_length)."
                )
                if self._on_error == "stop":
                    raise ValueError(problem)
                problems[index] = problem
                vectors[index] = np.nan

    def _count_cut(self, n_truncated: Any) -> None:
        first = not self.cut.num_cut
        self.cut.add(n_truncated)
        if first and self.cut.num_cut and self._options.truncation == "warn":
            warn_caller(
                f"A text was cut, because it has more than {self.model.max_seq_length} tokens. Further ones are "
                "counted without a warning: cut.num_cut. Silence this with truncation='silent', or use all of a text "
                "with truncation='split'."
            )


def resolved_options(model_options: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return options of a model that mean the same on each machine, whatever variables it has.

    Parameters
    ----------
    model_options : mapping
        Further arguments of `SentenceTransformer`.
    variables : mapping
        The environment whose values replace options that are left out.

    Returns
    -------
    dict
        The options, with "backend", "compute_type" and "shared_weights". The weights are shared if nothing says
        otherwise, because a machine has several actors; NumPy's backends cannot share them.

    Raises
    ------
    ValueError
        A variable has a wrong value.
    """
    if (backend := model_options.get("backend")) is None:
        backend = variables.get("MINIBERT_BACKEND") or "numba"
        check_choice("MINIBERT_BACKEND", backend, BACKENDS)
    if (compute_type := model_options.get("compute_type")) is None:
        compute_type = variables.get("MINIBERT_COMPUTE_TYPE") or "float32"
        check_choice("MINIBERT_COMPUTE_TYPE", compute_type, COMPUTE_TYPES)
    if (shared := model_options.get("shared_weights")) is None:
        text = variables.get("MINIBERT_SHARED_WEIGHTS") or str(int(backend == "numba"))
        check_choice("MINIBERT_SHARED_WEIGHTS", text, ("0", "1"))
        shared = text == "1"
    return {**model_options, "backend": backend, "compute_type": compute_type, "shared_weights": shared}


def import_ray() -> Any:
    """Return the module ray.

    Raises
    ------
    ImportError
        Ray is not installed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing("Ray", "'ray[data,serve]'", error) from error
    return ray


def assigned_threads() -> int | None:
    """Return the CPUs that Ray has assigned to this actor or task, at least 1; None outside of Ray's workers.

    Ray also sets OMP_NUM_THREADS, but that is 1 in a placement group, for any number of CPUs (ray#37384).
    """
    if not _in_worker():
        return None
    return max(1, int(sys.modules["ray"].get_runtime_context().get_assigned_resources().get("CPU", 1)))


def _in_worker() -> bool:
    """Return whether this process is a worker of Ray, which has imported it."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
