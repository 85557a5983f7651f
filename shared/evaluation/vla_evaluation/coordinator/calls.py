"""What may be asked of a run's store over HTTP, by name. Every call may be repeated when its answer was not heard.

A call is `POST /v1/calls/NAME` with its arguments as a JSON object, `invocation` among them; it answers {"value": …}.
A function here gets the store, the run and what was sent, judges that, and returns what can be JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vla_evaluation.store import files
from vla_evaluation.store.records import Lease
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.clock import InvocationClock
from vla_evaluation.workers.job import Job

TEXT = 10_000  # characters
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


# --- what was sent, judged ------------------------------------------------------------------------------------


def _text(sent: Mapping, name: str) -> str:
    value = sent.get(name)
    if not isinstance(value, str) or len(value) > TEXT:
        raise ValueError(f"{name} is {str(value)[:80]!r}; expected text of at most {TEXT} characters")
    return value


def _token(sent: Mapping) -> str:
    """Returns a lease's token, which becomes part of a file's name."""
    token = _text(sent, "token")
    if not re.fullmatch(r"[0-9a-f]{16,64}", token):
        raise ValueError(f"token is {token[:80]!r}; expected 16 to 64 hexadecimal digits, drawn at random")
    return token


def _whole(sent: Mapping, name: str) -> int:
    value = sent.get(name)
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{name} is {str(value)[:80]!r}; expected a whole number from 0")
    return value


def _object(sent: Mapping, name: str) -> dict[str, Any]:
    value = sent.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {str(value)[:80]!r}; expected an object")
    return value


def _lease(sent: Mapping) -> Lease:
    given = _object(sent, "lease")
    texts = {name: _text(given, name) for name in ("config_hash", "suite")}
    numbers = {name: _whole(given, name) for name in ("task", "episode", "attempt")}
    return Lease(**texts, **numbers, token=_token(given), expires_at=0.0)


def _policies(sent: Mapping, job: Job) -> list[str]:
    """Returns the policy's addresses that the sender reaches, by their names in the run."""
    given = sent.get("policies", [])
    if given and not (isinstance(given, list) and set(map(str, given)) <= set(job.policies)):
        raise ValueError(f"policies is {str(given)[:80]!r}; expected some of {', '.join(job.policies)}")
    return given


def _result(sent: Mapping) -> dict[str, Any]:
    result = _object(sent, "result")
    _whole(result, "steps")
    if type(result.get("success")) not in (bool, int):
        raise ValueError(f"result.success is {str(result.get('success'))[:80]!r}; expected true or false")
    if any(isinstance(value, float) and not math.isfinite(value) for value in result.values()):
        raise ValueError("the result holds a number that is none (NaN or infinite)")
    return result


# --- the calls ------------------------------------------------------------------------------------------------


def join(store: RunStore, run: Held, sent: Mapping) -> dict[str, Any]:
    """A machine comes in. `name` is asked for; the answer has the name that no other machine has."""
    wanted, workers, key = _text(sent, "name"), _whole(sent, "workers"), _text(sent, "key")
    host = run.hosts.get(key)
    if host is None:
        taken = {one.name for one in run.hosts.values()}
        name = next(n for n in (wanted, *(f"{wanted}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        host = run.hosts[key] = Host(name, wanted, workers, _object(sent, "machine"), run.now())
        store.note(run.invocation, {"hosts": {name: {"host": wanted, "workers": workers, **host.machine}}})
    return {"name": host.name}


def leave(store: RunStore, run: Held, sent: Mapping) -> None:
    """A machine goes, as it should, having given back or finished what it had. It is not waited for any more."""
    if host := run.hosts.get(_text(sent, "key")):
        host.heard = -math.inf


def lease(store: RunStore, run: Held, sent: Mapping) -> dict[str, Any] | None:
    """The next episode, as `RunStore.lease`; `token` is the caller's."""
    prefer = None if sent.get("prefer_task") is None else _whole(sent, "prefer_task")
    worker, token, policies = _text(sent, "worker"), _token(sent), _policies(sent, run.job)
    got = store.lease(worker, run.invocation, run.now(), run.job.lease_s, prefer, token, policies)
    return got and asdict(got)


def heartbeat(store: RunStore, run: Held, sent: Mapping) -> bool:
    return store.heartbeat(_lease(sent), run.now(), run.job.lease_s, _whole(sent, "steps"))


def release(store: RunStore, run: Held, sent: Mapping) -> bool:
    return store.release(_lease(sent))


def fail(store: RunStore, run: Held, sent: Mapping) -> bool:
    held, by_policy = _lease(sent), sent.get("by_policy") is True
    done = store.fail(held, _text(sent, "error"), run.now(), run.job.retries, by_policy)
    return done or store.ended_as(held, "error")


def finish(store: RunStore, run: Held, sent: Mapping) -> bool:
    """The episode's result, and its file, which was sent before: both count or neither."""
    held = _lease(sent)
    done = store.finish(held, _result(sent), run.now(), lambda: _publish(run, held, "episode"))
    return done or store.ended_as(held, "done")


def add_to_result(store: RunStore, run: Held, sent: Mapping) -> None:
    """What came after the episode; `files` names the kinds that were sent for it."""
    held, more = _lease(sent), _object(sent, "more")
    if store.by_token(held.token) is None:
        return
    for kind in sent.get("files") or ():
        if draft(run, held, kind).exists() or not final(run, held, kind).exists():
            _publish(run, held, kind)
    store.add_to_result(held, more)


def _publish(run: Held, held: Lease, kind: str) -> None:
    path = draft(run, held, kind)
    if not path.exists():
        raise NotSent(f"the {kind} of task {held.task} episode {held.episode} was not sent before it was named")
    files.publish(path, final(run, held, kind))


def take_back(store: RunStore, run: Held, sent: Mapping) -> list[dict[str, Any]]:
    lost = store.take_back(_text(sent, "worker"), run.now(), run.job.retries, _text(sent, "reason"))
    return [asdict(one) for one in lost]


def say(store: RunStore, run: Held, sent: Mapping) -> None:
    store.say(_text(sent, "worker"), run.invocation, _text(sent, "status"), run.now())


def is_open(store: RunStore, run: Held, sent: Mapping) -> bool:
    return store.open()


def counts(store: RunStore, run: Held, sent: Mapping) -> list[dict[str, int]]:
    at, rows = run.counted
    if run.now() - at > COUNTED_S:
        rows = [{"task": task, **row} for task, row in store.counts().items()]
        run.counted = (run.now(), rows)
    return rows


def leases(store: RunStore, run: Held, sent: Mapping) -> dict[str, Any]:
    """The leases of the workers whose names begin so."""
    prefix = _text(sent, "prefix")
    return {worker: asdict(held) for worker, held in store.leases(prefix).items()}


def is_last_try_of_policy(store: RunStore, run: Held, sent: Mapping) -> bool:
    return store.is_last_try_of_policy(_lease(sent), run.job.retries)


def place(store: RunStore, run: Held, sent: Mapping) -> int | None:
    return store.place(_lease(sent))


def faults(store: RunStore, run: Held, sent: Mapping) -> list[dict[str, Any]]:
    return [asdict(one) for one in store.faults(run.invocation)]


def workers(store: RunStore, run: Held, sent: Mapping) -> dict[str, str]:
    """What the workers say whose names begin so: with all of them for each of a thousand the store does little else."""
    return store.workers(_text(sent, "prefix"))


Call = Callable[[RunStore, Held, Mapping], Any]
CALLS: dict[str, Call] = {
    call.__name__: call
    for call in (
        join, leave, lease, heartbeat, release, fail, finish, add_to_result, take_back, say,
        is_open, counts, leases, is_last_try_of_policy, place, faults, workers,
    )
}  # fmt: skip
