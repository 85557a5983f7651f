"""What a worker has to know, and how it is told to stop."""

from __future__ import annotations

from dataclasses import dataclass


class Stop(Exception):
    """The worker was told to end."""


@dataclass(frozen=True)
class Job:
    """What a worker has to know; the evaluator stores it in the run store under "job"."""

    suite: str
    profile: str
    max_steps: int
    seed: int
    cameras: tuple[str, ...]
    execute: int | None
    unnorm_key: str | None
    policy_url: str
    policy: dict  # PolicyInfo as JSON types
    assets: str
    render: str
    video: str
    retries: int
    policy_errors: str
    policy_timeout_s: float
    act_timeout_s: float
    lease_s: float
    scene_timeout_s: float

    @property
    def answer_s(self) -> float:
        """The longest that one call of the policy takes, with all its tries."""
        return 2 * self.act_timeout_s

    @property
    def draws(self) -> bool:
        return bool(self.cameras) or self.video != "none"
