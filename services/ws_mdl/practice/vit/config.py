"""Everything about a Vision Transformer's run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.practice.settings import PracticeSettings

# What its own numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "patch": "[1, inf)", "d_model": "[1, inf)", "N": "[1, inf)", "h": "[1, inf)", "d_ff": "[1, inf)",
    "dropout": "[0, 1)", "smoothing": "[0, 1)", "shift": "[0, inf)", "side": "[8, inf)", "held_fraction": "(0, 1)",
}  # fmt: skip


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train vit` are these fields."""

    LAB = "vit"

    data: str = "digits"  # digits, sprites, mnist, a folder as diffusion takes it, or a data set: which task is this?
    side: int = 64  # pixels of a data set's frames; other pictures stay as they are
    held_fraction: float = 0.2  # of the pictures, or of each task's episodes: measured on, never learned from
    shift: int = 2  # pixels by which a picture is moved at most while it is learned from

    patch: int = 4  # pixels of a patch's edge; of a data set's frames take 8
    d_model: int = 64  # numbers per patch
    N: int = 4  # encoder blocks
    h: int = 4  # attention heads; must divide d_model
    d_ff: int = 128  # width of the feed-forward blocks
    dropout: float = 0.1  # share of numbers that training leaves out
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = "learned"  # how a patch knows its place
    smoothing: float = 0.05  # share of the target given to all classes

    epochs: int = 60
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.data).name
        self.check(ALLOWED)
        self.check_heads(self.d_model, self.h)
