"""The log of the service (it never has texts), and its metrics for Prometheus."""

from __future__ import annotations

import contextlib
import json
import logging.handlers
import os
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from minibert.serving.engine import Engine
from minibert.serving.scheduler import Job
from minibert.serving.served_models import Usage

LOG = logging.getLogger("minibert.serving")
REQUESTS = LOG.getChild("requests")
"""A record per request."""

_MOST_LINES = 10_000  # that wait to be written; further ones are counted and dropped


def log_requests(*, as_json: bool) -> None:
    """Write the log of the service to the standard error.

    Parameters
    ----------
    as_json : bool
        True: JSON, also an object per request, without its texts. False: only errors, as text.
    """
    LOG.handlers[:] = [_Log(as_json)]
    LOG.setLevel(logging.INFO)
    REQUESTS.disabled = not as_json
    LOG.propagate = False


class _Log(logging.handlers.QueueHandler):
    """Writes lines to the standard error in a thread. A line that cannot be written is lost, and nothing else."""

    def __init__(self, as_json: bool) -> None:
        self._lines: queue.Queue[str] = queue.Queue(_MOST_LINES)
        super().__init__(self._lines)
        self._as_json, self._dropped = as_json, 0
        threading.Thread(target=self._run, name="minibert-log", daemon=True).start()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging calls it if the queue is full
        self._dropped += 1

    def prepare(self, record: logging.LogRecord) -> str:
        if not self._as_json:
            return f"minibert: {self.format(record)}"
        request: dict[str, Any] = getattr(record, "request", None) or {"message": self.format(record)}
        return json.dumps({"time": round(record.created, 3), "level": record.levelname.lower(), **request})

    def flush(self) -> None:
        """Wait until all lines are written, at most for a second."""
        end = time.monotonic() + 1
        while self._lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                line += f"\nminibert: {dropped} lines of the log were dropped"
            rest = f"{line}\n".encode(errors="backslashreplace")
            with contextlib.suppress(OSError):
                while rest:  # without the lock of sys.stderr: a thread that a full pipe stops would keep it
                    rest = rest[os.write(2, rest) :]
            self._lines.task_done()


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536, 262144)


class Metrics:
    """The metrics of the service, in their own Prometheus registry.

    Parameters
    ----------
    engine : Engine
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._namespace = engine, engine.settings.metrics_namespace
        self._registry = CollectorRegistry()
        same: dict[str, Any] = {"namespace": self._namespace, "registry": self._registry}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, **same)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, **same)

        self.requests = counter("request_count", "Requests", "route")
        self.successes = counter("request_success", "Requests that got what they asked for", "route")
        self.failures = counter("request_failure", "Requests that got an error", "route", "err")
        self.disconnected = counter("request_disconnected", "Requests whose client closed the connection")
        self.duration = histogram("request_duration", "Seconds from the body to the answer", _SECONDS, "route")
        self.tokenization = histogram("request_tokenization_duration", "Seconds of tokenization", _SECONDS)
        self.queue = histogram("request_queue_duration", "Seconds in the queue", _SECONDS)
        self.inference = histogram("request_inference_duration", "Seconds of the steps of a request", _SECONDS)
        self.input_length = histogram("request_input_length", "Tokens of a text", _SIZES)
        self.texts = counter("texts", "Texts that were admitted")
        self.tokens = counter("tokens", "Tokens that were admitted")
        self.truncated = counter("truncated_texts", "Texts that were cut")
        self.prompts = counter("prompted_texts", "Texts with a prompt before them")
        self.ignored = counter("ignored_fields", "Fields of requests that have no effect here")
        self.inflight = Gauge("inflight_bytes", "Bytes of bodies and answers in flight", **same)
        self._step_size = histogram("batch_next_size", "Texts of a step", _SIZES)
        self._step_tokens = histogram("batch_next_tokens", "Tokens of a step", _SIZES)
        self._step_seconds = histogram("batch_inference_duration", "Seconds of a step", _SECONDS)
        labels = ("model", "compute_type", "num_threads", "shared_weights")
        models = Gauge("model_info", "The models", labels, **same)
        for name, served in engine.models.items():
            how = served.computation()
            models.labels(name, how["compute_type"], how["num_threads"], int(how["shared_weights"])).set(1)
        self._registry.register(self)
        engine.observers.append(self._observe_step)

    def _observe_step(self, size: int, tokens: int, seconds: float) -> None:
        self._step_size.observe(size)
        self._step_tokens.observe(tokens)
        self._step_seconds.observe(seconds)

    def add(self, job: Job, usage: Usage) -> None:
        """Count the texts of a request that was computed."""
        self.queue.observe(job.queue_seconds)
        self.inference.observe(job.compute_seconds)
        for number in usage.n_tokens:
            self.input_length.observe(number)
        self.texts.inc(len(usage.n_tokens))
        self.tokens.inc(sum(usage.n_tokens))
        self.truncated.inc(len(usage.truncated))
        if usage.prompt_name is not None:
            self.prompts.inc(len(usage.n_tokens))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Read the engine's numbers when they are asked for."""
        load, name = self._engine.load(), self._namespace
        wait = GaugeMetricFamily(f"{name}_estimated_wait_seconds", "Estimated wait of a new request", labels=["class"])
        wait.add_metric(["interactive"], load.wait_interactive)
        wait.add_metric(["bulk"], load.wait_bulk)
        yield wait
        for family, what, text, value in (
            (GaugeMetricFamily, "queue_size", "Requests that wait", load.queued_jobs),
            (GaugeMetricFamily, "queue_tokens", "Tokens that wait", load.queued_tokens),
            (GaugeMetricFamily, "engine_alive", "1 while the engine works", load.alive),
            (CounterMetricFamily, "engine_busy_seconds", "Seconds of computation", load.busy_seconds),
            (CounterMetricFamily, "cancelled_texts", "Texts dropped because their client left", load.cancelled_units),
            (CounterMetricFamily, "shed", "Requests refused because the wait was too long", load.refused_jobs),
        ):
            yield family(f"{name}_{what}", text, float(value))
