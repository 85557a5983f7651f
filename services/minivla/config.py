"""The settings of a mini-VLA training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.settings import RunSettings, data_option, keep_option, name_option, preload_option
from vla_common.options import device_option, option

# side: image height and width in pixels; the rest: width and layers of the network
SIZES = {
    "tiny": {"side": 64, "features": 32, "d_model": 64, "layers": 1, "head_layers": 1, "h": 2},
    "small": {"side": 128, "features": 48, "d_model": 128, "layers": 2, "head_layers": 2, "h": 4},
    "base": {"side": 128, "features": 128, "d_model": 256, "layers": 4, "head_layers": 3, "h": 8},
}


@dataclass
class Config(RunSettings):
    """A training run. The flags of `train minivla` are these fields."""

    LAB = "minivla"
    FIXED = (
        "size", "cameras", "state", "words", "pictures", "head", "chunk", "episodes", "epochs", "minutes", "batch_size",
        "draws", "looks", "acts", "lrate", "warmup", "weight_decay", "seed",
    )  # fmt: skip

    data: str = data_option("", "a data set's name on the volume, or its directory")
    size: Literal["tiny", "small", "base"] = option("small", "of the network and of its images")
    cameras: Literal["both", "front", "wrist"] = option("both", "which of the data set's first two")
    state: bool = option(True, "the network sees the robot's state")
    words: bool = option(True, "the network sees the instruction; off only for comparison")
    pictures: bool = option(True, "the network sees the images; off only for comparison")
    head: Literal["diffusion", "flow", "regression"] = option("regression", "training objective of the action head")
    chunk: int = option(16, "actions per prediction", "[1, 64]")
    episodes: int = option(0, "of the data set to train on, evenly per task, the first ones; 0 for all", "[0, inf)")

    epochs: int = option(12, "passes over all steps of all episodes, for data sets without scenes", "[1, inf)")
    minutes: float = option(0, "time limit: reduce epochs to fit; 0 for none", "[0, inf)")
    batch_size: int = option(64, "observations", "[1, inf)")
    draws: int = option(2, "noise samples per observation in a batch; regression uses one", "[1, inf)")
    looks: int = option(20, "epochs of learning from the data set's scenes where things are; 0: none", "[0, inf)")
    acts: int = option(12, "epochs of learning to act, after those of seeing", "[1, inf)")
    lrate: float = option(8e-4, "peak; linear warm-up, then cosine decay to 0", "(0, inf)")
    warmup: int = option(200, "batches", "[0, inf)")
    weight_decay: float = option(1e-4, "AdamW's, on matrices and convolutions", "[0, inf)")
    ema: float = option(0.999, "decay of the averaged weights, which are used for inference; 0: none", "[0, 1]")
    seed: int = option(0, "of weights, noise and data order")

    device: str = device_option()
    precision: Literal["auto", "fp32", "bf16"] = option("auto", "auto: bf16 where the device computes in it")

    name: str | None = name_option()
    preload: str = preload_option()
    keep: int = keep_option()
    save_every: int = option(5, "epochs between two weight files", "[1, inf)")

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("--data is missing; expected a data set made by `./lab dataset`, or a directory")
        if self.name is None:
            self.name = Path(self.data).name
        self.check()

    @property
    def side(self) -> int:
        return SIZES[self.size]["side"]
