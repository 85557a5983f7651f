"""Random actions for LIBERO's arm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE, Part
from vla_evaluation import random_policy

GRIPPER_PERIOD = 16  # steps between new gripper commands


@dataclass(frozen=True)
class RandomPolicy(random_policy.RandomPolicy):
    """Uniform deltas within `scale` (1.0 is 5 cm or 0.5 rad per step), the gripper open or closed for a while."""

    name: str = "random"
    parts: tuple[Part, ...] = (*OSC_POSE, GRIPPER_CLOSES)
    scale: float = 0.5

    def __post_init__(self):
        if not 0 < self.scale <= 1:
            raise ValueError(f"scale must be in (0, 1], where 1 is the controller's limit, got {self.scale}")

    def details(self) -> dict[str, str]:
        """Return the seed and the scale."""
        return {"seed": str(self.seed), "scale": str(self.scale)}

    def draw(self, key: int, step: int) -> np.ndarray:
        """Return the action [7] of one step of the episode with that key."""
        action = np.random.default_rng([self.seed, key, step]).uniform(-self.scale, self.scale, 7)
        action[6] = np.random.default_rng([self.seed, key, step // GRIPPER_PERIOD, 1]).choice([-1.0, 1.0])
        return action
