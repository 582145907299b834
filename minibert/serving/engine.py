"""`Engine`: one thread that computes the texts of many requests, a short step at a time. There is no web in it.

>>> from minibert import SentenceTransformer
>>> from minibert.serving.engine import Engine
>>> with Engine(SentenceTransformer()) as engine:
...     answer = engine.embed(["A cat sleeps.", "The kitten naps."])
>>> answer.value.shape, answer.report.n_tokens
((2, 384), (6, 7))
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, NamedTuple, Self

import numpy as np

from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving.errors import ServiceError
from minibert.serving.scheduler import Job, Scheduler, Step
from minibert.serving.served_model import Prepared, Report, ServedModel, TextOptions
from minibert.serving.settings import Settings

__all__ = ["Answer", "Engine", "Load"]

_LOG = logging.getLogger("minibert.serving")


class Answer(NamedTuple):
    """What a request gets: its vectors, and what was done to its texts."""

    value: Any
    report: Report


@dataclasses.dataclass(frozen=True)
class Load:
    """What the engine does at this moment."""

    ready: bool
    alive: bool
    queued_jobs: int
    queued_tokens: int
    wait_interactive: float
    wait_bulk: float
    busy_seconds: float
    cancelled_units: int
    refused_jobs: int


class _Failure(NamedTuple):
    error: Exception


class Engine:
    """The models that are served, a queue, and the thread that computes. Its methods may be called from any thread.

    Parameters
    ----------
    models : SentenceTransformer, or mapping of names to them
        The first one is the default.
    settings : Settings
    clock : callable
        Seconds, as `time.monotonic`.

    Attributes
    ----------
    models : dict of str to ServedModel
    settings : Settings
    observers : list of callables
        Each is called with the number of units, the tokens and the seconds of every step, by the thread that computes.
    """

    def __init__(
        self,
        models: SentenceTransformer | Mapping[str, SentenceTransformer],
        *,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        named = models if isinstance(models, Mapping) else {"default": models}
        self.settings = settings or Settings()
        self.models = {name: ServedModel(name, model) for name, model in named.items()}
        for served in self.models.values():
            served.check_settings(self.settings.truncation, self.settings.default_prompt_name)
        self.observers: list[Callable[[int, int, float], object]] = []
        self._clock = clock
        self._scheduler = Scheduler(step_seconds=self.settings.step_seconds, max_wait=self.settings.max_wait)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._draining = self._dead = self._busy = False
        self._unfinished: set[Job] = set()
        self._heartbeat, self._busy_seconds = clock(), 0.0
        self._cancelled_units = self._refused_jobs = 0

    # -- requests

    def submit(self, job: Job) -> Future[Any]:
        """Queue a job as a whole, and return the future of its answer. Cancelling it drops what is not computed yet.

        Raises
        ------
        ServiceError
            The estimated wait is too long, or the engine ends.
        """
        with self._changed:
            if self._draining or self._dead:
                raise ServiceError("unavailable", "the service is stopping; send the request again.", retry_after=1.0)
            job.admitted = self._clock()
            if job.units:
                try:
                    self._scheduler.admit(job)
                except ServiceError:
                    self._refused_jobs += 1
                    raise
                self._unfinished.add(job)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="minibert-engine", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        if not job.units:
            self._complete(job)
        job.future.add_done_callback(lambda future: self._drop(job) if future.cancelled() else None)
        return job.future

    def prepare(
        self, inputs: Sequence[str] | Sequence[Sequence[int]], model: str | None = None, **options: Any
    ) -> Prepared:
        """Tokenize texts, and return the job that computes them; `options` are the fields of `TextOptions`.

        Raises
        ------
        ServiceError
            A text or an option is wrong; the message names it.
        """
        return self.model(model).prepare(inputs, TextOptions(**options), self.settings)

    def embed(
        self, inputs: Sequence[str] | Sequence[Sequence[int]], model: str | None = None, **options: Any
    ) -> Answer:
        """Turn texts into vectors, and wait for them. Arguments and errors are those of `prepare` and `submit`."""
        prepared = self.prepare(inputs, model, **options)
        return Answer(self.submit(prepared.job).result(), prepared.report)

    def model(self, name: str | None = None) -> ServedModel:
        """Return the model with this name, its last part ("org/name" has "name"), "default" or None.

        Raises
        ------
        ServiceError
            There is no such model.
        """
        first = next(iter(self.models.values()))
        if name is None or name == "default" or (self.settings.any_model_name and name not in self.models):
            return first
        found = self.models.get(name) or next(
            (served for key, served in self.models.items() if key.rpartition("/")[2] == name.rpartition("/")[2]), None
        )
        if found is None:
            raise ServiceError(
                "model",
                f"the model {name[:200]!r} is not served here; expected {', '.join(map(repr, self.models))}.",
                param="model",
            )
        return found

    # -- what it does

    def load(self) -> Load:
        """Return what is queued and how long new requests would wait. It never waits for the computation."""
        with self._changed:
            return Load(
                ready=not (self._draining or self._dead),
                alive=not self._dead and not (self._busy and self._clock() - self._heartbeat > 30),
                queued_jobs=self._scheduler.queued_jobs,
                queued_tokens=self._scheduler.queued_tokens,
                wait_interactive=self._scheduler.estimated_wait(False),
                wait_bulk=self._scheduler.estimated_wait(True),
                busy_seconds=self._busy_seconds,
                cancelled_units=self._cancelled_units,
                refused_jobs=self._refused_jobs,
            )

    @property
    def has_died(self) -> bool:
        """Say if the thread has ended by an error; nothing is computed any more."""
        return self._dead

    def warm_up(self) -> None:
        """Compute one text with each model, so that kernels are compiled and the speed is known."""
        for name in self.models:
            self.embed(["minibert " * 60], name, truncation="mark")

    def drain(self) -> None:
        """Refuse new requests; those that are queued are computed."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def close(self, timeout: float | None = None) -> bool:
        """Refuse new requests, compute those that are queued, and end the thread.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which the requests that are still queued fail instead; default: wait for all of them.

        Returns
        -------
        bool
            Whether all requests were computed.
        """
        self.drain()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        if not thread.is_alive():
            return not self._dead
        with self._changed:
            self._scheduler.clear()
            jobs = [*self._unfinished]
            self._unfinished.clear()
        for job in jobs:
            _fail(job, ServiceError("unavailable", "the service has stopped; send the request again.", retry_after=1.0))
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- the thread

    def _run(self) -> None:
        try:
            while (step := self._wait_for_step()) is not None:
                self._compute(step)
                del step  # a finished request must not keep its arrays until the next one comes
        except BaseException as error:  # nothing may wait for a thread that has ended
            _LOG.critical("the engine has stopped: %r", error)
            with self._changed:
                self._dead = True
                self._scheduler.clear()
                jobs = [*self._unfinished]
                self._unfinished.clear()
            for job in jobs:
                _fail(job, ServiceError("failed", "the engine has stopped."))
            if not isinstance(error, Exception):
                raise

    def _wait_for_step(self) -> Step | None:
        with self._changed:
            self._busy = False
            while (step := self._scheduler.next_step()) is None:
                if self._draining:
                    return None
                self._changed.wait()
            self._busy, self._heartbeat = True, self._clock()
            for job, _ in step.members:
                if not job.started:
                    job.started, job.queue_seconds = True, self._heartbeat - job.admitted
            return step

    def _compute(self, step: Step) -> None:
        results = self._results(step)
        seconds = self._clock() - self._heartbeat
        with self._changed:
            self._scheduler.finished(step, seconds)
            self._busy_seconds += seconds
        for job in dict.fromkeys(job for job, _ in step.members):
            job.compute_seconds += seconds
        for (job, index), result in zip(step.members, results, strict=True):
            if isinstance(result, _Failure):
                if not job.future.done():
                    _LOG.error("a text cannot be computed: %r", result.error)
                    _fail(job, ServiceError("failed", f"input {index} cannot be computed: {_reason(result.error)}"))
                self._forget(job)
            if job.future.done():  # it has failed, or its client has gone
                continue
            job.results[index] = result
            job.missing -= 1
            if not job.missing:
                self._complete(job)
        for observe in self.observers:
            observe(len(step.members), step.tokens, seconds)

    def _results(self, step: Step) -> list[Any]:
        """Compute a step; if it fails, compute its units one by one, so that only the one that cannot be fails."""
        units = step.units
        try:
            return _checked(step.kind.compute(units), len(units))
        except Exception as error:
            if len(units) == 1:
                return [_Failure(error)]
        results: list[Any] = []
        for unit in units:
            try:
                results += _checked(step.kind.compute([unit]), 1)
            except Exception as error:
                results.append(_Failure(error))
        return results

    def _complete(self, job: Job) -> None:
        try:
            value = job.assemble(job.results)
        except Exception as error:
            _LOG.error("an answer cannot be made: %r", error)
            _fail(job, ServiceError("failed", f"the answer cannot be made: {_reason(error)}"))
        else:
            with contextlib.suppress(InvalidStateError):  # it was cancelled
                job.future.set_result(value)
        self._forget(job)

    def _drop(self, job: Job) -> None:
        job.future.set_running_or_notify_cancel()  # wakes those that wait for several futures
        self._forget(job)

    def _forget(self, job: Job) -> None:
        """Drop what is still queued of a job that is cancelled, has failed or is complete."""
        with self._changed:
            self._unfinished.discard(job)
            self._cancelled_units += self._scheduler.remove(job)


def _checked(results: Sequence[Any], number: int) -> list[Any]:
    if len(results) != number:
        raise RuntimeError(f"{number} texts have {len(results)} results")
    return [_finite(result) for result in results]


def _finite(result: Any) -> Any:
    """Return a result, or a failure for a vector with NaN or infinity in it: clients could not read it."""
    if isinstance(result, np.ndarray) and not np.isfinite(result).all():
        return _Failure(ArithmeticError("its vector is not finite"))
    return result


def _fail(job: Job, error: ServiceError) -> None:
    with contextlib.suppress(InvalidStateError):
        job.future.set_exception(error)


def _reason(error: Exception) -> str:
    """Describe an error to a client, who may not see what else is in a traceback."""
    if isinstance(error, MemoryError):
        return "there is not enough memory; send fewer or shorter texts."
    return f"{error}." if isinstance(error, ArithmeticError) else "an error of the service; its log has the details."
