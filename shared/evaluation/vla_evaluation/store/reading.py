"""What can be read from a run's store."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from vla_evaluation.store.records import SCHEMA_VERSION, Fault, Finished, Lease, StoreError, explain, from_json

LOCKED_S = 60.0  # how long one process waits while others write
NEXT_SESSION = 2**62  # later than any there is
EPISODE_KEY = "config_hash = :config_hash AND suite = :suite AND task = :task AND episode = :episode"
POLICY = "json_extract(result, '$.policy')"  # the address that an attempt asked
LEASE = f"config_hash, suite, task, episode, attempt, token, expires_at, COALESCE({POLICY}, '')"
FINISHED = ", ".join(field.name for field in fields(Finished))  # its columns
LAST_DRAWN = "COALESCE(json_extract(result, '$.video_session'), session)"  # the invocation that tried, or should have
BEGINS = "worker >= ? AND worker < ?"
FAULT_OF_INVOCATION = "status IN ('error', 'lost') AND session = (SELECT MAX(id) FROM sessions)"

Self = TypeVar("Self", bound="StoreReader")


class StoreReader:
    """One connection to a run's store."""

    def __init__(self, path: Path, readonly: bool = False, check: bool = True):
        """Opens an existing store; StoreError if it is missing, damaged or of another version.

        `check` reads all of it in search of damage, which takes a moment when it is large.
        """
        self.path = Path(path)
        if not self.path.is_file():
            raise StoreError(f"run store {path} does not exist; `runs list` shows the runs there are")
        self._connect(readonly, check)
        with self._reading():
            version = self._scalar("PRAGMA user_version")
            if version != SCHEMA_VERSION:
                raise StoreError(
                    f"run store {path} has schema version {version}, this program writes {SCHEMA_VERSION}; "
                    "read it with the version that made it or start a new run"
                )
            self.config_hash = self.meta("config_hash")
            self.suite = self.meta("suite")

    def _connect(self, readonly: bool, check: bool) -> None:
        mode = "mode=ro" if readonly else "mode=rw"
        if readonly and not os.access(self.path.parent, os.W_OK):
            mode += "&immutable=1"  # nobody writes here, and SQLite could not make its shared-memory file either
        address = f"{self.path.absolute().as_uri()}?{mode}"
        with self._reading():
            self.db = sqlite3.connect(
                address, uri=True, timeout=LOCKED_S, isolation_level=None, check_same_thread=False
            )
            self.db.row_factory = sqlite3.Row
            if not readonly:
                with suppress(
                    sqlite3.OperationalError
                ):  # a file system without shared memory keeps the rollback journal
                    self.db.execute("PRAGMA journal_mode = WAL")
                self.db.execute("PRAGMA synchronous = FULL")  # a committed row survives a power cut, not just kill -9
            problem = self.db.execute("PRAGMA quick_check(1)").fetchone()[0] if check else "ok"
            if problem != "ok":
                raise sqlite3.DatabaseError(f"malformed: {problem}")

    def scalar(self, sql: str, *values):
        """Returns the first value of what a query gives, None where it gives nothing."""
        with self._reading():
            return self._scalar(sql, *values)

    def close(self) -> None:
        self.db.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, json.JSONDecodeError) as error:
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error | json.JSONDecodeError) -> StoreError:
        """As `explain`; a result that is not valid JSON is named, with the command that discards it."""
        if isinstance(error, json.JSONDecodeError) or "malformed JSON" in str(error):
            invalid = "result IS NOT NULL AND NOT json_valid(result)"
            with suppress(sqlite3.Error):
                row = self.db.execute(f"SELECT task, episode FROM episodes WHERE {invalid}").fetchone()
                if row is not None:
                    repair = f"UPDATE episodes SET status = 'error', result = NULL WHERE {invalid}"
                    return StoreError(
                        f"run store {self.path}: the result of task {row[0]} episode {row[1]} is not valid JSON; "
                        f'discard it with: sqlite3 {self.path} "{repair}"; then --resume runs the episode again'
                    )
        return explain(error, self.path)

    def _scalar(self, sql: str, *values):
        row = self.db.execute(sql, values[0] if values and isinstance(values[0], dict) else values).fetchone()
        return None if row is None else row[0]

    def meta(self, key: str, default=None):
        """Returns the recorded fact `key` (JSON types)."""
        with self._reading():
            value = self._scalar("SELECT value FROM meta WHERE key = ?", key)
            return default if value is None else from_json(value)

    def described(self) -> dict:
        """Returns what the run says of its tasks, profile and assets, so that nobody needs the benchmark for it."""
        if (about := self.meta("about")) is None:
            raise StoreError(
                f"run store {self.path} was made before runs told their tasks' names: its report.html is as it was; "
                "read it with the version that made it, or go on with the run (--allow-drift), which adds them"
            )
        return about

    def invocations(self) -> list[dict]:
        with self._reading():
            rows = self.db.execute("SELECT * FROM sessions ORDER BY id").fetchall()
            return [{**dict(row), "notes": from_json(row["notes"])} for row in rows]

    def done_by_invocation(self) -> dict[int, int]:
        """Returns how many episodes each invocation finished."""
        with self._reading():
            rows = self.db.execute("SELECT session, COUNT(*) FROM episodes WHERE status = 'done' GROUP BY session")
            return dict(tuple(row) for row in rows)

    def leases(self, prefix: str = "") -> dict[str, Lease]:
        """Returns the leases that are out, by worker; of those whose names begin so."""
        sql = f"SELECT {LEASE}, worker FROM episodes WHERE status = 'leased' AND {BEGINS}"
        with self._reading():
            rows = self.db.execute(sql, range_of(prefix)).fetchall()
        return {row["worker"]: Lease(*tuple(row)[:-1]) for row in rows}

    def by_token(self, token: str) -> Lease | None:
        """Returns the lease with that token whose episode is under way or done, None where there is none (any more)."""
        with self._reading():
            return self._by_token(token)

    def _by_token(self, token: str) -> Lease | None:
        sql = f"SELECT {LEASE} FROM episodes WHERE token = ? AND status IN ('leased', 'done')"
        row = self.db.execute(sql, (token,)).fetchone()
        return None if row is None else Lease(*tuple(row))

    def ended_as(self, lease: Lease, status: str) -> bool:
        """Returns whether this very lease has ended so: its holder says it again, having heard no answer."""
        sql = (
            f"SELECT 1 FROM episodes WHERE {EPISODE_KEY} AND attempt = :attempt AND token = :token AND status = :status"
        )
        with self._reading():
            return bool(self._scalar(sql, {**lease.__dict__, "status": status}))

    def is_last_try_of_policy(self, lease: Lease, retries: int) -> bool:
        """Returns whether no retry is left in this invocation and the policy's own errors ended all tries before."""
        with self._reading():
            faults, by_policy = self.db.execute(
                f"""SELECT COUNT(*), COALESCE(SUM(json_extract(result, '$.by_policy')), 0) FROM episodes
                    WHERE {EPISODE_KEY} AND {FAULT_OF_INVOCATION}""",
                lease.__dict__,
            ).fetchone()
        return faults == by_policy >= retries

    def counts(self) -> dict[int, dict[str, int]]:
        """Returns per task: planned, done, successes, policy_errors (ended by the policy's own answer; done, and no
        success), leased, pending, broken (out of tries), steps (so far), steps_of_done (of finished episodes).
        """
        sql = """SELECT task, COUNT(DISTINCT episode) AS planned, SUM(status = 'done') AS done,
                 SUM(status = 'done' AND success) AS successes,
                 SUM(status = 'done' AND error IS NOT NULL) AS policy_errors, SUM(status = 'leased') AS leased,
                 SUM(status = 'pending') AS pending,
                 SUM(CASE WHEN status IN ('done', 'leased') THEN steps ELSE 0 END) AS steps,
                 SUM(CASE WHEN status = 'done' THEN steps ELSE 0 END) AS steps_of_done
                 FROM episodes GROUP BY task ORDER BY task"""
        with self._reading():
            rows = [dict(row) for row in self.db.execute(sql)]
        for row in rows:
            row["broken"] = row["planned"] - row["done"] - row["leased"] - row["pending"]
        return {row.pop("task"): row for row in rows}

    def by_worker(self, invocation: int | None = None) -> list[dict]:
        """Returns what each worker did, in one invocation or in each: episodes that it finished, their steps and ms,
        and faults.
        """
        sql = f"""SELECT worker, SUM(status = 'done') AS episodes, SUM(CASE status WHEN 'done' THEN steps ELSE 0 END)
                  AS steps, SUM(CASE status WHEN 'done' THEN json_extract(result, '$.timings_ms.total') END) AS ms,
                  SUM(status IN ('error', 'lost')) AS faults FROM episodes WHERE worker IS NOT NULL
                  {"" if invocation is None else "AND session = :session"} GROUP BY session, worker"""
        with self._reading():
            return [dict(row) for row in self.db.execute(sql, {"session": invocation})]

    def spent(self, invocation: int) -> dict[str, float]:
        """Returns what an invocation's finished episodes took (ms): in all, for answers, and what of that is whose."""
        names = ("total", "policy", "server_queue", "server_infer")
        sums = ", ".join(f"TOTAL(json_extract(result, '$.timings_ms.{name}')) AS {name}" for name in names)
        with self._reading():
            sql = f"SELECT {sums} FROM episodes WHERE status = 'done' AND session = ?"
            return dict(self.db.execute(sql, (invocation,)).fetchone())

    def by_policy(self) -> list[dict]:
        """Returns what was done with each of the policy's addresses, as `by_worker` tells it of workers."""
        sql = f"""SELECT {POLICY} AS policy, SUM(status = 'done') AS episodes,
                  SUM(CASE status WHEN 'done' THEN steps ELSE 0 END) AS steps,
                  SUM(status IN ('error', 'lost')) AS faults
                  FROM episodes WHERE {POLICY} IS NOT NULL AND status NOT IN ('pending', 'leased')
                  GROUP BY policy ORDER BY policy"""
        with self._reading():
            return [dict(row) for row in self.db.execute(sql)]

    def open(self) -> bool:
        """Returns whether any episode is still pending or under way."""
        with self._reading():
            return bool(self._scalar("SELECT 1 FROM episodes WHERE status IN ('pending', 'leased') LIMIT 1"))

    def plan(self) -> list[tuple[int, int]]:
        """Returns the planned (task, episode) pairs in order."""
        with self._reading():
            rows = self.db.execute("SELECT DISTINCT task, episode FROM episodes ORDER BY task, episode").fetchall()
        return [(row["task"], row["episode"]) for row in rows]

    def finished(self) -> list[Finished]:
        """Returns every finished episode, ordered by task and episode."""
        with self._reading():
            sql = f"SELECT {FINISHED} FROM episodes WHERE status = 'done' ORDER BY task, episode"
            rows = self.db.execute(sql).fetchall()
            read = [{**row, "success": bool(row["success"]), "result": from_json(row["result"])} for row in rows]
        return [Finished(**row) for row in read]

    def outcomes(self) -> dict[tuple[int, int], tuple[bool, bool]]:
        """Returns, for every finished episode (task, episode), whether it succeeded and whether the policy's own answer
        ended it.
        """
        sql = "SELECT task, episode, success, error IS NOT NULL FROM episodes WHERE status = 'done'"
        with self._reading():
            return {(row[0], row[1]): (bool(row[2]), bool(row[3])) for row in self.db.execute(sql)}

    def faults(self, invocation: int | None = None) -> list[Fault]:
        """Returns the attempts that ended without a result, of one invocation or of all."""
        sql = "SELECT * FROM episodes WHERE status IN ('error', 'lost')"
        with self._reading():
            rows = self.db.execute(f"{sql} ORDER BY session, ended_at").fetchall()
        wanted = [r for r in rows if invocation is None or r["session"] == invocation]
        return [
            Fault(r["task"], r["episode"], r["attempt"], r["status"], r["session"], r["worker"], r["error"])
            for r in wanted
        ]

    def place(self, lease: Lease) -> int:
        """Returns how many episodes of the same task and outcome were finished before this one."""
        with self._reading():
            return self._scalar(
                """SELECT COUNT(*) FROM episodes AS other, episodes AS own
                    WHERE own.config_hash = :config_hash AND own.suite = :suite AND own.task = :task
                    AND own.episode = :episode AND own.attempt = :attempt AND other.status = 'done'
                    AND other.task = own.task AND other.success = own.success
                    AND (other.session, other.ended_at, other.episode) < (own.session, own.ended_at, own.episode)""",
                lease.__dict__,
            )

    def undrawn(self, invocation: int, wanted: Callable[[bool, int], bool]) -> list[Lease]:
        """Returns episodes of invocations before this one that want a video, by outcome and place, and have none."""
        sql = f"""SELECT {LEASE}, success, place FROM
                  (SELECT *, ROW_NUMBER() OVER (PARTITION BY task, success ORDER BY session, ended_at, episode) - 1
                   AS place FROM episodes WHERE status = 'done')
                  WHERE json_extract(result, '$.video') IS NULL AND {LAST_DRAWN} < ? ORDER BY task, episode"""
        with self._reading():
            rows = self.db.execute(sql, (invocation,)).fetchall()
        return [Lease(*tuple(row)[:-2]) for row in rows if wanted(bool(row["success"]), row["place"])]

    def workers(self, prefix: str = "") -> dict[str, str]:
        """Returns what each worker says that it does; of those whose names begin so."""
        sql = f"SELECT * FROM workers WHERE {BEGINS} ORDER BY worker"
        with self._reading():
            return {row["worker"]: row["status"] for row in self.db.execute(sql, range_of(prefix))}


def range_of(prefix: str) -> tuple[str, str]:
    """Returns between which texts all lie that begin so, as SQLite orders them."""
    return prefix, f"{prefix}\U0010ffff"
