"""Everything about a mini-VLA's training that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.settings import RunSettings

# What its numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "epochs": "[1, inf)", "batch_size": "[1, inf)", "chunk": "[1, 64]", "draws": "[1, inf)", "save_every": "[1, inf)",
    "keep": "[0, inf)", "warmup": "[0, inf)", "episodes": "[0, inf)", "ema": "[0, 1]", "lrate": "(0, inf)",
    "weight_decay": "[0, inf)", "minutes": "[0, inf)",
}  # fmt: skip
# size: pixels of a picture's edge, then width and layers of the network
SIZES = {
    "tiny": {"side": 32, "d_model": 64, "layers": 1, "head_layers": 1, "h": 2},
    "small": {"side": 64, "d_model": 128, "layers": 3, "head_layers": 2, "h": 4},
    "base": {"side": 96, "d_model": 256, "layers": 4, "head_layers": 3, "h": 8},
}


@dataclass
class Config(RunSettings):
    """A training run. The flags of `train minivla` are these fields."""

    LAB = "minivla"
    FIXED = (
        "size", "cameras", "state", "words", "pictures", "head", "chunk", "episodes", "epochs", "minutes", "batch_size",
        "draws", "lrate", "warmup", "weight_decay", "seed",
    )  # fmt: skip

    data: str = ""  # a data set's name on the volume, or its folder
    size: Literal["tiny", "small", "base"] = "small"  # of the network and of its pictures
    cameras: Literal["both", "front", "wrist"] = "both"  # of the data set's first two
    state: bool = True  # tell the network where the hand is
    words: bool = True  # tell it the instruction; without, it is deaf: to compare with
    pictures: bool = True  # show it the pictures; without, it is blind: to compare with
    head: Literal["diffusion", "flow", "regression"] = "regression"  # what the action head learns
    chunk: int = 16  # actions that are predicted together
    episodes: int = 0  # of the data set to learn from, 0 for all; each task's first ones

    epochs: int = 12  # passes over all steps of all episodes; many more cost success (docs/minivla.md)
    minutes: float = 0  # above 0: as many of the epochs as fit, reckoned until a quarter of that time has passed
    batch_size: int = 64  # observations
    draws: int = 2  # noisy chunks of each observation in a batch; of regression always one
    lrate: float = 8e-4  # after the warm-up it falls like a cosine to 0
    warmup: int = 200  # batches
    weight_decay: float = 1e-4  # AdamW's, of matrices and convolutions
    ema: float = 0.999  # of the averaged weights that act; 0: none
    seed: int = 0  # of weights, noise and order

    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 where the device computes in it

    name: str | None = None  # of the run; default: the data set's
    preload: str = "latest"  # go on from the newest weights, from epoch N as in "7", or "none": start anew
    keep: int = 3  # newest weight files to keep, 0 for all
    save_every: int = 5  # epochs between two weight files

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("no data set was named; --data takes one that `./lab dataset` has made, or a folder")
        if self.name is None:
            self.name = Path(self.data).name
        self.check(ALLOWED)

    @property
    def side(self) -> int:
        """Pixels of a picture's edge."""
        return SIZES[self.size]["side"]
