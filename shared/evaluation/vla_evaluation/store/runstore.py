"""The run store: one SQLite file per run, the only truth about which episodes are done.

An episode is a unit of work. Each try at it is one row, keyed (config_hash, suite, task, episode, attempt):

    pending → leased → done                       it counts, exactly once
                     → error | lost → pending     the same episode, next attempt; not a failure

A worker holds a lease, which is renewed while the episode advances. A result is accepted only with the lease's token,
so a late report of a replaced worker has no effect. Two unique indexes enforce it: at most one row `done` and at most
one row pending or leased per episode.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vla_evaluation.runs import STORE
from vla_evaluation.store import files
from vla_evaluation.store.reading import EPISODE_KEY, FAULT_OF_INVOCATION, POLICY, VIDEO_SESSION, StoreReader
from vla_evaluation.store.records import (
    SCHEMA,
    SCHEMA_VERSION,
    FailedAttempt,
    Lease,
    StoreError,
    as_damage,
    explain,
    to_json,
)

WITH_POLICY = f"CASE WHEN {POLICY} IS NULL THEN :new ELSE json_set(:new, '$.policy', {POLICY}) END"
ATTEMPT = f"{EPISODE_KEY} AND attempt = :attempt"
INSERT = "INSERT INTO episodes (config_hash, suite, task, episode, attempt, status)"


class RunStore(StoreReader):
    """One connection to a run's store. Every process and every thread opens its own."""

    @classmethod
    def create(
        cls, path: Path, *, suite: str, config_hash: str, plan: Iterable[tuple[int, int]], meta: dict[str, Any]
    ) -> RunStore:
        """Create the store with one pending attempt per planned (task, episode), all or nothing.

        It is built under a draft name and linked when complete: a store that exists is complete, and of two concurrent
        calls one fails.
        """
        path = Path(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # a process id is unique on one machine only
        try:
            connection = sqlite3.connect(draft, isolation_level=None)
            try:
                connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
                facts = {**meta, "suite": suite, "config_hash": config_hash}
                connection.executemany("INSERT INTO meta VALUES (?, ?)", [(k, to_json(v)) for k, v in facts.items()])
                pending = [(config_hash, suite, task, episode) for task, episode in plan]
                connection.executemany(f"{INSERT} VALUES (?, ?, ?, ?, 1, 'pending')", pending)
                connection.execute("COMMIT")
            finally:
                connection.close()
            files.sync(draft)
            try:
                os.link(draft, path)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK) or path.exists():
                    raise
                os.rename(draft, path)  # a file system without links; the run's lock prevents a race
            files.sync(path.parent)
        except sqlite3.Error as error:
            raise explain(error, path) from error
        except FileExistsError as error:
            raise StoreError(f"run store {path} already exists; resume it or choose another run id") from error
        finally:
            draft.unlink(missing_ok=True)
        return cls(path)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run one write transaction, or within another one a savepoint; it is rolled back if anything fails inside.

        A transaction around several writes reaches the disk once, and each of them can still be undone alone.
        """
        nested = self.db.in_transaction
        begin, commit = ("SAVEPOINT write", "RELEASE write") if nested else ("BEGIN IMMEDIATE", "COMMIT")
        with self._errors():
            self.db.execute(begin)
            try:
                yield
                self.db.execute(commit)
            except BaseException:
                if self.db.in_transaction:  # a full disk has already ended it
                    self.db.execute("ROLLBACK TO write" if nested else "ROLLBACK")
                    if nested:
                        self.db.execute(commit)
                raise

    def set_meta(self, key: str, value: object) -> None:
        with self.transaction():
            self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, to_json(value)))

    # --- invocations: one per start of the evaluator ------------------------------------------------------

    def begin_invocation(self, now: float, notes: dict[str, Any] | None = None) -> int:
        """Start an invocation: take back every lease and give every unfinished episode new retries.

        An interrupted invocation is recorded as ended at its last result. Call this only with the run's lock held.
        """
        with self.transaction():
            self.db.execute(
                """UPDATE sessions SET ended = (SELECT MAX(ended_at) FROM episodes WHERE session = sessions.id)
                   WHERE ended IS NULL"""
            )
            cursor = self.db.execute("INSERT INTO sessions (started, notes) VALUES (?, ?)", (now, to_json(notes or {})))
            invocation = cursor.lastrowid
            self.db.execute("DELETE FROM workers")
            self._give_up("status = 'leased'", {}, now, "the evaluator of that session ended")
            self.db.execute(
                f"""{INSERT}
                   SELECT config_hash, suite, task, episode, MAX(attempt) + 1, 'pending' FROM episodes
                   GROUP BY config_hash, suite, task, episode
                   HAVING SUM(status IN ('done', 'pending', 'leased')) = 0"""
            )
        return invocation

    def note(self, invocation: int, more: Mapping[str, object]) -> None:
        """Add to the notes of an invocation."""
        with self.transaction():
            sql = "UPDATE sessions SET notes = json_patch(notes, ?) WHERE id = ?"
            self.db.execute(sql, (to_json(more), invocation))

    def end_invocation(self, invocation: int, now: float, outcome: str) -> None:
        with self.transaction():
            self.db.execute("UPDATE sessions SET ended = ?, outcome = ? WHERE id = ?", (now, outcome, invocation))

    # --- a plan that grows until enough episodes succeeded (recordings) -------------------------------------

    def plan_successes(self, targets: Mapping[int, int], attempts: int) -> None:
        """Plan the episodes that bring each task to `targets[task]` successes if all of them succeed.

        A task gets at most `attempts` episodes per target success. Planned episodes that are neither done nor still
        needed are removed.
        """
        with self.transaction():
            for task, count in targets.items():
                needed = self._plan(task, count, attempts)
                self.db.execute(
                    """DELETE FROM episodes WHERE task = ? AND episode >= ? AND episode NOT IN
                       (SELECT episode FROM episodes AS other WHERE other.task = episodes.task AND status = 'done')""",
                    (task, needed),
                )

    def _plan(self, task: int, target: int, attempts: int) -> int:
        """Plan the missing episodes of a task, from 0 on; return how many episodes it needs."""
        failed = self.scalar("SELECT COUNT(*) FROM episodes WHERE task = ? AND status = 'done' AND NOT success", task)
        needed = min(target + failed, target * attempts)
        planned = {row[0] for row in self.db.execute("SELECT episode FROM episodes WHERE task = ?", (task,))}
        missing = [(self.config_hash, self.suite, task, episode) for episode in sorted(set(range(needed)) - planned)]
        self.db.executemany(f"{INSERT} VALUES (?, ?, ?, ?, 1, 'pending')", missing)
        return needed

    # --- leases -----------------------------------------------------------------------------------------

    def lease(
        self,
        worker: str,
        invocation: int,
        now: float,
        lease_s: float,
        prefer_task: int | None = None,
        token: str | None = None,
        policies: Sequence[str] = (),
    ) -> Lease | None:
        """Return the next episode for `worker`, or None when none is pending.

        Episodes of the worker's current task come first, because its scene is loaded; a worker without one gets the
        task with the fewest workers. A caller that may repeat the call passes a random token: the same token returns
        the same lease. `policies`: the policy's addresses to choose one from.
        """
        repeated, token = token is not None, token or secrets.token_hex(8)
        with self.transaction():
            if repeated and (lease := self.by_token(token)):
                return lease
            next_of_task = "SELECT * FROM episodes WHERE status = 'pending' AND task = ? ORDER BY episode LIMIT 1"
            row = self.db.execute(next_of_task, (prefer_task,)).fetchone()
            if row is None:
                least_busy = self.scalar(
                    """SELECT p.task FROM (SELECT DISTINCT task FROM episodes WHERE status = 'pending') p
                       LEFT JOIN (SELECT task, COUNT(*) AS busy FROM episodes WHERE status = 'leased' GROUP BY task) l
                       ON l.task = p.task ORDER BY COALESCE(l.busy, 0), p.task LIMIT 1"""
                )
                row = self.db.execute(next_of_task, (least_busy,)).fetchone()
            if row is None:
                return None
            episode, policy = dict(row), "".join(policies[:1])
            if len(policies) > 1:
                count = f"SELECT {POLICY}, COUNT(*) FROM episodes WHERE"
                leased = dict(self.rows(f"{count} status = 'leased' GROUP BY 1"))
                faults = dict(self.rows(f"{count} {EPISODE_KEY} AND {FAULT_OF_INVOCATION} GROUP BY 1", episode))
                policy = min(policies, key=lambda url: (faults.get(url, 0), leased.get(url, 0)))
            key = {name: episode[name] for name in ("config_hash", "suite", "task", "episode", "attempt")}
            lease = Lease(**key, token=token, expires_at=now + lease_s, policy=policy)
            self.db.execute(
                f"""UPDATE episodes SET status = 'leased', session = :session, worker = :worker, token = :token,
                    leased_at = :now, expires_at = :expires_at, steps = 0,
                    result = CASE :policy WHEN '' THEN NULL ELSE json_object('policy', :policy) END
                    WHERE {ATTEMPT}""",
                {**lease.__dict__, "session": invocation, "worker": worker, "now": now},
            )
        return lease

    def heartbeat(self, lease: Lease, now: float, lease_s: float, steps: int = 0) -> bool:
        """Renew a lease; False if it was taken over or ended meanwhile."""
        with self.transaction():
            return self._update(lease, "expires_at = :expires, steps = :steps", expires=now + lease_s, steps=steps)

    def finish(
        self,
        lease: Lease,
        result: dict[str, Any],
        now: float,
        publish: Callable[[], None] | None = None,
        target: tuple[int, int] | None = None,
    ) -> bool:
        """Record the episode's result; False, and nothing happens, if the lease is no longer held.

        `result` needs `success` and `steps`, and `policy_error` where the policy's answer ended it; ValueError for a
        NaN or an infinity, which SQLite cannot read. `publish` renames the episode's files; it runs inside the
        transaction, after the lease was checked and before the commit. `target`: the task's successes and attempts as
        in `plan_successes`; another episode replaces one that failed.
        """
        values = {
            "success": int(result["success"]), "steps": int(result["steps"]), "error": result.get("policy_error"),
            "ended_at": now, "new": to_json(result),
        }  # fmt: skip
        assignments = "success = :success, steps = :steps, error = :error, ended_at = :ended_at"
        with self.transaction():
            leased = self._update(lease, f"status = 'done', {assignments}, result = {WITH_POLICY}", **values)
            if leased and publish is not None:
                publish()
            if leased and target is not None:
                self._plan(lease.task, *target)
        return leased

    def finish_with(
        self, lease: Lease, result: dict[str, Any], now: float, draft: Path, final: Path, **finishing: Any
    ) -> bool:
        """As `finish`, renaming a file in the same transaction. `finishing`: further arguments of `finish`."""
        return self.finish(lease, result, now, lambda: files.publish(draft, final), **finishing)

    def release(self, lease: Lease) -> bool:
        """Return a lease unused: the same attempt becomes pending again (a clean stop is no fault)."""
        with self.transaction():
            unused = "status = 'pending', worker = NULL, token = NULL, expires_at = NULL, result = NULL"
            return self._update(lease, unused)

    def fail(self, lease: Lease, error: str, now: float, retries: int, by_policy: bool = False) -> bool:
        """Record a failed try; the episode is tried again while `retries` are left in this invocation.

        `by_policy`: the policy answered, with an error of its own.
        """
        values = {"error": error, "now": now, "new": to_json({"by_policy": by_policy})}
        assignments = f"status = 'error', error = :error, result = {WITH_POLICY}, ended_at = :now"
        with self.transaction():
            leased = self._update(lease, assignments, **values)
            if leased:
                self._retry(lease.__dict__, retries)
        return leased

    def _update(self, lease: Lease, assignments: str, **values: object) -> bool:
        cursor = self.db.execute(
            f"""UPDATE episodes SET {assignments}
                WHERE {ATTEMPT} AND token = :token AND status = 'leased'""",
            {**lease.__dict__, **values},
        )
        return cursor.rowcount == 1

    def take_back(self, worker: str, now: float, retries: int, reason: str) -> list[FailedAttempt]:
        """Take back a dead worker's lease at once, instead of at its end."""
        with self.transaction():
            return self._give_up("status = 'leased' AND worker = :worker", {"worker": worker}, now, reason, retries)

    def expire(self, now: float, retries: int) -> list[FailedAttempt]:
        """Take back every lease that was not renewed in time; return the lost attempts."""
        if not self.scalar("SELECT 1 FROM episodes WHERE status = 'leased' AND expires_at < ? LIMIT 1", now):
            return []
        with self.transaction():
            overdue = "status = 'leased' AND expires_at < :now"
            return self._give_up(overdue, {}, now, "the worker's heartbeat stopped", retries)

    def _give_up(
        self, condition: str, values: dict[str, Any], now: float, reason: str, retries: int | None = None
    ) -> list[FailedAttempt]:
        rows = self.db.execute(f"SELECT * FROM episodes WHERE {condition}", {**values, "now": now}).fetchall()
        lost = f"UPDATE episodes SET status = 'lost', error = :reason, ended_at = :now WHERE {ATTEMPT}"
        for row in rows:
            self.db.execute(lost, {**dict(row), "reason": reason, "now": now})
            if retries is not None:
                self._retry(dict(row), retries)
        return [
            FailedAttempt(r["task"], r["episode"], r["attempt"], "lost", r["session"], r["worker"], reason)
            for r in rows
        ]

    def _retry(self, key: dict[str, Any], retries: int) -> None:
        """Add the next attempt unless this invocation has no retries left."""
        faults = f"SELECT COUNT(*) FROM episodes WHERE {EPISODE_KEY} AND {FAULT_OF_INVOCATION}"
        if self.scalar(faults, key) <= retries:
            values = "(:config_hash, :suite, :task, :episode, :attempt + 1, 'pending')"
            self.db.execute(f"{INSERT} VALUES {values}", key)

    def claim_video(self, lease: Lease, invocation: int) -> bool:
        """Claim the rendering of a finished episode's video in this invocation; False if it is already claimed."""
        with self.transaction():
            cursor = self.db.execute(
                f"""UPDATE episodes SET result = json_set(result, '$.video_session', :session)
                    WHERE {ATTEMPT} AND status = 'done' AND {VIDEO_SESSION} < :session""",
                {**lease.__dict__, "session": invocation},
            )
        return cursor.rowcount == 1

    # --- other reports of workers -----------------------------------------------------------------------------

    def set_status(self, worker: str, invocation: int, status: str, now: float) -> None:
        """Record a worker's status, for the progress display."""
        with self.transaction():
            self.db.execute("INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?)", (worker, invocation, status, now))

    def add_to_result(self, lease: Lease, more: dict[str, Any]) -> None:
        """Add to the result values that follow later, such as the video's."""
        with self.transaction():
            self.db.execute(
                f"""UPDATE episodes SET result = json_patch(result, :more)
                    WHERE {ATTEMPT} AND token = :token AND status = 'done'""",
                {**lease.__dict__, "more": to_json(more)},
            )


@contextmanager
def read_run(directory: Path, check: bool = True) -> Iterator[RunStore]:
    """Open the store in a run's directory to read it. Raises StoreError for one that is missing or damaged."""
    with as_damage(directory / STORE), RunStore(directory / STORE, readonly=True, check=check) as store:
        yield store
