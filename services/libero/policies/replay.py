"""Replay the recorded actions of an earlier run, step by step."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from services.libero.simulator.suites import load_suite
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE
from vla_evaluation.random_policy import episode_of

_RECORDING = re.compile(r"^(\d+)-(\d+)\.npz$")


@dataclass(frozen=True)
class ReplayPolicy(Policy):
    """Return the action that the recorded episode has at the observation's step. Stateless.

    Raises ValueError for a directory without recordings.
    """

    run: Path
    horizon: int = 1
    lock_hash: str | None = None
    _actions: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self):
        if not self.recorded():
            raise ValueError(
                f"{self.run} has no recordings (episodes/<task>-<episode>.npz); set VLALAB_REPLAY_RUN to a "
                "finished run listed by `./lab runs`"
            )

    @cached_property
    def suite(self) -> str:
        """The suite of the run."""
        return json.loads((self.run / "config.json").read_text())["suite"]

    def recorded(self) -> list[tuple[int, int]]:
        """Return the (task, episode) pairs with a recording, sorted."""
        names = (_RECORDING.match(path.name) for path in (self.run / "episodes").glob("*.npz"))
        return sorted((int(m[1]), int(m[2])) for m in names if m)

    def info(self) -> PolicyInfo:
        """Describe the policy: it serves only the suite of the run."""
        return PolicyInfo(
            name="replay",
            action=(*OSC_POSE, GRIPPER_CLOSES),
            horizon=self.horizon,
            suites=(self.suite,),
            max_batch=64,
            lock_hash=self.lock_hash,
            details={"run": self.run.name},
        )

    def example(self) -> Observation:
        """Return the first observation of the first recording."""
        task, episode = self.recorded()[0]
        instruction = load_suite(self.suite).tasks[task].instruction
        return Observation({}, None, instruction, f"example.{task}.{episode}.1.example", 0)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return the recorded actions from each observation's step on, or an InvalidObservation."""
        return [self._chunk(observation) for observation in observations]

    def _chunk(self, observation: Observation) -> ActionChunk | Exception:
        """Return the recorded actions; after the end no movement and the last gripper command."""
        try:
            actions = self._recording(observation)
        except InvalidObservation as error:
            return error
        chunk = actions[observation.step : observation.step + self.horizon]
        if not len(chunk):
            chunk = np.zeros((1, 7), dtype=np.float32)
            chunk[0, 6] = actions[-1, 6] if len(actions) else -1.0
        return ActionChunk(chunk)

    def _recording(self, observation: Observation) -> np.ndarray:
        key = episode_of(observation.session)
        if key is None:
            raise InvalidObservation(
                f"session {observation.session!r} is not of the form <run>.<task>.<episode>.<attempt>.<lease>"
            )
        task, episode = key
        path = self.run / "episodes" / f"{task:02d}-{episode:02d}.npz"
        if not path.is_file():
            recorded = ", ".join(f"{t}-{e}" for t, e in self.recorded()[:20])
            raise InvalidObservation(
                f"run {self.run.name} has no recording of task {task}, episode {episode}; it has (task-episode) "
                f"{recorded}"
            )
        expected = load_suite(self.suite).tasks[task].instruction
        if observation.instruction != expected:
            raise InvalidObservation(
                f"instruction {observation.instruction!r} differs from {expected!r}, that of task {task} of "
                f"{self.suite}; replay a run of the same suite"
            )
        if key not in self._actions:
            with np.load(path, allow_pickle=False) as recording:
                self._actions[key] = recording["actions"].astype(np.float32)
        return self._actions[key]
