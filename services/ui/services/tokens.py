"""Who uses which policy: the use by token that policy services count in their metrics."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from services.ui.site.requests import ServiceUnavailable
from services.ui.site.upstream import Upstream

TIMEOUT_S = 2.0
COUNTED = ("requests", "inferences", "in_progress", "queue_seconds", "infer_seconds")


@dataclass
class TokenUse:
    """The use of one policy with one token since the service started, by the names of its metrics.

    limited: requests answered with 429. share: part of the inference time.
    """

    name: str
    requests: float = 0
    limited: float = 0
    inferences: float = 0
    in_progress: float = 0
    queue_seconds: float = 0.0
    infer_seconds: float = 0.0
    share: float = 0.0

    @property
    def wait_s(self) -> float:
        """The mean time of a request in the queue."""
        return self.queue_seconds / self.inferences if self.inferences else 0.0


async def token_use(service: Upstream) -> list[TokenUse]:
    """Return the use of a policy by token, most first; empty for a service that counts none or does not respond."""
    try:
        return read_metrics(await service.text("/metrics", timeout=TIMEOUT_S))
    except (ServiceUnavailable, ValueError):  # ValueError: not Prometheus' format
        return []


def read_metrics(text: str) -> list[TokenUse]:
    """Return the use by token in a policy service's metrics. Raises ValueError for another format."""
    uses: dict[str, TokenUse] = {}
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    for sample in samples:
        field = sample.name.removeprefix("vla_token_").removesuffix("_total")
        if sample.name.startswith("vla_token_") and field in COUNTED:
            use = uses.setdefault(sample.labels["token"], TokenUse(sample.labels["token"]))
            setattr(use, field, getattr(use, field) + sample.value)
            use.limited += sample.value if sample.labels.get("status") == "429" else 0
    total_s = sum(use.infer_seconds for use in uses.values())
    for use in uses.values():
        use.share = use.infer_seconds / total_s if total_s else 0.0
    return sorted(uses.values(), key=lambda use: (-use.infer_seconds, use.name))
