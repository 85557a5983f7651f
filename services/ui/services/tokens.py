"""Who uses which policy: the use by token that policy services count in their metrics."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from services.ui.site.requests import ServiceUnavailable
from services.ui.site.upstream import Upstream

TIMEOUT_S = 2.0


@dataclass
class TokenUse:
    """The use of one policy with one token since the service started; share: its part of the inference time."""

    name: str
    requests: int = 0
    limited: int = 0  # answered with 429
    inferences: int = 0
    in_progress: int = 0
    queue_s: float = 0.0
    infer_s: float = 0.0
    share: float = 0.0

    @property
    def wait_s(self) -> float:
        """The mean time of a request in the queue."""
        return self.queue_s / self.inferences if self.inferences else 0.0


async def token_use(service: Upstream) -> list[TokenUse]:
    """Return the use of a policy by token, most first; empty for a service that counts none or does not respond."""
    try:
        return read_metrics(await service.text("/metrics", timeout=TIMEOUT_S))
    except (ServiceUnavailable, ValueError):  # ValueError: not Prometheus' format
        return []


def read_metrics(text: str) -> list[TokenUse]:
    """Return the use by token in a policy service's metrics. Raises ValueError for another format."""
    uses: dict[str, TokenUse] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            field = sample.name.removeprefix("vla_token_").removesuffix("_total")
            if not sample.name.startswith("vla_token_"):
                continue
            use = uses.setdefault(sample.labels["token"], TokenUse(sample.labels["token"]))
            if field == "requests":
                use.requests += int(sample.value)
                use.limited += int(sample.value) if sample.labels["status"] == "429" else 0
            elif field in ("inferences", "in_progress"):
                setattr(use, field, int(sample.value))
            elif field in ("queue_seconds", "infer_seconds"):
                setattr(use, f"{field.partition('_')[0]}_s", sample.value)
    total_s = sum(use.infer_s for use in uses.values())
    for use in uses.values():
        use.share = use.infer_s / total_s if total_s else 0.0
    return sorted(uses.values(), key=lambda use: (-use.infer_s, use.name))
