"""The volume's runs as JSON types, from their stores: list, status, results, comparison and leaderboard.

Rates and intervals are in [0, 1], times in s since 1970.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from services.ui.site.requests import NotFound, PageError
from services.ui.volume import files
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import fact, flatten
from vla_evaluation.report import leaderboard
from vla_evaluation.report.compare import Unpaired, compare
from vla_evaluation.report.data import STAGES
from vla_evaluation.report.leaderboard import LeaderboardEntry
from vla_evaluation.report.stats import Rate
from vla_evaluation.runs.directories import STORE
from vla_evaluation.store.records import Finished, StoreError, as_damage
from vla_evaluation.store.runstore import RunStore

HEARTBEAT_TIMEOUT_S = 180.0  # an evaluator without a heartbeat for so long counts as killed
LAST_FAULTS = 50
MAX_LOG = 8000  # bytes: the end of a worker's log
MAX_CACHED = 8192
T = TypeVar("T")


class Stores:
    """Reader of the stores below a volume's root, cached until they change. Thread-safe."""

    def __init__(self, root: Path):
        self.root = root
        self._cache: dict[tuple[str, str], tuple[list, float, Any]] = {}

    def read(self, name: str, reader: Callable[[str, RunStore], T]) -> T:
        """Return the reader's result for a run's store. Raises NotFound, and StoreError for a damaged one."""
        with self._open(name) as store:
            return reader(name, store)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per run, latest first; a damaged one has only name, state and reason."""
        rows = []
        for name in files.runs(self.root):
            row = self._cached(name, run_row)
            if isinstance(row, str):
                _, changed_ns = self._fingerprint(name)[0] or (0, 0)
                row = {"name": name, "state": "damaged", "why": row, "created": changed_ns / 1e9}
            rows.append(row)
        return sorted(rows, key=lambda row: (-row["created"], row["name"]))

    def details(self, name: str) -> dict[str, Any]:
        """Return all about a run."""
        return self.read(name, run_details)

    def compare(self, a: str, b: str, force: bool = False) -> dict[str, Any]:
        """Return the comparison of two runs with every pair. Raises PageError if they cannot be compared."""
        with self._open(a) as left, self._open(b) as right:
            try:
                result = compare(left, right, force)
            except Unpaired as error:  # elsewhere a ValueError means a damaged store
                raise PageError(409, str(error)) from error
            tasks, identities = left.described()["tasks"], [flatten(store.meta("identity")) for store in (left, right)]
            sides = [{(one.task, one.episode): one for one in store.finished()} for store in (left, right)]
        names = ("only_a", "only_b", "difference", "interval", "p_value", "left_out", "policy_errors", "beside")
        return {
            "a": figures(result.a, result.pairs),
            "b": figures(result.b, result.pairs),
            **{name: getattr(result, name) for name in (*names, "warnings")},
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

    def logs(self, name: str) -> dict[str, str]:
        """Return the end of each worker's log, without empty ones."""
        ends = {}
        for log in files.names(self.root, "runs", name, "logs"):
            with open(files.open_file(self.root, "runs", name, "logs", log), "rb") as file:
                start = max(os.fstat(file.fileno()).st_size - MAX_LOG, 0)
                ends[log] = os.pread(file.fileno(), MAX_LOG, start).decode(errors="replace")
        return {log: end for log, end in ends.items() if end.strip()}

    def board(self) -> dict[str, Any]:
        """Return the leaderboard of all runs; damaged ones are left out with the reason."""
        entries = {name: self._cached(name, leaderboard.read) for name in files.runs(self.root)}
        unreadable = {name: f"cannot be read: {entry}" for name, entry in entries.items() if isinstance(entry, str)}
        readable = [entry for entry in entries.values() if isinstance(entry, LeaderboardEntry)]
        return leaderboard.board(readable, unreadable)

    def _cached(self, name: str, reader: Callable[[str, RunStore], T]) -> T | str:
        """Return the reader's result for a run, or why it cannot be read."""
        mark, key = self._fingerprint(name), (name, reader.__name__)
        previous, read_at, result = self._cache.get(key, (None, 0.0, None))
        is_running = isinstance(result, dict) and result["state"] == "running"  # becomes "stopped" without a change
        if previous != mark or (is_running and time.monotonic() - read_at >= HEARTBEAT_TIMEOUT_S / 2):
            try:
                result = self.read(name, reader)
            except (StoreError, NotFound) as error:
                result = str(error)
            if len(self._cache) > MAX_CACHED:
                self._cache.clear()
            self._cache[key] = mark, time.monotonic(), result
        return result

    def _fingerprint(self, name: str) -> list[tuple[int, int] | None]:
        """Return size and time of the store's file and its log; reading creates an empty log, which is no change."""
        marks = files.fingerprints(self.root, ("runs", name), (STORE, f"{STORE}-wal"))
        return [mark if mark and mark[0] else None for mark in marks]

    @contextmanager
    def _open(self, name: str) -> Iterator[RunStore]:
        try:
            os.close(files.open_file(self.root, "runs", name, STORE))  # checks that it is a regular file, not a link
        except NotFound:
            raise NotFound(f"run {name!r} not found{did_you_mean(name, files.runs(self.root))}") from None
        path = self.root / "runs" / name / STORE
        with as_damage(path), RunStore(path, readonly=True, check=False) as store:
            yield store


def run_row(name: str, store: RunStore) -> dict[str, Any]:
    """Return a run's row for the list."""
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
        "steps": sum(count["steps"] for count in counts.values()),
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
    names = "planned", "done", "steps", "steps_of_done"
    planned, done, steps, steps_of_done = (sum(count[name] for count in counts.values()) for name in names)
    left_s = None
    if done < planned and steps_per_s and last["ended"] is None and last["id"] in store.done_by_invocation():
        left_s = max(0.0, steps_of_done / done * planned - steps) / steps_per_s
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
