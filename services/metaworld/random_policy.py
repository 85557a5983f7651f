"""Random actions: the floor that every policy has to beat, and a load for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from services.metaworld.arm import ACTION
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_contract.protocol.parts import total
from vla_evaluation.sessions import episode_of


@dataclass(frozen=True)
class RandomPolicy(Policy):
    """Uniform actions, as metaworld's action space would sample them.

    Stateless: the action follows from seed, instruction, episode and step alone, so a run can be repeated exactly.
    """

    seed: int = 0
    horizon: int = 1
    cameras: tuple[str, ...] = ()
    lock_hash: str | None = None

    def info(self) -> PolicyInfo:
        """Returns what it is; the pictures it asks for are not looked at."""
        return PolicyInfo(
            name="metaworld_random",
            cameras=self.cameras,
            action=ACTION,
            horizon=self.horizon,
            max_batch=64,
            lock_hash=self.lock_hash,
            details={"seed": str(self.seed)},
        )

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        """Returns a chunk of `horizon` actions for every observation."""
        return [ActionChunk(np.stack([self.action(o, o.step + k) for k in range(self.horizon)])) for o in observations]

    def action(self, observation: Observation, step: int) -> np.ndarray:
        """Returns the action [4] of one step."""
        episode = episode_of(observation.session) or observation.session
        key = crc32(f"{observation.instruction}|{episode}".encode())
        return np.random.default_rng([self.seed, key, step]).uniform(-1, 1, total(ACTION)).astype(np.float32)
