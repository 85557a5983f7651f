"""A worker that records: like an evaluation's, with sampled starts and stored trajectories.

`python -m vla_evaluation.recording.worker`, with the arguments of `vla_evaluation.workers.worker`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vla_evaluation.benchmark import Environment
from vla_evaluation.recording.demonstrations import variation
from vla_evaluation.recording.trajectory import Noise, TrajectoryRecorder, seed_of
from vla_evaluation.rollout import Record
from vla_evaluation.store.records import Lease
from vla_evaluation.workers.job import Job
from vla_evaluation.workers.worker import Worker, main

MODULE = "vla_evaluation.recording.worker"


@dataclass(frozen=True)
class RecordingJob(Job):
    """The settings of a recording. `wanted`: the number of demonstrations by task index as text."""

    wanted: Mapping[str, int] = field(default_factory=dict)
    attempts: int = 1
    noise: float = 0.0
    drop_noops: bool = False
    keep_failures: bool = False
    vary: str = ""


class RecordingWorker(Worker):
    """Starts episodes at sampled states, and stores trajectories for training."""

    job_type = RecordingJob
    job: RecordingJob
    trajectory: TrajectoryRecorder
    seed: int

    def load_episode(self, env: Environment, task, episode: int) -> tuple[int, np.ndarray]:
        """Load the task and sample the episode's start with a seed of its own; return number 0 and the start."""
        parts = self.job.spec.action
        self.seed = seed_of(self.job.spec.seed, task.index, episode)
        self.trajectory = TrajectoryRecorder(env, parts, Noise(parts, self.job.noise, self.seed))
        env.load_task(task, self.seed, **self.job.spec.protocol.scene(sampled_start=True), **variation(self.job.vary))
        return 0, env.start(0)

    def alter(self, action: np.ndarray) -> np.ndarray:
        """Store the step; return the action with the requested noise."""
        return self.trajectory(action)

    def save(self, lease: Lease, record: Record, fixtures: dict[str, np.ndarray]) -> bool:
        """Store the result; a success with its demonstration, else plan another attempt."""
        result = {**record.summary(), "seed": self.seed}
        if not (record.success or self.job.keep_failures):
            target = self.job.wanted[str(lease.task)], self.job.attempts
            return self.store.finish(lease, result, self.clock.now(), target=target)
        arrays = self.trajectory.arrays(self.job.drop_noops)
        poses = {f"fixture_{name}": pose for name, pose in fixtures.items()}
        result["kept_steps"] = len(arrays["actions"])
        return self.store_with(lease, result, {**arrays, "end": record.states[-1], **poses})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], RecordingWorker))
