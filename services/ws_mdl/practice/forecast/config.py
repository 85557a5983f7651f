"""Everything about a forecaster's run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.practice.settings import PracticeSettings

# What its own numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "season": "[1, inf)", "held_fraction": "(0, 1)", "lookback": "[2, inf)", "patch": "[1, inf)", "horizon": "[1, inf)",
    "direct": "[1, inf)",
    "d_model": "[1, inf)", "N": "[1, inf)", "h": "[1, inf)", "d_ff": "[1, inf)", "dropout": "[0, 1)",
}  # fmt: skip


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train forecast` are these fields."""

    LAB = "forecast"

    series: str = "bikes"  # bikes (a year of hours, downloaded), made, or a file with a number in each line
    season: int = 168  # steps after which a series comes round: a week of hours; the seasonal guess repeats it
    held_fraction: float = 0.25  # of the series, its end: measured on, never learned from

    lookback: int = 336  # steps that are looked at: two weeks of hours
    patch: int = 8  # steps of a token
    horizon: int = 24  # steps that are forecast
    direct: int = 336  # of them those that a linear function goes straight through
    d_model: int = 64  # numbers per token
    N: int = 2  # blocks
    h: int = 4  # attention heads; must divide d_model
    d_ff: int = 128  # width of the feed-forward blocks
    dropout: float = 0.1  # share of numbers that training leaves out
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = "learned"  # how a token knows its place

    epochs: int = 60
    batch_size: int = 16  # windows
    lrate: float = 4e-3
    weight_decay: float = 0.05
    measure_every: int = 10
    save_every: int = 20

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.series).stem
        self.check(ALLOWED)
        self.check_heads(self.d_model, self.h)
        if self.lookback % self.patch:
            raise ValueError(f"lookback {self.lookback} is no number of whole patches of {self.patch}; choose another")
        if not self.patch <= self.direct <= self.lookback:
            raise ValueError(f"direct is {self.direct}; expected from patch {self.patch} to lookback {self.lookback}")
