"""One episode: observe, query the policy, execute its actions, check for success.

No processes, files or databases: the policy and the worker's callbacks are passed in as functions.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla_contract import ActionChunk, ContractError, Observation
from vla_evaluation.actions import Actions, PolicyFault
from vla_evaluation.benchmark import Environment, episode_has_ended, sensed
from vla_evaluation.chunks import Delays, Timeline
from vla_evaluation.pictures import images
from vla_evaluation.spec import RunSpec
from vla_evaluation.terminal import plain

SERVER_STAGES = ("decode", "queue", "infer", "encode")


@dataclass
class Timings:
    """Milliseconds per stage, summed over an episode."""

    ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str):
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, (time.perf_counter() - start) * 1e3)

    def add(self, name: str, ms: float) -> None:
        self.ms[name] = self.ms.get(name, 0.0) + ms


@dataclass
class Record:
    """The record of an episode.

    actions  float32 [T, n] as executed, in the environment's convention
    states   float64 [T + 1, n]: simulator state before each action, and after the last
    frames   images of the video's camera that were rendered and stored, by step: uint8 [H, W, 3], bottom row first
    policy_error  why the policy's own answer ended the episode; empty if it did not
    delays   the cost of inference in real time; None if the simulation waited
    """

    success: bool
    steps: int
    requests: int
    actions: np.ndarray
    states: np.ndarray
    frames: dict[int, np.ndarray]
    start_hash: str
    end_hash: str
    timings: Timings
    policy_error: str = ""
    delays: Delays | None = None

    @property
    def actions_hash(self) -> str:
        return digest(self.actions)

    def summary(self) -> dict[str, Any]:
        """Return the episode's row as JSON types."""
        return {
            **({"policy_error": self.policy_error} if self.policy_error else {}),
            **({"realtime": self.delays.summary()} if self.delays else {}),
            "success": self.success,
            "steps": self.steps,
            "requests": self.requests,
            "start_hash": self.start_hash,
            "end_hash": self.end_hash,
            "actions_hash": self.actions_hash,
            "timings_ms": {name: round(ms, 3) for name, ms in self.timings.ms.items()},
        }


def digest(*arrays: np.ndarray) -> str:
    """Return 16 hex digits over the arrays' bytes."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def observe(env: Environment, spec: RunSpec, session: str, step: int, timings: Timings) -> tuple[Observation, dict]:
    """Return the policy's observation, and the raw images of the cameras that it requests."""
    rendered: dict[str, np.ndarray] = {}
    for camera in spec.cameras:
        with timings.stage("render"):
            rendered[camera] = env.render(camera)
    with timings.stage("preprocess"):
        observation = Observation(
            images={
                camera: images.prepare(sensed(env, camera, image), spec.protocol) for camera, image in rendered.items()
            },
            state=env.state() if spec.policy.needs_state else None,
            instruction=env.instruction,
            session=session,
            step=step,
            privileged=env.privileged(step == 0) if spec.policy.needs_privileged else None,
            unnorm_key=spec.unnorm_key,
        )
    return observation, rendered


def run_episode(
    env: Environment,
    episode: int,
    init_state: np.ndarray,
    *,
    act: Callable[[Observation], ActionChunk],
    spec: RunSpec,
    session: str,
    video_camera: str | None = None,
    tick: Callable[[int], None] = lambda steps: None,
    keep_frame: Callable[[int], bool] = lambda step: False,
    forgive: Callable[[Exception], bool] = lambda error: False,
    alter: Callable[[np.ndarray], np.ndarray] = lambda action: action,
    present: Callable[[Observation], Observation] = lambda observation: observation,
    clock: Callable[[], float] = time.perf_counter,
) -> Record:
    """Return the record of `episode` of the task that `env` has loaded.

    `keep_frame(step)` selects images of `video_camera`. `tick(steps)` is called before every simulator step; its
    exceptions end the episode. Nothing is rendered in the wait steps (objects fall into place) or between the
    actions of a chunk. Success ends the episode at once, but does not count during the wait, as in the reference loop.
    `spec.chunking` says which actions of a chunk are executed; only these are checked. `clock` (s) times the
    policy's answers. A fault of the policy (PolicyFault, ContractError) ends the episode; it becomes part of the record
    if `forgive` returns True, and is raised otherwise. `alter` returns the action to execute for one of the
    policy's, `present` the observation to send for the true one.
    """
    timings, start = Timings(), time.perf_counter()
    with timings.stage("reset"):
        env.reset(episode, init_state)
    fixtures = env.fixture_poses()
    start_hash = digest(env.sim_state(), *(fixtures[name] for name in sorted(fixtures)))
    wait_action = np.asarray(spec.protocol.wait_action, dtype=np.float32)
    for _ in range(spec.protocol.wait_steps):
        tick(0)
        with timings.stage("sim"):
            env.step(wait_action)

    answers = Actions(spec.policy.name, spec.policy.action, spec.action)
    actions: list[np.ndarray] = []
    states = [env.sim_state()]
    frames: dict[int, np.ndarray] = {}
    timeline = Timeline(spec.chunking, spec.action, wait_action)
    success, requests = False, 0
    fault: PolicyFault | ContractError | None = None
    while not success and not episode_has_ended(env) and len(actions) < spec.max_steps:
        step = len(actions)
        if timeline.due(step):
            tick(step)
            observation, rendered = observe(env, spec, session, step, timings)
            if video_camera in rendered and keep_frame(step):
                frames[step] = rendered[video_camera]
            asked_at = clock()
            try:
                chunk = act(present(observation))
            except ContractError as error:
                fault = error
                break
            took_s = clock() - asked_at
            server_ms = {stage: chunk.timings_ms[stage] for stage in SERVER_STAGES if stage in chunk.timings_ms}
            for stage, ms in server_ms.items():
                timings.add(f"server_{stage}", ms)
            timings.add("policy", took_s * 1e3)
            timings.add("wire", max(0.0, took_s * 1e3 - sum(server_ms.values())))
            requests += 1
            readable = answers.read(chunk, timeline.wants(spec.max_steps - step), timeline.delay(took_s))
            timeline.answered(step, took_s, len(chunk.actions), *readable)
        action, fault = timeline.action(step)
        if fault is not None:
            break
        tick(step)
        action = alter(action)
        with timings.stage("sim"):
            success = bool(env.step(action))
        timeline.executed(action)
        actions.append(action)
        states.append(env.sim_state())
    if fault is not None and not forgive(fault):
        raise fault
    timings.add("total", (time.perf_counter() - start) * 1e3)
    return Record(
        success,
        len(actions),
        requests,
        np.asarray(actions, np.float32).reshape(-1, answers.size),
        np.asarray(states),
        frames,
        start_hash,
        digest(states[-1]),
        timings,
        "" if fault is None else plain(fault),
        timeline.delays,
    )
