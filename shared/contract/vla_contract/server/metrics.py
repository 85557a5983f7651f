"""The Prometheus metrics of one service, in a registry of their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vla_contract.server.tenants import Tenant

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

    def watch_tenants(self, tenants: Callable[[], Sequence[Tenant]]) -> None:
        """Export the use of a service by token as `vla_token_…{token="…"}`, by name: the admin's and the file's."""
        self.registry.register(_Tenants(tenants))

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


class _Tenants:
    def __init__(self, tenants: Callable[[], Sequence[Tenant]]):
        self._tenants = tenants

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("vla_token_requests", "Answered requests", labels=("token", "status"))
        inferences = CounterMetricFamily("vla_token_inferences", "Observations inferred", labels=("token",))
        queued = CounterMetricFamily("vla_token_queue_seconds", "Time that they waited", labels=("token",))
        inferring = CounterMetricFamily("vla_token_infer_seconds", "Their part of the inferences", labels=("token",))
        current = GaugeMetricFamily("vla_token_in_progress", "Requests in progress", labels=("token",))
        for tenant in self._tenants():
            for status, count in tenant.statuses.items():
                requests.add_metric((tenant.name, str(status)), count)
            inferences.add_metric((tenant.name,), tenant.inferences)
            queued.add_metric((tenant.name,), tenant.queue_s)
            inferring.add_metric((tenant.name,), tenant.infer_s)
            current.add_metric((tenant.name,), tenant.in_progress)
        if current.samples:
            yield from (requests, inferences, queued, inferring, current)
