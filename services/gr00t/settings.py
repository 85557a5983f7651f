"""Flags of the model, whose defaults are VLALAB_GR00T_* variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OTHERS = ("PORT", "MEMORY", "GPU", "SOURCE", "COMMIT")  # variables of the same prefix that are read elsewhere


@dataclass(frozen=True)
class Settings:
    """Which checkpoint, and how it is run. Every flag's default is the variable VLALAB_GR00T_<FLAG>."""

    checkpoint: str = ""
    """A folder under checkpoints/ on the volume, or a path."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    attention: Literal["auto", "sdpa", "flash"] = "auto"
    """auto: flash-attn where it is installed and runs, else torch's SDPA."""
    embodiment: str = ""
    """libero, libero_mean_std or oxe_droid; default: as recorded, else libero."""
    max_batch: int = 16
    """Most observations in one pass."""
    seed: int = 0
    """Of the noise that actions start from."""

    def __post_init__(self):
        if self.max_batch < 1:
            raise ValueError(f"max_batch is {self.max_batch}; expected 1 or more")
