"""Estimate a run's duration from the pace of an earlier similar run on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_common.durations import format_duration
from vla_evaluation import provenance
from vla_evaluation.progress import LONG_S, MIN_EPISODES
from vla_evaluation.runs.directories import find_runs
from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import RunStore, read_run

# What an episode costs depends on these members of a run's identity, and on the policy's name.
SIMILAR = ("suite", "max_steps", "execute", "ensemble", "realtime", "render", "cameras")


@dataclass(frozen=True)
class EarlierRun:
    """An earlier run. episode_s: seconds that one worker took for an episode, start and videos included."""

    name: str
    episode_s: float

    def seconds(self, episodes: int, workers: int) -> float:
        """Return the time that `workers` workers would take for `episodes` episodes, s."""
        return self.episode_s * episodes / workers

    def announcement(self, episodes: int, workers: int) -> str | None:
        """Return the line that announces a long run; None for a short one."""
        seconds = self.seconds(episodes, workers)
        if seconds <= LONG_S:
            return None
        pace = f"{self.episode_s:.1f} s per episode and worker"
        return f"this will take about {format_duration(seconds)}, at the pace of {self.name} on this machine ({pace})"


def find_earlier(root: Path, identity: Mapping[str, Any]) -> EarlierRun | None:
    """Return the newest run under `root` of the same suite and policy whose pace on this machine is known."""
    for directory in reversed(find_runs(root)):
        try:
            with read_run(directory, check=False) as store:
                other = store.meta("identity")
                similar = all(other.get(key) == identity.get(key) for key in SIMILAR)
                similar &= other["policy"]["name"] == identity["policy"]["name"]
                episode_s = _episode_s(store) if similar else None
        except StoreError:  # damaged, or of another version
            continue
        if episode_s is not None:
            return EarlierRun(directory.name, episode_s)
    return None


def _episode_s(store: RunStore) -> float | None:
    """Return the seconds per episode and worker of the invocations that ended on this machine, without joined ones."""
    done, machine = store.done_by_invocation(), provenance.machine()
    ended = [
        invocation
        for invocation in store.invocations()
        if invocation["ended"]
        and invocation["notes"].get("machine") == machine
        and not invocation["notes"].get("hosts")
    ]
    episodes = sum(done.get(row["id"], 0) for row in ended)
    if episodes < MIN_EPISODES:
        return None
    seconds: float = sum((row["ended"] - row["started"]) * row["notes"]["workers"] for row in ended)
    return seconds / episodes
