"""The program's flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from services.libero.benchmark import CAMERAS
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import parse_ranges, require_folder_name

LEAST, MOST = 32, 1024  # pixels: what an even size of a film may be


@dataclass(frozen=True)
class DatasetConfig:
    """Make a data set of a recording, a run or another data set; or read one: say what is in it, check it, show it."""

    source: Annotated[str, tyro.conf.Positional]
    """A recording, a run or a data set: its name on the volume, or its folder."""
    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] | None = None
    """Make a data set in this layout: LeRobot v2.1, the same through LeRobot's own converter, or LIBERO's HDF5."""
    name: str | None = None
    """Of the data set that is made; default: the source's, with -hdf5 or -v3.0 where it is one."""
    size: int = 256
    """Pixels of a picture's side."""
    cameras: str = "agentview,robot0_eye_in_hand"
    """Which cameras to draw, separated by commas."""
    workers: int | None = None
    """Processes that draw; default: one per core that has the memory."""
    keep_failures: bool = False
    """Take episodes that failed, too."""
    render: Literal["cpu", "gpu", "auto"] = "auto"
    """What draws."""
    check: bool = False
    """Read a data set back whole and name every fault."""
    show: bool = False
    """Make a page of a data set, with films and curves."""
    write_stats: bool = False
    """Write its statistics in meta/ anew from its rows and frames."""

    bad: str = ""
    """Mark these episodes as bad, "3,7-9": training leaves them out."""
    good: str = ""
    """Take that back."""

    def __post_init__(self):
        if self.makes and any(self.marks):
            raise ValueError("--bad and --good mark episodes of a data set that is there; leave --format out")
        if self.name is not None:
            require_folder_name("name", self.name)
        if not LEAST <= self.size <= MOST or self.size % 2:
            raise ValueError(f"--size {self.size} makes no film; expected an even number, {LEAST} to {MOST}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"--workers {self.workers} makes no sense; expected 1 or more")
        for camera in self.camera_names:
            if camera not in CAMERAS:
                raise ValueError(f"camera {camera!r} not found{did_you_mean(camera, CAMERAS)}")
        if not self.camera_names:
            raise ValueError("--cameras names none; expected at least one, for example agentview")

    @property
    def camera_names(self) -> tuple[str, ...]:
        """The cameras, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.cameras.split(",") if name.strip()))

    @property
    def marks(self) -> tuple[list[int], list[int]]:
        """The episodes to mark as bad, and those to mark no longer."""
        bad, good = (parse_ranges(text) if text else [] for text in (self.bad, self.good))
        return bad, good

    @property
    def makes(self) -> bool:
        """Whether a data set is to be made."""
        return self.format is not None
