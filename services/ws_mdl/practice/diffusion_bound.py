"""From the bound on log p(x) to diffusion's simple loss, with a run's numbers (Ho et al., 2020, sections 2 to 3.4).

A diffusion model is a VAE of many steps whose encoder is not learned: z are the images x_1 … x_T with more and more
noise. Its bound is a sum, in nats per image:

    L_T      KL(q(x_T | x_0) ‖ N(0, 1)): nothing in it is learned
    L_{t-1}  KL(q(x_{t-1} | x_t, x_0) ‖ p(x_{t-1} | x_t)), for t = 2 … T
    L_0      -log p(x_0 | x_1)

Both distributions of a term are normal with the same variance, so the term is the squared distance of their means.
These differ by the error of the predicted noise only: L_{t-1} = w_t · ‖noise - predicted‖². The simple loss omits
w_t, which gives noisy steps more weight than in the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from services.ws_mdl.diffusion.schedule import Schedule, perturb_input

Predict = Callable[[Tensor, int], Tensor]  # images [n, c, h, w], step → predicted noise


def weights(schedule: Schedule) -> Tensor:
    """Return w_t of ‖noise - predicted‖² in the bound, float64 [timesteps + 1], 0 at step 0.

    With the posterior's own variance: β_t / (2 α_t (1 - ᾱ_{t-1})), which is equation 12. Step 1 has β_1 for its
    variance: the posterior has none there, x_0 being known.
    """
    b, a = schedule.b_t.double(), schedule.a_t.double()
    result = torch.zeros_like(b)
    result[2:] = b[2:] / (2 * a[2:] * (1 - schedule.ab_t.double()[1:-1]))
    result[1] = 1 / (2 * a[1])
    return result


@dataclass(frozen=True)
class Terms:
    """Of the steps t: the mean square error of the predicted noise, per pixel, and the bound's weights; float64 [k]."""

    t: Tensor
    error: Tensor
    weight: Tensor
    pixels: int
    prior: float  # L_T in nats per image
    constant: float  # additive constant of L_0: the log of its standard deviation

    @property
    def nats(self) -> Tensor:
        """The bound's terms per image, L_0 without its constant."""
        return self.weight * self.error * self.pixels

    @property
    def bound(self) -> float:
        """-ELBO in nats per image, if t are all steps."""
        return float(self.nats.sum()) + self.prior + self.constant

    @property
    def simple(self) -> float:
        """The simple loss, if t are all steps: the training objective."""
        return float(self.error.mean())

    def share(self, of: Tensor, upto: int) -> float:
        """Return the share (0 to 1) of the steps up to `upto` in a column."""
        return float(of[self.t <= upto].sum() / of.sum())


@torch.no_grad()
def terms(predict: Predict, schedule: Schedule, x: Tensor, steps: Iterable[int] | None = None, seed: int = 0) -> Terms:
    """Return the terms for images x [n, c, h, w], at all steps or at some."""
    generator = torch.Generator().manual_seed(seed)
    steps = list(steps or range(1, schedule.timesteps + 1))
    errors = []
    for t in steps:
        noise = torch.randn(x.shape, generator=generator).to(x.device)
        noisy = perturb_input(schedule, x, torch.full((len(x),), t, device=x.device), noise)
        errors.append((predict(noisy, t) - noise).double().pow(2).mean().cpu())
    pixels, t = x[0].numel(), torch.tensor(steps)
    constant = 0.5 * pixels * math.log(2 * math.pi * float(schedule.b_t[1]))
    left = schedule.ab_t[-1].double()
    prior_kl = 0.5 * (left * x.double() ** 2 - left - (1 - left).log()).flatten(1).sum(dim=1)  # nats per image
    return Terms(t, torch.stack(errors), weights(schedule).cpu()[t], pixels, float(prior_kl.mean()), constant)


def predicted_by(nn_model: torch.nn.Module, schedule: Schedule) -> Predict:
    """Return a trained network as a `Predict` function."""
    return lambda x, t: nn_model(x, schedule.time(t).expand(len(x)))


def strip(schedule: Schedule, x: Tensor, steps: Iterable[int], seed: int = 0) -> Tensor:
    """Return an image x [c, h, w] at each of some steps, with the same noise: float32 [steps, c, h, w]."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    t = torch.tensor(list(steps))
    return perturb_input(schedule, x.expand(len(t), *x.shape), t, noise.expand(len(t), *x.shape))
