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
    policy_url: str
    video: str
    retries: int
    policy_errors: str
    policy_timeout_s: float
    act_timeout_s: float
    lease_s: float
    scene_timeout_s: float

    def to_json(self) -> dict:
        """Returns it as JSON types."""
        return {**asdict(self), "spec": self.spec.to_json()}

    @classmethod
    def from_json(cls, data: Mapping) -> Job:
        """Returns what `to_json` has told."""
        return cls(**{**data, "spec": RunSpec.from_json(data["spec"])})

    @property
    def answer_s(self) -> float:
        """The longest that one call of the policy takes, with all its tries."""
        return 2 * self.act_timeout_s

    @property
    def draws(self) -> bool:
        return bool(self.spec.cameras) or self.video != "none"
