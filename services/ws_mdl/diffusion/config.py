"""The settings of a diffusion run, with the course's numbers as defaults, and the options of `sample` and `score`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from services.ws_mdl import settings
from services.ws_mdl.settings import RunSettings
from vla_common.options import Options, device_option, option

if TYPE_CHECKING:
    from services.ws_mdl.diffusion.schedule import Schedule


@dataclass
class Config(RunSettings):
    """A training run. The flags of `train diffusion` are these fields."""

    LAB = "diffusion"
    FIXED = (
        "data", "context", "n_feat", "schedule", "timesteps", "beta1", "beta2", "batch_size", "keep_context", "seed",
    )  # fmt: skip

    data: str = settings.data_option("digits", "digits, sprites, mnist, or a directory with .npy files or MNIST's")
    context: bool = option(False, "condition the network on the image's class")
    n_feat: int = option(64, "width of the network", "[1, inf)")

    schedule: Literal["linear", "cosine"] = option("linear", "how noise grows over the steps")
    timesteps: int = option(500, "steps from image to noise", "[1, inf)")
    beta1: float = option(1e-4, "linear schedule: noise of the first step", "(0, 1)")
    beta2: float = option(0.02, "linear schedule: noise of the last step", "(0, 1)")

    epochs: int = option(32, "passes over the training set", "[1, inf)")
    batch_size: int = option(100, "images", "[1, inf)")
    lrate: float = option(1e-3, "initial; decays linearly to 0", "(0, inf)")
    keep_context: float = option(0.9, "probability of keeping the context in training, for guidance", "[0, 1]")
    ema: float = option(0.995, "decay of the averaged weights, which are used for sampling; 0: none", "[0, 1]")
    seed: int = option(0, "of weights, noise and data order")

    device: str = device_option()
    precision: Literal["auto", "fp32", "bf16"] = option("auto", "auto: bf16 where a GPU computes in it")

    name: str | None = settings.name_option()
    preload: str = settings.preload_option()
    keep: int = settings.keep_option()
    save_every: int = option(4, "epochs between two weight files", "[1, inf)")
    sample_every: int = option(4, "epochs between two sample images in TensorBoard", "[1, inf)")

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.data).name + ("-context" if self.context else "")
        self.check()

    def make_schedule(self) -> Schedule:
        """Return the run's noise schedule."""
        # `./lab` imports this module without torch
        from services.ws_mdl.diffusion.schedule import cosine_schedule, linear_schedule

        if self.schedule == "cosine":
            return cosine_schedule(self.timesteps)
        return linear_schedule(self.timesteps, self.beta1, self.beta2)


@dataclass
class SampleRequest(Options):
    """What to sample. The flags of `sample diffusion` are these fields."""

    name: str | None = settings.trained_option("diffusion")
    epoch: str | None = settings.epoch_option("are compared side by side")
    context: str | None = option(
        None, "a class, a mix as in hero:1,food:0.6, or all", default_help="all, if the run has a context"
    )
    count: int = option(32, "number of images", "[1, inf)")
    sampler: Literal["ddim", "ddpm", "incorrect"] = option(
        "ddim", "ddim, ddpm, or incorrect (no noise; for the lesson)"
    )
    steps: int | None = option(None, "of ddim, 1 to 500", "[1, 500]", default_help="20")
    eta: float = option(0.0, "ddim: share of fresh noise, 0 to 1", "[0, 1]")
    clip: bool = option(False, "ddim: clip the predicted image to its range")
    spacing: float = option(1.0, "ddim: 1 spaces steps evenly, 1.5 puts more of them near the clean image", "(0, inf)")
    order: Literal[1, 2] = option(1, "ddim: 2 is a second-order solver; with --eta 1 as good as ddpm")
    guidance: float = option(1.0, "above 1: follow the context more closely")
    seed: int = option(0, "the same seed gives the same images")
    compare: bool = option(False, "ddpm, ddim and the incorrect sampler side by side")
    columns: int = option(8, "images per row", "[1, inf)", group="internal")
    device: str = device_option()
    out: Path | None = option(
        None, "directory for the images", default_help="pictures/ in the run's directory", group="internal"
    )

    def __post_init__(self) -> None:
        self.check_options()
        of_ddim = {"steps": self.steps, "clip": self.clip, "spacing": self.spacing != 1, "order": self.order != 1}
        ddim_flags = [f"--{name}" for name, is_set in of_ddim.items() if is_set]
        if ddim_flags and self.sampler != "ddim":
            raise ValueError(f"{ddim_flags[0]} requires --sampler ddim, got --sampler {self.sampler}")
        if self.guidance != 1.0 and self.sampler == "incorrect":
            raise ValueError("--guidance is not supported by --sampler incorrect, which ignores the context")


@dataclass
class ScoreRequest(Options):
    """What to score. The flags of `score diffusion` are these fields."""

    name: str | None = settings.trained_option("diffusion")
    count: int = option(500, "images per sampler", "[1, inf)")
    steps: int = option(20, "of ddim", "[1, 500]")
    guidance: float = option(1.0, "above 1: follow the context more closely", group="internal")
    ddpm: bool = option(True, "also compare the samplers of 500 steps", group="internal")
    seed: int = option(0, "the same seed gives the same images", group="internal")
    device: str = device_option()
