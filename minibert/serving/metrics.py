"""The numbers of the service for Prometheus. Labels have fixed sets of values, so that memory does not grow."""

from __future__ import annotations

import time
from collections.abc import Iterable

from minibert.serving.engine import Engine, Load
from minibert.serving.libraries import missing
from minibert.serving.prepared import computation_of

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
except ImportError as error:
    raise missing(error) from error

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536, 262144)


class Metrics:
    """Counts what the service does, in a registry of its own.

    Parameters
    ----------
    engine : Engine
    namespace : str
        The beginning of every name; "te" gives several of the names of text-embeddings-inference.
    """

    def __init__(self, engine: Engine, namespace: str = "minibert") -> None:
        self._engine, self._namespace = engine, namespace
        self.start_again()
        engine.observers.append(self._observe_step)

    def start_again(self) -> None:
        """Count from 0, also in a forked process: a thread that is not there may have held a lock of a number."""
        engine, namespace = self._engine, self._namespace
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace=namespace, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, namespace=namespace, buckets=buckets, registry=registry)

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
        self.inflight = Gauge(
            "inflight_bytes", "Bytes of bodies and answers in flight", namespace=namespace, registry=registry
        )
        self._step_size = histogram("batch_next_size", "Texts of a step", _SIZES)
        self._step_tokens = histogram("batch_next_tokens", "Tokens of a step", _SIZES)
        self._step_seconds = histogram("batch_inference_duration", "Seconds of a step", _SECONDS)
        labels = ("model", "compute_type", "num_threads", "shared_weights")
        models = Gauge("model_info", "The models", labels, namespace=namespace, registry=registry)
        for name, served in engine.models.items():
            how = computation_of(served.model.model)
            models.labels(name, how["compute_type"], how["num_threads"], int(how["shared_weights"])).set(1)
        registry.register(_EngineCollector(engine, namespace))

    def _observe_step(self, size: int, tokens: int, seconds: float) -> None:
        self._step_size.observe(size)
        self._step_tokens.observe(tokens)
        self._step_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector:
    """Reads the engine's numbers when they are asked for."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self._engine, self._namespace, self._started = engine, namespace, time.monotonic()

    def collect(self) -> Iterable[Metric]:
        load: Load = self._engine.load()
        name = self._namespace
        yield GaugeMetricFamily(f"{name}_queue_size", "Requests that wait", load.queued_jobs)
        yield GaugeMetricFamily(f"{name}_queue_tokens", "Tokens that wait", load.queued_tokens)
        wait = GaugeMetricFamily(f"{name}_estimated_wait_seconds", "Estimated wait of a new request", labels=["class"])
        wait.add_metric(["interactive"], load.wait_interactive)
        wait.add_metric(["bulk"], load.wait_bulk)
        yield wait
        yield CounterMetricFamily(f"{name}_engine_busy_seconds", "Seconds of computation", load.busy_seconds)
        yield CounterMetricFamily(
            f"{name}_cancelled_texts", "Texts dropped because their client left", load.cancelled_units
        )
        yield CounterMetricFamily(f"{name}_shed", "Requests refused because the wait was too long", load.refused_jobs)
        yield GaugeMetricFamily(f"{name}_engine_alive", "1 while the engine works", float(load.alive))
