"""Read the stores of the volume's runs, cached until they change."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from services.ui.site.problem import NotFound, PageError
from services.ui.volume import files, run_status
from vla_common import anchored
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.report import leaderboard
from vla_evaluation.report.compare import Unpaired, compare
from vla_evaluation.report.leaderboard import Board, LeaderboardEntry
from vla_evaluation.runs.directories import STORE
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore

STATUS_TTL_S = 0.5  # shared by all browsers that watch a run
MAX_CACHED = 4096
T = TypeVar("T")


class Stores:
    """Reader of the stores below a volume's root. Thread-safe."""

    def __init__(self, root: Path):
        self.root, self._lock = root, threading.Lock()
        self._rows: dict[str, tuple[tuple, float, dict[str, Any]]] = {}
        self._standings: dict[str, tuple[float, dict[str, Any]]] = {}
        self._entries: dict[str, tuple[tuple, LeaderboardEntry | str]] = {}

    def read(self, name: str, reader: Callable[[RunStore], T]) -> T:
        """Return the reader's result for a run's store. Raises NotFound, and StoreError for a damaged one."""
        with self._open(name) as store:
            return reader(store)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per run, latest first; a damaged one has only name, state and reason."""
        rows = [self._row(name) for name in files.names_of_runs(self.root)]
        return sorted(rows, key=lambda row: (-row["created"], row["name"]))

    def details(self, name: str) -> dict[str, Any]:
        """Return a run's status, its report data, and every finished episode."""
        return {**self.status(name), **self.read(name, run_status.report)}

    def compare(self, a: str, b: str, force: bool = False) -> dict[str, Any]:
        """Return the comparison of two runs with every pair. Raises Problem if they cannot be compared."""
        with self._open(a) as left, self._open(b) as right:
            try:
                result = compare(left, right, force)
            except Unpaired as error:  # elsewhere a ValueError means a damaged store
                raise PageError(409, str(error)) from error
            return run_status.comparison_to_dict(result, left, right)

    def board(self) -> Board:
        """Return the leaderboard of all runs; damaged ones are left out with the reason."""
        entries = {name: self._entry(name) for name in files.names_of_runs(self.root)}
        unreadable = {name: f"cannot be read: {why}" for name, why in entries.items() if isinstance(why, str)}
        return leaderboard.board(
            [entry for entry in entries.values() if isinstance(entry, LeaderboardEntry)], unreadable
        )

    def _entry(self, name: str) -> LeaderboardEntry | str:
        """Return a run's leaderboard entry, or why it cannot be read; cached until its store changes."""
        mark = self._fingerprint(name)
        previous, entry = self._entries.get(name, (None, ""))
        if previous != mark:
            try:
                entry = self.read(name, lambda store: leaderboard.read(name, store))
            except (StoreError, NotFound) as error:
                entry = str(error)
            _bound(self._entries)[name] = mark, entry
        return entry

    def status(self, name: str) -> dict[str, Any]:
        """Return a run's status, cached for STATUS_TTL_S."""
        with self._lock:
            at, status = self._standings.get(name, (0.0, {}))
            if time.monotonic() - at < STATUS_TTL_S and status:
                return status
            status = self.read(name, lambda store: run_status.status(name, store))
            _bound(self._standings, 64)[name] = time.monotonic(), status
            return status

    def _row(self, name: str) -> dict[str, Any]:
        mark = self._fingerprint(name)
        previous, at, row = self._rows.get(name, (None, 0.0, {}))
        is_fresh = row.get("state") != "running" or time.monotonic() - at < run_status.HEARTBEAT_TIMEOUT_S / 2
        if previous != mark or not is_fresh:
            try:
                row = self.read(name, lambda store: run_status.row(name, store))
            except (StoreError, NotFound) as error:
                changed = mark[0][1] / 1e9 if mark else 0.0
                row = {"name": name, "state": "damaged", "why": str(error), "created": changed}
            _bound(self._rows)[name] = mark, time.monotonic(), row
        return row

    def _fingerprint(self, name: str) -> tuple:
        """Return sizes and times of the store's file and its log."""
        try:
            with anchored.directory(self.root, "runs", name) as directory:
                return tuple(_status(directory, file) for file in (STORE, f"{STORE}-wal"))
        except OSError:
            return ()

    @contextmanager
    def _open(self, name: str) -> Iterator[RunStore]:
        try:
            os.close(files.open_file(self.root, "runs", name, STORE))  # checks that it is a regular file, not a link
        except NotFound:
            names = files.names_of_runs(self.root)
            raise NotFound(f"run {name!r} not found{did_you_mean(name, names)}") from None
        path = self.root / "runs" / name / STORE
        with as_damage(path), RunStore(path, readonly=True, check=False) as store:
            yield store


def _status(directory: int, name: str) -> tuple[int, int]:
    try:
        entry = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return (0, 0)
    # reading creates an empty log, which is no change
    return (entry.st_size, entry.st_mtime_ns) if stat.S_ISREG(entry.st_mode) and entry.st_size else (0, 0)


def _bound(cache: dict, limit: int = MAX_CACHED) -> dict:
    """Return the cache, emptied if it is too large."""
    if len(cache) > limit:
        cache.clear()
    return cache
