"""Everything about a run of the VAE lab that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.ws_mdl.practice.settings import PracticeSettings

# What its numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "width": "[1, inf)", "latent": "[1, inf)", "sigma": "(0, inf)", "beta": "[0, inf)", "free_nats": "[0, inf)",
    "anneal": "[0, 1]",
}  # fmt: skip


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train vae` are these fields, and those of every practice lab."""

    LAB = "vae"

    data: str = "digits"  # digits, sprites, mnist, or a folder; see the diffusion lab
    width: int = 32  # channels of the first convolution
    latent: int = 16  # numbers that a picture becomes
    sigma: float | None = None  # of a pixel around its mean; default: learned
    beta: float = 1.0  # what a nat of KL costs; 1: the bound on log p(x)
    free_nats: float = 0.0  # KL that each number of z may have at no cost
    anneal: float = 0.0  # share of the batches in which the KL's weight rises from 0 to beta

    epochs: int = 60
    batch_size: int = 100
    lrate: float = 2e-3
    weight_decay: float = 0.0
    clip: float = 100.0  # the loss is in nats of a whole picture, so its gradients are long
    measure_every: int = 5
    save_every: int = 20

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.data).name
        self.check(ALLOWED)
