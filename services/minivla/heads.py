"""The action head's objective and sampler: diffusion (lab 2), flow matching or regression.

All three train the same network. Chunks are normalized to [-1, 1].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from services.ws_mdl.diffusion.samplers import ddim_step, ddim_steps
from services.ws_mdl.diffusion.schedule import Schedule, cosine_schedule, perturb_input

TIMESTEPS = 100
Predict = Callable[[Tensor, Tensor], Tensor]  # x [B, T, A], time [B] -> [B, T, A]


class Diffusion:
    """Predicts the noise in a chunk and removes it by DDIM (Chi et al. 2023, "Diffusion Policy")."""

    def __init__(self) -> None:
        self.schedule: Schedule = cosine_schedule(TIMESTEPS)

    def training_pair(self, chunk: Tensor, noise: Tensor, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return noisy chunk, time and prediction target. draw [B] in [0, 1) selects the time."""
        t = (draw * TIMESTEPS).long() + 1  # 1 to TIMESTEPS
        x = perturb_input(self.schedule, chunk[:, None], t, noise[:, None])[:, 0]
        return x, self.schedule.time(t), noise

    def sample(self, predict: Predict, noise: Tensor, n: int) -> Tensor:
        """Denoise noise [B, T, A] in n DDIM steps."""
        x, step = noise, ddim_step(self.schedule, clip=True)
        for t, t_prev in itertools.pairwise(ddim_steps(TIMESTEPS, n)):
            x = step(x, t, t_prev, predict(x, self.schedule.time(t).expand(len(x))), noise)
        return x


class Flow:
    """Predicts the velocity from a chunk to noise, on a straight line (Lipman et al. 2022, "Flow Matching")."""

    def training_pair(self, chunk: Tensor, noise: Tensor, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        time = draw[:, None, None]
        return (1 - time) * chunk + time * noise, draw, noise - chunk

    def sample(self, predict: Predict, noise: Tensor, n: int) -> Tensor:
        """Integrate from noise [B, T, A] to a chunk in n Euler steps."""
        x = noise
        for k in range(n, 0, -1):
            x = x - predict(x, torch.full((len(x),), k / n)) / n
        return x.clamp(-1, 1)


class Regression:
    """Predicts the chunk directly, learned by absolute error: the median, which may lie between two valid actions."""

    def training_pair(self, chunk: Tensor, noise: Tensor, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.zeros_like(chunk), torch.zeros_like(draw), chunk  # neither noise nor time matter

    def sample(self, predict: Predict, noise: Tensor, n: int) -> Tensor:
        """Return the chunk [B, T, A] in one step, whatever n is."""
        return predict(torch.zeros_like(noise), torch.zeros(len(noise))).clamp(-1, 1)


HEADS = {"diffusion": Diffusion, "flow": Flow, "regression": Regression}
