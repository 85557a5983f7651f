"""A worker process: leases episodes, runs them in one reused environment, reports each to the run store.

The supervisor starts it: `python -m vla_evaluation.workers.worker RUN_FOLDER NAME SESSION PARENT_PID CLOCK VITALS`,
the last two being the offset of the run's clock and a file descriptor. It dies with its parent, and on SIGTERM it
gives its episode back and ends. Exit codes: 0 no work left or told to stop, 4 the whole run has to stop (the last line
of its log says why); anything else is a crash, and its episode is done again.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from vla_contract import (
    ActionChunk,
    ContractError,
    Observation,
    PolicyRefused,
    PolicyUnavailable,
)
from vla_evaluation import benchmark
from vla_evaluation.actions import PolicyFault
from vla_evaluation.benchmark import Environment
from vla_evaluation.coordinator.remote import open_store
from vla_evaluation.rollout import Record, run_episode
from vla_evaluation.store import files
from vla_evaluation.store.reading import LOCKED_S
from vla_evaluation.store.records import Lease, StoreError
from vla_evaluation.terminal import one_line
from vla_evaluation.workers.clock import InvocationClock
from vla_evaluation.workers.drawing import SAVE_S, VideoMaker
from vla_evaluation.workers.job import Job, Stop
from vla_evaluation.workers.replicas import AnotherPolicy, Replicas
from vla_evaluation.workers.vitals import RENDERING, Phase, Vitals

FATAL = 4
STOP = "stop: "  # what a worker's last words begin with where it ends with FATAL
INTERNAL_ERROR, UNPROCESSABLE = 500, 422  # HTTP status: what the policy itself raised, what it refused to look at
IDLE_S = 0.2


class RunOver(Exception):
    """No worker can go on: the run has to stop with this message."""


class Worker:
    """The loop of one process; `run` returns when there is nothing left to do."""

    job_type: type[Job] = Job

    def __init__(self, folder: Path, name: str, invocation: int, clock: InvocationClock, vitals: Vitals):
        self.folder, self.name, self.invocation, self.clock, self.vitals = folder, name, invocation, clock, vitals
        self.store = open_store(folder, os.environ.get("VLALAB_TOKEN"))
        self.job = self.job_type.from_json(self.store.meta("job"))
        self.benchmark = benchmark.load(self.job.benchmark)
        self.tasks = {task.index: task for task in self.benchmark.tasks(self.job.spec.suite)}
        self.replicas = Replicas(
            self.job.policies,
            self.job.policies_at or self.job.policies,
            self.job.spec.to_json()["policy"],
            os.environ.get("VLALAB_TOKEN"),
            timeout_s=self.job.act_timeout_s,
            deadline_s=self.job.answer_s,
            looking=lambda: self.enter(Phase.WAITING, self.patience_s),
        )
        self.told_to_stop = False
        self.interruptible = False
        self.videos = VideoMaker(folder, self.store, self.job, self.benchmark, vitals, self.check_stop)
        self.task: int | None = None  # whose scene the environment holds

    def on_sigterm(self, *_) -> None:
        """Leaves an episode at once; elsewhere (saving a result, drawing a video) ends at the next safe place."""
        self.told_to_stop = True
        if self.interruptible:
            raise Stop

    def check_stop(self) -> None:
        if self.told_to_stop:
            raise Stop

    @contextmanager
    def interruption(self):
        self.interruptible = True
        try:
            self.check_stop()
            yield
        finally:
            self.interruptible = False

    def enter(self, phase: Phase, within_s: float) -> None:
        """Tells the supervisor what comes now and how long it may take; past that it counts as a hang."""
        self.vitals.enter(phase, within_s)

    @property
    def patience_s(self) -> float:
        """How long it may wait for a policy between two signs of life."""
        return LOCKED_S + self.job.answer_s + self.job.lease_s

    def say(self, status: str) -> None:
        self.store.say(self.name, self.invocation, status, self.clock.now())

    def run(self) -> None:
        self.say("starting the simulator")
        self.vitals.beat(self.job.lease_s / 6)
        env = self.make_env()
        while not self.told_to_stop:
            there = self.find_policy()
            self.enter(Phase.IDLE, LOCKED_S + self.job.lease_s)
            lease = self.lease(there) if there else None
            if lease is None:
                if not self.store.open():
                    self.draw_missing(env)
                    return
                time.sleep(IDLE_S)  # another worker's episode may come back
                continue
            if self.keeps_to(lease):
                self.attempt(env, lease)

    def find_policy(self) -> list[str]:
        """Returns the policy's addresses to choose from; where none answers, none after a while."""
        try:
            there = self.replicas.there()
        except AnotherPolicy as error:
            raise RunOver(str(error)) from error
        if not there and self.store.open():
            self.await_policy()
        return there

    def lease(self, policies: list[str]) -> Lease | None:
        """Returns the next episode, which asks one of those addresses; None where none is pending."""
        now, lease_s = self.clock.now(), self.job.lease_s
        return self.store.lease(self.name, self.invocation, now, lease_s, self.task, policies=policies)

    def keeps_to(self, lease: Lease) -> bool:
        """Has the episode keep to its address; gives it back, as nobody's fault, where nobody answers there."""
        try:
            if self.replicas.keep_to(lease.policy):
                return True
        except AnotherPolicy as error:
            raise RunOver(str(error)) from error
        self.store.release(lease)
        return False

    def draw_missing(self, env) -> None:
        if self.store.undrawn(self.invocation, self.videos.wants):
            self.say(RENDERING)
        with suppress(Stop):
            self.videos.draw_missing(env, self.tasks, self.invocation)

    def make_env(self) -> Environment:
        spec = self.job.spec
        cameras = tuple(dict.fromkeys((*spec.cameras, self.benchmark.video_camera)))
        render = spec.render if self.job.draws else "none"
        return self.benchmark.make_env(
            Path(self.job.assets), self.folder / "work", cameras, spec.protocol.camera_size, render
        )

    def attempt(self, env, lease: Lease) -> None:
        """Runs one leased episode to its end, whichever that is."""
        try:
            with self.interruption():
                record = self.play(env, lease)
        except Stop:
            self.enter(Phase.SAVING, SAVE_S)
            self.store.release(lease)
            return
        except PolicyUnavailable as error:
            self.enter(Phase.SAVING, SAVE_S)
            self.store.fail(lease, one_line(error), self.clock.now(), self.job.retries, by_policy=is_answer(error))
            logging.warning("task %d episode %d: %s", lease.task, lease.episode, one_line(error))
            self.replicas.doubt(one_line(error))
            if self.replicas.is_one:
                self.await_policy()
            return
        if not self.save(lease, record, env.fixture_poses()):
            return
        if self.videos.wants(record.success, self.store.place(lease)):
            self.say(RENDERING)
            self.videos.draw(env, lease, record.states, record.frames)

    def play(self, env, lease: Lease):
        task = self.tasks[lease.task]
        self.enter(Phase.SCENE, self.job.scene_timeout_s)
        is_new, self.task = self.task != lease.task, None  # a task that cannot be built is nobody's own
        episode, start = self.place(env, task, lease.episode)
        self.task = lease.task
        self.say(f"task {lease.task} episode {lease.episode}")
        session = f"{self.folder.name}.{lease.task}.{lease.episode}.{lease.attempt}.{lease.token}"
        try:
            record = run_episode(
                env,
                episode,
                start,
                act=self.ask,
                spec=self.job.spec,
                session=session,
                film=self.benchmark.video_camera,
                tick=lambda steps: self.tick(steps, is_new),
                keep_frame=self.videos.frames_kept(lease.task),
                forgive=lambda error: self.forgives(lease, error),
                alter=self.alter,
            )
        except (PolicyFault, PolicyRefused) as error:
            raise RunOver(f"task {lease.task} episode {lease.episode}: {error}") from error
        if self.job.spec.policy.stateful:
            self.forget(session)
        return record

    def place(self, env: Environment, task, episode: int) -> tuple[int, np.ndarray]:
        """Loads the task; returns which episode of its stream of draws this is, and the state that it starts from."""
        env.load_task(task, self.job.spec.seed, **self.job.spec.protocol.scene())
        return episode, self.benchmark.init_states(task)[episode]

    def alter(self, action: np.ndarray) -> np.ndarray:
        """Returns the action to execute for one that the policy gave."""
        return action

    def tick(self, steps: int, is_new: bool) -> None:
        """Says that the episode moves on; the first picture of a new scene belongs to building it."""
        if is_new and steps == 0:
            self.vitals.enter(Phase.SCENE, self.job.scene_timeout_s)
        else:
            self.vitals.enter(Phase.EPISODE, self.job.lease_s, steps)

    def forgives(self, lease: Lease, error: Exception) -> bool:
        """Returns whether the policy's answer ends the episode as not successful instead of the run.

        What a repeat may change is repeated first; what is not the policy's own doing never counts.
        """
        if self.job.policy_errors != "fail":
            return False
        if isinstance(error, PolicyUnavailable):
            return is_answer(error) and self.store.is_last_try_of_policy(lease, self.job.retries)
        return isinstance(error, PolicyFault) or getattr(error, "status", None) == UNPROCESSABLE

    def ask(self, observation: Observation) -> ActionChunk:
        """Returns the policy's answer."""
        self.vitals.enter(Phase.ANSWER, self.job.answer_s + self.job.lease_s, observation.step)
        return self.replicas.client.act(observation)

    def forget(self, session: str) -> None:
        self.enter(Phase.ANSWER, self.job.answer_s + self.job.lease_s)
        try:
            self.replicas.client.reset(session)
        except ContractError as error:
            logging.warning(
                "session %s could not be ended: %s", session, one_line(error)
            )  # the episode itself is complete

    def await_policy(self) -> None:
        """Waits for a policy that went away, so that its absence costs each worker one attempt and not all."""

        def waiting(waited_s: float, reason: str) -> None:
            self.enter(Phase.WAITING, self.patience_s)
            self.say(f"waiting for the policy ({one_line(reason)})")

        try:
            with self.interruption():
                self.enter(Phase.WAITING, self.patience_s)
                self.replicas.wait(self.job.policy_timeout_s, waiting)
        except Stop:
            return
        except ContractError as error:
            raise RunOver(f"the policy went away and did not come back: {error}") from error
        except AnotherPolicy as error:
            raise RunOver(str(error)) from error

    def save(self, lease: Lease, record: Record, fixtures: dict[str, np.ndarray]) -> bool:
        """Stores the result and the episode's file, both or neither; False if the lease was lost."""
        poses = {f"fixture_{name}": pose for name, pose in fixtures.items()}
        return self.store_with(lease, record.summary(), {"actions": record.actions, "states": record.states, **poses})

    def store_with(self, lease: Lease, result: dict, arrays: dict[str, np.ndarray], **finishing: object) -> bool:
        """Stores a result and a file of its arrays, as `save`."""
        self.enter(Phase.SAVING, SAVE_S)
        return files.save_episode(self.store, self.folder, lease, result, arrays, self.clock.now, **finishing)


def is_answer(error: PolicyUnavailable) -> bool:
    """Returns whether the policy itself answered, with an internal error or with what is no action chunk."""
    return error.status == INTERNAL_ERROR or (error.status is None and isinstance(error.__cause__, ValueError))


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the evaluator has gone already")


def main(arguments: list[str], kind: type[Worker] = Worker) -> int:
    """Runs a worker of that kind to its end; returns the exit code."""
    folder, name, invocation = Path(arguments[0]), arguments[1], int(arguments[2])
    die_with_parent(int(arguments[3]))
    clock, vitals = InvocationClock(float(arguments[4])), Vitals(int(arguments[5]))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        worker = kind(folder, name, invocation, clock, vitals)
        signal.signal(signal.SIGTERM, worker.on_sigterm)
        worker.run()
        worker.enter(Phase.ENDING, worker.job.lease_s)
    except (RunOver, StoreError) as error:
        return give_up(str(error))
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return give_up(f"{error.strerror or error}{place}: repair this, then resume; finished episodes are safe")
    return 0


def give_up(message: str) -> int:
    """Says why in the log, where that can be written: it may lie on the disk that is full."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{STOP}{one_line(message)}\n".encode())
    return FATAL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
