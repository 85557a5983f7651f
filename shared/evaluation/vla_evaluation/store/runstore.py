"""The run store: one SQLite file per run, the only truth about which episodes are done.

An episode is a unit of work. Each try at it is one row, keyed (config_hash, suite, task, episode, attempt):

    pending → leased → done                       it counts, exactly once
                     → error | lost → pending     the same episode, next attempt: nobody's failure

A worker holds a lease, which is renewed while it moves on. Whoever reports an episode must show the lease's
token, so a worker that was given up for dead and reports late changes nothing. Two unique indexes say the same
in the schema: at most one row `done` and at most one row pending or leased per episode.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vla_evaluation.store import files
from vla_evaluation.store.reading import EPISODE_KEY, FAULT_OF_INVOCATION, LAST_DRAWN, POLICY, StoreReader
from vla_evaluation.store.records import SCHEMA, SCHEMA_VERSION, Fault, Lease, StoreError, explain, to_json

WITH_POLICY = f"CASE WHEN {POLICY} IS NULL THEN :told ELSE json_set(:told, '$.policy', {POLICY}) END"


class RunStore(StoreReader):
    """One connection to a run's store. Every process and every thread opens its own."""

    @classmethod
    def create(
        cls, path: Path, *, suite: str, config_hash: str, plan: Iterable[tuple[int, int]], meta: dict
    ) -> RunStore:
        """Creates the store with one pending attempt per planned (task, episode), all or nothing.

        It is built beside its final name and linked there when complete, so a store that exists is whole, and of two
        that are made at once one is refused.
        """
        path = Path(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # a process id is unique on one machine only
        try:
            connection = sqlite3.connect(draft, isolation_level=None)
            try:
                connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
                rows = {**meta, "suite": suite, "config_hash": config_hash}
                connection.executemany("INSERT INTO meta VALUES (?, ?)", [(k, to_json(v)) for k, v in rows.items()])
                connection.executemany(
                    """INSERT INTO episodes (config_hash, suite, task, episode, attempt, status)
                       VALUES (?, ?, ?, ?, 1, 'pending')""",
                    [(config_hash, suite, task, episode) for task, episode in plan],
                )
                connection.execute("COMMIT")
            finally:
                connection.close()
            files.name_once(draft, path)
        except sqlite3.Error as error:
            raise explain(error, path) from error
        except FileExistsError as error:
            raise StoreError(f"run store {path} exists already; resume it or choose another run id") from error
        finally:
            draft.unlink(missing_ok=True)
        return cls(path)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Puts all writes inside into one transaction, which reaches the disk once; each still is undone by itself."""
        with self._reading(), self._block("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One write transaction, or its place in a batch; rolled back whatever goes wrong inside."""
        own = "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"
        place = "SAVEPOINT one", "RELEASE one", "ROLLBACK TO one; RELEASE one"
        with self._reading(), self._block(*(place if self.db.in_transaction else own)):
            yield

    @contextmanager
    def _block(self, begin: str, end: str, undo: str) -> Iterator[None]:
        self.db.execute(begin)
        try:
            yield
            self.db.execute(end)
        except BaseException:
            if self.db.in_transaction:  # a full disk has ended it already
                for statement in undo.split("; "):
                    self.db.execute(statement)
            raise

    # --- what is known of the run -------------------------------------------------------------------------

    def set_meta(self, key: str, value) -> None:
        with self._writing():
            self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, to_json(value)))

    # --- invocations: one per start of the evaluator ------------------------------------------------------

    def begin_invocation(self, now: float, notes: dict | None = None) -> int:
        """Starts an invocation: takes back every lease and gives every unfinished episode a fresh set of tries.

        An earlier invocation that was cut off ended, as far as anybody knows, with its last report. Only the holder of
        the run's lock may call this; what an earlier evaluator left leased is lost by then.
        """
        with self._writing():
            self.db.execute(
                """UPDATE sessions SET ended = (SELECT MAX(ended_at) FROM episodes WHERE session = sessions.id)
                   WHERE ended IS NULL"""
            )
            cursor = self.db.execute("INSERT INTO sessions (started, notes) VALUES (?, ?)", (now, to_json(notes or {})))
            invocation = cursor.lastrowid
            self.db.execute("DELETE FROM workers")
            self._give_up("status = 'leased'", {}, now, "the evaluator of that session ended")
            self.db.execute(
                """INSERT INTO episodes (config_hash, suite, task, episode, attempt, status)
                   SELECT config_hash, suite, task, episode, MAX(attempt) + 1, 'pending' FROM episodes
                   GROUP BY config_hash, suite, task, episode
                   HAVING SUM(status IN ('done', 'pending', 'leased')) = 0"""
            )
        return invocation

    def note(self, invocation: int, more: Mapping[str, object]) -> None:
        """Adds to what is noted of an invocation."""
        with self._writing():
            sql = "UPDATE sessions SET notes = json_patch(notes, ?) WHERE id = ?"
            self.db.execute(sql, (to_json(more), invocation))

    def end_invocation(self, invocation: int, now: float, outcome: str) -> None:
        with self._writing():
            self.db.execute("UPDATE sessions SET ended = ?, outcome = ? WHERE id = ?", (now, outcome, invocation))

    # --- a plan that grows: so many episodes that went well are wanted, whatever it takes ------------------

    def want(self, wanted: Mapping[int, int], attempts: int) -> None:
        """Plans, for each task, as many episodes as make `wanted` successes if all that are to come go well; with what
        has failed `attempts` times as many at most. What is planned and not done, and no longer wanted, is left out.
        """
        with self._writing():
            for task, count in wanted.items():
                needed = self._plan(task, count, attempts)
                self.db.execute(
                    """DELETE FROM episodes WHERE task = ? AND episode >= ? AND episode NOT IN
                       (SELECT episode FROM episodes AS other WHERE other.task = episodes.task AND status = 'done')""",
                    (task, needed),
                )

    def _plan(self, task: int, wanted: int, attempts: int) -> int:
        """Plans what is missing of a task's episodes from 0 on; returns how many those are."""
        failed = self._scalar("SELECT COUNT(*) FROM episodes WHERE task = ? AND status = 'done' AND NOT success", task)
        needed = min(wanted + failed, wanted * attempts)
        planned = {row[0] for row in self.db.execute("SELECT episode FROM episodes WHERE task = ?", (task,))}
        self.db.executemany(
            """INSERT INTO episodes (config_hash, suite, task, episode, attempt, status)
               VALUES (?, ?, ?, ?, 1, 'pending')""",
            [(self.config_hash, self.suite, task, episode) for episode in sorted(set(range(needed)) - planned)],
        )
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
        """Returns the next episode for `worker`, or None when none is pending.

        Episodes of the worker's own task come first, so that it keeps its environment; a worker without one goes
        to the task that has the fewest workers on it. Who may have to ask twice brings a token, random: for the same
        one it is the same lease. `policies`: the policy's addresses to choose one from.
        """
        repeated, token = token is not None, token or secrets.token_hex(8)
        with self._writing():
            if repeated and (lease := self._by_token(token)):
                return lease
            task = self._next_task(prefer_task)
            if task is None:
                return None
            row = self.db.execute(
                "SELECT * FROM episodes WHERE status = 'pending' AND task = ? ORDER BY episode LIMIT 1", (task,)
            ).fetchone()
            lease = Lease(
                row["config_hash"], row["suite"], row["task"], row["episode"], row["attempt"], token, now + lease_s,
                self._least_busy(policies, dict(row)),
            )  # fmt: skip
            self.db.execute(
                f"""UPDATE episodes SET status = 'leased', session = :session, worker = :worker, token = :token,
                    leased_at = :now, expires_at = :expires_at, steps = 0,
                    result = CASE :policy WHEN '' THEN NULL ELSE json_object('policy', :policy) END
                    WHERE {EPISODE_KEY} AND attempt = :attempt""",
                {**lease.__dict__, "session": invocation, "worker": worker, "now": now},
            )
        return lease

    def _least_busy(self, policies: Sequence[str], episode: dict) -> str:
        """Returns the address with the fewest episodes under way, of those at which this one failed the least often."""
        if len(policies) < 2:
            return "".join(policies)
        busy = self.db.execute(f"SELECT {POLICY}, COUNT(*) FROM episodes WHERE status = 'leased' GROUP BY 1")
        under_way = dict(tuple(row) for row in busy)
        where = f"{EPISODE_KEY} AND {FAULT_OF_INVOCATION}"
        faults = self.db.execute(f"SELECT {POLICY}, COUNT(*) FROM episodes WHERE {where} GROUP BY 1", episode)
        failed = dict(tuple(row) for row in faults)
        return min(policies, key=lambda one: (failed.get(one, 0), under_way.get(one, 0)))

    def _next_task(self, prefer_task: int | None) -> int | None:
        own = "SELECT task FROM episodes WHERE status = 'pending' AND task = ? LIMIT 1"
        task = None if prefer_task is None else self._scalar(own, prefer_task)
        if task is not None:
            return task
        return self._scalar(
            """SELECT p.task FROM (SELECT DISTINCT task FROM episodes WHERE status = 'pending') p
               LEFT JOIN (SELECT task, COUNT(*) AS busy FROM episodes WHERE status = 'leased' GROUP BY task) l
               ON l.task = p.task ORDER BY COALESCE(l.busy, 0), p.task LIMIT 1"""
        )

    def heartbeat(self, lease: Lease, now: float, lease_s: float, steps: int = 0) -> bool:
        """Renews a lease; False if it was taken over or ended meanwhile."""
        with self._writing():
            return self._held(lease, "expires_at = :expires, steps = :steps", expires=now + lease_s, steps=steps)

    def finish(
        self,
        lease: Lease,
        result: dict,
        now: float,
        publish: Callable[[], None] | None = None,
        wanted: tuple[int, int] | None = None,
    ) -> bool:
        """Records the episode's result; False, and nothing happens, if the lease is no longer held.

        `result` needs `success` and `steps`, and `policy_error` where the policy's answer ended it; ValueError where it
        holds a NaN or an infinity, which SQLite cannot read. `publish` moves the
        episode's files to their final names; it runs inside the transaction, after the lease was checked and before the
        commit. `wanted`: the task's successes and attempts for each as `want` has them; another episode takes the place
        of one that failed.
        """
        values = {
            "success": int(result["success"]),
            "steps": int(result["steps"]),
            "error": result.get("policy_error"),
            "ended_at": now,
        }
        assignments, told = ", ".join(f"{name} = :{name}" for name in values), to_json(result)
        with self._writing():
            held = self._held(lease, f"status = 'done', {assignments}, result = {WITH_POLICY}", told=told, **values)
            if held and publish is not None:
                publish()
            if held and wanted is not None:
                self._plan(lease.task, *wanted)
        return held

    def finish_with(self, lease: Lease, result: dict, now: float, draft: Path, final: Path, **finishing: Any) -> bool:
        """As `finish`, with a file that gets its final name then. `finishing`: further settings of `finish`."""
        return self.finish(lease, result, now, lambda: files.publish(draft, final), **finishing)

    def release(self, lease: Lease) -> bool:
        """Gives a lease back unused: the same attempt becomes pending again (a clean stop is no fault)."""
        with self._writing():
            return self._held(
                lease, "status = 'pending', worker = NULL, token = NULL, expires_at = NULL, result = NULL"
            )

    def fail(self, lease: Lease, error: str, now: float, retries: int, by_policy: bool = False) -> bool:
        """Records a failed try; the episode is tried again while `retries` are left in this invocation.

        `by_policy`: the policy answered, with an error of its own.
        """
        values = {"error": error, "now": now, "told": to_json({"by_policy": by_policy})}
        ending = f"status = 'error', error = :error, result = {WITH_POLICY}, ended_at = :now"
        with self._writing():
            held = self._held(lease, ending, **values)
            if held:
                self._retry(lease.__dict__, retries)
        return held

    def _held(self, lease: Lease, assignments: str, **values) -> bool:
        cursor = self.db.execute(
            f"""UPDATE episodes SET {assignments}
                WHERE {EPISODE_KEY} AND attempt = :attempt AND token = :token AND status = 'leased'""",
            {**lease.__dict__, **values},
        )
        return cursor.rowcount == 1

    def take_back(self, worker: str, now: float, retries: int, reason: str) -> list[Fault]:
        """Takes back what a dead worker held, at once instead of at the lease's end."""
        with self._writing():
            return self._give_up("status = 'leased' AND worker = :worker", {"worker": worker}, now, reason, retries)

    def expire(self, now: float, retries: int) -> list[Fault]:
        """Takes back every lease whose heartbeat has stopped; returns what was lost."""
        with self._reading():
            overdue = self._scalar("SELECT 1 FROM episodes WHERE status = 'leased' AND expires_at < ? LIMIT 1", now)
        if not overdue:
            return []
        with self._writing():
            return self._give_up(
                "status = 'leased' AND expires_at < :now", {}, now, "the worker's heartbeat stopped", retries
            )

    def _give_up(self, where: str, values: dict, now: float, reason: str, retries: int | None = None) -> list[Fault]:
        rows = self.db.execute(f"SELECT * FROM episodes WHERE {where}", {**values, "now": now}).fetchall()
        for row in rows:
            self.db.execute(
                f"""UPDATE episodes SET status = 'lost', error = :reason, ended_at = :now
                    WHERE {EPISODE_KEY} AND attempt = :attempt""",
                {**dict(row), "reason": reason, "now": now},
            )
            if retries is not None:
                self._retry(dict(row), retries)
        return [Fault(r["task"], r["episode"], r["attempt"], "lost", r["session"], r["worker"], reason) for r in rows]

    def _retry(self, key: dict, retries: int) -> None:
        """Adds the next attempt unless this invocation has used up its tries."""
        faults = self.db.execute(
            f"SELECT COUNT(*) FROM episodes WHERE {EPISODE_KEY} AND {FAULT_OF_INVOCATION}",
            key,
        ).fetchone()[0]
        if faults <= retries:
            self.db.execute(
                """INSERT INTO episodes (config_hash, suite, task, episode, attempt, status)
                   VALUES (:config_hash, :suite, :task, :episode, :attempt + 1, 'pending')""",
                key,
            )

    def claim_video(self, lease: Lease, invocation: int) -> bool:
        """Returns whether it falls to the caller to draw a finished episode's video in this invocation."""
        with self._writing():
            cursor = self.db.execute(
                f"""UPDATE episodes SET result = json_set(result, '$.video_session', :session)
                    WHERE {EPISODE_KEY} AND attempt = :attempt AND status = 'done' AND {LAST_DRAWN} < :session""",
                {**lease.__dict__, "session": invocation},
            )
        return cursor.rowcount == 1

    # --- small news from the workers -----------------------------------------------------------------------

    def say(self, worker: str, invocation: int, status: str, now: float) -> None:
        """Records what a worker is doing, for the progress display."""
        with self._writing():
            self.db.execute("INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?)", (worker, invocation, status, now))

    def add_to_result(self, lease: Lease, more: dict) -> None:
        """Adds what came after the episode was finished, such as its video, to the result."""
        with self._writing():
            self.db.execute(
                f"""UPDATE episodes SET result = json_patch(result, :more)
                    WHERE {EPISODE_KEY} AND attempt = :attempt AND token = :token AND status = 'done'""",
                {**lease.__dict__, "more": to_json(more)},
            )
