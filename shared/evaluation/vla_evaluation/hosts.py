"""Which machine did what of a run: its workers are called MACHINE.WORKER, those of the evaluator's own just WORKER."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vla_common.counts import plural

OWN = "evaluator"
SHOWN = 4  # machines on a line of progress


@dataclass
class Share:
    """What a machine did: finished episodes, their steps and time in them (s, of all its workers), faults."""

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

    def to_json(self) -> dict:
        """Returns it as JSON types."""
        return {**vars(self), "seconds": round(self.seconds, 3), "steps_per_s": round(self.steps_per_s, 2)}


def host_of(worker: str, known: Mapping[str, str]) -> str:
    """Returns the machine of a worker. known: the machines' own names by those that they have in the run."""
    name = worker.rpartition(".")[0]
    return known.get(name, name) or OWN


def known_hosts(invocations: Iterable[Mapping]) -> dict[str, str]:
    """Returns the machines' own names by those that they have in the run; one that joined twice has two of these."""
    joined = [(name, one) for row in invocations for name, one in row["notes"].get("hosts", {}).items()]
    return {name: one.get("host", name) for name, one in joined}


def shares(rows: Iterable[Mapping], known: Mapping[str, str]) -> list[Share]:
    """Returns each machine's share of what `StoreReader.by_worker` tells, the evaluator's own first."""
    found: dict[str, Share] = {}
    for row in rows:
        host = host_of(row["worker"], known)
        share = found.setdefault(host, Share(host))
        share.workers += 1
        share.episodes += row["episodes"]
        share.steps += row["steps"]
        share.seconds += (row["ms"] or 0.0) / 1e3
        share.faults += row["faults"]
    return sorted(found.values(), key=lambda share: (share.host != OWN, share.host))


def line(found: list[Share]) -> str:
    """Returns who does how much, for a line of progress; nothing where the evaluator's own machine does it all."""
    if not [share for share in found if share.host != OWN]:
        return ""
    faults = sum(share.faults for share in found)
    tail = f" ({plural(faults, 'fault')})" if faults else ""
    if len(found) > SHOWN:
        return f"{len(found)} machines{tail}"
    return " + ".join(f"{share.host} {share.episodes} at {share.steps_per_s:.0f} steps/s" for share in found) + tail
