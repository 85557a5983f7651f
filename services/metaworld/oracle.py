"""Metaworld's fifty scripted experts as a policy. They use only metaworld's own observation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

os.environ.setdefault("MUJOCO_GL", "disable")  # metaworld imports MuJoCo; nothing is rendered here
from metaworld.policies import ENV_POLICY_MAP

from services.metaworld.tasks import ACTION
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo
from vla_contract.protocol.errors import did_you_mean

OBSERVATION = 39  # metaworld's observation: hand, gripper and objects now and a step ago, and the goal


class OraclePolicy(Policy):
    """Solves Meta-World's tasks from privileged state. Stateless: an action depends only on the current observation."""

    def __init__(self, lock_hash: str | None = None):
        self._lock_hash = lock_hash
        self._experts = {name: expert() for name, expert in ENV_POLICY_MAP.items()}
        # The experts' gains exceed the environment's limits; they would warn about the clipping at every step.
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")

    def info(self) -> PolicyInfo:
        """Describe the policy: it needs privileged state, no cameras and no proprioception."""
        return PolicyInfo(
            name="metaworld_oracle", needs_privileged=True, action=ACTION, max_batch=64, lock_hash=self._lock_hash
        )

    def example(self) -> Observation:
        """Return an example observation: the hand above the table, the goal in front of it."""
        seen = np.zeros(OBSERVATION)
        seen[:4], seen[18:22], seen[-3:] = (0, 0.6, 0.2, 1), (0, 0.6, 0.2, 1), (0, 0.8, 0.2)
        state = {"task": "reach-v3", "observation": seen}
        return Observation({}, None, "Reach a goal position", "example", 0, privileged=state)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return one action per observation, or an InvalidObservation."""
        return [self._act_single(observation) for observation in observations]

    def _act_single(self, observation: Observation) -> ActionChunk | Exception:
        try:
            task, seen = _read(observation, self._experts)
        except InvalidObservation as error:  # returned, not raised: the rest of the batch is unaffected
            return error
        action = np.clip(self._experts[task].get_action(seen), -1, 1)  # the bounds of the action space
        return ActionChunk(action.astype(np.float32)[None])


def _read(observation: Observation, experts: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    state = observation.privileged
    if state is None or "task" not in state or "observation" not in state:
        raise InvalidObservation("privileged must have 'task' and 'observation', as sent by MetaworldEnv")
    task, seen = state["task"], state["observation"]
    if not isinstance(task, str) or task not in experts:
        raise InvalidObservation(f"privileged['task'] {task!r} not found{did_you_mean(str(task), experts)}")
    is_vector = isinstance(seen, np.ndarray) and seen.dtype.kind == "f" and seen.shape == (OBSERVATION,)
    if not is_vector or not np.isfinite(seen).all():
        actual = f"{seen.dtype} {seen.shape}" if isinstance(seen, np.ndarray) else type(seen).__name__
        raise InvalidObservation(f"privileged['observation'] must be {OBSERVATION} finite numbers, got {actual}")
    return task, np.array(seen, np.float64)  # a copy: some experts write into their observation
