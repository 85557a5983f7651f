"""A session's process: `python -m vla_evaluation.live.simulation MODULE REQUEST WORK SOCKET PARENT_PID`.

Episodes run as in an evaluation, by `vla_evaluation.rollout`; this module connects its steps with the user. An image is
rendered only while a page waits for one: without a viewer there is no cost, and a slow viewer delays nothing.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_common import entrypoint
from vla_common.volume import Volume
from vla_contract import ActionChunk, ContractError, Observation, PolicyClient, PolicyInfo
from vla_evaluation import benchmark
from vla_evaluation.actions import PolicyFault
from vla_evaluation.agreement import check_policy, choose_profile
from vla_evaluation.benchmark import Benchmark, Environment, require_assets
from vla_evaluation.config import EvalConfig
from vla_evaluation.live import commands, saving
from vla_evaluation.live.commands import PERSON_STEPS, Controls, EpisodeLeft, SessionRequest
from vla_evaluation.pictures.images import upright
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.recording.trajectory import Noise, TrajectoryRecorder, seed_of
from vla_evaluation.rollout import Record, run_episode
from vla_evaluation.terminal import single_line
from vla_evaluation.workers.worker import die_with_parent

MAX_CAMERAS = 2  # the benchmark's first ones
FRAMES_PER_S = 10.0
POLICY_TIMEOUT_S = 60.0
JPEG_QUALITY = 90


class LiveEnvironment:
    """An environment that renders each camera once per state, and whose instruction a person may replace."""

    def __init__(self, env: Environment, controls: Controls):
        self._env, self._controls, self._rendered = env, controls, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @property
    def instruction(self) -> str:
        return self._controls.instruction or self._env.instruction

    def render(self, camera: str) -> np.ndarray:
        if camera not in self._rendered:
            self._rendered[camera] = self._env.render(camera)
        return self._rendered[camera]

    def step(self, action: np.ndarray) -> bool:
        self._rendered.clear()
        return self._env.step(action)

    def reset(self, episode: int, init_state: np.ndarray) -> None:
        self._rendered.clear()
        self._env.reset(episode, init_state)

    def restore(self, sim_state: np.ndarray) -> None:
        self._rendered.clear()
        self._env.restore(sim_state)


class Simulation:
    """One session; `run` returns when it is closed."""

    def __init__(self, of: Benchmark, request: SessionRequest, work: Path, connection: socket.socket):
        self.benchmark, self.request, self.work, self.connection = of, request, work, connection
        self.controls = Controls(of.action, "policy" if request.policy else "person")
        self.instruction = of.tasks(request.suite)[request.task].instruction
        self.env: LiveEnvironment | None = None
        self.robot: list[float] = []  # its state as last sent, as `Benchmark.state` says
        self.episode = 0
        self._last_head: dict | None = None
        self._rendered_at = 0.0
        self._forget_episode("the simulator is loading")

    def _forget_episode(self, reason: str) -> None:
        self.state, self.reason, self.trouble, self.saved_in = "starting", reason, "", ""
        self.step, self.success, self.person_steps, self.reworded = 0, False, 0, False
        self.record: Record | None = None
        self.policy_ms: float | None = None
        self.actions: list[list[float]] = []
        self._sent_actions = 0
        self._passed_step, self._due, self._policy_session = -1, 0.0, ""

    # --- the life of a session ----------------------------------------------------------------------------

    def run(self) -> None:
        """Fetch the policy's info, build the environment, and run episodes until the session is closed."""
        request, of, token = self.request, self.benchmark, os.environ.get("VLALAB_TOKEN") or None
        self.info = PolicyInfo(name="person", action=of.action)
        if request.policy:
            self.client = PolicyClient(request.policy_url, token, POLICY_TIMEOUT_S, POLICY_TIMEOUT_S, retries=1)
            self.info = self.client.info()
        config = EvalConfig(request.suite, max_steps=None if request.policy else PERSON_STEPS)
        plan = make_plan(of, config, choose_profile(self.info, of, None))
        check_policy(self.info, of, config.suite, plan.profile)
        self.spec, self.task = specify(plan, self.info), plan.tasks[request.task]
        self.assets = of.assets(None, Volume().root)
        require_assets(of, [self.task], self.assets)
        size, render = self.spec.protocol.camera_size, self.spec.render
        env = of.make_env(self.assets.path, self.work, tuple(of.cameras), size, render)
        self.env = LiveEnvironment(env, self.controls)
        do = "reset"
        while do != "close":
            if self.controls.start:
                self.request = self.request.with_start(self.controls.start)
            self.controls.begin()
            do = self.run_episode() or self.run_jobs()

    def run_episode(self) -> str:
        """Run an episode; return the command that stopped it, empty if it ended by itself."""
        self.episode += 1
        self._forget_episode("building the scene")
        self.send_news()
        if self.request.init is None:
            self.seed, number = seed_of(0, self.task.index, self.request.start_number), 0
            self.env.load_task(self.task, self.seed, **self.spec.protocol.scene(sampled_start=True))
            start = self.env.start(0)
        else:
            self.seed, number = self.spec.seed, self.request.init
            self.env.load_task(self.task, self.seed, **self.spec.protocol.scene())
            start = self.benchmark.init_states(self.task)[number]
        self.trajectory = TrajectoryRecorder(self.env, self.benchmark.action, Noise(self.benchmark.action, 0.0, 0))
        self._wait_steps = self.spec.protocol.wait_steps
        callbacks: dict[str, Any] = {"act": self.act, "tick": self.tick, "alter": self.alter}
        try:
            self.record = run_episode(self.env, number, start, spec=self.spec, session="live", **callbacks)
            self.success = self.record.success
            reason = "solved" if self.success else f"not solved within {self.spec.max_steps} steps"
        except PolicyFault as error:
            reason = f"the policy returned an invalid action: {single_line(error)}"
        except EpisodeLeft as left:
            if left.do != "finish":
                self.end_policy_session()
                return left.do
            reason = "finished before it was solved"
        self.step, self.state, self.reason, self.trouble = len(self.actions), "ended", reason, ""
        self.states = np.asarray([*self.trajectory.steps["sim_states"], self.env.sim_state()])
        self.end_policy_session()
        return ""

    def run_jobs(self) -> str:
        """Run the requested jobs of an ended episode; return the command that ends the waiting.

        The answer to a job is its result or its error: the session continues.
        """
        while True:
            try:
                self.controls.wait(lambda: bool(self.controls.jobs), self.send_news)
            except EpisodeLeft as left:
                if left.do != "finish":
                    return left.do
                self.controls.begin()
                continue
            job, blob = self.controls.jobs.popleft(), b""
            answer: dict[str, Any] = {"answer": job["id"]}
            try:
                if job["do"] == "film":
                    blob = saving.render_video(self.env, self.benchmark, self.states, self.work)
                elif refusal := self.refusal():
                    raise ValueError(refusal)
                else:
                    self.saved_in = answer["kept"] = saving.save_demonstration(self)
            except Exception as error:  # a full disk, a damaged store: displayed on the page
                if not isinstance(error, ValueError):
                    logging.exception("%s failed", job["do"])
                cause = entrypoint.exit_status(error, (Exception,))
                answer["error"] = single_line(cause.text if cause else error)
            self.send(answer, blob)

    def refusal(self) -> str:
        """Return the reason why this episode cannot be a demonstration; empty if it can."""
        if self.state != "ended" or not self.success:
            return "only a solved episode can be saved as a demonstration, as with `./lab record`"
        if self.request.init is not None:
            return (
                "it started at an init state of the evaluation, which must not be in training data; use a random start"
            )
        if self.reworded:
            return "its instruction was changed; restart with the task's own instruction"
        return f"already saved in {self.saved_in}" if self.saved_in else ""

    # --- between the steps --------------------------------------------------------------------------------

    def tick(self, steps: int) -> None:
        """Wait until the next step may be executed; called before a policy is asked and before every step."""
        controls = self.controls
        if self._wait_steps:
            self._wait_steps -= 1
            return controls.require_not_left()
        if steps == self._passed_step:
            return
        self.step, self.state, self.reason = steps, "running", ""
        if controls.speed:
            self._due = max(self._due + 1 / (self.spec.control_hz * controls.speed), time.monotonic())
            controls.wait(lambda: not controls.speed, self.send_news, self._due)
        controls.wait(controls.take_step, self.send_news)  # last: no step is executed after a pause is shown
        self._passed_step = steps

    def alter(self, action: np.ndarray) -> np.ndarray:
        """Return the action to execute: the policy's, or that of a person who has taken over."""
        if self.controls.driver == "person":
            self.person_steps += 1
            action = self.controls.action()
        self.reworded = self.reworded or self.controls.instruction not in ("", self.instruction)
        self.actions.append([round(float(number), 4) for number in action])
        return self.trajectory(action)

    def act(self, observation: Observation) -> ActionChunk:
        """Return the policy's chunk; while a person drives, a dummy that `alter` replaces.

        After a takeover by the policy, this is the first step of an episode for it. If the policy fails, wait until a
        person resumes or takes over.
        """
        while self.controls.driver == "policy":
            if not self._policy_session:
                self._policy_session, self._first_step = f"live-{uuid.uuid4().hex}", observation.step
            step, privileged = observation.step - self._first_step, observation.privileged
            if self.info.needs_privileged and step == 0:
                privileged = self.env.privileged(True)
            query = replace(observation, session=self._policy_session, step=step, privileged=privileged)
            started = time.perf_counter()
            try:
                chunk = self.client.act(query)
            except ContractError as error:
                self.trouble, self._policy_session, self.controls.playing = single_line(error), "", False
                self.controls.wait(lambda: self.controls.playing, self.send_news)
                self.trouble = ""
            else:
                self.policy_ms = round((time.perf_counter() - started) * 1e3, 1)
                return chunk
        self._policy_session = ""
        return ActionChunk(np.zeros((1, self.info.action_size), np.float32))

    def end_policy_session(self) -> None:
        """End the session at a stateful policy."""
        if self._policy_session and self.info.stateful:
            try:
                self.client.reset(self._policy_session)
            except ContractError as error:
                logging.warning("session %s could not be ended: %s", self._policy_session, single_line(error))
        self._policy_session = ""

    # --- display -----------------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        """Return the session's state without images, new actions and times."""
        controls = self.controls
        is_paused = self.state == "running" and not controls.playing
        return {
            "state": "trouble" if self.trouble else "paused" if is_paused else self.state, "episode": self.episode,
            "step": self.step, "max_steps": self.spec.max_steps if self.env else 0, "success": self.success,
            "reason": self.trouble or self.reason, "instruction": controls.instruction or self.instruction,
            "task_instruction": self.instruction, "driver": controls.driver, "policy": self.request.policy,
            "policy_ms": self.policy_ms, "speed": controls.speed, "start": self.request.start,
            "not_kept": self.refusal(), "kept": self.saved_in, "by_person": self.person_steps, "robot": self.robot,
        }  # fmt: skip

    def send_news(self) -> None:
        """Send changes of the state, with images, if a page waits for them."""
        if not self.controls.is_watched or (head := self.head()) == self._last_head:
            return
        moves = self.state == "running" and self._last_head is not None and head["state"] == self._last_head["state"]
        if moves and time.monotonic() - self._rendered_at < 1 / FRAMES_PER_S:
            return
        self.controls.is_watched = False
        images: dict[str, bytes] = {}
        if self.state != "starting":
            from simplejpeg import encode_jpeg

            self.robot = head["robot"] = [round(float(number), 4) for number in self.env.state()]
            for name in self.benchmark.cameras[:MAX_CAMERAS]:
                frame = upright(self.env.render(name))
                images[name] = encode_jpeg(frame, quality=JPEG_QUALITY, colorspace="RGB", colorsubsampling="444")
        self._rendered_at, self._last_head = time.monotonic(), head
        sizes = {name: len(data) for name, data in images.items()}
        actions, self._sent_actions = self.actions[self._sent_actions :], len(self.actions)
        news = {"pictures": sizes, "rendered_ms": time.time() * 1e3, "actions": actions}
        self.send({**head, **news}, *images.values())

    def send(self, head: dict[str, Any], *blobs: bytes) -> None:
        self.connection.sendall(commands.pack(head, *blobs))


def listen(simulation: Simulation) -> None:
    """Apply commands until the service closes the session."""
    with simulation.connection.makefile("rb") as stream:
        while (command := commands.receive(stream)) is not None:
            simulation.controls.apply(command)
    simulation.controls.apply({"do": "close"})


def main(arguments: list[str]) -> int:
    """Run a session to its end; return the exit code. A failure is sent to the service first."""
    module, request, work, descriptor, parent = arguments
    die_with_parent(int(parent))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    connection = socket.socket(fileno=int(descriptor))
    request = SessionRequest(**json.loads(request))
    simulation = Simulation(benchmark.load(module), request, Path(work), connection)
    threading.Thread(target=listen, args=(simulation,), daemon=True).start()
    try:
        simulation.run()
    except BrokenPipeError:
        return 0
    except Exception as error:
        if not isinstance(error, (ContractError, ValueError, OSError)):
            logging.exception("the session failed")
        cause = entrypoint.exit_status(error, (ContractError, ValueError))
        text = cause.text if cause else f"{type(error).__name__}: {error}"
        simulation.send({"state": "failed", "reason": single_line(text)[:1000], "episode": simulation.episode})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
