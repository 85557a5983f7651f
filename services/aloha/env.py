"""gym-aloha's environments, which render an image only when it is read; they render three in every step.

States and images are the package's to the bit: tests/lerobot/test_gymnasium.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from dm_control.rl.control import Environment
from gym_aloha.env import AlohaEnv


class AlohaOnRequest(AlohaEnv):
    """The image in an observation is a function that renders it; it belongs to the latest step."""

    def _make_env_task(self, task_name: str) -> Environment:
        env = super()._make_env_task(task_name)
        env.task.get_observation = lambda physics: {"qpos": env.task.get_qpos(physics)}
        return env

    def _format_raw_obs(self, raw_obs: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"pixels": {"top": partial(self._render, False)}, "agent_pos": raw_obs["qpos"]}


gymnasium.register("AlohaInsertion-v0", AlohaOnRequest, kwargs={"task": "insertion"})
gymnasium.register("AlohaTransferCube-v0", AlohaOnRequest, kwargs={"task": "transfer_cube"})
