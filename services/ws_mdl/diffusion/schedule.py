"""Noise schedules: how much noise each time step adds, and how much of the image is left.

Step 0 is the clean image, step `timesteps` is (almost) pure noise. After Ho et al. 2020, "Denoising Diffusion
Probabilistic Models"; the cosine schedule is Nichol & Dhariwal's of 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """All tensors are float32 [timesteps + 1], indexed by step.

    b_t: β, the noise that a step adds. a_t: α = 1 - β. ab_t: ᾱ, the product of α up to a step, so that
    x_t = √ᾱ · x_0 + √(1 - ᾱ) · noise.
    """

    name: str
    b_t: Tensor
    a_t: Tensor
    ab_t: Tensor

    @property
    def timesteps(self) -> int:
        return len(self.b_t) - 1

    def to(self, device: torch.device | str) -> Schedule:
        """Return the schedule on a device."""
        return Schedule(self.name, self.b_t.to(device), self.a_t.to(device), self.ab_t.to(device))

    def time(self, t: int | Tensor) -> Tensor:
        """Return the network's time input for step t: t / timesteps, float32 [1] or [n]."""
        return torch.as_tensor(t, dtype=torch.float32, device=self.b_t.device).reshape(-1) / self.timesteps


def linear_schedule(timesteps: int = 500, beta1: float = 1e-4, beta2: float = 0.02) -> Schedule:
    """Return the course's schedule: β grows linearly from beta1 (step 0, unused) to beta2."""
    if timesteps < 1 or not 0 < beta1 <= beta2 < 1:
        raise ValueError(f"{timesteps} timesteps, beta {beta1} to {beta2}; expected at least 1, 0 < beta1 <= beta2 < 1")
    return _schedule("linear", torch.linspace(beta1, beta2, timesteps + 1, dtype=torch.float64))


def cosine_schedule(timesteps: int = 500, offset: float = 0.008) -> Schedule:
    """Return a schedule whose ᾱ falls like a squared cosine: it destroys small images more slowly at first."""
    steps = torch.arange(timesteps + 1, dtype=torch.float64) / timesteps
    left = torch.cos((steps + offset) / (1 + offset) * math.pi / 2) ** 2
    b_t = torch.zeros(timesteps + 1, dtype=torch.float64)
    b_t[1:] = (1 - left[1:] / left[:-1]).clamp(max=0.999)  # the last step would add infinite noise
    return _schedule("cosine", b_t)


SCHEDULES = {"linear": linear_schedule, "cosine": cosine_schedule}


def _schedule(name: str, b_t: Tensor) -> Schedule:
    b_t[0] = 0.0  # no step leads to the clean image, so nothing is lost before step 1
    a_t = 1 - b_t
    return Schedule(name, b_t.float(), a_t.float(), torch.cumprod(a_t, dim=0).float())


def perturb_input(schedule: Schedule, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """Add noise to images x [n, c, h, w] for steps t [n] (int)."""
    ab = schedule.ab_t[t].reshape(-1, 1, 1, 1)
    return ab.sqrt() * x + (1 - ab).sqrt() * noise


def predicted_x0(schedule: Schedule, x: Tensor, t: int, pred_noise: Tensor) -> Tensor:
    """Return the clean image that x at step t implies for pred_noise."""
    ab = schedule.ab_t[t]
    return (x - (1 - ab).sqrt() * pred_noise) / ab.sqrt()
