"""Ray: `RayWorkers` for ``embed_corpus(..., workers=)``, and `Embedder` for Ray Data's `map_batches`.

The process that runs `embed_corpus`, the driver, reads the texts and writes the files. A worker gets the texts of a
shard and returns their vectors, so that only the driver needs the input and the output. Ray starts a worker that dies
again, and gives it its texts again. The functions here import Ray, this module itself does not.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from minibert._utils.files import os_reason
from minibert._utils.system import available_cores, missing_library
from minibert._utils.validation import FloatArray, IntArray, brief, check_choice, check_int, counted
from minibert._version import __version__
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.corpus.embed import Results, probe_vector
from minibert.corpus.sources import ON_ERROR
from minibert.encode.options import EncodeOptions
from minibert.encode.plan import Plan
from minibert.encode.run import EncodedTexts
from minibert.integrations import load_model
from minibert.models.backend import choose_backend, choose_compute_type
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.tokenizer.texts import as_texts, check_texts

_THREADS = 4  # most threads of a worker if the caller does not say
_SHARDS_AHEAD = 2  # that a worker has at a time: one that it computes, and one that waits
_RETRIES = 5  # how often the same texts may end their worker
_ANSWER_SECONDS = 10.0  # until an address is taken to be wrong, because Ray itself waits for minutes
_REPORT_SECONDS = 60.0  # until the driver says that no worker has started


class RayWorkers:
    """The workers of a Ray cluster, for ``embed_corpus(..., workers=)``. A ``with`` block connects to the cluster.

    Parameters
    ----------
    model : str
        Name or folder of the model, the one that `embed_corpus` gets. A folder must exist on each machine.
    address : str, optional
        "host:port" of the cluster's head, or "local" to start Ray on this machine for this run. Default: RAY_ADDRESS,
        else the cluster to which this machine belongs, else "local".
    actors : int, optional
        Default: as many as the machines of the cluster have room for.
    num_threads : int, optional
        Threads of each worker: the number of CPUs that Ray reserves for it. Default: 4, or the CPUs of the smallest
        machine if these are fewer.
    report : callable
        Called with each problem, as a line of text.
    **model_options
        Further arguments of `SentenceTransformer`. Of the variables MINIBERT_BACKEND, MINIBERT_COMPUTE_TYPE and
        MINIBERT_SHARED_WEIGHTS those of this process count. The workers of a machine hold the weights once, unless
        ``shared_weights=False`` is given.

    Raises
    ------
    ImportError
        Ray is not installed.
    ValueError
        The address is not one, or no machine of the cluster has enough CPUs for a worker.
    OSError
        The address does not answer.
    """

    def __init__(
        self,
        model: str,
        *,
        address: str | None = None,
        actors: int | None = None,
        num_threads: int | None = None,
        report: Callable[[str], object] = print,
        **model_options: Any,
    ) -> None:
        # The working folder of a worker is another one.
        self._model = os.path.abspath(model) if os.path.isdir(model) else model
        self._report, self._model_options = report, _resolved(model_options)
        self._address = _check_address(address)
        self._actors = None if actors is None else check_int("actors", actors, 1)
        self._threads = None if num_threads is None else check_int("num_threads", num_threads, 1)
        self._ray = _import_ray()
        self._handles: list[Any] = []
        self._ours = False

    def __enter__(self) -> Self:
        self._ours = not self._ray.is_initialized()
        if self._ours:
            _connect(self._ray, self._address, self._report)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            self._ray.kill(handle)
        if self._ours:
            self._ray.shutdown()

    def start(self, options: EncodeOptions, probe: FloatArray, processor: str) -> Pool:
        """Start the workers of a run.

        Parameters
        ----------
        options : EncodeOptions
        probe : ndarray of shape (width,)
            The vector that this process's model has for a fixed text (`probe_vector`). Each worker must have the same.
        processor : str
            The name of what this process computes with, see `Ops.processor`.
        """
        threads, actors = _plan(self._ray, self._threads, self._actors)
        kind = self._ray.remote(_Worker).options(num_cpus=threads, max_restarts=-1, max_task_retries=_RETRIES)
        arguments = (self._model, self._model_options, vars(options), (__version__, processor, probe))
        self._handles = [kind.remote(*arguments) for _ in range(actors)]
        return Pool(self._ray, self._handles, threads, self._report)


class _Worker:
    """What runs in an actor: a model, loaded when it is first needed, and the options of `encode`.

    `expected` is the version, the processor and the vector of a fixed text in the driver.
    """

    def __init__(
        self,
        model: str,
        model_options: Mapping[str, Any],
        encode_options: Mapping[str, Any],
        expected: tuple[str, str, FloatArray],
    ) -> None:
        self._name, self._model_options, self._expected = model, model_options, expected
        self._options = EncodeOptions(**encode_options)
        self._plan: Plan | None = None

    def encode(self, texts: list[str]) -> tuple[FloatArray, IntArray, IntArray, str]:
        """Return n vectors (n, width), the counts of tokens (n,) and of tokens cut off (n,), and the processor."""
        if self._plan is None:
            self._plan = self._load()
        encoded = next(self._plan.run(texts, chunk_size=len(texts)))
        return encoded.vectors, encoded.n_tokens, encoded.n_truncated, self._plan.model.ops.processor()

    def _load(self) -> Plan:
        """Load the model; raise if it would compute other vectors than the driver's."""
        version, processor, probe = self._expected
        host, here = socket.gethostname(), __version__
        if here != version:
            raise ValueError(f"{host} has minibert {here}, and the run has {version}. Install the same wheel there.")
        model = SentenceTransformer(self._name, num_threads=_assigned_threads(), **self._model_options)
        plan = model.plan(self._options)
        own = probe_vector(plan)
        # NumPy's ops name the kind of processor only; that does not decide their bits.
        same = model.model.ops.processor() == processor != platform.machine()
        if own.shape != probe.shape or not np.allclose(own, probe, rtol=0, atol=0 if same else 1e-4):
            other = f"{host} computes another vector for the same text"
            raise ValueError(f"{other}, so {brief(self._name)} is another model there. Copy the same files to it.")
        return plan


class Pool:
    """The workers of a run. They compute several shards at a time; a shard goes to a worker that has the fewest."""

    def __init__(self, ray: Any, handles: Sequence[Any], threads: int, report: Callable[[str], object]) -> None:
        self._ray, self._handles, self._threads, self._report = ray, handles, threads, report
        self._running: dict[Any, int] = {}  # Ray's reference to a result -> the index of its worker
        self._waits = True  # for the first result

    def submit(self, texts: Sequence[str], progress: Callable[[int], object]) -> Callable[[], Results]:
        """Send a shard to a worker, and return a function that waits for its vectors."""
        load = Counter(self._running.values())
        index = min(range(len(self._handles)), key=load.__getitem__)
        reference = self._handles[index].encode.remote([*texts])
        self._running[reference] = index
        return lambda: self._result(reference, len(texts), progress)

    def has_room(self, begun: int) -> bool:
        """Return whether to submit another shard before the oldest of the `begun` shards is saved."""
        if self._running:
            ready, _ = self._ray.wait([*self._running], num_returns=len(self._running), timeout=0)
            for reference in ready:
                del self._running[reference]
        most = _SHARDS_AHEAD * len(self._handles)
        return len(self._running) < most and begun < 2 * most  # these are in this process's memory

    def _result(self, reference: Any, count: int, progress: Callable[[int], object]) -> Results:
        if self._waits and not self._ray.wait([reference], num_returns=1, timeout=_REPORT_SECONDS)[0]:
            free = int(self._ray.available_resources().get("CPU", 0))
            needs = f"Each of the {len(self._handles)} needs {counted(self._threads, 'CPU')}"
            self._report(f"No worker has computed a shard yet. {needs}; the cluster has {free} free. The run waits.")
        self._waits = False
        try:
            *arrays, processor = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:  # the worker's code raised it
            kinds = (kind for kind in (ValueError, TypeError, MemoryError) if isinstance(error.cause, kind))
            raise next(kinds, OSError)(f"A worker could not compute its texts: {_first_lines(error.cause)}") from error
        except self._ray.exceptions.RayError as error:
            often = f"Often its memory is too small, or minibert {__version__} is not installed there."
            message = f"Ray says: {_first_lines(error)}"
            raise OSError(f"A worker died again and again, or cannot start. {often} {message}") from error
        self._running.pop(reference, None)
        progress(count)
        # Copied, because the arrays of `ray.get` lie in Ray's shared memory, and that is small.
        vectors, n_tokens, n_truncated = (np.array(array) for array in arrays)
        return EncodedTexts(vectors, n_tokens, n_truncated, ()), processor


# --- the cluster ------------------------------------------------------------------------------------------------------


def _import_ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing_library("this part of minibert", error, "'ray[data,serve]'") from error
    return ray


def _check_address(address: str | None) -> str:
    """Return an address as `_connect` takes it, without one that of RAY_ADDRESS; "auto" means Ray's own search."""
    source = "address" if address else "RAY_ADDRESS"
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    if address not in ("auto", "local") and not re.fullmatch(r"[^/]+:\d+", address):
        raise ValueError(
            f"{source}={brief(address)}; expected 'host:port' of the cluster's head, such as '10.0.0.1:6379', or "
            "'local'. An address of Ray Client is not one: start this program on a machine of the cluster."
        )
    return address


def _connect(ray: Any, address: str, report: Callable[[str], object]) -> None:
    """Connect to a cluster, or start one on this machine; OSError if the address does not answer."""
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "auto":
        try:
            ray.init(address="auto", **how)
            return
        except ConnectionError:
            report("No Ray cluster runs on this machine, so Ray is started here for this run.")
            address = "local"
    if address == "local":
        how |= {"num_cpus": available_cores(), "include_dashboard": False}
    try:
        if address != "local":
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
        ray.init(address=address, **how)
    except (Exception, SystemExit) as error:  # Ray raises Exception itself, and ends the process in some cases
        reason = os_reason(error) if isinstance(error, OSError) else _first_lines(error)
        where = "this machine" if address == "local" else address
        raise OSError(f"No Ray cluster can be used at {where}: {reason}.") from error


def _plan(ray: Any, threads: int | None, actors: int | None) -> tuple[int, int]:
    """Return the threads of a worker and the number of workers, for the machines that the cluster has now."""
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    cpus = [count for count in cpus if count > 0]
    chosen = min(_THREADS, *cpus, _THREADS) if threads is None else threads
    room = sum(count // chosen for count in cpus)
    if not room:
        most = counted(max(cpus, default=0), "CPU")
        raise ValueError(f"num_threads={chosen}, but the largest machine of the Ray cluster has {most}.")
    return chosen, room if actors is None else actors


def _first_lines(error: BaseException) -> str:
    """Return the parts of an error's text that say what has happened, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join([line for line in lines if line][:8])[:600] or type(error).__name__


def _resolved(model_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a model that do not depend on variables any more.

    The weights are shared if nothing says otherwise, because a machine has several workers; NumPy's backends cannot
    share them.
    """
    backend = choose_backend(model_options.get("backend")) or "kernels"
    shared = model_options.get("shared_weights")
    if shared is None:
        text = os.environ.get("MINIBERT_SHARED_WEIGHTS") or str(int(backend == "kernels"))
        check_choice("MINIBERT_SHARED_WEIGHTS", text, ("0", "1"))
        shared = text == "1"
    compute_type = choose_compute_type(model_options.get("compute_type"))
    return {**model_options, "backend": backend, "compute_type": compute_type, "shared_weights": shared}


def _assigned_threads() -> int | None:
    """Return the CPUs that Ray has assigned to this actor or task, at least 1; None outside of Ray's workers.

    Ray also sets OMP_NUM_THREADS, but that is 1 in a placement group, for any number of CPUs (ray#37384).
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))


# --- Ray Data ---------------------------------------------------------------------------------------------------------


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
        self.model = load_model(model, vars(self._options), num_threads=threads, **_resolved(model_options or {}))
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
