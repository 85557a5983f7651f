"""The options of `sample diffusion` and of `score diffusion`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.settings import epoch_option, trained_option
from vla_common.options import Options, device_option, option


@dataclass
class SampleRequest(Options):
    """What to sample. The flags of `sample diffusion` are these fields."""

    name: str | None = trained_option("diffusion")
    epoch: str | None = epoch_option("are put side by side")
    context: str | None = option(
        None, "a class, a mix as in hero:1,food:0.6, or all", default_help="all where the run has a context"
    )
    count: int = option(32, "how many pictures", "[1, inf)")
    sampler: Literal["ddim", "ddpm", "incorrect"] = option(
        "ddim", "ddim, ddpm, or incorrect (adds no noise back: for the lesson)"
    )
    steps: int | None = option(None, "of ddim, 1 to 500", "[1, 500]", default_help="20")
    eta: float = option(0.0, "of ddim: share of fresh noise, 0 to 1", "[0, 1]")
    clip: bool = option(False, "of ddim: keep what it predicts in a picture's range")
    spacing: float = option(1.0, "of ddim's steps: 1 is even, 1.5 puts more of them near the clean picture", "(0, inf)")
    order: Literal[1, 2] = option(
        1, "of ddim: 2 goes by where its predictions are heading; as good as ddpm with --eta 1"
    )
    guidance: float = option(1.0, "above 1: follow the context more closely")
    seed: int = option(0, "the same seed gives the same pictures")
    compare: bool = option(False, "ddpm, ddim and the incorrect sampler side by side")
    columns: int = option(8, "pictures side by side", "[1, inf)", group="internal")
    device: str = device_option()
    out: Path | None = option(
        None, "folder for the pictures", default_help="pictures/ in the run's folder", group="internal"
    )

    def __post_init__(self) -> None:
        self.check_options()
        if self.steps is not None and self.sampler != "ddim":
            raise ValueError(f"the sampler {self.sampler} takes every step; --steps is for ddim")
        if self.clip and self.sampler != "ddim":
            raise ValueError(f"the sampler {self.sampler} is the course's, which clips nothing; --clip is for ddim")
        if self.spacing != 1.0 and self.sampler != "ddim":
            raise ValueError(f"the sampler {self.sampler} takes every step; --spacing is for ddim")
        if self.order != 1 and self.sampler != "ddim":
            raise ValueError(f"the sampler {self.sampler} has one order; --order is for ddim")
        if self.guidance != 1.0 and self.sampler == "incorrect":
            raise ValueError("the incorrect sampler knows no context, so it cannot be guided by one")


@dataclass
class ScoreRequest(Options):
    """What to score. The flags of `score diffusion` are these fields."""

    name: str | None = trained_option("diffusion")
    count: int = option(500, "pictures of each sampler", "[1, inf)")
    steps: int = option(20, "of ddim", "[1, 500]")
    guidance: float = option(1.0, "above 1: follow the context more closely", group="internal")
    ddpm: bool = option(True, "compare the samplers of 500 steps too", group="internal")
    seed: int = option(0, "the same seed gives the same pictures", group="internal")
    device: str = device_option()
