"""A worker process: leases episodes, runs them in one reused environment, reports each to the run store.

The supervisor starts it: `python -m vla_evaluation.workers.worker RUN_DIR NAME SESSION PARENT_PID CLOCK HEARTBEAT`,
the last two being the offset of the run's clock and a file descriptor. It dies with its parent, and on SIGTERM it
returns its episode and ends. Exit codes: 0 no work left or stopped, 4 the whole run has to stop (the last line of its
log has the reason); anything else is a crash, and its episode is retried.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vla_contract import ActionChunk, ContractError, Observation, PolicyRefused, PolicyUnavailable
from vla_contract.memory import keep_freed_memory
from vla_evaluation import benchmark, inputs
from vla_evaluation.actions import PolicyFault
from vla_evaluation.benchmark import Environment, EnvironmentRefused, Task
from vla_evaluation.config import parse_ranges
from vla_evaluation.inputs import OTHER_IMAGES, OTHER_INSTRUCTION
from vla_evaluation.pictures import video
from vla_evaluation.rollout import Record, Timings, observe, run_episode
from vla_evaluation.store.reading import BUSY_TIMEOUT_S
from vla_evaluation.store.records import Lease, StoreError
from vla_evaluation.store.remote import open_store, save_episode
from vla_evaluation.terminal import single_line
from vla_evaluation.workers.heartbeat import RENDERING, Phase, WorkerHeartbeat
from vla_evaluation.workers.job import InvocationClock, Job, Stop
from vla_evaluation.workers.replicas import AnotherPolicy, Replicas

FATAL = 4
STOP = "stop: "  # prefix of the last message of a worker that ends with FATAL
INTERNAL_ERROR, UNPROCESSABLE = 500, 422  # HTTP status: the policy failed; it rejected the observation
IDLE_S = 0.2
SAVE_S = BUSY_TIMEOUT_S + 120.0  # for a slow disk and a busy store


class RunAborted(Exception):
    """No worker can continue; the run has to stop with this message."""


class Worker:
    """The loop of one process; `run` returns when there is nothing left to do."""

    job_type: type[Job] = Job

    def __init__(self, directory: Path, name: str, invocation: int, clock: InvocationClock, heartbeat: WorkerHeartbeat):
        self.directory, self.name, self.invocation = directory, name, invocation
        self.clock, self.heartbeat = clock, heartbeat
        token = os.environ.get("VLALAB_TOKEN")
        self.store = open_store(directory, token)
        self.job = self.job_type.from_json(self.store.meta("job"))
        self.benchmark = benchmark.load(self.job.benchmark)
        self.tasks = {task.index: task for task in self.benchmark.tasks(self.job.spec.suite)}
        # Maximum time between two heartbeats while it waits for a policy.
        self.stall_timeout_s = BUSY_TIMEOUT_S + self.job.answer_s + self.job.lease_s
        self.replicas = Replicas(
            self.job.policies,
            self.job.policies_at or self.job.policies,
            self.job.spec.to_json()["policy"],
            token,
            timeout_s=self.job.act_timeout_s,
            deadline_s=self.job.answer_s,
            before_probe=lambda: heartbeat.enter(Phase.WAITING, self.stall_timeout_s),
        )
        self.stopping = False
        self.interruptible = False
        self.video_stride = video.stride(self.job.spec.control_hz)  # steps between two frames
        self.task: int | None = None  # of the loaded scene

    def on_sigterm(self, *_: object) -> None:
        """Stop an episode at once; elsewhere (saving a result, rendering a video) stop at the next safe point."""
        self.stopping = True
        if self.interruptible:
            raise Stop

    def check_stop(self) -> None:
        if self.stopping:
            raise Stop

    @contextmanager
    def interruption(self) -> Iterator[None]:
        self.interruptible = True
        try:
            self.check_stop()
            yield
        finally:
            self.interruptible = False

    def set_status(self, status: str) -> None:
        self.store.set_status(self.name, self.invocation, status, self.clock.now())

    def run(self) -> None:
        self.set_status("starting the simulator")
        self.heartbeat.start_thread(self.job.lease_s / 6)
        spec = self.job.spec
        cameras = tuple(dict.fromkeys((*spec.cameras, self.benchmark.video_camera)))
        render = spec.render if self.job.needs_rendering else "none"
        assets, size = Path(self.job.assets), spec.protocol.camera_size
        env = self.benchmark.make_env(assets, self.directory / "work", cameras, size, render)
        while not self.stopping:
            policies = self.replicas.available()
            if not policies and self.store.open():
                self.await_policy()
            self.heartbeat.enter(Phase.IDLE, BUSY_TIMEOUT_S + self.job.lease_s)
            now, lease_s = self.clock.now(), self.job.lease_s
            lease = policies and self.store.lease(
                self.name, self.invocation, now, lease_s, self.task, policies=policies
            )
            if lease:
                if self.replicas.pin(lease.policy):
                    self.attempt(env, lease)
                else:  # its replica does not answer, which is not a fault
                    self.store.release(lease)
                continue
            if not self.store.open():
                if self.store.missing_videos(self.invocation, self.wants_video):
                    self.set_status(RENDERING)
                with suppress(Stop):
                    self.render_missing(env)
                return
            time.sleep(IDLE_S)  # another worker's episode may come back

    def attempt(self, env, lease: Lease) -> None:
        """Run one leased episode and store its outcome."""
        try:
            with self.interruption():
                record = self.play(env, lease)
        except Stop:
            self.heartbeat.enter(Phase.SAVING, SAVE_S)
            self.store.release(lease)
            return
        except PolicyUnavailable as error:
            self.heartbeat.enter(Phase.SAVING, SAVE_S)
            message = single_line(error)
            self.store.fail(lease, message, self.clock.now(), self.job.retries, by_policy=is_answer(error))
            logging.warning("task %d episode %d: %s", lease.task, lease.episode, message)
            self.replicas.suspect(message)
            if self.replicas.is_single:
                self.await_policy()
            return
        if not self.save(lease, record, env.fixture_poses()):
            return
        if self.wants_video(record.success, self.store.outcome_rank(lease)):
            self.set_status(RENDERING)
            self.render_video(env, lease, record.states, record.frames)

    def play(self, env, lease: Lease):
        task = self.tasks[lease.task]
        self.heartbeat.enter(Phase.SCENE, self.job.scene_timeout_s)
        is_new, self.task = self.task != lease.task, None  # none while the scene is built
        frames = self.frames_of_another(env, task, lease) if self.job.spec.ablation == OTHER_IMAGES else ()
        sentence = self.sentence(task, lease.episode)
        episode, start = self.load_episode(env, task, lease.episode)
        self.task = lease.task
        self.set_status(f"task {lease.task} episode {lease.episode}")
        session = f"{self.directory.name}.{lease.task}.{lease.episode}.{lease.attempt}.{lease.token}"
        try:
            record = run_episode(
                env,
                episode,
                start,
                act=self.ask,
                spec=self.job.spec,
                session=session,
                video_camera=self.benchmark.video_camera,
                tick=lambda steps: self.tick(steps, is_new),
                keep_frame=self.keeps_frame(lease.task),
                forgive=lambda error: self.counts_as_failure(lease, error),
                alter=self.alter,
                present=partial(inputs.present, spec=self.job.spec, sentence=sentence, frames=frames),
            )
        except (PolicyFault, PolicyRefused) as error:
            raise RunAborted(f"task {lease.task} episode {lease.episode}: {error}") from error
        if self.job.spec.policy.stateful:
            self.heartbeat.enter(Phase.ANSWER, self.job.answer_s + self.job.lease_s)
            try:
                self.replicas.current.client.reset(session)
            except ContractError as error:  # the episode itself is complete
                logging.warning("session %s could not be ended: %s", session, single_line(error))
        return record

    def load_episode(self, env: Environment, task, episode: int) -> tuple[int, np.ndarray]:
        """Load the task; return the episode's number for `Environment.reset`, and its start state."""
        env.load_task(task, self.job.spec.seed, **self.job.spec.protocol.scene())
        return episode, self.benchmark.init_states(task)[episode]

    def sentence(self, task: Task, episode: int) -> str:
        """Return the instruction for the policy."""
        if self.job.spec.ablation == OTHER_INSTRUCTION:
            return inputs.of_another_task(self.tasks, task.index)
        return inputs.instruction(self.job.spec.instructions, task.index, episode, task.instruction)

    def frames_of_another(self, env: Environment, task: Task, lease: Lease) -> list[Mapping[str, np.ndarray]]:
        """Return the images that the policy had in another episode of the task, by step, by replaying its actions."""
        source = self.directory.parents[1]  # the run whose episodes this one repeats
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        other = inputs.another_episode(parse_ranges(config["episodes"]), lease.episode)
        with np.load(source / "episodes" / f"{replace(lease, episode=other).stem}.npz", allow_pickle=False) as file:
            actions = file["actions"]
        spec, frames = self.job.spec, []
        number, start = self.load_episode(env, task, other)
        env.reset(number, start)
        for _ in range(spec.protocol.wait_steps):
            env.step(np.asarray(spec.protocol.wait_action, np.float32))
        for step, action in enumerate(actions):
            self.tick(step, is_new=True)
            frames.append(observe(env, spec, lease.stem, step, Timings())[0].images)
            env.step(action)
        return frames

    def alter(self, action: np.ndarray) -> np.ndarray:
        """Return the action to execute for one of the policy's."""
        return action

    def tick(self, steps: int, is_new: bool) -> None:
        """Report progress in the episode; the first image of a new scene belongs to building it."""
        if is_new and steps == 0:
            self.heartbeat.enter(Phase.SCENE, self.job.scene_timeout_s)
        else:
            self.heartbeat.enter(Phase.EPISODE, self.job.lease_s, steps)

    def counts_as_failure(self, lease: Lease, error: Exception) -> bool:
        """Return whether the policy's answer ends the episode as not successful instead of the run.

        Errors that a retry may resolve are retried first; errors that are not the policy's never count.
        """
        if self.job.policy_errors != "fail":
            return False
        if isinstance(error, PolicyUnavailable):
            return is_answer(error) and self.store.is_last_try_of_policy(lease, self.job.retries)
        return isinstance(error, PolicyFault) or getattr(error, "status", None) == UNPROCESSABLE

    def ask(self, observation: Observation) -> ActionChunk:
        """Return the policy's answer."""
        self.heartbeat.enter(Phase.ANSWER, self.job.answer_s + self.job.lease_s, observation.step)
        return self.replicas.current.client.act(observation)

    def await_policy(self) -> None:
        """Wait until the policy is back: an outage costs each worker one attempt at most."""

        def waiting(waited_s: float, reason: str) -> None:
            self.heartbeat.enter(Phase.WAITING, self.stall_timeout_s)
            self.set_status(f"waiting for the policy ({single_line(reason)})")

        try:
            with self.interruption():
                self.heartbeat.enter(Phase.WAITING, self.stall_timeout_s)
                self.replicas.wait(self.job.policy_timeout_s, waiting)
        except Stop:
            return
        except ContractError as error:
            raise RunAborted(f"the policy became unreachable and did not come back: {error}") from error

    def save(self, lease: Lease, record: Record, fixtures: dict[str, np.ndarray]) -> bool:
        """Store the result and the episode's file, both or neither; False if the lease was lost."""
        poses = {f"fixture_{name}": pose for name, pose in fixtures.items()}
        return self.store_with(lease, record.summary(), {"actions": record.actions, "states": record.states, **poses})

    def store_with(
        self, lease: Lease, result: dict[str, Any], arrays: dict[str, np.ndarray], **finishing: object
    ) -> bool:
        """Store a result and a file of its arrays, as `save`."""
        self.heartbeat.enter(Phase.SAVING, SAVE_S)
        return save_episode(self.store, self.directory, lease, result, arrays, self.clock.now, **finishing)

    # --- videos -------------------------------------------------------------------------------------------

    def wants_video(self, success: bool, rank: int) -> bool:
        return video.should_render(self.job.video, success, rank)

    def keeps_frame(self, task: int) -> Callable[[int], bool]:
        """Return a predicate of steps whose images a video of the task's next episode may need."""
        row = self.store.counts()[task]
        if not video.possible(self.job.video, row["successes"], row["done"] - row["successes"]):
            return lambda step: False
        return lambda step: step % self.video_stride == 0

    def render_video(self, env: Environment, lease: Lease, states: np.ndarray, frames: dict[int, np.ndarray]) -> None:
        """Render the episode whose scene `env` holds. The episode counts whatever happens here."""

        def check_between(images: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
            for image in images:
                self.check_stop()
                self.heartbeat.enter(Phase.VIDEO, self.job.lease_s)
                yield image

        self.heartbeat.enter(Phase.VIDEO, self.job.scene_timeout_s)  # the first image may be the scene's first
        names = {"video": f"videos/{lease.stem}.mp4", "still": f"videos/{lease.stem}.jpg"}
        start = time.perf_counter()
        images = video.render_frames(env, self.benchmark.video_camera, states, frames, self.video_stride)
        rate = Fraction(self.job.spec.control_hz).limit_denominator(1000) / self.video_stride
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

    def render_missing(self, env: Environment) -> None:
        """Render the missing videos of earlier invocations. One that fails is tried once per invocation."""
        for lease in self.store.missing_videos(self.invocation, self.wants_video):
            self.heartbeat.enter(Phase.SAVING, SAVE_S)
            self.check_stop()
            if not self.store.claim_video(lease, self.invocation):
                continue
            task = self.tasks[lease.task]
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


def is_answer(error: PolicyUnavailable) -> bool:
    """Return whether the policy itself answered, with an internal error or with an invalid chunk."""
    return error.status == INTERNAL_ERROR or (error.status is None and isinstance(error.__cause__, ValueError))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the evaluator has already exited")


def main(arguments: list[str], kind: type[Worker] = Worker) -> int:
    """Run a worker of that kind to its end; return the exit code."""
    directory, name, invocation = Path(arguments[0]), arguments[1], int(arguments[2])
    die_with_parent(int(arguments[3]))
    keep_freed_memory()
    clock, heartbeat = InvocationClock(float(arguments[4])), WorkerHeartbeat(int(arguments[5]))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        worker = kind(directory, name, invocation, clock, heartbeat)
        signal.signal(signal.SIGTERM, worker.on_sigterm)
        worker.run()
        heartbeat.enter(Phase.EXITING, worker.job.lease_s)
    except (RunAborted, AnotherPolicy, StoreError, EnvironmentRefused) as error:
        message = str(error)
    except OSError as error:
        path = f" ({error.filename})" if error.filename else ""
        message = f"{error.strerror or error}{path}: repair this, then resume; finished episodes are safe"
    else:
        return 0
    with suppress(OSError):  # the log may be on the disk that is full
        os.write(sys.stderr.fileno(), f"{STOP}{single_line(message)}\n".encode())
    return FATAL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
