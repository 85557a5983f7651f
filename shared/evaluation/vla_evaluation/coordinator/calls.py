"""The calls of a run's store over HTTP. Every call may be repeated if its response was lost.

A call is `POST /v1/calls/NAME` with its arguments as a JSON object, `invocation` and `key` among them; it answers
{"value": …}. A method of `Calls` gets arguments that pydantic has validated by its annotations; it returns a JSON
value.

The store sums the numbers and stores the rest as JSON. A value that SQLite or a report cannot read would break the run
for good: NaN, a number as text, half a surrogate pair. Pydantic's JSON parser rejects such text and `allow_inf_nan`
such numbers; unknown fields are rejected too.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from vla_evaluation.store import files
from vla_evaluation.store.records import Lease
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.job import InvocationClock, Job

MAX_MACHINES = 2000  # that may join in one invocation
MAX_WORKERS = 10_000  # that machines may name in one invocation
MAX_TIME_MS = 1e12
COUNTS_CACHE_S = 1.0  # every machine asks for the counts, which the store sums over all rows
KINDS = {"episode": "episodes/{}.npz", "film": "videos/{}.mp4", "still": "videos/{}.jpg"}  # of files
NO_COUNTS: tuple[float, list] = (-math.inf, [])
CHANGE_COUNTS = ("lease", "release", "fail", "finish", "take_back")
MAX_BATCH = 256  # calls in one transaction

PRINTABLE = r"^[^\p{C}]*$"
MachineName = Annotated[str, Field(min_length=1, max_length=64, pattern=PRINTABLE)]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=PRINTABLE)]
Prefix = Annotated[str, Field(max_length=128)]
Text = Annotated[str, Field(max_length=10_000)]
Hash = Annotated[str, Field(max_length=64, pattern=PRINTABLE)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Milliseconds = Annotated[float, Field(ge=-MAX_TIME_MS, le=MAX_TIME_MS)]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]  # random, and part of a file name
MachineFact = Annotated[str, Field(max_length=200, pattern=PRINTABLE)] | int | float
VideoFile = Annotated[str, Field(max_length=128, pattern=r"^videos/[A-Za-z0-9._-]+$")]


class Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class Call(Schema):
    """Fields of every call: the invocation that the sender joined, and its own random key."""

    invocation: Count
    key: Name


class LeaseFields(Schema):
    """A lease as the machine received it."""

    config_hash: Name
    suite: Name
    task: Count
    episode: Count
    attempt: Count
    token: Token
    expires_at: float = 0.0
    policy: Text = ""


LeaseArgument = Annotated[LeaseFields, AfterValidator(lambda fields: Lease(**fields.__dict__))]


class RealtimeDelays(Schema):
    held_steps: Count
    overtaken_actions: Count
    latency_ms_mean: Milliseconds
    latency_ms_max: Milliseconds


class EpisodeResult(Schema):
    """An episode's result; see `rollout.Record.summary`. Times are in ms, summed over the episode."""

    success: bool
    steps: Count
    requests: Count = 0
    start_hash: Hash = ""
    end_hash: Hash = ""
    actions_hash: Hash = ""
    timings_ms: Annotated[dict[Name, Milliseconds], Field(max_length=100)] = {}
    realtime: RealtimeDelays | None = None
    policy_error: str = ""
    recording: Annotated[str, Field(max_length=128, pattern=r"^episodes/[A-Za-z0-9._-]+$")] = ""


class VideoResult(Schema):
    """The fields that a finished episode's video adds to its result."""

    video: VideoFile = ""
    still: VideoFile = ""
    video_frames: Count = 0
    video_ms: Milliseconds = 0.0


def explain(error: ValidationError) -> str:
    """Return the first problem as field, value and expectation."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    value = "" if first["type"] in ("missing", "json_invalid") else f" is {str(first['input'])[:80]!r}"
    return f"{name or 'the body'}{value}: {first['msg']}"


@dataclass
class Host:
    """A machine that has joined."""

    name: str  # unique in the run
    hostname: str
    heard: float  # on the run's clock, s; -inf once it has left


@dataclass
class ActiveRun:
    """The run whose store is served, and the machines that have joined it."""

    directory: Path
    job: Job
    clock: InvocationClock
    invocation: int
    hosts: dict[str, Host] = field(default_factory=dict)
    worker_names: set[str] = field(default_factory=set)  # of machines that joined
    cached_counts: tuple[float, list] = NO_COUNTS  # time of the query, rows

    def now(self) -> float:
        """Return the time, s since the epoch; no other clock counts."""
        return self.clock.now()

    def final(self, lease: Lease, kind: str) -> Path:
        """Return the path of a file of an episode. ValueError for another kind."""
        if kind not in KINDS:
            raise ValueError(f"kind is {str(kind)[:40]!r}; expected one of {', '.join(KINDS)}")
        return self.directory / KINDS[kind].format(lease.stem)

    def draft(self, lease: Lease, kind: str) -> Path:
        """Return the path of a file that was sent and is not yet published; leftovers are removed on resume."""
        path = self.final(lease, kind)
        return path.with_name(f".{path.name}.{lease.token}.partial")

    def publish(self, lease: Lease, kind: str) -> None:
        draft = self.draft(lease, kind)
        if not draft.exists():
            raise ValueError(f"the {kind} of task {lease.task} episode {lease.episode} was not sent before this call")
        files.publish(draft, self.final(lease, kind))

    def add_worker(self, name: str) -> None:
        """Count a worker. ValueError beyond MAX_WORKERS."""
        if name not in self.worker_names and len(self.worker_names) >= MAX_WORKERS:
            raise ValueError(f"{MAX_WORKERS} workers have joined already; no more can join until --resume")
        self.worker_names.add(name)


class Calls:
    """The calls, by name. They are carried out one at a time."""

    def __init__(self, store: RunStore, run: ActiveRun):
        self.store, self.run = store, run

    def join(
        self,
        key: Name,
        name: MachineName,
        workers: Annotated[int, Field(ge=1, le=1024)],
        machine: Annotated[dict[MachineName, MachineFact], Field(max_length=20)],
    ) -> dict[str, Any]:
        """Add a machine under a unique name, which starts with the requested `name`."""
        host = self.run.hosts.get(key)
        if host is None:
            if len(self.run.hosts) >= MAX_MACHINES:
                raise ValueError(f"{MAX_MACHINES} machines have joined already; no more can join until --resume")
            taken = {host.name for host in self.run.hosts.values()}
            unique = next(n for n in (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
            host = Host(unique, name, self.run.now())
            self.store.note(self.run.invocation, {"hosts": {unique: {"host": name, "workers": workers, **machine}}})
            self.run.hosts[key] = host
        return {"name": host.name}

    def leave(self, key: Name) -> None:
        """Record that a machine has no more episodes: the run does not wait for it."""
        if host := self.run.hosts.get(key):
            host.heard = -math.inf

    def lease(
        self,
        worker: Name,
        token: Token,
        prefer_task: Count | None = None,
        policies: Annotated[list[Text], Field(max_length=1000)] = [],  # noqa: B006 (pydantic copies it)
    ) -> dict[str, Any] | None:
        """Return the next episode, as `RunStore.lease`; `token` is the caller's."""
        run = self.run
        if unknown := set(policies) - set(run.job.policies if policies else ()):
            raise ValueError(f"policies has {min(unknown)[:80]!r}; expected some of {', '.join(run.job.policies)}")
        run.add_worker(worker)
        leased = self.store.lease(worker, run.invocation, run.now(), run.job.lease_s, prefer_task, token, policies)
        return asdict(leased) if leased else None

    def heartbeat(self, lease: LeaseArgument, steps: Count) -> bool:
        return self.store.heartbeat(lease, self.run.now(), self.run.job.lease_s, steps)

    def release(self, lease: LeaseArgument) -> bool:
        return self.store.release(lease)

    def fail(self, lease: LeaseArgument, error: Text, by_policy: bool = False) -> bool:
        failed = self.store.fail(lease, error, self.run.now(), self.run.job.retries, by_policy)
        return failed or self.store.ended_as(lease, "error")

    def finish(self, lease: LeaseArgument, result: EpisodeResult) -> bool:
        """Store the episode's result and its file, which was sent before; both or neither."""
        values = result.model_dump(exclude_unset=True)
        done = self.store.finish(lease, values, self.run.now(), lambda: self.run.publish(lease, "episode"))
        return done or self.store.ended_as(lease, "done")

    def add_to_result(
        self,
        lease: LeaseArgument,
        more: VideoResult,
        files: Annotated[list[Literal["film", "still"]], Field(max_length=2)] = [],  # noqa: B006 (pydantic copies it)
    ) -> None:
        """Add the video; `files` names the kinds of files that were sent for it."""
        if self.store.by_token(lease.token) is None:
            return
        for kind in files:
            if self.run.draft(lease, kind).exists() or not self.run.final(lease, kind).exists():
                self.run.publish(lease, kind)
        self.store.add_to_result(lease, more.model_dump(exclude_unset=True))

    def take_back(self, worker: Name, reason: Text) -> list[dict[str, Any]]:
        lost = self.store.take_back(worker, self.run.now(), self.run.job.retries, reason)
        return [asdict(fault) for fault in lost]

    def say(self, worker: Name, status: Text) -> None:
        self.run.add_worker(worker)
        self.store.set_status(worker, self.run.invocation, status, self.run.now())

    def is_open(self) -> bool:
        return self.store.open()

    def counts(self) -> list[dict[str, int]]:
        at, rows = self.run.cached_counts
        if self.run.now() - at > COUNTS_CACHE_S:
            rows = [{"task": task, **row} for task, row in self.store.counts().items()]
            self.run.cached_counts = (self.run.now(), rows)
        return rows

    def leases(self, prefix: Prefix) -> dict[str, Any]:
        """Return the leases of the workers whose names begin with `prefix`."""
        return {worker: asdict(lease) for worker, lease in self.store.leases(prefix).items()}

    def is_last_try_of_policy(self, lease: LeaseArgument) -> bool:
        return self.store.is_last_try_of_policy(lease, self.run.job.retries)

    def place(self, lease: LeaseArgument) -> int | None:
        return self.store.outcome_rank(lease)

    def faults(self) -> list[dict[str, Any]]:
        return [asdict(fault) for fault in self.store.faults(self.run.invocation)]

    def workers(self, prefix: Prefix) -> dict[str, str]:
        """Return the status of the workers whose names begin with `prefix`."""
        return self.store.workers(prefix)


def _arguments(function: Callable[..., Any]) -> type[Call]:
    """Return the schema of a call's arguments, made of its annotations."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    }
    return create_model(function.__name__, __base__=Call, **fields)


ARGUMENTS = {name: _arguments(function) for name, function in vars(Calls).items() if not name.startswith("_")}


# --- their execution ------------------------------------------------------------------------------------------


class BatchedStore:
    """Carries out calls in the order of their arrival. All pending calls are one transaction, with one write to disk,
    in a thread that is separate from those that write files.
    """

    def __init__(self, path: Path, run: ActiveRun):
        self.store, self.run = RunStore(path, check=False), run
        self.calls = Calls(self.store, run)
        self.thread = ThreadPoolExecutor(1, "coordinator's store")
        self.pending: list[tuple[str, Call, asyncio.Future[Any]]] = []
        self.work: asyncio.Task[None] | None = None

    async def call(self, name: str, arguments: Call) -> Any:
        """Return the value of a call of `Calls`. Raises ValueError for invalid arguments, StoreError by the store."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.pending.append((name, arguments, answer))
        if self.work is None or self.work.done():
            self.work = asyncio.create_task(self._work())
        return await answer

    async def close(self) -> None:
        """Carry out the pending calls and close the store."""
        if self.work is not None:
            await self.work
        self.thread.shutdown()
        self.store.close()

    async def _work(self) -> None:
        while self.pending:
            calls, self.pending = self.pending[:MAX_BATCH], self.pending[MAX_BATCH:]
            done = await asyncio.get_running_loop().run_in_executor(self.thread, self._carry_out, calls)
            for (_, _, answer), (value, error) in zip(calls, done, strict=True):
                if answer.cancelled():
                    continue
                if error is None:
                    answer.set_result(value)
                else:
                    answer.set_exception(error)

    def _carry_out(self, calls: list[tuple[str, Call, Any]]) -> list[tuple[Any, Exception | None]]:
        """Return value and error of each; if the transaction does not reach the disk, all have its error."""
        done: list[tuple[Any, Exception | None]] = []
        try:
            with self.store.transaction():
                for name, arguments, _ in calls:
                    try:
                        names = ARGUMENTS[name].__annotations__  # without those of every call, but for what it takes
                        values = {name: getattr(arguments, name) for name in names}
                        done.append((getattr(self.calls, name)(**values), None))
                        if name in CHANGE_COUNTS:
                            self.run.cached_counts = NO_COUNTS
                    except Exception as error:  # of this call only: the store undoes each write alone
                        done.append((None, error))
        except Exception as error:
            done = [(None, error) for _ in calls]
        return done
