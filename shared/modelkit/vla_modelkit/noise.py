"""The noise that the action's flow starts from: drawn per observation, so that an episode can be repeated.

Upstream draws it from torch's global generator, one tensor per batch: an action depends on every request before it.
Here it follows from seed, instruction, episode and step alone, on any device and in any batch.
"""

from __future__ import annotations

import hashlib
import re

import torch

from vla_contract import Observation

_EPISODE = re.compile(r"^.+\.(\d+\.\d+)\.\d+\.[^.]+$")  # an evaluator's <run>.<task>.<episode>.<attempt>.<lease>


def seed_of(observation: Observation, seed: int) -> int:
    """Returns the observation's own seed, 63 bits. Further attempts at an episode, in whatever run, get the same."""
    found = _EPISODE.match(observation.session)
    episode = found[1] if found else observation.session
    text = f"{seed}|{observation.instruction}|{episode}|{observation.step}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def draw(seeds: list[int], horizon: int, dim: int) -> torch.Tensor:
    """Returns float32 [len(seeds), horizon, dim] of standard normal noise, each row from its own seed."""
    rows = [torch.randn((horizon, dim), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(rows)
