"""`Engine`: one thread that computes the texts of many requests in short steps. It does not know HTTP.

>>> from minibert import SentenceTransformer
>>> from minibert.serving.engine import Engine
>>> with Engine(SentenceTransformer()) as engine:
...     answer = engine.embed(["A cat sleeps.", "The kitten naps."])
>>> answer.value.shape, answer.usage.n_tokens
((2, 384), (6, 7))
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, NamedTuple, Self

import numpy as np

from minibert.serving.classifier import Classifier, ScoreOptions
from minibert.serving.models_by_name import Model, ModelsByName, load_served
from minibert.serving.reading import LONG_BODY, Readers, Reading
from minibert.serving.scheduler import INTERACTIVE_TOKENS, MIN_STEP, SLOWEST, EngineStep, Job, Scheduler
from minibert.serving.served_models import Prepared, TextEmbedder, Usage, VectorOptions
from minibert.serving.settings import ServiceError, Settings
from minibert.serving.token_embedder import TokenEmbedder
from minibert.tokenizer.texts import shown

_LOG = logging.getLogger("minibert.serving")


class Answer(NamedTuple):
    """The answer to a request: its vectors or scores, and the usage of its texts."""

    value: Any
    usage: Usage


class Load(NamedTuple):
    """The present state of the engine."""

    ready: bool
    alive: bool
    queued_jobs: int
    queued_tokens: int
    wait_interactive: float
    wait_bulk: float
    busy_seconds: float
    cancelled_units: int
    refused_jobs: int


class Engine:
    """The models that are served, a queue, and the thread that computes. Its methods may be called from any thread.

    Parameters
    ----------
    models : SentenceTransformer, CrossEncoder or MultiVectorEncoder, or mapping of names to them
        The first one of each class is the default for vectors, and for scores.
    settings : Settings
    clock : callable
        Seconds, as `time.monotonic`.

    Raises
    ------
    TypeError, ValueError
        An argument is of another type, there is no model, or a model does not have the default prompt.

    Attributes
    ----------
    models : ModelsByName
    settings : Settings
    has_died : bool
        The thread has ended by an error; nothing is computed any more.
    observers : list of callables
        Each is called with the number of units, the tokens and the seconds of every step, by the thread that computes.
        One that raises is logged and removed.
    """

    def __init__(
        self,
        models: Model | Mapping[str, Model],
        *,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or Settings()
        named = models if isinstance(models, Mapping) else {"default": models}
        self.models = ModelsByName(named, self.settings)
        self._has_prompts = any(any(served.model.prompts.values()) for served in self.models.values())
        self.observers: list[Callable[[int, int, float], object]] = []
        self._clock = clock
        self._scheduler = Scheduler(step_seconds=self.settings.step_seconds, max_wait=self.settings.max_wait)
        self._changed = threading.Condition()
        self._readers = Readers(self._was_read)
        self._thread: threading.Thread | None = None
        self.has_died = self._draining = self._busy = self._held = False
        self._unfinished: set[Job] = set()
        self._heartbeat, self._busy_seconds = clock(), 0.0
        self._cancelled_units = 0

    @classmethod
    def from_files(cls, folders: Mapping[str, str], settings: Settings, **options: Any) -> Self:
        """Load models by the names of `served_names`, each with the `options` of `load_served`, and warm them up."""
        models = {name: load_served(folder, **options) for name, folder in folders.items()}
        engine = cls(models, settings=settings)
        engine.warm_up()
        return engine

    # -- requests

    def submit(self, job: Job) -> Future[Any]:
        """Queue a job as a whole and return the future of its answer. Cancelling it drops units not computed yet.

        Raises
        ------
        ServiceError
            The estimated wait is too long, or the engine ends.
        """
        with self._changed:
            if self._draining or self.has_died:
                why = "after an error" if self.has_died else "or closed; it does not start again"
                raise ServiceError("unavailable", f"the service is stopping {why}.")
            job.admitted = self._clock()
            if job.units:
                self._scheduler.admit(job)
                self._unfinished.add(job)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="minibert-engine", daemon=True)
                    self._thread.start()
                if not self._held or self._scheduler.queued_jobs == 1:
                    self._changed.notify_all()
        if not job.units:
            self._complete(job)
        job.future.add_done_callback(functools.partial(self._ended, weakref.ref(job)))
        return job.future

    def hold(self, held: bool) -> None:
        """Say whether more requests are about to come: then a step of few tokens waits, at most half its time."""
        with self._changed:
            self._held = held
            if not held:
                self._changed.notify_all()

    def check_room(self, size: int) -> None:
        """Raise the error that `submit` would raise, before the texts of a request are read, so that refusing is cheap.

        Parameters
        ----------
        size : int
            Bytes of the request; its texts have at most so many tokens, besides those of a prompt.

        Raises
        ------
        ServiceError
            The estimated wait is too long.
        """
        unknown = size > INTERACTIVE_TOKENS or self._has_prompts
        with self._changed:
            self._scheduler.check_room(size, size > LONG_BODY, None if unknown else False)

    def read(self, size: int, function: Callable[..., Any], *arguments: Any) -> Reading:
        """Call a function that tokenizes a request in a thread; waiting requests count in the estimated wait.

        Parameters
        ----------
        size : int
            Bytes of the request.
        """
        with self._changed:
            self._scheduler.waits(size, size > LONG_BODY)
        return self._readers.submit(size, function, *arguments)

    def _was_read(self, reading: Reading, whole: bool) -> None:
        with self._changed:
            self._scheduler.was_read(reading.size, reading.size > LONG_BODY, reading.seconds if whole else None)

    def embed(self, inputs: Sequence[str | Sequence[int]], model: str | None = None, **options: Any) -> Answer:
        """Turn texts, or rows of token ids, into vectors, and wait for them; `options` are those of `VectorOptions`.

        Raises
        ------
        ServiceError
            A text or an option is wrong, the model is not served, the estimated wait is too long, or the engine ends.
        TypeError
            There is no such option, or the texts are not in a list.
        """
        served_class: Any = (TextEmbedder, TokenEmbedder) if options.get("tokens") else TextEmbedder
        return self._answer(self.models.of(served_class, model).prepare(_listed(inputs), VectorOptions(**options)))

    def score(self, inputs: Sequence[tuple[str, str | None]], model: str | None = None, **options: Any) -> Answer:
        """Score pairs of texts, and texts (whose second part is None), and wait; `options` are those of `ScoreOptions`.

        Raises
        ------
        ServiceError, TypeError
            As for `embed`.
        """
        pairs = _listed(inputs)
        not_pair = next((pair for pair in pairs if isinstance(pair, str) or not isinstance(pair, Iterable)), None)
        if not_pair is not None:
            raise TypeError(f"inputs has {shown(not_pair)}; expected pairs, such as (query, text), or (text, None).")
        pairs = [(first, second) for first, second in pairs]
        return self._answer(self.models.of(Classifier, model).prepare(pairs, ScoreOptions(**options)))

    def _answer(self, prepared: Prepared) -> Answer:
        """Compute the job of a request; if the waiting is interrupted, its texts are not computed any more."""
        future = self.submit(prepared.job)
        try:
            return Answer(future.result(), prepared.usage)
        finally:
            future.cancel()  # without an effect if it has ended

    # -- what it does

    def load(self) -> Load:
        """Return the queue's size and the wait of new requests. This call never waits for the computation."""
        with self._changed:
            seconds = self._clock() - self._heartbeat
            return Load(
                not (self._draining or self.has_died),
                not self.has_died and not (self._busy and seconds > max(30.0, SLOWEST * self._scheduler.running)),
                self._scheduler.queued_jobs,
                self._scheduler.queued_tokens,
                self._scheduler.estimated_wait(False),
                self._scheduler.estimated_wait(True),
                self._busy_seconds,
                self._cancelled_units,
                self._scheduler.refused_jobs,
            )

    def warm_up(self) -> None:
        """Compute a text with each model twice: the first time starts threads, the second measures the speed."""
        for served in [*self.models.values()] * 2:
            text = "minibert " * 60
            if isinstance(served, Classifier):
                self.score([(text, None)], served.name, truncation="mark")
            else:
                of_tokens = isinstance(served, TokenEmbedder)
                self.embed([text], served.name, truncation="mark", normalize=True, tokens=of_tokens)

    def close(self, timeout: float | None = None) -> bool:
        """Refuse new requests, compute the queued ones, and end the thread.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which the requests that are still queued fail instead; default: wait for all of them.

        Returns
        -------
        bool
            Whether all requests were computed.
        """
        with self._changed:
            self._draining, thread = True, self._thread
            self._changed.notify_all()
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        if not thread.is_alive():
            return not self.has_died
        self._fail_all(ServiceError("unavailable", "the service has stopped; send the request again."))
        return False

    def _fail_all(self, error: ServiceError, *, dead: bool = False) -> None:
        with self._changed:
            self.has_died |= dead
            self._scheduler.clear()
            jobs, self._unfinished = self._unfinished, set()
        for job in jobs:
            _end(job, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close(None if exception[0] is None else 0.0)  # after an error or Ctrl-C, nothing of the queue is computed

    # -- the thread

    def _run(self) -> None:
        try:
            while (step := self._wait_for_step()) is not None:
                self._compute(step)
                del step  # a finished request must not keep its arrays until the next one comes
        except BaseException as error:  # nothing may wait for a thread that has ended
            _LOG.critical("the engine has stopped: %r", error)
            self._fail_all(ServiceError("failed", "the engine has stopped."), dead=True)
            if not isinstance(error, Exception):
                raise

    def _wait_for_step(self) -> EngineStep | None:
        with self._changed:
            self._busy, since = False, self._clock()
            while (seconds := self._held_for(since)) > 0 or (step := self._scheduler.next_step()) is None:
                if self._draining:
                    return None
                for served in self.models.values():
                    with contextlib.suppress(RuntimeError):  # its owner has closed it
                        served.model.model.ops.rest()
                self._changed.wait(seconds or None)
                since = since if seconds else self._clock()
            self._busy, self._heartbeat = True, self._clock()
            for job, _ in step.members:
                if not job.started:
                    job.started, job.queue_seconds = True, self._heartbeat - job.admitted
            return step

    def _held_for(self, since: float) -> float:
        """Return the seconds that the next step still waits for more requests; it could begin at the time `since`."""
        queue = self._scheduler
        if not self._held or self._draining or not 0 < queue.queued_tokens < 2 * MIN_STEP:
            return 0.0
        return max(0.0, since + min(self.settings.step_seconds, queue.estimated_wait(False)) / 2 - self._clock())

    def _compute(self, step: EngineStep) -> None:
        results = _results_of(step)
        seconds = self._clock() - self._heartbeat
        with self._changed:
            self._scheduler.finished(step, seconds)
            self._busy_seconds += seconds
        for job in dict.fromkeys(job for job, _ in step.members):
            job.compute_seconds += seconds
        complete = list[Job]()
        for (job, index), result in zip(step.members, results, strict=True):
            if isinstance(result, Exception):
                if not job.future.done():
                    _LOG.error("a text cannot be computed: %r", result)
                    _end(job, ServiceError("failed", f"input {index} cannot be computed: {_reason_of(result)}"))
                self._forget(job)
            if job.future.done():  # it has failed, or its client has gone
                continue
            job.results[index] = result
            job.missing -= 1
            if not job.missing:
                complete.append(job)
        with self._changed:
            self._unfinished.difference_update(complete)
        for job in complete:
            self._complete(job)
        for observe in self.observers:
            try:
                observe(len(step.members), step.tokens, seconds)
            except Exception:
                _LOG.exception("an observer has failed, and is not called any more: %r", observe)
                self.observers = [other for other in self.observers if other is not observe]

    def _complete(self, job: Job) -> None:
        try:
            _end(job, job.assemble(job.results))
        except Exception as error:
            _LOG.error("an answer cannot be made: %r", error)
            _end(job, ServiceError("failed", f"the answer cannot be made: {_reason_of(error)}"))

    def _ended(self, reference: weakref.ref[Job], future: Future[Any]) -> None:
        """Drop a job that is cancelled.

        A future keeps its callbacks. With a strong reference, a job and its future would keep each other, and all
        texts and vectors of ended requests would wait for the garbage collector.
        """
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes those that wait for several futures
            if (job := reference()) is not None:
                self._forget(job)

    def _forget(self, job: Job) -> None:
        """Drop what is still queued of a job that is cancelled, has failed or is complete."""
        with self._changed:
            self._unfinished.discard(job)
            self._cancelled_units += self._scheduler.remove(job)


def _listed(inputs: Any) -> list[Any]:
    """Return inputs as a list; the letters of one text, or the keys of a mapping, would give vectors, too."""
    if isinstance(inputs, str | bytes | Mapping):
        raise TypeError(f"inputs is {shown(inputs)}; expected a list, such as [text].")
    return [*inputs]


def _end(job: Job, value: Any) -> None:
    """Give a job its answer, or the error that is its answer."""
    with contextlib.suppress(InvalidStateError):  # it was cancelled
        if isinstance(value, ServiceError):
            job.future.set_exception(value)
        else:
            job.future.set_result(value)


def _results_of(step: EngineStep) -> list[Any]:
    """Compute a step; if it fails, compute its units one by one, so that only the one that cannot be fails.

    An exception is in the place of its result.
    """
    units = [job.units[index] for job, index in step.members]
    try:
        return _checked(step.kind.compute(units), len(units))
    except Exception as error:
        if len(units) == 1:
            return [error]
    return [_results_of(dataclasses.replace(step, members=[member]))[0] for member in step.members]


def _checked(results: Sequence[Any], number: int) -> list[Any]:
    """Return results, with an error for each vector with NaN or infinity in it: clients could not read it."""
    if len(results) != number:
        raise RuntimeError(f"{number} texts have {len(results)} results")
    if len({getattr(result, "shape", None) for result in results}) == 1:  # together is faster
        whole = np.array(results)
        if whole.dtype == np.float32 and np.isfinite(whole).all():
            return [*results]
    infinite = [isinstance(result, np.ndarray) and not np.isfinite(result).all() for result in results]
    error = ArithmeticError("its vector is not finite")
    return [error if bad else result for bad, result in zip(infinite, results, strict=True)]


def _reason_of(error: Exception) -> str:
    """Describe an error to a client, who may not see what else is in a traceback."""
    if isinstance(error, MemoryError):
        return "there is not enough memory; send fewer or shorter texts."
    return f"{error}." if isinstance(error, ArithmeticError) else "an error of the service; its log has the details."
