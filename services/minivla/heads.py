"""What the action head learns, and how it draws a chunk: diffusion (lab 2), flow matching, or plain regression.

All three train the same network. Chunks are normalized: every number from -1 to 1.
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
    """Predicts the noise in a chunk; DDIM takes it away again (Chi et al. 2023, "Diffusion Policy")."""

    def __init__(self) -> None:
        self.schedule: Schedule = cosine_schedule(TIMESTEPS)

    def training_pair(self, chunk: Tensor, noise: Tensor, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the noisy chunk, its time and what is to be predicted. draw [B] in [0, 1) chooses the time."""
        t = (draw * TIMESTEPS).long() + 1  # 1 to TIMESTEPS
        x = perturb_input(self.schedule, chunk[:, None], t, noise[:, None])[:, 0]
        return x, self.schedule.time(t), noise

    def sample(self, predict: Predict, noise: Tensor, n: int) -> Tensor:
        """Returns the chunks that n steps of DDIM make of noise [B, T, A]."""
        x, step = noise, ddim_step(self.schedule, clip=True)
        for t, t_prev in itertools.pairwise(ddim_steps(TIMESTEPS, n)):
            x = step(x, t, t_prev, predict(x, self.schedule.time(t).expand(len(x))), noise)
        return x


class Flow:
    """Predicts the velocity from a chunk to noise, on a straight line (Lipman et al. 2022, "Flow Matching")."""

    def training_pair(self, chunk: Tensor, noise: Tensor, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what `Diffusion.training_pair` does."""
        time = draw[:, None, None]
        return (1 - time) * chunk + time * noise, draw, noise - chunk

    def sample(self, predict: Predict, noise: Tensor, n: int) -> Tensor:
        """Returns the chunks that n Euler steps make of noise [B, T, A]."""
        x = noise
        for k in range(n, 0, -1):
            x = x - predict(x, torch.full((len(x),), k / n)) / n
        return x.clamp(-1, 1)


class Regression:
    """Predicts the chunk at once: where two ways are right it takes the middle, which may be wrong."""

    def training_pair(self, chunk: Tensor, noise: Tensor, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what `Diffusion.training_pair` does; neither noise nor time count."""
        return torch.zeros_like(chunk), torch.zeros_like(draw), chunk

    def sample(self, predict: Predict, noise: Tensor, n: int) -> Tensor:
        """Returns the chunks [B, T, A], in one step whatever n is."""
        return predict(torch.zeros_like(noise), torch.zeros(len(noise))).clamp(-1, 1)


HEADS = {"diffusion": Diffusion, "flow": Flow, "regression": Regression}
