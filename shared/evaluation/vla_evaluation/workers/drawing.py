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
from vla_evaluation.coordinator.remote import RemoteStore
from vla_evaluation.pictures import video
from vla_evaluation.store.reading import LOCKED_S
from vla_evaluation.store.records import Lease
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.job import Job, Stop
from vla_evaluation.workers.vitals import Phase, Vitals

SAVE_S = LOCKED_S + 120.0  # a disk may be slow, and the store waits for others


@dataclass(frozen=True)
class VideoMaker:
    """Draws into one run's folder; `check_stop` raises Stop where the worker was told to end."""

    folder: Path
    store: RunStore | RemoteStore
    job: Job
    benchmark: Benchmark
    vitals: Vitals
    check_stop: Callable[[], None]

    @property
    def every(self) -> int:
        """How many steps lie between two frames."""
        return video.stride(self.job.spec.control_hz)

    def wants(self, success: bool, place: int) -> bool:
        return video.wanted(self.job.video, success, place)

    def frames_kept(self, task: int) -> Callable[[int], bool]:
        """Returns which pictures to keep: those that a video of the task's next episode shows, if it may get one."""
        row = self.store.counts()[task]
        if not video.possible(self.job.video, row["successes"], row["done"] - row["successes"]):
            return lambda step: False
        return lambda step: step % self.every == 0

    def draw(self, env, lease: Lease, states: np.ndarray, frames: dict[int, np.ndarray]) -> None:
        """Draws an episode whose scene `env` holds. The episode counts whatever happens here."""
        self.vitals.enter(Phase.VIDEO, self.job.scene_timeout_s)  # the first picture may be the scene's first
        stem = f"videos/{lease.task:02d}-{lease.episode:02d}"
        start = time.perf_counter()
        shown = self._watched(video.draw(env, self.benchmark.video_camera, states, frames, self.every))
        rate = Fraction(self.job.spec.control_hz).limit_denominator(1000) / self.every
        try:
            count = video.write(self.folder / f"{stem}.mp4", self.folder / f"{stem}.jpg", shown, rate)
        except Stop:
            return
        self.vitals.enter(Phase.SAVING, SAVE_S)
        drawn = {"video": f"{stem}.mp4", "still": f"{stem}.jpg", "video_frames": count}
        self.store.add_to_result(lease, {**drawn, "video_ms": round((time.perf_counter() - start) * 1e3, 1)})

    def _watched(self, frames: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for frame in frames:
            self.check_stop()
            self.vitals.enter(Phase.VIDEO, self.job.lease_s)
            yield frame

    def draw_missing(self, env, tasks: dict[int, Task], invocation: int) -> None:
        """Draws what earlier invocations were asked for and did not draw. One that cannot be drawn is tried once a
        invocation, so that nothing goes round in circles.
        """
        for lease in self.store.undrawn(invocation, self.wants):
            self.vitals.enter(Phase.SAVING, SAVE_S)
            self.check_stop()
            if self.store.claim_video(lease, invocation):
                self._draw_again(env, tasks[lease.task], lease)

    def _draw_again(self, env, task: Task, lease: Lease) -> None:
        """Brings an episode's scene back and draws its recorded states."""
        self.vitals.enter(Phase.SCENE, self.job.scene_timeout_s)
        env.load_task(task, self.job.spec.seed, **self.job.spec.protocol.scene())
        env.reset(lease.episode, self.benchmark.init_states(task)[lease.episode])
        try:
            states = self._recorded(lease, env.fixture_poses())
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            logging.warning("no video of task %d episode %d: %s", lease.task, lease.episode, error)
            return
        self.draw(env, lease, states, {})

    def _recorded(self, lease: Lease, fixtures: dict[str, np.ndarray]) -> np.ndarray:
        """Returns an episode's states; ValueError where its fixtures stood elsewhere than they do now."""
        with np.load(self.folder / "episodes" / f"{lease.task:02d}-{lease.episode:02d}.npz") as recording:
            for name, pose in fixtures.items():
                if not np.array_equal(recording[f"fixture_{name}"], pose):
                    raise ValueError(f"{name} stood elsewhere when it was recorded")
            return recording["states"]
