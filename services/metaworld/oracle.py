"""Metaworld's fifty scripted experts as a policy of the contract. They look at metaworld's own observation alone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

os.environ.setdefault("MUJOCO_GL", "disable")  # metaworld imports MuJoCo, and nothing is drawn here
from metaworld.policies import ENV_POLICY_MAP

from services.metaworld.arm import ACTION
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo
from vla_contract.protocol.errors import did_you_mean

OBSERVATION = 39  # metaworld's observation: hand, gripper and objects now and a step ago, and the goal


class OraclePolicy(Policy):
    """Solves Meta-World's tasks from privileged state. Stateless: an expert's action follows from what it sees now."""

    def __init__(self, lock_hash: str | None = None):
        self._lock_hash = lock_hash
        self._experts = {name: expert() for name, expert in ENV_POLICY_MAP.items()}
        # Their gains ask for more than the environment executes; it clips, as they say themselves at every step.
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")

    def info(self) -> PolicyInfo:
        """Returns what it is and needs: no camera, no proprioception, privileged state."""
        return PolicyInfo(
            name="metaworld_oracle", needs_privileged=True, action=ACTION, max_batch=64, lock_hash=self._lock_hash
        )

    def example(self) -> Observation:
        """Returns a made-up observation: the hand above the table, the goal before it."""
        seen = np.zeros(OBSERVATION)
        seen[:4], seen[18:22], seen[-3:] = (0, 0.6, 0.2, 1), (0, 0.6, 0.2, 1), (0, 0.8, 0.2)
        return Observation({}, None, "Reach a goal position", "example", 0, privileged=_told("reach-v3", seen))

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Returns one action per observation, or the InvalidObservation that it deserves."""
        return [self._act_or_refuse(observation) for observation in observations]

    def _act_or_refuse(self, observation: Observation) -> ActionChunk | Exception:
        try:
            task, seen = _read(observation, self._experts)
        except InvalidObservation as error:  # returned, not raised: one's fault must not end its batch's others
            return error
        action = np.clip(self._experts[task].get_action(seen), -1, 1)  # the space's bounds, to which it clips, too
        return ActionChunk(action.astype(np.float32)[None])


def _told(task: str, seen: np.ndarray) -> dict[str, Any]:
    return {"task": task, "observation": seen}


def _read(observation: Observation, experts: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    told = observation.privileged
    if told is None or "task" not in told or "observation" not in told:
        raise InvalidObservation("privileged lacks 'task' or 'observation'; the experts need what MetaworldEnv tells")
    task, seen = told["task"], told["observation"]
    if not isinstance(task, str) or task not in experts:
        raise InvalidObservation(f"privileged['task'] is {task!r}{did_you_mean(str(task), experts)}")
    if not isinstance(seen, np.ndarray) or seen.dtype.kind != "f" or seen.shape != (OBSERVATION,):
        shape = seen.shape if isinstance(seen, np.ndarray) else type(seen).__name__
        raise InvalidObservation(f"privileged['observation'] is {shape}; expected {OBSERVATION} finite numbers")
    if not np.isfinite(seen).all():
        bad = seen[~np.isfinite(seen)][0]
        raise InvalidObservation(f"privileged['observation'] holds {bad}; expected {OBSERVATION} finite numbers")
    return task, np.array(seen, np.float64)  # a copy: some experts write into what they look at
