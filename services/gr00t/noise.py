"""The noise that the action's flow starts from: drawn per observation, so that an episode can be repeated.

Upstream draws it from torch's global generator, one tensor per batch: an action depends on every request before it.
Here it follows from seed, instruction, episode and step alone, on any device and in any batch.
"""

from __future__ import annotations

import hashlib
import re

import torch
from torch.overrides import TorchFunctionMode

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


class GivenNoise(TorchFunctionMode):
    """While it is entered, the one `torch.randn` of upstream's action head returns `noise`.

    Raises RuntimeError where another shape is asked for: then this is not the loop it is made for.
    """

    def __init__(self, noise: torch.Tensor):
        super().__init__()
        self._noise = noise
        self.taken = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not torch.randn:
            return function(*args, **kwargs)
        size = tuple(kwargs.get("size", args[0] if args else ()))
        if size != tuple(self._noise.shape):
            raise RuntimeError(f"upstream draws noise of shape {size}; expected {tuple(self._noise.shape)}")
        self.taken += 1
        return self._noise.to(device=kwargs.get("device"), dtype=kwargs.get("dtype"))
