"""A worker's videos: of the episode it has just run, and of finished ones whose video was cut off."""

from __future__ import annotations

import logging
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from vla_evaluation.benchmark import Benchmark, Task
from vla_evaluation.pictures import video
from vla_evaluation.store.reading import BUSY_TIMEOUT_S
from vla_evaluation.store.records import Lease
from vla_evaluation.store.remote import Store
from vla_evaluation.workers.heartbeat import Phase, WorkerHeartbeat
from vla_evaluation.workers.job import Job, Stop

SAVE_S = BUSY_TIMEOUT_S + 120.0  # for a slow disk and a busy store


@dataclass(frozen=True)
class VideoMaker:
    """Renders into one run's directory; `check_stop` raises Stop if the worker has to stop."""

    directory: Path
    store: Store
    job: Job
    benchmark: Benchmark
    heartbeat: WorkerHeartbeat
    check_stop: Callable[[], None]

    @property
    def stride(self) -> int:
        """Steps between two frames."""
        return video.stride(self.job.spec.control_hz)

    def wants(self, success: bool, rank: int) -> bool:
        return video.should_render(self.job.video, success, rank)

    def keeps_frame(self, task: int) -> Callable[[int], bool]:
        """Return a predicate of steps whose images a video of the task's next episode may need."""
        row = self.store.counts()[task]
        if not video.possible(self.job.video, row["successes"], row["done"] - row["successes"]):
            return lambda step: False
        return lambda step: step % self.stride == 0

    def render_video(self, env, lease: Lease, states: np.ndarray, frames: dict[int, np.ndarray]) -> None:
        """Render the episode whose scene `env` holds. The episode counts whatever happens here."""

        def check_between(images: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
            for image in images:
                self.check_stop()
                self.heartbeat.enter(Phase.VIDEO, self.job.lease_s)
                yield image

        self.heartbeat.enter(Phase.VIDEO, self.job.scene_timeout_s)  # the first image may be the scene's first
        names = {"video": f"videos/{lease.stem}.mp4", "still": f"videos/{lease.stem}.jpg"}
        start = time.perf_counter()
        images = video.render_frames(env, self.benchmark.video_camera, states, frames, self.stride)
        rate = Fraction(self.job.spec.control_hz).limit_denominator(1000) / self.stride
        try:
            count = video.write(
                self.directory / names["video"], self.directory / names["still"], check_between(images), rate
            )
        except Stop:
            return
        except ValueError as error:  # a scene that cannot be restored
            logging.warning("no video of task %d episode %d: %s", lease.task, lease.episode, error)
            return
        self.heartbeat.enter(Phase.SAVING, SAVE_S)
        took_ms = round((time.perf_counter() - start) * 1e3, 1)
        self.store.add_to_result(lease, {**names, "video_frames": count, "video_ms": took_ms})

    def render_missing(self, env, tasks: dict[int, Task], invocation: int) -> None:
        """Render the missing videos of earlier invocations. One that fails is tried once per invocation."""
        for lease in self.store.missing_videos(invocation, self.wants):
            self.heartbeat.enter(Phase.SAVING, SAVE_S)
            self.check_stop()
            if not self.store.claim_video(lease, invocation):
                continue
            task = tasks[lease.task]
            self.heartbeat.enter(Phase.SCENE, self.job.scene_timeout_s)
            env.load_task(task, self.job.spec.seed, **self.job.spec.protocol.scene())
            env.reset(lease.episode, self.benchmark.init_states(task)[lease.episode])
            recording = self.directory / "episodes" / f"{lease.stem}.npz"
            try:
                with np.load(recording) as recorded:
                    for name, pose in env.fixture_poses().items():
                        if not np.array_equal(recorded[f"fixture_{name}"], pose):
                            raise ValueError(f"{name} is at another position than in the recording")
                    states = recorded["states"]
            except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
                logging.warning("no video of task %d episode %d: %s", lease.task, lease.episode, error)
                continue
            self.render_video(env, lease, states, {})
