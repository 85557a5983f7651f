"""Random actions: a baseline, and a load for benchmarks.

`python -m vla_evaluation.random_policy services.pusht.benchmark` serves them for a benchmark whose actions have ranges.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from vla_common import entrypoint
from vla_common.serving import Serving
from vla_common.versions import lock_hash
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo, serve
from vla_contract.protocol.parts import Part
from vla_evaluation import benchmark

SESSION_FORM = re.compile(r"^.+\.(\d+)\.(\d+)\.\d+\.[^.]+$")  # <run>.<task>.<episode>.<attempt>.<lease>


def episode_of(session: str) -> tuple[int, int] | None:
    """Return (task index, episode) from the name of an evaluator's session, None for another name."""
    match = SESSION_FORM.match(session)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class RandomPolicy(Policy):
    """Uniform numbers within the ranges of an action's parts. ValueError for a part without a range.

    Stateless: the action follows from seed, instruction, episode and step alone, so a run can be repeated exactly.
    """

    name: str
    parts: tuple[Part, ...]
    seed: int = 0
    horizon: int = 1
    cameras: tuple[str, ...] = ()
    lock_hash: str | None = None

    def __post_init__(self):
        unknown = [part for part in self.parts if part.low is None or part.high is None]
        if unknown:
            raise ValueError(f"random actions need a range, and {unknown[0]} has none; set its low and high")

    def info(self) -> PolicyInfo:
        """Return the description; the images that it requests are not used."""
        return PolicyInfo(
            name=self.name,
            cameras=self.cameras,
            action=self.parts,
            horizon=self.horizon,
            max_batch=64,
            lock_hash=self.lock_hash,
            details=self.details(),
        )

    def details(self) -> dict[str, str]:
        """Return the settings that its actions depend on."""
        return {"seed": str(self.seed)}

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        """Return a chunk of `horizon` actions for every observation."""
        return [ActionChunk(np.stack([self.action(o, o.step + k) for k in range(self.horizon)])) for o in observations]

    def action(self, observation: Observation, step: int) -> np.ndarray:
        """Return the action of one step, float32 [n]."""
        episode = episode_of(observation.session) or observation.session
        key = crc32(f"{observation.instruction}|{episode}".encode())
        return self.draw(key, step).astype(np.float32)

    def draw(self, key: int, step: int) -> np.ndarray:
        """Return the numbers [n] of one step of the episode with that key."""
        low, high = (np.repeat([getattr(part, end) for part in self.parts], self.sizes) for end in ("low", "high"))
        return np.random.default_rng([self.seed, key, step]).uniform(low, high)

    @property
    def sizes(self) -> list[int]:
        return [part.size for part in self.parts]


@dataclass(frozen=True)
class RandomService(Serving):
    """Random actions within the ranges of a benchmark's action."""

    seed: int = 0
    horizon: int = 1  # actions per answer
    cameras: tuple[str, ...] = ()  # images to request (and ignore), to load the renderer and the network


def main() -> None:
    """Serve random actions for the benchmark of the module that is the first argument, until stopped."""
    import tyro

    module, *arguments = sys.argv[1:] or [""]
    if not module or module.startswith("-"):
        sys.exit("expected the module of a benchmark, as in services.pusht.benchmark, before the flags")
    options = tyro.cli(RandomService, args=arguments, prog="python -m vla_evaluation.random_policy BENCHMARK")
    name, parts = f"{benchmark.load(module).name.lower()}_random", benchmark.load(module).action
    policy = RandomPolicy(name, parts, options.seed, options.horizon, options.cameras, lock_hash())
    # It answers within a millisecond: threads and batches gain nothing.
    serve(policy, host=options.host, port=options.port, token=os.environ.get("VLALAB_TOKEN") or None, inline=True)


if __name__ == "__main__":
    entrypoint.run(main)
