"""The Prometheus metrics of one service, in a registry of their own."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Requests by route and status, batches, the queue, and the seconds of each stage of a request."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("vla_requests", "Answered requests", ("route", "status"), registry=registry)
        stages = Histogram(
            "vla_latency_seconds", "Time per stage of a request", ("stage",), buckets=_SECONDS, registry=registry
        )
        self.stages = {stage: stages.labels(stage) for stage in ("decode", "queue", "infer", "encode")}
        self.batch_size = Histogram("vla_batch_size", "Observations per inference", buckets=_SIZES, registry=registry)
        self.queue_length = Gauge("vla_queue_length", "Requests waiting for inference", registry=registry)
        self.sessions = Gauge("vla_sessions", "Sessions of a stateful policy", registry=registry)
        self.ready = Gauge("vla_ready", "1 once loaded and warm, else 0", registry=registry)

    def watch(self, counters: Callable[[], Mapping[str, int]]) -> None:
        """Export a policy's own counters as `vla_policy_events_total{event="…"}`, read at each scrape."""
        self.registry.register(_Events(counters))

    def page(self) -> tuple[bytes, str]:
        """Return the text for a scraper and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _Events(Collector):
    def __init__(self, counters: Callable[[], Mapping[str, int]]):
        self._counters = counters

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("vla_policy_events", "What the policy counted", labels=("event",))
        for name, count in self._counters().items():
            family.add_metric((name,), count)
        if family.samples:
            yield family
