"""The program's flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from services.metaworld.benchmark import CAMERAS
from services.metaworld.datasets import layout
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import require_folder_name

LEAST, MOST = 32, 1024  # pixels: what an even size of a film may be


@dataclass(frozen=True)
class Config:
    """Make a data set of a recording or a run of Meta-World."""

    source: Annotated[str, tyro.conf.Positional]
    """A recording or a run: its name on the volume, or its folder."""
    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] = "lerobot"
    """The layout: LeRobot v2.1."""
    name: str | None = None
    """Of the data set that is made; default: the source's."""
    size: int = 256
    """Pixels of a picture's side."""
    cameras: str = layout.FIRST
    """Which cameras to draw, separated by commas."""
    workers: int | None = None
    """Processes that draw; default: one per core that has the memory."""
    keep_failures: bool = False
    """Take episodes that failed, too."""
    render: Literal["cpu", "gpu", "auto"] = "auto"
    """What draws."""
    check: bool = False
    """Read the data set back whole and name every fault."""
    show: bool = False
    """Make a page of it, with films and curves."""

    def __post_init__(self):
        if self.format != "lerobot":
            raise ValueError(
                f"--format {self.format} is not made of Meta-World's episodes; make lerobot, then of that set v3.0"
            )
        if self.name is not None:
            require_folder_name("name", self.name)
        if not LEAST <= self.size <= MOST or self.size % 2:
            raise ValueError(f"--size {self.size} makes no film; expected an even number, {LEAST} to {MOST}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"--workers {self.workers} makes no sense; expected 1 or more")
        if not self.camera_names:
            raise ValueError(f"--cameras names none; expected at least one, for example {layout.FIRST}")
        for camera in self.camera_names:
            if camera not in CAMERAS:
                raise ValueError(f"camera {camera!r} not found{did_you_mean(camera, CAMERAS)}")

    @property
    def camera_names(self) -> tuple[str, ...]:
        """The cameras, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.cameras.split(",") if name.strip()))
