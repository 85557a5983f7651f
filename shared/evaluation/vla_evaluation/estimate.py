"""Estimate a run's duration from the pace of an earlier similar run on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_common.durations import format_duration
from vla_evaluation import provenance
from vla_evaluation.progress import LONG_S, MIN_EPISODES
from vla_evaluation.runs.directories import find_runs
from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import RunStore, read_run

# What an episode costs depends on these members of a run's identity, and of its policy's.
SIMILAR = ("suite", "max_steps", "execute", "ensemble", "realtime", "render", "cameras")

POLICY = ("name", "checkpoint")


def announcement(root: Path, identity: Mapping[str, Any], episodes: int, workers: int) -> str | None:
    """Return the line that announces a long run; None for a short one, and without a similar run under `root`."""
    for directory in reversed(find_runs(root)):
        try:
            with read_run(directory, check=False) as store:
                other = store.meta("identity")
                is_similar = all(other.get(key) == identity.get(key) for key in SIMILAR)
                policies = other["policy"], identity["policy"]
                is_similar &= all(len({json.dumps(policy.get(key)) for policy in policies}) == 1 for key in POLICY)
                episode_s = measure_episode(store) if is_similar else None
        except StoreError:  # damaged, or of another version
            continue
        if episode_s is not None:
            seconds = episode_s * episodes / workers
            pace = f"at the pace of {directory.name} on this machine ({episode_s:.1f} s per episode and worker)"
            return f"this will take about {format_duration(seconds)}, {pace}" if seconds > LONG_S else None
    return None


def measure_episode(store: RunStore) -> float | None:
    """Return the seconds per episode and worker of the invocations that ended on this machine, without joined ones."""
    done, machine = store.done_by_invocation(), provenance.machine()
    ended = [
        row
        for row in store.invocations()
        if row["ended"] and row["notes"].get("machine") == machine and not row["notes"].get("hosts")
    ]
    episodes = sum(done.get(row["id"], 0) for row in ended)
    seconds: float = sum((row["ended"] - row["started"]) * row["notes"]["workers"] for row in ended)
    return seconds / episodes if episodes >= MIN_EPISODES else None
