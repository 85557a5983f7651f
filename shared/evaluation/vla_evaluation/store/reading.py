"""Reading of a run's store."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from vla_evaluation.store.records import (
    SCHEMA_VERSION,
    Counts,
    FailedAttempt,
    Finished,
    Lease,
    StoreError,
    explain,
    from_json,
)

BUSY_TIMEOUT_S = 60.0  # wait for other processes that write
SHARED_MEMORY_BYTES = 2**16  # on disk, of a store that is read
NEXT_SESSION = 2**62  # later than any session
EPISODE_KEY = "config_hash = :config_hash AND suite = :suite AND task = :task AND episode = :episode"
POLICY = "json_extract(result, '$.policy')"  # the address that an attempt used
LEASE = f"config_hash, suite, task, episode, attempt, token, expires_at, COALESCE({POLICY}, '')"
FINISHED = ", ".join(field.name for field in fields(Finished))  # its columns
# The session that tried to render the video, or should have.
VIDEO_SESSION = "COALESCE(json_extract(result, '$.video_session'), session)"
HAS_PREFIX = "worker >= :prefix AND worker < :prefix || char(0x10ffff)"
FAULT_OF_INVOCATION = "status IN ('error', 'lost') AND session = (SELECT MAX(id) FROM sessions)"

Self = TypeVar("Self", bound="StoreReader")


class StoreReader:
    """One connection to a run's store."""

    def __init__(self, path: Path, readonly: bool = False, check: bool = True):
        """Open an existing store. Raises StoreError if it is missing, damaged or of another version.

        `check` reads the whole file in search of damage, which takes a moment when it is large.
        """
        self.path = Path(path)
        if not self.path.is_file():
            raise StoreError(f"run store {path} not found; list the runs with ./lab runs")
        mode = "mode=ro" if readonly else "mode=rw"
        disk = os.statvfs(self.path.parent)
        is_full = disk.f_bavail * disk.f_frsize < SHARED_MEMORY_BYTES and not Path(f"{self.path}-wal").exists()
        if readonly and (is_full or not os.access(self.path.parent, os.W_OK)):
            mode += "&immutable=1"  # no process writes, and SQLite cannot create its shared-memory file
        address = f"{self.path.absolute().as_uri()}?{mode}"
        with self._errors():
            self.db = sqlite3.connect(
                address, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self.db.row_factory = sqlite3.Row
            if not readonly:
                # A file system without shared memory keeps the rollback journal.
                with suppress(sqlite3.OperationalError):
                    self.db.execute("PRAGMA journal_mode = WAL")
                self.db.execute("PRAGMA synchronous = FULL")  # a committed row survives a power cut, not just kill -9
            problem = self.db.execute("PRAGMA quick_check(1)").fetchone()[0] if check else "ok"
            if problem != "ok":
                raise sqlite3.DatabaseError(f"malformed: {problem}")
        version = self.scalar("PRAGMA user_version")
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"run store {path} has schema version {version}, this program writes {SCHEMA_VERSION}; "
                "read it with the version that wrote it, or start a new run"
            )
        self.config_hash = self.meta("config_hash")
        self.suite = self.meta("suite")

    def close(self) -> None:
        self.db.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise StoreError for errors of SQLite and for stored text that is not JSON."""
        try:
            yield
        except (sqlite3.Error, json.JSONDecodeError) as error:
            if isinstance(error, json.JSONDecodeError) or "malformed JSON" in str(error):
                invalid = "result IS NOT NULL AND NOT json_valid(result)"
                with suppress(sqlite3.Error):
                    row = self.db.execute(f"SELECT task, episode FROM episodes WHERE {invalid}").fetchone()
                    if row is not None:
                        repair = f"UPDATE episodes SET status = 'error', result = NULL WHERE {invalid}"
                        raise StoreError(
                            f"run store {self.path}: the result of task {row[0]} episode {row[1]} is not valid JSON; "
                            f'discard it with: sqlite3 {self.path} "{repair}"; then --resume runs the episode again'
                        ) from error
            raise explain(error, self.path) from error

    def rows(self, sql: str, values: Any = ()) -> list[Any]:
        with self._errors():
            return self.db.execute(sql, values).fetchall()

    def scalar(self, sql: str, *values: Any) -> Any:
        """Return the first value of a query's result, None for an empty one."""
        named = values and isinstance(values[0], dict)
        with self._errors():
            row = self.db.execute(sql, values[0] if named else values).fetchone()
        return None if row is None else row[0]

    # --- the run ------------------------------------------------------------------------------------------

    def meta(self, key: str, default: Any = None) -> Any:
        """Return the stored value of `key`, as JSON types."""
        value = self.scalar("SELECT value FROM meta WHERE key = ?", key)
        with self._errors():
            return default if value is None else from_json(value)

    def described(self) -> dict[str, Any]:
        """Return the run's description of its tasks, profile and assets, which spares a reader the benchmark."""
        if (description := self.meta("about")) is None:
            raise StoreError(
                f"run store {self.path} is of an older version without task names; its report.html is unchanged. "
                "Read it with the version that wrote it, or resume the run with --allow-drift, which adds them"
            )
        return description

    def invocations(self) -> list[dict[str, Any]]:
        with self._errors():
            rows = self.db.execute("SELECT * FROM sessions ORDER BY id").fetchall()
            return [{**dict(row), "notes": from_json(row["notes"])} for row in rows]

    def plan(self) -> list[tuple[int, int]]:
        """Return the planned (task, episode) pairs in order."""
        sql = "SELECT DISTINCT task, episode FROM episodes ORDER BY task, episode"
        return [tuple(row) for row in self.rows(sql)]

    def open(self) -> bool:
        """Return whether any episode is pending or leased."""
        return bool(self.scalar("SELECT 1 FROM episodes WHERE status IN ('pending', 'leased') LIMIT 1"))

    # --- leases -------------------------------------------------------------------------------------------

    def leases(self, prefix: str = "") -> dict[str, Lease]:
        """Return the current leases by worker, of those whose names begin with `prefix`."""
        sql = f"SELECT worker, {LEASE} FROM episodes WHERE status = 'leased' AND {HAS_PREFIX}"
        return {worker: Lease(*lease) for worker, *lease in self.rows(sql, {"prefix": prefix})}

    def by_token(self, token: str) -> Lease | None:
        """Return the lease with that token whose episode is leased or done, None if there is none."""
        sql = f"SELECT {LEASE} FROM episodes WHERE token = ? AND status IN ('leased', 'done')"
        return next((Lease(*row) for row in self.rows(sql, (token,))), None)

    def ended_as(self, lease: Lease, status: str) -> bool:
        """Return whether this lease has ended with `status`, so a repeated call gets the same answer."""
        attempt = f"{EPISODE_KEY} AND attempt = :attempt AND token = :token"
        sql = f"SELECT 1 FROM episodes WHERE {attempt} AND status = :status"
        return bool(self.scalar(sql, {**lease.__dict__, "status": status}))

    def is_last_try_of_policy(self, lease: Lease, retries: int) -> bool:
        """Return whether no retry is left in this invocation and the policy's own errors ended all earlier tries."""
        sql = f"""SELECT COUNT(*), COALESCE(SUM(json_extract(result, '$.by_policy')), 0) FROM episodes
                  WHERE {EPISODE_KEY} AND {FAULT_OF_INVOCATION}"""
        faults, by_policy = self.rows(sql, lease.__dict__)[0]
        return faults == by_policy >= retries

    # --- sums ---------------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """Return per task: planned, done, successes, policy_errors (ended by the policy's own answer; done, and no
        success), leased, pending, broken (out of tries), steps (so far), steps_of_done (of finished episodes).
        """
        sql = """SELECT task, COUNT(DISTINCT episode) AS planned, SUM(status = 'done') AS done,
                 SUM(status = 'done' AND success) AS successes,
                 SUM(status = 'done' AND error IS NOT NULL) AS policy_errors, SUM(status = 'leased') AS leased,
                 SUM(status = 'pending') AS pending,
                 SUM(CASE WHEN status IN ('done', 'leased') THEN steps ELSE 0 END) AS steps,
                 SUM(CASE WHEN status = 'done' THEN steps ELSE 0 END) AS steps_of_done
                 FROM episodes GROUP BY task ORDER BY task"""
        rows = [dict(row) for row in self.rows(sql)]
        for row in rows:
            row["broken"] = row["planned"] - row["done"] - row["leased"] - row["pending"]
        return {row.pop("task"): row for row in rows}

    def done_by_invocation(self) -> dict[int, int]:
        """Return the number of episodes that each invocation finished."""
        sql = "SELECT session, COUNT(*) FROM episodes WHERE status = 'done' GROUP BY session"
        return dict(self.rows(sql))

    def by_worker(self, invocation: int | None = None) -> list[dict[str, Any]]:
        """Return per worker, in one invocation or in each: episodes finished, their steps and ms, faults."""
        sql = f"""SELECT worker, SUM(status = 'done') AS episodes, SUM(CASE status WHEN 'done' THEN steps ELSE 0 END)
                  AS steps, SUM(CASE status WHEN 'done' THEN json_extract(result, '$.timings_ms.total') END) AS ms,
                  SUM(status IN ('error', 'lost')) AS faults FROM episodes WHERE worker IS NOT NULL
                  {"" if invocation is None else "AND session = :session"} GROUP BY session, worker"""
        return [dict(row) for row in self.rows(sql, {"session": invocation})]

    def by_policy(self) -> list[dict[str, Any]]:
        """Return counts per policy address, like `by_worker`."""
        sql = f"""SELECT {POLICY} AS policy, SUM(status = 'done') AS episodes,
                  SUM(CASE status WHEN 'done' THEN steps ELSE 0 END) AS steps,
                  SUM(status IN ('error', 'lost')) AS faults
                  FROM episodes WHERE {POLICY} IS NOT NULL AND status NOT IN ('pending', 'leased')
                  GROUP BY policy ORDER BY policy"""
        return [dict(row) for row in self.rows(sql)]

    def spent(self, invocation: int) -> dict[str, float]:
        """Return the ms of an invocation's finished episodes: total, policy, server_queue and server_infer."""
        names = ("total", "policy", "server_queue", "server_infer")
        sums = ", ".join(f"TOTAL(json_extract(result, '$.timings_ms.{name}')) AS {name}" for name in names)
        sql = f"SELECT {sums} FROM episodes WHERE status = 'done' AND session = ?"
        return dict(self.rows(sql, (invocation,))[0])

    # --- episodes -----------------------------------------------------------------------------------------

    def finished(self) -> list[Finished]:
        """Return every finished episode, ordered by task and episode."""
        sql = f"SELECT {FINISHED} FROM episodes WHERE status = 'done' ORDER BY task, episode"
        rows = self.rows(sql)
        with self._errors():
            read = [{**row, "success": bool(row["success"]), "result": from_json(row["result"])} for row in rows]
        return [Finished(**row) for row in read]

    def outcomes(self) -> dict[tuple[int, int], tuple[bool, bool]]:
        """Return for every finished (task, episode) whether it succeeded and whether the policy's answer ended it."""
        sql = "SELECT task, episode, success, error IS NOT NULL FROM episodes WHERE status = 'done'"
        return {(row[0], row[1]): (bool(row[2]), bool(row[3])) for row in self.rows(sql)}

    def faults(self, invocation: int | None = None) -> list[FailedAttempt]:
        """Return the attempts that ended without a result, of one invocation or of all."""
        sql = """SELECT task, episode, attempt, status, session, worker, error FROM episodes
                 WHERE status IN ('error', 'lost') AND (:session IS NULL OR session = :session)
                 ORDER BY session, ended_at"""
        return [FailedAttempt(*row) for row in self.rows(sql, {"session": invocation})]

    def outcome_rank(self, lease: Lease) -> int:
        """Return the number of episodes of the same task and outcome that finished before this one."""
        return self.scalar(
            """SELECT COUNT(*) FROM episodes AS other, episodes AS own
                WHERE own.config_hash = :config_hash AND own.suite = :suite AND own.task = :task
                AND own.episode = :episode AND own.attempt = :attempt AND other.status = 'done'
                AND other.task = own.task AND other.success = own.success
                AND (other.session, other.ended_at, other.episode) < (own.session, own.ended_at, own.episode)""",
            lease.__dict__,
        )

    def missing_videos(self, invocation: int, wants_video: Callable[[bool, int], bool]) -> list[Lease]:
        """Return episodes of earlier invocations that should have a video, by outcome and place, and have none."""
        sql = f"""SELECT success, place, {LEASE} FROM
                  (SELECT *, ROW_NUMBER() OVER (PARTITION BY task, success ORDER BY session, ended_at, episode) - 1
                   AS place FROM episodes WHERE status = 'done')
                  WHERE json_extract(result, '$.video') IS NULL AND {VIDEO_SESSION} < ? ORDER BY task, episode"""
        rows = self.rows(sql, (invocation,))
        return [Lease(*lease) for success, rank, *lease in rows if wants_video(bool(success), rank)]

    def workers(self, prefix: str = "") -> dict[str, str]:
        """Return each worker's status, of those whose names begin with `prefix`."""
        rows = self.rows(f"SELECT worker, status FROM workers WHERE {HAS_PREFIX} ORDER BY worker", {"prefix": prefix})
        return dict(rows)
