"""Each machine's share of a run: a worker is called MACHINE.WORKER, or just WORKER on the evaluator's machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vla_common.counts import plural

EVALUATOR = "evaluator"
MAX_LISTED = 4  # machines on a line of progress


@dataclass
class Share:
    """A machine's finished episodes, their steps and time (s, of all its workers), and faults."""

    host: str
    workers: int = 0
    episodes: int = 0
    steps: int = 0
    seconds: float = 0.0
    faults: int = 0

    @property
    def steps_per_s(self) -> float:
        """Steps per second of one worker, while it is in an episode."""
        return self.steps / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "seconds": round(self.seconds, 3), "steps_per_s": round(self.steps_per_s, 2)}


def host_of(worker: str, hostnames: Mapping[str, str]) -> str:
    """Return a worker's machine. hostnames: the machines' host names by their names in the run."""
    name = worker.rpartition(".")[0]
    return hostnames.get(name, name) or EVALUATOR


def hostnames(invocations: Iterable[Mapping]) -> dict[str, str]:
    """Return the machines' host names by their names in the run; a machine that joined twice has two."""
    hosts = [(name, host) for row in invocations for name, host in row["notes"].get("hosts", {}).items()]
    return {name: host.get("host", name) for name, host in hosts}


def shares(rows: Iterable[Mapping], hostnames: Mapping[str, str]) -> list[Share]:
    """Return each machine's share, from the rows of `StoreReader.by_worker`; the evaluator's own is first."""
    by_host: dict[str, Share] = {}
    for row in rows:
        host = host_of(row["worker"], hostnames)
        share = by_host.setdefault(host, Share(host))
        share.workers += 1
        share.episodes += row["episodes"]
        share.steps += row["steps"]
        share.seconds += (row["ms"] or 0.0) / 1e3
        share.faults += row["faults"]
    return sorted(by_host.values(), key=lambda share: (share.host != EVALUATOR, share.host))


def line(shares: list[Share]) -> str:
    """Return the shares for a line of progress; empty if the evaluator's machine works alone."""
    if all(share.host == EVALUATOR for share in shares):
        return ""
    faults = sum(share.faults for share in shares)
    tail = f" ({plural(faults, 'fault')})" if faults else ""
    if len(shares) > MAX_LISTED:
        return f"{len(shares)} machines{tail}"
    return " + ".join(f"{share.host} {share.episodes} at {share.steps_per_s:.0f} steps/s" for share in shares) + tail
