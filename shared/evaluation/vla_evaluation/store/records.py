"""What the run store is made of: its schema, the rows it gives out, and its errors in words."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
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


class StoreError(Exception):
    """The store cannot be read or written; the message says why and what to do."""


@dataclass(frozen=True)
class Lease:
    """The right to run one attempt at one episode until `expires_at` (s since the epoch), asking one policy address."""

    config_hash: str
    suite: str
    task: int
    episode: int
    attempt: int
    token: str
    expires_at: float
    policy: str = ""


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
    result: dict


@dataclass(frozen=True)
class Fault:
    """An attempt that ended without a result: `status` is 'error' (reported) or 'lost' (worker gone)."""

    task: int
    episode: int
    attempt: int
    status: str
    invocation: int
    worker: str
    error: str


def to_json(value: object) -> str:
    """Return JSON that SQLite can read. ValueError for a NaN or an infinity, which are not JSON."""
    return json.dumps(value, allow_nan=False)


def from_json(text: str) -> Any:
    """Return the value of stored JSON, with '?' for half a surrogate pair. JSONDecodeError for NaN and infinity."""

    def refuse(constant: str) -> None:
        raise json.JSONDecodeError(f"{constant} is not JSON", text, text.find(constant))

    value = json.loads(text, parse_constant=refuse)
    if "\\ud" in text:
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


@contextmanager
def as_damage(path: Path) -> Iterator[None]:
    """Turns what makes no sense in a store that SQLite could read into a StoreError that names it."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise explain(sqlite3.DatabaseError(f"malformed: {type(error).__name__}: {error}"), path) from error


def explain(error: sqlite3.Error | json.JSONDecodeError, path: Path) -> StoreError:
    """Returns what an error in reading means for the person who runs the evaluation."""
    text = f"malformed: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
    if "full" in text:
        hint = "the disk is full: free some space, then resume this run; finished episodes are safe"
    elif "readonly" in text or "read-only" in text:
        hint = "the volume is read-only: make it writable or choose another volume (VLALAB_VOLUME)"
    elif "malformed" in text or "decode" in text or "not a database" in text:
        hint = (
            "the file is damaged and was left as it is: restore it from a backup, or move its run folder away "
            f"and start a new run; `sqlite3 {path.name} .recover` may save its rows"
        )
    elif "locked" in text:
        hint = "another process holds it; is a second evaluator or a database browser open?"
    elif "disk I/O" in text or "unable to open" in text:
        hint = "check that the folder exists, is writable and its disk is healthy"
    else:
        hint = "unexpected; the file was left as it is"
    return StoreError(f"run store {path}: {text}; {hint}")
