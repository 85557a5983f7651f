"""The recorder's configuration: every flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tyro

from vla_evaluation.config import RunConfig, require_folder_name


@dataclass(frozen=True)
class RecordConfig(RunConfig):
    """Record demonstrations of a policy on a suite, from starts that evaluation never uses."""

    name: str | None = None
    """Name of the recording; one that is there goes on if its configuration is the same; default: SUITE-POLICY."""
    episodes: int = 100
    """Demonstrations to keep, over all tasks."""
    attempts: int = 5
    """Attempts for each demonstration that a task is to give, at most."""
    noise: float = 0.0
    """Noise on the movements that are executed, as a share of their range; kept is what the policy answers to it."""
    drop_noops: bool = False
    """Leave out steps that do nothing: no movement, and the gripper told what it was told before."""
    keep_failures: bool = False
    """Keep every attempt, also where the task was not solved."""

    video: ClassVar[str] = "none"  # films of a recording come from its data set
    policy_errors: ClassVar[str] = "fail"  # an attempt that the policy gives up is one that failed
    extra_cameras: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self):
        super().__post_init__()
        self.require({"episodes": 1, "attempts": 1, "noise": 0})
        if not self.noise <= 1:
            raise ValueError(f"--noise {self.noise} makes no sense; expected 0 to 1, as a share of the actions' range")
        if self.noise and (self.execute or 1) > 1:
            raise ValueError(
                f"--noise asks the policy after every step; --execute {self.execute} does not: leave it out"
            )
        if self.name is not None:
            require_folder_name("name", self.name)


def parse_args(arguments: list[str]) -> RecordConfig:
    """Returns the configuration from command-line arguments; ends the program for values that make no sense."""
    return tyro.cli(RecordConfig, args=arguments, prog="record")
