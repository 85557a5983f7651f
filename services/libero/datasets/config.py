"""The program's flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.libero.simulator.suites import CAMERAS
from vla_common.options import Options, option
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import parse_ranges, require_folder_name


@dataclass(frozen=True)
class DatasetConfig(Options):
    """Make a data set of a recording, a run or another data set; or read one: say what is in it, check it, show it."""

    source: str = option(
        help="a recording, a run or a data set: its name on the volume, or its folder", group="internal"
    )
    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] | None = option(
        None,
        "make one: lerobot (v2.1, with GR00T's modality.json), lerobot-v3.0 (by LeRobot's own converter), or hdf5 "
        "(LIBERO's own files)",
    )
    name: str | None = option(None, "of the data set that is made", default_help="the source's", kind="directory name")
    size: int = option(256, "pixels of a picture's side, for example 128", "[32, 1024]")
    cameras: str = option(
        "agentview,robot0_eye_in_hand",
        "which to draw",
        default_help="those that policies are trained on",
        kind="cameras",
    )
    workers: int | None = option(None, "processes that draw", "[1, inf)", default_help="one per core")
    keep_failures: bool = option(False, "take episodes that failed, too")
    render: Literal["cpu", "gpu", "auto"] = option("auto", "cpu, gpu or auto")
    check: bool = option(False, "read it back whole, and name every fault with its file and row")
    show: bool = option(False, "make a page of it: films, curves, statistics")
    write_stats: bool = option(False, "write its statistics in meta/ anew; nothing else writes into a data set")
    bad: str = option("", "mark these episodes as bad: training leaves them out", kind="ranges", metavar="3,7-9")
    good: str = option("", "take that back", kind="ranges", metavar="3,7-9")

    def __post_init__(self):
        self.check_options()
        if self.makes and any(self.marks):
            raise ValueError("--bad and --good mark episodes of a data set that is there; leave --format out")
        if self.name is not None:
            require_folder_name("name", self.name)
        if self.size % 2:
            raise ValueError(f"--size {self.size} makes no film; expected an even number")
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
