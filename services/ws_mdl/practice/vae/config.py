"""Everything about a run of the VAE lab that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.ws_mdl.practice.settings import PracticeSettings
from services.ws_mdl.settings import data_option
from vla_common.options import option


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train vae` are these fields, and those of every practice lab."""

    LAB = "vae"

    data: str = data_option("digits", "digits, sprites, mnist, or a folder; see the diffusion lab")
    width: int = option(32, "channels of the first convolution", "[1, inf)")
    latent: int = option(16, "numbers that a picture becomes", "[1, inf)")
    sigma: float | None = option(None, "of a pixel around its mean", "(0, inf)", default_help="learned")
    beta: float = option(1.0, "what a nat of KL costs; 1: the bound on log p(x)", "[0, inf)")
    free_nats: float = option(0.0, "KL that each number of z may have at no cost", "[0, inf)")
    anneal: float = option(0.0, "share of the batches in which the KL's weight rises from 0 to beta", "[0, 1]")

    epochs: int = 60
    batch_size: int = 100
    lrate: float = 2e-3
    weight_decay: float = 0.0
    clip: float = option(100.0, "the loss is in nats of a whole picture, so its gradients are long")
    measure_every: int = 5
    save_every: int = 20

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.data).name
        self.check()
