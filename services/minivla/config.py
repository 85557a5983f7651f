"""Everything about a mini-VLA's training that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.settings import RunSettings, data_option, keep_option, name_option, preload_option
from vla_common.options import device_option, option

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

    data: str = data_option("", "a data set's name on the volume, or its folder")
    size: Literal["tiny", "small", "base"] = option("small", "of the network and of its pictures")
    cameras: Literal["both", "front", "wrist"] = option("both", "of the data set's first two")
    state: bool = option(True, "tell the network where the hand is")
    words: bool = option(True, "tell it the instruction; without, it is deaf: to compare with")
    pictures: bool = option(True, "show it the pictures; without, it is blind: to compare with")
    head: Literal["diffusion", "flow", "regression"] = option("regression", "what the action head learns")
    chunk: int = option(16, "actions that are predicted together", "[1, 64]")
    episodes: int = option(0, "of the data set to learn from, 0 for all; each task's first ones", "[0, inf)")

    epochs: int = option(
        12, "passes over all steps of all episodes; many more cost success (docs/minivla.md)", "[1, inf)"
    )
    minutes: float = option(
        0, "above 0: as many of the epochs as fit, reckoned until a quarter of that time has passed", "[0, inf)"
    )
    batch_size: int = option(64, "observations", "[1, inf)")
    draws: int = option(2, "noisy chunks of each observation in a batch; of regression always one", "[1, inf)")
    lrate: float = option(8e-4, "after the warm-up it falls like a cosine to 0", "(0, inf)")
    warmup: int = option(200, "batches", "[0, inf)")
    weight_decay: float = option(1e-4, "AdamW's, of matrices and convolutions", "[0, inf)")
    ema: float = option(0.999, "of the averaged weights that act; 0: none", "[0, 1]")
    seed: int = option(0, "of weights, noise and order")

    device: str = device_option()
    precision: Literal["auto", "fp32", "bf16"] = option("auto", "auto: bf16 where the device computes in it")

    name: str | None = name_option()
    preload: str = preload_option()
    keep: int = keep_option()
    save_every: int = option(5, "epochs between two weight files", "[1, inf)")

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("no data set was named; --data takes one that `./lab dataset` has made, or a folder")
        if self.name is None:
            self.name = Path(self.data).name
        self.check()

    @property
    def side(self) -> int:
        """Pixels of a picture's edge."""
        return SIZES[self.size]["side"]
