"""How long a run will take, said before it begins: by the pace of an earlier one like it on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vla_common.durations import show_seconds
from vla_evaluation import provenance
from vla_evaluation.progress import LONG_S, SURE_AFTER
from vla_evaluation.runs.folders import STORE, find_runs
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore

ALIKE = (  # beside the policy's name: what an episode costs
    "suite", "max_steps", "execute", "ensemble", "realtime", "render", "cameras",
)  # fmt: skip


@dataclass(frozen=True)
class Earlier:
    """How fast an earlier run was. per_episode_s: seconds that one worker took for an episode, with all around it."""

    run: str
    per_episode_s: float

    def seconds(self, episodes: int, workers: int) -> float:
        """Returns how long so many workers would take for so many episodes."""
        return self.per_episode_s * episodes / workers

    def announcement(self, episodes: int, workers: int) -> str | None:
        """Returns the line for a run of so many episodes; None for one that is not long."""
        seconds = self.seconds(episodes, workers)
        if seconds <= LONG_S:
            return None
        pace = f"{self.per_episode_s:.1f} s per episode and worker"
        return f"this will take about {show_seconds(seconds)}, if it goes as {self.run} did here ({pace})"


def earlier(root: Path, identity: Mapping) -> Earlier | None:
    """Returns the newest run under `root` of this suite and policy whose pace is known here; None: nothing to go by."""
    for folder in reversed(find_runs(root)):
        try:
            with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True, check=False) as store:
                pace = _pace(store) if _is_like(store.meta("identity"), identity) else None
        except StoreError:  # damaged, or of another version
            continue
        if pace is not None:
            return Earlier(folder.name, pace)
    return None


def _is_like(other: Mapping, identity: Mapping) -> bool:
    same = all(other.get(key) == identity.get(key) for key in ALIKE)
    return same and other["policy"]["name"] == identity["policy"]["name"]


def _pace(store: RunStore) -> float | None:
    """Returns the seconds per episode and worker over the invocations of this machine that came to an orderly end."""
    done, here = store.done_by_invocation(), provenance.machine()
    ended = [
        one
        for one in store.invocations()
        if one["ended"] and one["notes"].get("machine") == here and not one["notes"].get("hosts")
    ]
    episodes = sum(done.get(one["id"], 0) for one in ended)
    if episodes < SURE_AFTER:
        return None
    return sum((one["ended"] - one["started"]) * one["notes"]["workers"] for one in ended) / episodes
