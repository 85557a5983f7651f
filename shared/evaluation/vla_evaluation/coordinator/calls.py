"""What may be asked of a run's store over HTTP, by name. Every call may be repeated when its answer was not heard.

A call is `POST /v1/calls/NAME` with its arguments as a JSON object, `invocation` among them; it answers {"value": …}.
A function here gets the store, the run and the validated arguments (`schemas`), and returns what can be JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vla_evaluation.coordinator import schemas
from vla_evaluation.store import files
from vla_evaluation.store.records import Lease
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.clock import InvocationClock
from vla_evaluation.workers.job import Job

MAX_MACHINES = 2000  # that may join in one invocation
MAX_WORKERS = 10_000  # that machines may name in one invocation
COUNTED_S = 1.0  # how long counts are told again, since every machine asks and the store goes through all rows for them
KINDS = {"episode": "episodes/{}.npz", "film": "videos/{}.mp4", "still": "videos/{}.jpg"}  # of files


NEVER: tuple[float, list] = (-math.inf, [])


class NotSent(ValueError):
    """A file that was to be there before this call."""


@dataclass
class Host:
    """A machine that has joined."""

    name: str  # in the run: no other machine has it
    wanted: str  # its own
    workers: int
    machine: Mapping[str, object]
    heard: float  # on the run's clock, s


@dataclass
class Held:
    """The run whose store is asked, and who has joined it."""

    folder: Path
    job: Job
    clock: InvocationClock
    invocation: int
    hosts: dict[str, Host] = field(default_factory=dict)
    worker_names: set[str] = field(default_factory=set)  # of machines that joined
    counted: tuple[float, list] = NEVER  # when the store was last asked for its counts, and they

    def now(self) -> float:
        """Returns the time, s since the epoch; no other clock counts."""
        return self.clock.now()


def final(run: Held, lease: Lease, kind: str) -> Path:
    """Returns where a file of an episode belongs. ValueError for another kind."""
    if kind not in KINDS:
        raise ValueError(f"kind is {str(kind)[:40]!r}; expected one of {', '.join(KINDS)}")
    return run.folder / KINDS[kind].format(f"{lease.task:02d}-{lease.episode:02d}")


def draft(run: Held, lease: Lease, kind: str) -> Path:
    """Returns where a file lies that was sent and not published: under a name that a killed run's leftovers have."""
    path = final(run, lease, kind)
    return path.with_name(f".{path.name}.{lease.token}.partial")


# --- the calls ------------------------------------------------------------------------------------------------


def join(store: RunStore, run: Held, call: schemas.Join) -> dict[str, Any]:
    """A machine comes in. `name` is asked for; the answer has the name that no other machine has."""
    host = run.hosts.get(call.key)
    if host is None:
        if len(run.hosts) >= MAX_MACHINES:
            raise ValueError(f"{MAX_MACHINES} machines have joined already; no more can join until --resume")
        taken = {one.name for one in run.hosts.values()}
        name = next(n for n in (call.name, *(f"{call.name}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        host = Host(name, call.name, call.workers, call.machine, run.now())
        store.note(run.invocation, {"hosts": {name: {"host": call.name, "workers": call.workers, **call.machine}}})
        run.hosts[call.key] = host
    return {"name": host.name}


def leave(store: RunStore, run: Held, call: schemas.Call) -> None:
    """A machine goes, as it should, having given back or finished what it had. It is not waited for any more."""
    if host := run.hosts.get(call.key):
        host.heard = -math.inf


def lease(store: RunStore, run: Held, call: schemas.RequestLease) -> dict[str, Any] | None:
    """The next episode, as `RunStore.lease`; `token` is the caller's."""
    if unknown := set(call.policies) - set(run.job.policies if call.policies else ()):
        raise ValueError(f"policies has {min(unknown)[:80]!r}; expected some of {', '.join(run.job.policies)}")
    _count_worker(run, call.worker)
    lease_s, prefer_task = run.job.lease_s, call.prefer_task
    got = store.lease(call.worker, run.invocation, run.now(), lease_s, prefer_task, call.token, call.policies)
    return got and asdict(got)


def _count_worker(run: Held, worker: str) -> None:
    """Raises ValueError for one more worker than the store takes rows of."""
    if worker not in run.worker_names and len(run.worker_names) >= MAX_WORKERS:
        raise ValueError(f"{MAX_WORKERS} workers have joined already; no more can join until --resume")
    run.worker_names.add(worker)


def heartbeat(store: RunStore, run: Held, call: schemas.Heartbeat) -> bool:
    return store.heartbeat(call.lease.to_lease(), run.now(), run.job.lease_s, call.steps)


def release(store: RunStore, run: Held, call: schemas.OfLease) -> bool:
    return store.release(call.lease.to_lease())


def fail(store: RunStore, run: Held, call: schemas.Fail) -> bool:
    held = call.lease.to_lease()
    done = store.fail(held, call.error, run.now(), run.job.retries, call.by_policy)
    return done or store.ended_as(held, "error")


def finish(store: RunStore, run: Held, call: schemas.Finish) -> bool:
    """The episode's result, and its file, which was sent before: both count or neither."""
    held, result = call.lease.to_lease(), call.result.model_dump(exclude_unset=True)
    done = store.finish(held, result, run.now(), lambda: _publish(run, held, "episode"))
    return done or store.ended_as(held, "done")


def add_to_result(store: RunStore, run: Held, call: schemas.AddToResult) -> None:
    """What came after the episode; `files` names the kinds that were sent for it."""
    held = call.lease.to_lease()
    if store.by_token(held.token) is None:
        return
    for kind in call.files:
        if draft(run, held, kind).exists() or not final(run, held, kind).exists():
            _publish(run, held, kind)
    store.add_to_result(held, call.more.model_dump(exclude_unset=True))


def _publish(run: Held, held: Lease, kind: str) -> None:
    path = draft(run, held, kind)
    if not path.exists():
        raise NotSent(f"the {kind} of task {held.task} episode {held.episode} was not sent before it was named")
    files.publish(path, final(run, held, kind))


def take_back(store: RunStore, run: Held, call: schemas.TakeBack) -> list[dict[str, Any]]:
    lost = store.take_back(call.worker, run.now(), run.job.retries, call.reason)
    return [asdict(one) for one in lost]


def say(store: RunStore, run: Held, call: schemas.Say) -> None:
    _count_worker(run, call.worker)
    store.say(call.worker, run.invocation, call.status, run.now())


def is_open(store: RunStore, run: Held, call: schemas.Call) -> bool:
    return store.open()


def counts(store: RunStore, run: Held, call: schemas.Call) -> list[dict[str, int]]:
    at, rows = run.counted
    if run.now() - at > COUNTED_S:
        rows = [{"task": task, **row} for task, row in store.counts().items()]
        run.counted = (run.now(), rows)
    return rows


def leases(store: RunStore, run: Held, call: schemas.OfPrefix) -> dict[str, Any]:
    """The leases of the workers whose names begin so."""
    return {worker: asdict(held) for worker, held in store.leases(call.prefix).items()}


def is_last_try_of_policy(store: RunStore, run: Held, call: schemas.OfLease) -> bool:
    return store.is_last_try_of_policy(call.lease.to_lease(), run.job.retries)


def place(store: RunStore, run: Held, call: schemas.OfLease) -> int | None:
    return store.place(call.lease.to_lease())


def faults(store: RunStore, run: Held, call: schemas.Call) -> list[dict[str, Any]]:
    return [asdict(one) for one in store.faults(run.invocation)]


def workers(store: RunStore, run: Held, call: schemas.OfPrefix) -> dict[str, str]:
    """What the workers say whose names begin so: with all of them for each of a thousand the store does little else."""
    return store.workers(call.prefix)


CALLS: dict[str, tuple[type[schemas.Call], Callable[[RunStore, Held, Any], Any]]] = {
    "join": (schemas.Join, join),
    "leave": (schemas.Call, leave),
    "lease": (schemas.RequestLease, lease),
    "heartbeat": (schemas.Heartbeat, heartbeat),
    "release": (schemas.OfLease, release),
    "fail": (schemas.Fail, fail),
    "finish": (schemas.Finish, finish),
    "add_to_result": (schemas.AddToResult, add_to_result),
    "take_back": (schemas.TakeBack, take_back),
    "say": (schemas.Say, say),
    "is_open": (schemas.Call, is_open),
    "counts": (schemas.Call, counts),
    "leases": (schemas.OfPrefix, leases),
    "is_last_try_of_policy": (schemas.OfLease, is_last_try_of_policy),
    "place": (schemas.OfLease, place),
    "faults": (schemas.Call, faults),
    "workers": (schemas.OfPrefix, workers),
}
