"""A variational autoencoder (Kingma & Welling, 2014): a picture becomes a few numbers with a spread, and comes back.

Read it from top to bottom. The bound on a picture's log density has two terms, both in nats:
log p(x) ≥ ELBO = E_q[log p(x | z)] - KL(q(z | x) ‖ p(z)). Shapes stand at the end of the line: n pictures of c colours,
h pixels high and as wide, each described by `latent` numbers z.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

DEPTH = 2  # times that height and width are halved
LEAST_LOG_SIGMA = -4.0  # a pixel is known to a fiftieth of its range at best, or the density would grow without end


class Posterior(NamedTuple):
    """q(z | x), a normal distribution with these means and log variances for each number of z: [n, latent]."""

    mean: Tensor
    log_var: Tensor


class Bound(NamedTuple):
    """A picture's terms of the bound in nats, each [n]; the KL also by number of z, [n, latent]."""

    reconstruction: Tensor  # -log p(x | z)
    kl: Tensor
    kl_by_number: Tensor

    @property
    def negative_elbo(self) -> Tensor:
        return self.reconstruction + self.kl


class Encoder(nn.Module):
    """From a picture to what it says of z: two halvings, then a linear layer."""

    def __init__(self, channels: int, height: int, width: int, latent: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1), nn.GELU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GELU(),
            nn.Flatten(), nn.Linear(2 * width * (height // 2**DEPTH) ** 2, 2 * latent),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Posterior:
        return Posterior(*self.body(x).float().chunk(2, dim=-1))  # (n, c, h, h) -> twice (n, latent)


class Decoder(nn.Module):
    """From z to the mean of a picture, and one spread for all pixels, which is learned or given."""

    def __init__(self, channels: int, height: int, width: int, latent: int, sigma: float | None) -> None:
        super().__init__()
        small = height // 2**DEPTH
        self.body = nn.Sequential(
            nn.Linear(latent, 2 * width * small**2), nn.GELU(), nn.Unflatten(1, (2 * width, small, small)),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(width, channels, 4, 2, 1),
        )  # fmt: skip
        start = torch.tensor(-1.0 if sigma is None else math.log(sigma))
        self.log_sigma = nn.Parameter(start, requires_grad=sigma is None)

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z).float()  # (n, latent) -> (n, c, h, h); nats are summed in float32

    @property
    def sigma(self) -> Tensor:
        return self.log_sigma.clamp(min=LEAST_LOG_SIGMA).exp()


# --- the bound ----------------------------------------------------------------------------------------------


def reparametrize(q: Posterior, noise: Tensor) -> Tensor:
    """Returns z ~ q as mean + σ · noise: the chance lies outside, so a gradient goes through mean and σ."""
    return q.mean + (0.5 * q.log_var).exp() * noise  # (n, latent)


def kl_to_standard_normal(q: Posterior) -> Tensor:
    """Returns KL(q ‖ N(0, 1)) in nats by number of z, float [n, latent]: ½ (μ² + σ² - 1 - log σ²), never below 0."""
    return 0.5 * (q.mean**2 + q.log_var.exp() - 1 - q.log_var)


def negative_log_normal(x: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
    """Returns -log N(x; mean, σ²) in nats, summed over each picture's pixels: float [n]."""
    nats = 0.5 * ((x - mean) / sigma) ** 2 + sigma.log() + 0.5 * math.log(2 * math.pi)
    return nats.flatten(1).sum(dim=1)


class VAE(nn.Module):
    """Encoder and decoder. sigma: the spread of a pixel around its mean; None: learned with the rest."""

    def __init__(self, channels: int, height: int, width: int, latent: int, sigma: float | None = None) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = Encoder(channels, height, width, latent)
        self.decoder = Decoder(channels, height, width, latent, sigma)

    def bound(self, x: Tensor, noise: Tensor) -> Bound:
        """Returns the terms for pictures x, with z drawn by standard normal noise [n, latent]."""
        q = self.encoder(x)
        kl = kl_to_standard_normal(q)
        mean = self.decoder(reparametrize(q, noise))
        return Bound(negative_log_normal(x, mean, self.decoder.sigma), kl.sum(dim=1), kl)

    def forward(self, x: Tensor) -> Tensor:
        """Returns what comes back of pictures, taking the mean of q: float [n, c, h, h]."""
        return self.decoder(self.encoder(x).mean)

    def sample(self, noise: Tensor) -> Tensor:
        """Returns pictures of z = noise [n, latent]: their means, without the pixels' spread, within [-1, 1]."""
        return self.decoder(noise).clamp(-1, 1)


def objective(bound: Bound, kl_weight: float = 1.0, free_nats: float = 0.0) -> Tensor:
    """Returns what is made small: mean reconstruction + weight · KL.

    kl_weight: 1 is the bound; below it while annealing (Bowman et al., 2016), above it a β-VAE (Higgins et al., 2017).
    free_nats: each number of z may have that much KL, on the batch's mean, at no cost (Kingma et al., 2016).
    """
    kl = bound.kl_by_number.mean(dim=0).clamp(min=free_nats).sum()
    return bound.reconstruction.mean() + kl_weight * kl


# --- collapse -----------------------------------------------------------------------------------------------


def active_numbers(q: Posterior, least: float = 0.01) -> int:
    """Returns how many numbers of z tell pictures apart: their means vary over pictures (Burda et al., 2016)."""
    return int((q.mean.var(dim=0) > least).sum())


def numbers_worth_having(x: Tensor, sigma: float) -> int:
    """Returns how many principal components of pictures vary by more than σ² (Lucas et al., 2019).

    A linear VAE uses these and lets all others collapse: to say them would cost more nats than it saves.
    """
    flat = x.flatten(1) - x.flatten(1).mean(dim=0)
    return int((torch.linalg.svdvals(flat) ** 2 / len(x) > sigma**2).sum())
