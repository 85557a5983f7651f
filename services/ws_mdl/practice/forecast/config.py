"""Everything about a forecaster's run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.practice.settings import PracticeSettings
from vla_common.options import option


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train forecast` are these fields."""

    LAB = "forecast"

    series: str = option("bikes", "bikes (a year of hours, downloaded), made, or a file with a number in each line")
    season: int = option(
        168, "steps after which a series comes round: a week of hours; the seasonal guess repeats it", "[1, inf)"
    )
    held_fraction: float = option(0.25, "of the series, its end: measured on, never learned from", "(0, 1)")

    lookback: int = option(336, "steps that are looked at: two weeks of hours", "[2, inf)")
    patch: int = option(8, "steps of a token", "[1, inf)")
    horizon: int = option(24, "steps that are forecast", "[1, inf)")
    direct: int = option(336, "of them those that a linear function goes straight through", "[1, inf)")
    d_model: int = option(64, "numbers per token", "[1, inf)")
    N: int = option(2, "blocks", "[1, inf)")
    h: int = option(4, "attention heads; must divide d_model", "[1, inf)")
    d_ff: int = option(128, "width of the feed-forward blocks", "[1, inf)")
    dropout: float = option(0.1, "share of numbers that training leaves out", "[0, 1)")
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = option(
        "learned", "how a token knows its place"
    )

    epochs: int = 60
    batch_size: int = option(16, "windows")
    lrate: float = 4e-3
    weight_decay: float = 0.05
    measure_every: int = 10
    save_every: int = 20

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.series).stem
        self.check()
        self.check_heads(self.d_model, self.h)
        if self.lookback % self.patch:
            raise ValueError(f"lookback {self.lookback} is no number of whole patches of {self.patch}; choose another")
        if not self.patch <= self.direct <= self.lookback:
            raise ValueError(f"direct is {self.direct}; expected from patch {self.patch} to lookback {self.lookback}")
