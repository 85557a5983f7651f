"""The initial noise of the action's flow: sampled per observation, so that episodes are reproducible.

Upstream samples one tensor per batch from torch's global generator: an action depends on all earlier requests. Here it
depends only on seed, instruction, episode and step, on any device and in any batch.
"""

from __future__ import annotations

import hashlib
import re

import torch

from vla_contract import Observation

_EPISODE = re.compile(r"^.+\.(\d+\.\d+)\.\d+\.[^.]+$")  # an evaluator's <run>.<task>.<episode>.<attempt>.<lease>


def seed_of(observation: Observation, seed: int) -> int:
    """Return the observation's own seed, 63 bits. All attempts at an episode, in any run, get the same seed."""
    match = _EPISODE.match(observation.session)
    episode = match[1] if match else observation.session
    text = f"{seed}|{observation.instruction}|{episode}|{observation.step}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def draw(seeds: list[int], horizon: int, dim: int) -> torch.Tensor:
    """Return float32 [len(seeds), horizon, dim] of standard normal noise, each row from its own seed."""
    rows = [torch.randn((horizon, dim), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(rows)
