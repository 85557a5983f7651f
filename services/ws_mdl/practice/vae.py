"""A variational autoencoder (Kingma & Welling, 2014): an image becomes a few numbers with a spread, and comes back.

Read it from top to bottom. The bound on an image's log density has two terms, both in nats:
log p(x) ≥ ELBO = E_q[log p(x | z)] - KL(q(z | x) ‖ p(z)). Shapes stand at the end of the line: n images of c colours,
h pixels high and as wide, each described by `latent` numbers z.

    ./lab train vae --data digits
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from services.ws_mdl.diffusion import visualize
from services.ws_mdl.diffusion.data import LabelledImages, load
from services.ws_mdl.epochs import new_run
from services.ws_mdl.practice import training
from services.ws_mdl.practice.settings import Vae as Config
from services.ws_mdl.practice.training import Figures, PracticeRun
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import State

DEPTH = 2  # times that height and width are halved
MIN_LOG_SIGMA = -4.0  # about 1/50 of the range of a pixel; without a bound the density could grow indefinitely


class Posterior(NamedTuple):
    """q(z | x), a normal distribution with these means and log variances for each number of z: [n, latent]."""

    mean: Tensor
    log_var: Tensor


class Bound(NamedTuple):
    """An image's terms of the bound in nats: -log p(x | z), float [n], and the KL of each number of z [n, latent]."""

    reconstruction: Tensor
    kl_by_number: Tensor

    @property
    def kl(self) -> Tensor:
        return self.kl_by_number.sum(dim=1)

    @property
    def negative_elbo(self) -> Tensor:
        return self.reconstruction + self.kl


class VaeEncoder(nn.Module):
    """From an image to a distribution of z: two strided convolutions, then a linear layer."""

    def __init__(self, channels: int, height: int, width: int, latent: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1), nn.GELU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GELU(),
            nn.Flatten(), nn.Linear(2 * width * (height // 2**DEPTH) ** 2, 2 * latent),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Posterior:
        return Posterior(*self.body(x).float().chunk(2, dim=-1))  # (n, c, h, h) -> twice (n, latent)


class VaeDecoder(nn.Module):
    """From z to the mean of an image, and a standard deviation for all pixels, learned or fixed."""

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
        return self.log_sigma.clamp(min=MIN_LOG_SIGMA).exp()


def reparametrize(q: Posterior, noise: Tensor) -> Tensor:
    """Return z ~ q as mean + σ · noise, so gradients pass through mean and σ (reparametrization trick)."""
    return q.mean + (0.5 * q.log_var).exp() * noise  # (n, latent)


def kl_to_standard_normal(q: Posterior) -> Tensor:
    """Return KL(q ‖ N(0, 1)) in nats by number of z, float [n, latent]: ½ (μ² + σ² - 1 - log σ²), never below 0."""
    return 0.5 * (q.mean**2 + q.log_var.exp() - 1 - q.log_var)


def negative_log_normal(x: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
    """Return -log N(x; mean, σ²) in nats, summed over each image's pixels: float [n]."""
    nats = 0.5 * ((x - mean) / sigma) ** 2 + sigma.log() + 0.5 * math.log(2 * math.pi)
    return nats.flatten(1).sum(dim=1)


class VAE(nn.Module):
    """Encoder and decoder. sigma: standard deviation of a pixel; None: learned."""

    def __init__(self, channels: int, height: int, width: int, latent: int, sigma: float | None = None) -> None:
        super().__init__()
        self.encoder = VaeEncoder(channels, height, width, latent)
        self.decoder = VaeDecoder(channels, height, width, latent, sigma)

    def bound(self, x: Tensor, noise: Tensor) -> Bound:
        """Return the terms for images x, with z sampled by standard normal noise [n, latent]."""
        q = self.encoder(x)
        mean = self.decoder(reparametrize(q, noise))
        return Bound(negative_log_normal(x, mean, self.decoder.sigma), kl_to_standard_normal(q))

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruct images from the mean of q: float [n, c, h, h]."""
        return self.decoder(self.encoder(x).mean)

    def sample(self, noise: Tensor) -> Tensor:
        """Return the mean images of z = noise [n, latent], clipped to [-1, 1]."""
        return self.decoder(noise).clamp(-1, 1)


def objective(bound: Bound, kl_weight: float = 1.0, free_nats: float = 0.0) -> Tensor:
    """Return the training loss: mean reconstruction + weight · KL.

    kl_weight: 1 is the bound; below it while annealing (Bowman et al., 2016), above it a β-VAE (Higgins et al., 2017).
    free_nats: each number of z may have that much KL, on the batch's mean, at no cost (Kingma et al., 2016).
    """
    kl = bound.kl_by_number.mean(dim=0).clamp(min=free_nats).sum()
    return bound.reconstruction.mean() + kl_weight * kl


def active_numbers(q: Posterior, min_variance: float = 0.01) -> int:
    """Return the number of active dimensions of z, whose means vary over images (Burda et al., 2016)."""
    return int((q.mean.var(dim=0) > min_variance).sum())


def latent_map(decode: Callable[[Tensor], Tensor], side: int = 12) -> Tensor:
    """Return the images [side², c, h, h] that `decode` makes of a grid of z [side², 2].

    It covers 95 % of each number, with equally probable parts between its points. From left to right z₁ rises, from
    top to bottom z₂ falls.
    """
    points = torch.special.ndtri(torch.linspace(0.025, 0.975, side))
    down, across = torch.meshgrid(points.flip(0), points, indexing="ij")
    with torch.no_grad():
        return decode(torch.stack([across.flatten(), down.flatten()], dim=1))


class Training(PracticeRun):
    """A run in progress; `data` are the training images."""

    config: Config
    data: LabelledImages
    val: LabelledImages
    unit = "images"

    @property
    def summary(self) -> str:
        return f"{len(self.data):,} images of {self.data.name}, {self.config.latent} numbers for each"

    @cached_property
    def noise(self) -> Tensor:
        """The noise for z in measurements, always the same."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(len(self.val), self.config.latent, generator=generator).to(self.machine.device)

    def kl_weight(self) -> float:
        """Return the current weight of the KL."""
        batches = self.config.anneal * self.steps
        return self.config.beta * (min(1.0, self.global_step / batches) if batches else 1.0)

    def loss(self, index: Tensor) -> Tensor:
        x = self.data.x[index].to(self.machine.device)
        noise = torch.randn(len(x), self.config.latent, generator=self.generator).to(x.device)
        return objective(self.nn_model.bound(x, noise), self.kl_weight(), self.config.free_nats)

    @torch.no_grad()
    def measure(self) -> Figures:
        x = self.val.x.to(self.machine.device)
        bound = self.averaged.bound(x, self.noise)
        return {
            "ELBO": -bound.negative_elbo.mean().item(),
            "reconstruction": bound.reconstruction.mean().item(),
            "KL": bound.kl.mean().item(),
            "active": float(active_numbers(self.averaged.encoder(x))),
            "sigma": self.averaged.decoder.sigma.item(),
        }

    @torch.no_grad()
    def show(self, directory: Path, curves: Curves) -> str:
        z = torch.randn(40, self.config.latent, generator=torch.Generator().manual_seed(0))
        sheet = visualize.grid(self.averaged.sample(z.to(self.machine.device)).cpu(), 8)
        curves.writer.add_image("samples", sheet, self.global_step)
        visualize.to_image(sheet).save(directory / "samples.png")
        return f"samples: {directory / 'samples.png'}"

    def extra_state(self) -> State:
        return {**super().extra_state(), "channels": self.data.channels, "height": self.data.height}

    def digest(self) -> str:
        return training.digest_of(self.data.x)


def get_training(
    config: Config, machine: TrainingMachine, volume: Volume | None = None, data: LabelledImages | None = None
) -> Training:
    """Return a run before its first batch."""
    train, val = (data or load(config.data)).split()
    size = train.channels, train.height, config.width, config.latent, config.sigma
    run = new_run(Training, config, machine, train, lambda: VAE(*size))
    run.val = val
    return run


if __name__ == "__main__":
    training.main_of(Config, get_training, __doc__, "./lab train vae --set sigma=4")
