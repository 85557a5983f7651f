"""The stores of the volume's runs, opened to read, and what was read of them, kept until they change."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from services.ui.site.problem import Missing, Problem
from services.ui.volume import files, standing
from vla_common import anchored
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.report import leaderboard
from vla_evaluation.report.compare import Unpaired, compare
from vla_evaluation.report.leaderboard import Board, Entry
from vla_evaluation.runs.directories import STORE
from vla_evaluation.store.records import StoreError, as_damage
from vla_evaluation.store.runstore import RunStore

FRESH_S = 0.5  # many browsers watch a run; its store is read once
KEPT = 4096
Got = TypeVar("Got")


class Stores:
    """Reads stores below a volume's root. Safe to share between threads."""

    def __init__(self, root: Path):
        self.root, self._lock = root, threading.Lock()
        self._rows: dict[str, tuple[tuple, float, dict[str, Any]]] = {}
        self._standings: dict[str, tuple[float, dict[str, Any]]] = {}
        self._entries: dict[str, tuple[tuple, Entry | str]] = {}

    def read(self, name: str, what: Callable[[RunStore], Got]) -> Got:
        """Return what a function reads in a run's store. Raises Missing, and StoreError for a damaged one."""
        with self._open(name) as store:
            return what(store)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per run, the latest first; one of a damaged store has its name, its state and why."""
        found = [self._row(name) for name in files.names_of_runs(self.root)]
        return sorted(found, key=lambda row: (-row["created"], row["name"]))

    def whole(self, name: str) -> dict[str, Any]:
        """Return how a run stands, what its report tells, and every finished episode."""
        return {**self.standing(name), **self.read(name, standing.report)}

    def compare(self, a: str, b: str, force: bool = False) -> dict[str, Any]:
        """Return the comparison of two runs and every pair. Raises Problem where they cannot be compared."""
        with self._open(a) as left, self._open(b) as right:
            try:
                result = compare(left, right, force)
            except Unpaired as error:  # outside, a ValueError means that a store is damaged
                raise Problem(409, str(error)) from error
            return standing.compared(result, left, right)

    def board(self) -> Board:
        """Return the leaderboard of all runs; one of a damaged store is left out, with the reason."""
        found = {name: self._entry(name) for name in files.names_of_runs(self.root)}
        unread = {name: f"it cannot be read: {why}" for name, why in found.items() if isinstance(why, str)}
        return leaderboard.board([one for one in found.values() if isinstance(one, Entry)], unread)

    def _entry(self, name: str) -> Entry | str:
        """Return what the leaderboard takes of a run, or why it cannot be read; read again where its store changed."""
        mark = self._mark(name)
        before, entry = self._entries.get(name, (None, ""))
        if before != mark:
            try:
                entry = self.read(name, lambda store: leaderboard.read(name, store))
            except (StoreError, Missing) as error:
                entry = str(error)
            _bound(self._entries)[name] = mark, entry
        return entry

    def standing(self, name: str) -> dict[str, Any]:
        """Return how a run stands; what was read in the last half second counts."""
        with self._lock:
            at, known = self._standings.get(name, (0.0, {}))
            if time.monotonic() - at < FRESH_S and known:
                return known
            known = self.read(name, lambda store: standing.standing(name, store))
            _bound(self._standings, 64)[name] = time.monotonic(), known
            return known

    def _row(self, name: str) -> dict[str, Any]:
        mark = self._mark(name)
        before, at, row = self._rows.get(name, (None, 0.0, {}))
        lasts = row.get("state") != "running" or time.monotonic() - at < standing.QUIET_S / 2
        if before != mark or not lasts:
            try:
                row = self.read(name, lambda store: standing.row(name, store))
            except (StoreError, Missing) as error:
                changed = mark[0][1] / 1e9 if mark else 0.0
                row = {"name": name, "state": "damaged", "why": str(error), "created": changed}
            _bound(self._rows)[name] = mark, time.monotonic(), row
        return row

    def _mark(self, name: str) -> tuple:
        """Return what changes when a store does: sizes and times of its file and its log."""
        try:
            with anchored.directory(self.root, "runs", name) as directory:
                return tuple(_status(directory, file) for file in (STORE, f"{STORE}-wal"))
        except OSError:
            return ()

    @contextmanager
    def _open(self, name: str) -> Iterator[RunStore]:
        try:
            os.close(files.open_file(self.root, "runs", name, STORE))  # a plain file below the root, behind no link
        except Missing:
            known = files.names_of_runs(self.root)
            raise Missing(f"run {name!r} not found{did_you_mean(name, known)}") from None
        path = self.root / "runs" / name / STORE
        with as_damage(path), RunStore(path, readonly=True, check=False) as store:
            yield store


def _status(directory: int, name: str) -> tuple[int, int]:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return (0, 0)
    # reading makes an empty log: that is no change
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) and found.st_size else (0, 0)


def _bound(cache: dict, most: int = KEPT) -> dict:
    """Return a cache, emptied where it holds too much."""
    if len(cache) > most:
        cache.clear()
    return cache
