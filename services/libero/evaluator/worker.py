"""A worker process: leases episodes, runs them in one reused environment, reports each to the run store.

The supervisor starts it: `python -m services.libero.evaluator.worker RUN_FOLDER NAME SESSION PARENT_PID`. It dies with
its parent, and on SIGTERM it gives its episode back and ends. Exit codes: 0 no work left or told to stop, 4 the whole
run has to stop (the last line of its log says why); anything else is a crash, and its episode is done again.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.libero.evaluator import files, video
from services.libero.evaluator.heartbeat import Heartbeat, LeaseLost
from services.libero.evaluator.profiles import profile as find_profile
from services.libero.evaluator.records import Lease, StoreError
from services.libero.evaluator.rollout import PolicyFault, Rules, run_episode
from services.libero.evaluator.store import RunStore
from services.libero.simulator.suites import init_states, load_suite
from vla_contract import ContractError, PolicyClient, PolicyInfo, PolicyRefused, PolicyUnavailable

FATAL = 4
IDLE_S = 0.2


class Stop(Exception):
    """The worker was told to end."""


class RunOver(Exception):
    """No worker can go on: the run has to stop with this message."""


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
    policy_timeout_s: float
    act_timeout_s: float
    lease_s: float

    @property
    def draws(self) -> bool:
        return bool(self.cameras) or self.video != "none"


class Worker:
    """The loop of one process; `run` returns when there is nothing left to do."""

    def __init__(self, folder: Path, name: str, session: int, parent: int):
        self.folder, self.name, self.session, self.parent = folder, name, session, parent
        self.store = RunStore(folder / "run.sqlite", check=False)
        self.job = Job(**self.store.meta("job"))
        self.info = PolicyInfo.from_dict(self.job.policy)
        self.tasks = {task.index: task for task in load_suite(self.job.suite).tasks}
        self.client = PolicyClient(
            self.job.policy_url,
            os.environ.get("VLALAB_TOKEN"),
            timeout_s=self.job.act_timeout_s,
            deadline_s=2 * self.job.act_timeout_s,
        )
        self.told_to_stop = False
        self.interruptible = False

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

    def run(self) -> None:
        self.store.say(self.name, self.session, "starting the simulator", time.time())
        env = self.make_env()
        task = None
        while not self.told_to_stop:
            lease = self.store.lease(self.name, self.session, time.time(), self.job.lease_s, task)
            if lease is None:
                if not self.store.open():
                    return
                time.sleep(IDLE_S)  # another worker's episode may come back
                continue
            task = lease.task
            self.attempt(env, lease)

    def make_env(self):
        from services.libero.simulator import runtime  # heavy: only a worker imports the simulator

        render = self.job.render if self.job.draws else "none"
        runtime.configure(Path(self.job.assets), self.folder / "work", render)
        from services.libero.simulator.env import LiberoEnv  # imports mujoco, which must come after configure

        cameras = dict.fromkeys((*self.job.cameras, "agentview"))
        profile = find_profile(self.job.profile)
        return LiberoEnv(Path(self.job.assets), tuple(cameras), profile.camera_size, render)

    def attempt(self, env, lease: Lease) -> None:
        """Runs one leased episode to its end, whichever that is."""
        with self.heartbeat(lease) as heartbeat:
            try:
                with self.interruption():
                    record = self.play(env, lease, heartbeat)
            except Stop:
                self.store.release(lease)
                return
            except LeaseLost:
                return
            except PolicyUnavailable as error:
                self.store.fail(lease, str(error), time.time(), self.job.retries)
                logging.warning("task %d episode %d: %s", lease.task, lease.episode, error)
                self.await_policy()
                return
            saved = self.save(lease, record, env.fixture_poses())
        if saved:
            self.draw(env, lease, record)

    def heartbeat(self, lease: Lease) -> Heartbeat:
        patience_s = 2 * self.job.act_timeout_s + 120.0  # longer than any answer, reset or construction may take
        return Heartbeat(self.store.path, lease, self.job.lease_s, patience_s, self.parent)

    def play(self, env, lease: Lease, heartbeat: Heartbeat):
        profile = find_profile(self.job.profile)
        rules = Rules(profile, self.job.max_steps, tuple(self.job.cameras), self.job.execute, self.job.unnorm_key)
        task = self.tasks[lease.task]
        env.load_task(task, self.job.seed)
        self.store.say(self.name, self.session, f"task {lease.task} episode {lease.episode}", time.time())
        session = f"{self.folder.name}.{lease.task}.{lease.episode}.{lease.attempt}.{lease.token}"
        try:
            record = run_episode(
                env,
                lease.episode,
                init_states(task)[lease.episode],
                act=self.client.act,
                info=self.info,
                rules=rules,
                session=session,
                tick=heartbeat.tick,
            )
        except (PolicyFault, PolicyRefused) as error:
            raise RunOver(f"task {lease.task} episode {lease.episode}: {error}") from error
        if self.info.stateful:
            self.forget(session)
        return record

    def forget(self, session: str) -> None:
        try:
            self.client.reset(session)
        except ContractError as error:
            logging.warning("session %s could not be ended: %s", session, error)  # the episode itself is complete

    def await_policy(self) -> None:
        """Waits for a policy that went away, so that its absence costs each worker one attempt and not all."""

        def waiting(waited_s: float, reason: str) -> None:
            self.store.say(self.name, self.session, f"waiting for the policy ({reason})", time.time())

        try:
            with self.interruption():
                self.client.wait_ready(self.job.policy_timeout_s, waiting)
                now = self.client.info().to_dict()
        except Stop:
            return
        except ContractError as error:
            raise RunOver(f"the policy went away and did not come back: {error}") from error
        if json.loads(json.dumps(now)) != self.job.policy:
            raise RunOver("another policy came back at the same address; start a new run for it")

    def save(self, lease: Lease, record, fixtures: dict[str, np.ndarray]) -> bool:
        """Stores the result and the episode's file, both or neither; False if the lease was lost."""
        name = f"{lease.task:02d}-{lease.episode:02d}.npz"
        final, partial = self.folder / "episodes" / name, self.folder / "episodes" / f".{name}.{lease.token}"
        try:
            with open(partial, "wb") as file:
                np.savez_compressed(
                    file,
                    actions=record.actions,
                    states=record.states,
                    **{f"fixture_{name}": pose for name, pose in fixtures.items()},
                )
                file.flush()
                os.fsync(file.fileno())
            result = {**record.summary(), "recording": f"episodes/{name}"}
            return self.store.finish(lease, result, time.time(), lambda: files.publish(partial, final))
        finally:
            partial.unlink(missing_ok=True)

    def draw(self, env, lease: Lease, record) -> None:
        """Draws the episode's video where one is wanted. The episode counts whatever happens here."""
        if not video.wanted(self.job.video, record.success, self.store.place(lease)):
            return
        self.store.say(self.name, self.session, "drawing a video", time.time())
        stem = f"videos/{lease.task:02d}-{lease.episode:02d}"
        start = time.perf_counter()
        frames = self.unless_stopped(video.draw(env, record.states, record.frames))
        try:
            count = video.write(self.folder / f"{stem}.mp4", self.folder / f"{stem}.jpg", frames)
        except Stop:
            return
        facts = {"video": f"{stem}.mp4", "still": f"{stem}.jpg", "video_frames": count}
        self.store.add_to_result(lease, {**facts, "video_ms": round((time.perf_counter() - start) * 1e3, 1)})

    def unless_stopped(self, frames):
        for frame in frames:
            self.check_stop()
            yield frame


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the evaluator has gone already")


def main(arguments: list[str]) -> int:
    folder, name, session, parent = Path(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3])
    die_with_parent(parent)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        worker = Worker(folder, name, session, parent)
        signal.signal(signal.SIGTERM, worker.on_sigterm)
        worker.run()
    except (RunOver, StoreError) as error:
        return give_up(str(error))
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return give_up(f"{error.strerror or error}{place}: repair this, then resume; finished episodes are safe")
    return 0


def give_up(message: str) -> int:
    print(f"stop: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return FATAL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
