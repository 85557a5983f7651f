"""Random actions: the floor that every policy has to beat, and a load for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE
from vla_evaluation.sessions import episode_of

GRIPPER_PERIOD = 16  # steps between changes of mind about the gripper


@dataclass(frozen=True)
class RandomPolicy(Policy):
    """Uniform deltas within `scale` (1.0 is 5 cm or 0.5 rad per step), the gripper open or closed for a while.

    Stateless: the action follows from seed, instruction, episode and step alone, so a run can be repeated exactly.
    """

    seed: int = 0
    scale: float = 0.5
    horizon: int = 1
    cameras: tuple[str, ...] = ()
    lock_hash: str | None = None

    def __post_init__(self):
        if not 0 < self.scale <= 1:
            raise ValueError(f"scale is {self.scale}; expected 0 < scale <= 1, the controller's limit")

    def info(self) -> PolicyInfo:
        """Returns what it is; the pictures it asks for are not looked at."""
        return PolicyInfo(
            name="random",
            cameras=self.cameras,
            action=(*OSC_POSE, GRIPPER_CLOSES),
            horizon=self.horizon,
            max_batch=64,
            lock_hash=self.lock_hash,
            details={"seed": str(self.seed), "scale": str(self.scale)},
        )

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        """Returns a chunk of `horizon` actions for every observation."""
        return [ActionChunk(np.stack([self.action(o, o.step + k) for k in range(self.horizon)])) for o in observations]

    def action(self, observation: Observation, step: int) -> np.ndarray:
        """Returns the action [7] of one step."""
        episode = episode_of(observation.session) or observation.session
        key = crc32(f"{observation.instruction}|{episode}".encode())
        action = np.random.default_rng([self.seed, key, step]).uniform(-self.scale, self.scale, 7)
        action[6] = np.random.default_rng([self.seed, key, step // GRIPPER_PERIOD, 1]).choice([-1.0, 1.0])
        return action.astype(np.float32)
