"""What a run that listens shows Prometheus: its episodes by state, and each machine's share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge

from vla_evaluation.hosts import Share

STATES = ("planned", "done", "successes", "policy_errors", "leased", "pending", "broken")
OF_A_MACHINE = {
    "workers": "Workers that have had an episode of this invocation",
    "episodes": "Episodes finished in this invocation",
    "steps": "Policy steps of those",
    "seconds": "Time of its workers in those",
    "faults": "Attempts that ended without a result",
}


class Gauges:
    """Filled when a scraper asks; what the store says is the truth."""

    def __init__(self, registry: CollectorRegistry):
        self.episodes = Gauge("vla_run_episodes", "Episodes of the run by state", ("state",), registry=registry)
        self.machines = Gauge("vla_run_machines", "Machines that have joined and are at it", registry=registry)
        self.shares = {
            name: Gauge(f"vla_machine_{name}", what, ("host",), registry=registry)
            for name, what in OF_A_MACHINE.items()
        }

    def fill(self, counts: Mapping[int, Mapping[str, int]], shares: Sequence[Share], joined: int) -> None:
        """Takes in what the store counts, by task and by machine."""
        for state in STATES:
            self.episodes.labels(state).set(sum(row[state] for row in counts.values()))
        self.machines.set(joined)
        for share in shares:
            for name, gauge in self.shares.items():
                gauge.labels(share.host).set(getattr(share, name))
