"""The evaluator's input to its workers: the job, and the clock of the invocation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vla_evaluation.spec import RunSpec


class Stop(Exception):
    """The worker has to stop."""


@dataclass(frozen=True)
class InvocationClock:
    """Seconds since the epoch as of the invocation's start, and from then on by the monotonic clock.

    The evaluator hands it to its workers, so all times of an invocation are comparable: no lease runs out and no
    duration gets negative when the system clock is set. The monotonic clock stands still while the machine sleeps, as
    the workers do. It is one boot's; no lease outlives its invocation, and so none its boot.
    """

    offset_s: float  # from the monotonic clock to the epoch

    @classmethod
    def start(cls) -> InvocationClock:
        return cls(time.time() - time.monotonic())

    def now(self) -> float:
        return self.offset_s + time.monotonic()


@dataclass(frozen=True)
class Job:
    """The workers' settings; stored in the run store under "job". `benchmark` is the benchmark's module."""

    spec: RunSpec
    benchmark: str
    assets: str
    policies: tuple[str, ...]  # the policy's addresses; they are also its replicas' names in the run
    video: str
    retries: int
    policy_errors: str
    policy_timeout_s: float
    act_timeout_s: float
    lease_s: float
    scene_timeout_s: float
    policies_at: tuple[str, ...] = ()  # from this machine, in the same order, if they differ

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "spec": self.spec.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        addresses = {name: tuple(data[name]) for name in ("policies", "policies_at")}
        return cls(**{**data, **addresses, "spec": RunSpec.from_json(data["spec"])})

    @property
    def answer_s(self) -> float:
        """The maximum duration of one policy call with all its retries, s."""
        return 2 * self.act_timeout_s

    @property
    def needs_rendering(self) -> bool:
        return bool(self.spec.cameras) or self.video != "none"
