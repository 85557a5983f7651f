"""Everything about a diffusion run that can be chosen, with the course's numbers as defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.diffusion.schedule import SCHEDULES, Schedule, cosine_schedule, linear_schedule
from services.ws_mdl.settings import RunSettings

# What its numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "epochs": "[1, inf)", "batch_size": "[1, inf)", "timesteps": "[1, inf)", "n_feat": "[1, inf)",
    "save_every": "[1, inf)", "sample_every": "[1, inf)", "keep": "[0, inf)",
    "keep_context": "[0, 1]", "ema": "[0, 1]", "beta1": "(0, 1)", "beta2": "(0, 1)", "lrate": "(0, inf)",
}  # fmt: skip


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

    data: str = "digits"  # digits, sprites, mnist, or a folder with the course's .npy files or MNIST's idx files
    context: bool = False  # tell the network the class of a picture
    n_feat: int = 64  # width of the network

    schedule: Literal["linear", "cosine"] = "linear"  # how noise grows over the steps
    timesteps: int = 500  # from a picture to noise
    beta1: float = 1e-4  # of the linear schedule: noise of the first step
    beta2: float = 0.02  # and of the last

    epochs: int = 32
    batch_size: int = 100  # pictures
    lrate: float = 1e-3  # falls evenly to 0
    keep_context: float = 0.9  # how often a picture's context is told; the network learns both ways
    ema: float = 0.995  # of the averaged weights that pictures are made with; 0: none
    seed: int = 0  # of weights, noise and the order of pictures

    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 where the device computes in it

    name: str | None = None  # of the run; default: data, with -context
    preload: str = "latest"  # go on from the newest weights, from epoch N as in "7", or "none": start anew
    keep: int = 3  # newest weight files to keep, 0 for all
    save_every: int = 4  # epochs between two weight files
    sample_every: int = 4  # epochs between two sample pictures in TensorBoard

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.data).name + ("-context" if self.context else "")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule {self.schedule!r} is not known; choose {', '.join(SCHEDULES)}")
        self.check(ALLOWED)

    def make_schedule(self) -> Schedule:
        """Returns the noise schedule of the run."""
        if self.schedule == "cosine":
            return cosine_schedule(self.timesteps)
        return linear_schedule(self.timesteps, self.beta1, self.beta2)
