"""A run's status from its store: a row for the list, and all data for its page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_evaluation.report.compare import Comparison
from vla_evaluation.report.data import STAGES
from vla_evaluation.report.stats import Rate
from vla_evaluation.store.records import Finished
from vla_evaluation.store.runstore import RunStore

HEARTBEAT_TIMEOUT_S = 180.0  # an evaluator without a heartbeat for so long counts as killed
LAST_FAULTS = 50


def row(name: str, store: RunStore) -> dict[str, Any]:
    """Return a run's row for the list; rates and intervals in [0, 1], times in s since 1970."""
    identity, counts = store.meta("identity"), store.counts()
    planned, done, good = (sum(count[key] for count in counts.values()) for key in ("planned", "done", "successes"))
    policy = identity["policy"]
    return {
        "name": name,
        "suite": store.suite,
        "policy": policy["name"],
        "checkpoint": (policy.get("checkpoint") or {}).get("repo", ""),
        "profile": identity["profile"],
        "assets": identity["assets"]["kind"],
        "created": store.meta("created", 0.0),
        "state": state(store, done == planned, time.time()),
        **figures(Rate(good, done), planned),
        "policy_errors": sum(count["policy_errors"] for count in counts.values()),
    }


def figures(rate: Rate, planned: int) -> dict[str, Any]:
    """Return a rate and its 95 % Wilson interval as JSON types."""
    return {
        "planned": planned,
        "done": rate.trials,
        "successes": rate.successes,
        "rate": rate.value if rate.trials else None,
        "interval": list(rate.interval),
    }


def state(store: RunStore, complete: bool, now: float) -> str:
    """Return "complete", "running", "not started", or the last invocation's outcome ("stopped" if it was killed)."""
    invocations = store.invocations()
    if not invocations:
        return "not started"
    last = invocations[-1]
    if last["ended"] is None:
        return "running" if now - _last_heartbeat(store, last["started"]) < HEARTBEAT_TIMEOUT_S else "stopped"
    return "complete" if complete else last["outcome"] or "stopped"


def _last_heartbeat(store: RunStore, started: float) -> float:
    """Return the time of the evaluator's last sign of activity, including lease renewals."""
    sql = """SELECT MAX(at) FROM (SELECT MAX(expires_at) AS at FROM episodes WHERE status = 'leased'
             UNION SELECT MAX(ended_at) FROM episodes UNION SELECT MAX(at) FROM workers)"""
    return max(started, store.scalar(sql) or 0.0)


def status(name: str, store: RunStore) -> dict[str, Any]:
    """Return a run's current totals, tasks, workers, pace and faults."""
    description, counts, faults = store.described(), store.counts(), store.faults()
    tasks = [
        {
            "task": task,
            "instruction": description["tasks"][task]["instruction"],
            **figures(Rate(count["successes"], count["done"]), count["planned"]),
            **{key: count[key] for key in ("leased", "pending", "broken", "policy_errors", "steps")},
        }
        for task, count in counts.items()
    ]
    return {
        **row(name, store),
        "tasks": tasks,
        "steps": sum(count["steps"] for count in counts.values()),
        "workers": store.workers(),
        "faults": [vars(fault) for fault in faults[-LAST_FAULTS:]],
        "fault_count": len(faults),
        **pace(store, counts, time.time()),
    }


def pace(store: RunStore, counts: Mapping[int, Mapping[str, int]], now: float) -> dict[str, Any]:
    """Return the last invocation's seconds, steps per second, and the remaining seconds (None: unknown).

    The pace excludes the start of the simulators and includes steps of running episodes.
    """
    invocations = store.invocations()
    if not invocations:
        return {"seconds": 0.0, "steps_per_s": 0.0, "left_s": None}
    last = invocations[-1]
    until = last["ended"] or min(now, _last_heartbeat(store, last["started"]))
    seconds = max(until - last["started"], 1e-9)
    leased_here = "FROM episodes WHERE session = ? AND status IN ('done', 'leased')"
    steps_done = store.scalar(f"SELECT COALESCE(SUM(steps), 0) {leased_here}", last["id"])
    first = store.scalar(f"SELECT MIN(leased_at) {leased_here}", last["id"]) or until
    steps_per_s = steps_done / max(until - first, 1e-9)
    names = "planned", "done", "steps", "steps_of_done"
    planned, done, steps, steps_of_done = (sum(count[name] for count in counts.values()) for name in names)
    left_s = None
    if done < planned and steps_per_s and last["ended"] is None and last["id"] in store.done_by_invocation():
        left_s = max(0.0, steps_of_done / done * planned - steps) / steps_per_s
    return {"seconds": seconds, "steps_per_s": steps_per_s, "left_s": left_s}


def episode_to_dict(finished: Finished) -> dict[str, Any]:
    """Return a finished episode as JSON types; film and still are file names in the run's videos directory."""
    result = finished.result
    return {
        "task": finished.task,
        "episode": finished.episode,
        "attempt": finished.attempt,
        "success": finished.success,
        "steps": finished.steps,
        "worker": finished.worker,
        "seconds": result.get("timings_ms", {}).get("total", 0.0) / 1e3,
        "policy_error": result.get("policy_error"),
        "film": Path(result["video"]).name if result.get("video") else None,
        "still": Path(result["still"]).name if result.get("still") else None,
    }


def report(store: RunStore) -> dict[str, Any]:
    """Return a run's identity, invocations, episodes and the time per step of each stage."""
    identity, episodes = store.meta("identity"), store.finished()
    steps = max(sum(episode.steps for episode in episodes), 1)
    spent = {
        key: sum(episode.result.get("timings_ms", {}).get(key, 0.0) for episode in episodes) for key, _, _ in STAGES
    }
    return {
        "identity": identity,
        "invocations": store.invocations(),
        "episodes": [episode_to_dict(episode) for episode in episodes],
        "stages": [{"name": label, "ms_per_step": spent[key] / steps} for key, label, _ in STAGES if spent[key] > 0],
    }


def comparison_to_dict(result: Comparison, left: RunStore, right: RunStore) -> dict[str, Any]:
    """Return a comparison of two runs as JSON types, with every pair of episodes."""
    tasks = left.described()["tasks"]
    a, b = ({(episode.task, episode.episode): episode for episode in store.finished()} for store in (left, right))
    return {
        "a": figures(result.a, result.pairs),
        "b": figures(result.b, result.pairs),
        "only_a": result.only_a,
        "only_b": result.only_b,
        "difference": result.difference,
        "interval": list(result.interval),
        "p_value": result.p_value,
        "left_out": result.left_out,
        "policy_errors": list(result.policy_errors),
        "beside": result.beside,
        "warnings": result.warnings,
        "tasks": [
            {
                "task": task,
                "instruction": tasks[task]["instruction"],
                "a": figures(rate_a, rate_a.trials),
                "b": figures(rate_b, rate_b.trials),
            }
            for task, (rate_a, rate_b) in result.tasks.items()
        ],
        "pairs": [
            {"task": key[0], "episode": key[1], "a": episode_to_dict(a[key]), "b": episode_to_dict(b[key])}
            for key in sorted(a.keys() & b.keys())
        ],
    }
