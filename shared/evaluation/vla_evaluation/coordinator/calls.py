"""The calls of a run's store over HTTP. Every call may be repeated if its response was lost.

A call is `POST /v1/calls/NAME` with its arguments as a JSON object, `invocation` and `key` among them; it answers
{"value": …}. A function here gets the store, the run and the arguments, which pydantic has validated by the function's
annotations, and returns a JSON value.

The store sums the numbers and stores the rest as JSON. A value that SQLite or a report cannot read would break the run
for good: NaN, a number as text, half a surrogate pair. Pydantic's JSON parser rejects such text and `allow_inf_nan`
such numbers; unknown fields are rejected too.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
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
    workers: int
    machine: Mapping[str, object]
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


# --- the calls ------------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[type[Call], Callable[[RunStore, ActiveRun, Any], Any]]] = {}


def call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a function to CALLS, with a schema made of its annotations."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in list(inspect.signature(function).parameters.items())[2:]  # without store and run
    }

    def carry_out(store: RunStore, run: ActiveRun, arguments: Call) -> Any:
        return function(store, run, **{name: getattr(arguments, name) for name in fields})

    CALLS[function.__name__] = create_model(function.__name__, __base__=Call, **fields), carry_out
    return function


@call
def join(
    store: RunStore,
    run: ActiveRun,
    key: Name,
    name: MachineName,
    workers: Annotated[int, Field(ge=1, le=1024)],
    machine: Annotated[dict[MachineName, MachineFact], Field(max_length=20)],
) -> dict[str, Any]:
    """Add a machine under a unique name, which starts with the requested `name`."""
    host = run.hosts.get(key)
    if host is None:
        if len(run.hosts) >= MAX_MACHINES:
            raise ValueError(f"{MAX_MACHINES} machines have joined already; no more can join until --resume")
        taken = {host.name for host in run.hosts.values()}
        unique = next(n for n in (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        host = Host(unique, name, workers, machine, run.now())
        store.note(run.invocation, {"hosts": {unique: {"host": name, "workers": workers, **machine}}})
        run.hosts[key] = host
    return {"name": host.name}


@call
def leave(store: RunStore, run: ActiveRun, key: Name) -> None:
    """Record that a machine has no more episodes, so the run does not wait for it."""
    if host := run.hosts.get(key):
        host.heard = -math.inf


@call
def lease(
    store: RunStore,
    run: ActiveRun,
    worker: Name,
    token: Token,
    prefer_task: Count | None = None,
    policies: Annotated[list[Text], Field(max_length=1000)] = [],  # noqa: B006 (pydantic copies it)
) -> dict[str, Any] | None:
    """Return the next episode, as `RunStore.lease`; `token` is the caller's."""
    if unknown := set(policies) - set(run.job.policies if policies else ()):
        raise ValueError(f"policies has {min(unknown)[:80]!r}; expected some of {', '.join(run.job.policies)}")
    run.add_worker(worker)
    leased = store.lease(worker, run.invocation, run.now(), run.job.lease_s, prefer_task, token, policies)
    return leased and asdict(leased)


@call
def heartbeat(store: RunStore, run: ActiveRun, lease: LeaseArgument, steps: Count) -> bool:
    return store.heartbeat(lease, run.now(), run.job.lease_s, steps)


@call
def release(store: RunStore, run: ActiveRun, lease: LeaseArgument) -> bool:
    return store.release(lease)


@call
def fail(store: RunStore, run: ActiveRun, lease: LeaseArgument, error: Text, by_policy: bool = False) -> bool:
    return store.fail(lease, error, run.now(), run.job.retries, by_policy) or store.ended_as(lease, "error")


@call
def finish(store: RunStore, run: ActiveRun, lease: LeaseArgument, result: EpisodeResult) -> bool:
    """Store the episode's result and its file, which was sent before; both or neither."""
    values = result.model_dump(exclude_unset=True)
    done = store.finish(lease, values, run.now(), lambda: run.publish(lease, "episode"))
    return done or store.ended_as(lease, "done")


@call
def add_to_result(
    store: RunStore,
    run: ActiveRun,
    lease: LeaseArgument,
    more: VideoResult,
    files: Annotated[list[Literal["film", "still"]], Field(max_length=2)] = [],  # noqa: B006 (pydantic copies it)
) -> None:
    """Add the video; `files` names the kinds of files that were sent for it."""
    if store.by_token(lease.token) is None:
        return
    for kind in files:
        if run.draft(lease, kind).exists() or not run.final(lease, kind).exists():
            run.publish(lease, kind)
    store.add_to_result(lease, more.model_dump(exclude_unset=True))


@call
def take_back(store: RunStore, run: ActiveRun, worker: Name, reason: Text) -> list[dict[str, Any]]:
    return [asdict(fault) for fault in store.take_back(worker, run.now(), run.job.retries, reason)]


@call
def say(store: RunStore, run: ActiveRun, worker: Name, status: Text) -> None:
    run.add_worker(worker)
    store.set_status(worker, run.invocation, status, run.now())


@call
def is_open(store: RunStore, run: ActiveRun) -> bool:
    return store.open()


@call
def counts(store: RunStore, run: ActiveRun) -> list[dict[str, int]]:
    at, rows = run.cached_counts
    if run.now() - at > COUNTS_CACHE_S:
        rows = [{"task": task, **row} for task, row in store.counts().items()]
        run.cached_counts = (run.now(), rows)
    return rows


@call
def leases(store: RunStore, run: ActiveRun, prefix: Prefix) -> dict[str, Any]:
    """Return the leases of the workers whose names begin with `prefix`."""
    return {worker: asdict(lease) for worker, lease in store.leases(prefix).items()}


@call
def is_last_try_of_policy(store: RunStore, run: ActiveRun, lease: LeaseArgument) -> bool:
    return store.is_last_try_of_policy(lease, run.job.retries)


@call
def place(store: RunStore, run: ActiveRun, lease: LeaseArgument) -> int | None:
    return store.outcome_rank(lease)


@call
def faults(store: RunStore, run: ActiveRun) -> list[dict[str, Any]]:
    return [asdict(fault) for fault in store.faults(run.invocation)]


@call
def workers(store: RunStore, run: ActiveRun, prefix: Prefix) -> dict[str, str]:
    """Return the status of the workers whose names begin with `prefix`."""
    return store.workers(prefix)


# --- their execution ------------------------------------------------------------------------------------------


class BatchedStore:
    """Carries out calls in the order of their arrival. All pending calls are one transaction, with one write to disk,
    in a thread that is separate from those that write files.
    """

    def __init__(self, path: Path, run: ActiveRun):
        self.store, self.run = RunStore(path, check=False), run
        self.thread = ThreadPoolExecutor(1, "coordinator's store")
        self.pending: list[tuple[str, Call, asyncio.Future[Any]]] = []
        self.work: asyncio.Task[None] | None = None

    async def call(self, name: str, arguments: Call) -> Any:
        """Return the value of a call of CALLS. Raises ValueError for invalid arguments, StoreError by the store."""
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
                        done.append((CALLS[name][1](self.store, self.run, arguments), None))
                        if name in CHANGE_COUNTS:
                            self.run.cached_counts = NO_COUNTS
                    except Exception as error:  # of this call only: the store undoes each write alone
                        done.append((None, error))
        except Exception as error:
            done = [(None, error) for _ in calls]
        return done
