"""What a worker has to know, and how it is told to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from vla_evaluation.spec import RunSpec


class Stop(Exception):
    """The worker was told to end."""


@dataclass(frozen=True)
class Job:
    """What a worker has to know; the evaluator stores it in the run store under "job". `benchmark` is its module."""

    spec: RunSpec
    benchmark: str
    assets: str
    policies: tuple[str, ...]  # where it answers; these addresses are their names in the run
    video: str
    retries: int
    policy_errors: str
    policy_timeout_s: float
    act_timeout_s: float
    lease_s: float
    scene_timeout_s: float
    policies_at: tuple[str, ...] = ()  # from here, in the same order, where that is elsewhere

    def to_json(self) -> dict:
        """Returns it as JSON types."""
        return {**asdict(self), "spec": self.spec.to_json()}

    @classmethod
    def from_json(cls, data: Mapping) -> Job:
        """Returns what `to_json` has told."""
        addresses = {name: tuple(data[name]) for name in ("policies", "policies_at")}
        return cls(**{**data, **addresses, "spec": RunSpec.from_json(data["spec"])})

    @property
    def answer_s(self) -> float:
        """The longest that one call of the policy takes, with all its tries."""
        return 2 * self.act_timeout_s

    @property
    def draws(self) -> bool:
        return bool(self.spec.cameras) or self.video != "none"
