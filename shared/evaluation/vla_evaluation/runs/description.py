"""A run as JSON types, from its store: its row in a list, everything about it, and its comparison with another.

Rates and intervals are in [0, 1], times in s since 1970.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_evaluation.config import fact, flatten
from vla_evaluation.report.compare import compare
from vla_evaluation.report.data import STAGES
from vla_evaluation.report.stats import Rate
from vla_evaluation.store.records import Finished, total
from vla_evaluation.store.runstore import RunStore

HEARTBEAT_TIMEOUT_S = 180.0  # an evaluator without a heartbeat for so long counts as killed
LAST_FAULTS = 50


def run_row(name: str, store: RunStore) -> dict[str, Any]:
    """Return a run's row for the list."""
    identity, counts = store.meta("identity"), store.counts()
    planned, done, good = (total(counts, key) for key in ("planned", "done", "successes"))
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
        "policy_errors": total(counts, "policy_errors"),
        **pace(store, counts, time.time()),
    }


def figures(rate: Rate, planned: int) -> dict[str, Any]:
    """Return a rate with its 95 % Wilson interval, and the number of planned episodes."""
    return {"planned": planned, **rate.to_json()}


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


def run_details(name: str, store: RunStore) -> dict[str, Any]:
    """Return a run's totals, tasks, workers, pace, faults, identity, episodes, and the time per step of each stage."""
    tasks, counts, faults, finished = store.described()["tasks"], store.counts(), store.faults(), store.finished()
    steps = max(sum(one.steps for one in finished), 1)
    spent = {key: sum(one.result.get("timings_ms", {}).get(key, 0.0) for one in finished) for key, _, _ in STAGES}
    return {
        **run_row(name, store),
        "tasks": [
            {
                "task": task,
                "instruction": tasks[task]["instruction"],
                **figures(Rate(count["successes"], count["done"]), count["planned"]),
                **{key: count[key] for key in ("leased", "pending", "broken", "policy_errors", "steps")},
            }
            for task, count in counts.items()
        ],
        "steps": total(counts, "steps"),
        "workers": store.workers(),
        "faults": [vars(fault) for fault in faults[-LAST_FAULTS:]],
        "fault_count": len(faults),
        "identity": store.meta("identity"),
        "invocations": store.invocations(),
        "episodes": [episode(one) for one in finished],
        "stages": [{"name": label, "ms_per_step": spent[key] / steps} for key, label, _ in STAGES if spent[key] > 0],
    }


def pace(store: RunStore, counts: Mapping[int, Mapping[str, int]], now: float) -> dict[str, Any]:
    """Return the seconds of all invocations, the last one's steps per second, and the seconds left (None: unknown).

    The pace excludes the start of the simulators and includes steps of running episodes.
    """
    invocations = store.invocations()
    if not invocations:
        return {"seconds": 0.0, "steps_per_s": 0.0, "left_s": None}
    last = invocations[-1]
    until = last["ended"] or min(now, _last_heartbeat(store, last["started"]))
    leased_here = "FROM episodes WHERE session = ? AND status IN ('done', 'leased')"
    steps_done = store.scalar(f"SELECT COALESCE(SUM(steps), 0) {leased_here}", last["id"])
    first = store.scalar(f"SELECT MIN(leased_at) {leased_here}", last["id"]) or until
    steps_per_s = steps_done / max(until - first, 1e-9)
    planned, done, steps = (total(counts, name) for name in ("planned", "done", "steps"))
    left_s = None
    if done < planned and steps_per_s and last["ended"] is None and last["id"] in store.done_by_invocation():
        left_s = max(0.0, total(counts, "steps_of_done") / done * planned - steps) / steps_per_s
    seconds = (
        until - last["started"] + sum((one["ended"] or one["started"]) - one["started"] for one in invocations[:-1])
    )
    return {"seconds": max(seconds, 1e-9), "steps_per_s": steps_per_s, "left_s": left_s}


def episode(finished: Finished) -> dict[str, Any]:
    """Return a finished episode; film and still are file names in the run's videos directory."""
    result = finished.result
    return {
        "task": finished.task,
        "episode": finished.episode,
        "attempt": finished.attempt,
        "success": finished.success,
        "steps": finished.steps,
        "worker": finished.worker,
        "ended_at": finished.ended_at,
        "seconds": result.get("timings_ms", {}).get("total", 0.0) / 1e3,
        "policy_error": result.get("policy_error"),
        "film": Path(result["video"]).name if result.get("video") else None,
        "still": Path(result["still"]).name if result.get("still") else None,
    }


def comparison(left: RunStore, right: RunStore, force: bool = False) -> dict[str, Any]:
    """Return the comparison of two runs with every pair. Raises Unpaired if they cannot be compared."""
    result, identities = compare(left, right, force), [flatten(store.meta("identity")) for store in (left, right)]
    tasks = left.described()["tasks"]
    sides = [{(one.task, one.episode): one for one in store.finished()} for store in (left, right)]
    names = ("only_a", "only_b", "difference", "interval", "p_value", "left_out", "policy_errors", "beside", "warnings")
    return {
        "a": figures(result.a, result.pairs),
        "b": figures(result.b, result.pairs),
        **{name: getattr(result, name) for name in names},
        "settings": [
            {"name": key, "a": fact(identities[0], key), "b": fact(identities[1], key)}
            for key in sorted({*identities[0], *identities[1]})
            if fact(identities[0], key) != fact(identities[1], key)
        ],
        "assets": identities[0].get("assets.kind", ""),
        "tasks": [
            {"task": task, "instruction": tasks[task]["instruction"],
             "a": figures(rate_a, rate_a.trials), "b": figures(rate_b, rate_b.trials)}
            for task, (rate_a, rate_b) in result.tasks.items()
        ],
        "pairs": [
            {"task": key[0], "episode": key[1], "a": episode(sides[0][key]), "b": episode(sides[1][key])}
            for key in sorted(sides[0].keys() & sides[1].keys())
        ],
    }  # fmt: skip
