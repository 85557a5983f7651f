"""Everything about a diffusion run that can be chosen, with the course's numbers as defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from services.ws_mdl.settings import RunSettings, data_option, keep_option, name_option, preload_option
from vla_common.options import device_option, option

if TYPE_CHECKING:
    from services.ws_mdl.diffusion.schedule import Schedule


@dataclass
class Config(RunSettings):
    """A training run. The flags of `train diffusion` are these fields."""

    LAB = "diffusion"
    FIXED = (
        "data",
        "context",
        "n_feat",
        "schedule",
        "timesteps",
        "beta1",
        "beta2",
        "batch_size",
        "keep_context",
        "seed",
    )

    data: str = data_option("digits", "digits, sprites, mnist, a folder with the course's .npy files or MNIST's")
    context: bool = option(False, "tell the network the class of a picture")
    n_feat: int = option(64, "width of the network", "[1, inf)")

    schedule: Literal["linear", "cosine"] = option("linear", "how noise grows over the steps")
    timesteps: int = option(500, "from a picture to noise", "[1, inf)")
    beta1: float = option(1e-4, "of the linear schedule: noise of the first step", "(0, 1)")
    beta2: float = option(0.02, "and of the last", "(0, 1)")

    epochs: int = option(32, "passes over what is learned from", "[1, inf)")
    batch_size: int = option(100, "pictures", "[1, inf)")
    lrate: float = option(1e-3, "falls evenly to 0", "(0, inf)")
    keep_context: float = option(0.9, "how often a picture's context is told; the network learns both ways", "[0, 1]")
    ema: float = option(0.995, "of the averaged weights that pictures are made with; 0: none", "[0, 1]")
    seed: int = option(0, "of weights, noise and the order of pictures")

    device: str = device_option()
    precision: Literal["auto", "fp32", "bf16"] = option("auto", "auto: bf16 where a GPU computes in it")

    name: str | None = name_option()
    preload: str = preload_option()
    keep: int = keep_option()
    save_every: int = option(4, "epochs between two weight files", "[1, inf)")
    sample_every: int = option(4, "epochs between two sample pictures in TensorBoard", "[1, inf)")

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.data).name + ("-context" if self.context else "")
        self.check()

    def make_schedule(self) -> Schedule:
        """Returns the noise schedule of the run."""
        # `./lab` imports this module, and has no torch
        from services.ws_mdl.diffusion.schedule import cosine_schedule, linear_schedule

        if self.schedule == "cosine":
            return cosine_schedule(self.timesteps)
        return linear_schedule(self.timesteps, self.beta1, self.beta2)
