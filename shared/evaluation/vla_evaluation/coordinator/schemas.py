"""The arguments of every call to a run that listens. They are validated before the store sees them.

The store adds up the numbers and keeps the rest as JSON, so a value that SQLite or a report cannot read ends a run for
good: NaN, a number as text, half a surrogate pair. Pydantic's JSON parser refuses such text everywhere, `allow_inf_nan`
such numbers; unknown fields are refused too.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vla_evaluation.store.records import Lease

MAX_TEXT = 10_000
MAX_TIME_MS = 1e12

PRINTABLE = r"^[^\p{C}]*$"
MachineName = Annotated[str, Field(min_length=1, max_length=64, pattern=PRINTABLE)]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=PRINTABLE)]
Prefix = Annotated[str, Field(max_length=128)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Hash = Annotated[str, Field(max_length=64, pattern=PRINTABLE)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Milliseconds = Annotated[float, Field(ge=-MAX_TIME_MS, le=MAX_TIME_MS)]
# Random, and part of a file name.
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
MachineFact = Annotated[str, Field(max_length=200, pattern=PRINTABLE)] | int | float


class Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class Call(Schema):
    """What every call has: the invocation that the sender joined, and its own random key."""

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

    def to_lease(self) -> Lease:
        return Lease(**self.__dict__)


class RealtimeDelays(Schema):
    held_steps: Count
    overtaken_actions: Count
    latency_ms_mean: Milliseconds
    latency_ms_max: Milliseconds


class Result(Schema):
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
    """What a finished episode's video adds to its result."""

    video: Annotated[str, Field(max_length=128, pattern=r"^videos/[A-Za-z0-9._-]+$")] = ""
    still: Annotated[str, Field(max_length=128, pattern=r"^videos/[A-Za-z0-9._-]+$")] = ""
    video_frames: Count = 0
    video_ms: Milliseconds = 0.0


class Join(Call):
    name: MachineName
    workers: Annotated[int, Field(ge=1, le=1024)]
    machine: Annotated[dict[MachineName, MachineFact], Field(max_length=20)]


class RequestLease(Call):
    worker: Name
    prefer_task: Count | None = None
    token: Token
    policies: Annotated[list[Text], Field(max_length=1000)] = []


class OfLease(Call):
    lease: LeaseFields


class Heartbeat(OfLease):
    steps: Count


class Fail(OfLease):
    error: Text
    by_policy: bool = False


class Finish(OfLease):
    result: Result


class AddToResult(OfLease):
    more: VideoResult
    files: Annotated[list[Literal["film", "still"]], Field(max_length=2)] = []


class TakeBack(Call):
    worker: Name
    reason: Text


class Say(Call):
    worker: Name
    status: Text


class OfPrefix(Call):
    """A question about the workers whose names begin with `prefix`."""

    prefix: Prefix


def explain(error: ValidationError) -> str:
    """Return the first problem as field, value and expectation."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    value = "" if first["type"] in ("missing", "json_invalid") else f" is {str(first['input'])[:80]!r}"
    return f"{field or 'the body'}{value}: {first['msg']}"
