"""The volume's runs as JSON types, cached: list, details, comparison, logs and leaderboard."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from services.ui.site.requests import NotFound, PageError
from services.ui.volume import files
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.report import leaderboard
from vla_evaluation.report.compare import Unpaired
from vla_evaluation.report.leaderboard import LeaderboardEntry
from vla_evaluation.runs.description import HEARTBEAT_TIMEOUT_S, comparison, run_details, run_row
from vla_evaluation.runs.directories import STORE
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore

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
                return comparison(left, right, force)
            except Unpaired as error:  # elsewhere a ValueError means a damaged store
                raise PageError(409, str(error)) from error

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
