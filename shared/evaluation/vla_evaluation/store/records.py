"""The run store's schema, the records it returns, and its errors as messages."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE sessions (id INTEGER PRIMARY KEY, started REAL NOT NULL, ended REAL, outcome TEXT, notes TEXT NOT NULL);
CREATE TABLE workers (worker TEXT PRIMARY KEY, session INTEGER NOT NULL, status TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE episodes (
    config_hash TEXT NOT NULL, suite TEXT NOT NULL, task INTEGER NOT NULL, episode INTEGER NOT NULL,
    attempt INTEGER NOT NULL, status TEXT NOT NULL CHECK (status IN ('pending', 'leased', 'done', 'error', 'lost')),
    session INTEGER, worker TEXT, token TEXT, leased_at REAL, expires_at REAL, ended_at REAL,
    success INTEGER, steps INTEGER, result TEXT, error TEXT,
    PRIMARY KEY (config_hash, suite, task, episode, attempt)
);
CREATE UNIQUE INDEX counted_once ON episodes (config_hash, suite, task, episode) WHERE status = 'done';
CREATE UNIQUE INDEX open_once ON episodes (config_hash, suite, task, episode) WHERE status IN ('pending', 'leased');
CREATE INDEX by_status ON episodes (status, task);
"""
DAMAGED = (
    "the file is damaged and was not changed; restore it from a backup, or move its run directory away and start a new "
    "run. `sqlite3 {name} .recover` may save its rows"
)
HINTS = {  # part of SQLite's text of an error → the next step
    "full": "the disk is full; free some space, then resume this run. Finished episodes are stored",
    "readonly": "the volume is read-only; make it writable or choose another volume (VLALAB_VOLUME)",
    "read-only": "the volume is read-only; make it writable or choose another volume (VLALAB_VOLUME)",
    **dict.fromkeys(("malformed", "decode", "not a database"), DAMAGED),
    "locked": "another process has locked it; close other evaluators and database browsers",
    "disk I/O": "check that the directory exists and is writable, and that its disk is neither full nor damaged",
    "unable to open": "check that the directory exists and is writable, and that its disk is neither full nor damaged",
    "": "unexpected; the file was not changed",
}
Counts = dict[int, dict[str, int]]  # by task; see `StoreReader.counts`


class StoreError(Exception):
    """The store cannot be read or written; the message has the reason and the next step."""


@dataclass(frozen=True)
class Lease:
    """The right to run one attempt at one episode until `expires_at` (s since the epoch), at one policy address."""

    config_hash: str
    suite: str
    task: int
    episode: int
    attempt: int
    token: str
    expires_at: float
    policy: str = ""

    @property
    def stem(self) -> str:
        """The name of the episode's files, without a suffix."""
        return f"{self.task:02d}-{self.episode:02d}"


@dataclass(frozen=True)
class Finished:
    """A finished episode: the one row that counts."""

    task: int
    episode: int
    attempt: int
    success: bool
    steps: int
    worker: str
    ended_at: float
    result: dict[str, Any]


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that ended without a result: `status` is 'error' (reported) or 'lost' (worker gone)."""

    task: int
    episode: int
    attempt: int
    status: str
    invocation: int
    worker: str
    error: str


def total(counts: Mapping[int, Mapping[str, int]], key: str) -> int:
    """Return the sum of one of the counts over all tasks."""
    return sum(row[key] for row in counts.values())


def unfinished(counts: Mapping[int, Mapping[str, int]]) -> int:
    """Return the number of planned episodes that are not done."""
    return total(counts, "planned") - total(counts, "done")


def to_json(value: object) -> str:
    """Return JSON that SQLite can read. ValueError for a NaN or an infinity, which are not JSON."""
    return json.dumps(value, allow_nan=False)


def from_json(text: str) -> Any:
    """Return the value of stored JSON, with '?' for half a surrogate pair. JSONDecodeError for NaN and infinity."""

    def reject(constant: str) -> None:
        raise json.JSONDecodeError(f"{constant} is not JSON", text, text.find(constant))

    value = json.loads(text, parse_constant=reject)
    if "\\ud" in text:
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


@contextmanager
def as_damage(path: Path) -> Iterator[None]:
    """Raise StoreError, naming the store, if the code inside cannot use values that SQLite could read."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise explain(sqlite3.DatabaseError(f"malformed: {type(error).__name__}: {error}"), path) from error


def explain(error: sqlite3.Error | json.JSONDecodeError, path: Path) -> StoreError:
    """Return a read or write error with the next step."""
    text = f"malformed: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
    hint = next(hint for part, hint in HINTS.items() if part in text)
    return StoreError(f"run store {path}: {text}; {hint.format(name=path.name)}")
