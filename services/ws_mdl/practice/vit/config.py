"""Everything about a Vision Transformer's run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.practice.settings import PracticeSettings
from services.ws_mdl.settings import data_option
from vla_common.options import option


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train vit` are these fields."""

    LAB = "vit"

    data: str = data_option(
        "digits", "digits, sprites, mnist, a folder as diffusion takes it, or a data set: which task is this?"
    )
    side: int = option(64, "pixels of a data set's frames; other pictures stay as they are", "[8, inf)")
    held_fraction: float = option(
        0.2, "of the pictures, or of each task's episodes: measured on, never learned from", "(0, 1)"
    )
    shift: int = option(2, "pixels by which a picture is moved at most while it is learned from", "[0, inf)")

    patch: int = option(4, "pixels of a patch's edge; of a data set's frames take 8", "[1, inf)")
    d_model: int = option(64, "numbers per patch", "[1, inf)")
    N: int = option(4, "encoder blocks", "[1, inf)")
    h: int = option(4, "attention heads; must divide d_model", "[1, inf)")
    d_ff: int = option(128, "width of the feed-forward blocks", "[1, inf)")
    dropout: float = option(0.1, "share of numbers that training leaves out", "[0, 1)")
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = option(
        "learned", "how a patch knows its place"
    )
    smoothing: float = option(0.05, "share of the target given to all classes", "[0, 1)")

    epochs: int = 60
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.data).name
        self.check()
        self.check_heads(self.d_model, self.h)
