"""The program's flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.metaworld.datasets import layout
from services.metaworld.tasks import CAMERAS
from vla_common.options import Options, option
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import require_folder_name


@dataclass(frozen=True)
class Config(Options):
    """Make a data set of a recording or a run of Meta-World."""

    source: str = option(
        help="a recording, a run or a data set: its name on the volume, or its folder", group="internal"
    )
    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] = option(
        "lerobot",
        "make one: lerobot (v2.1, with GR00T's modality.json), lerobot-v3.0 (by LeRobot's own converter), or hdf5 "
        "(LIBERO's own files)",
    )
    name: str | None = option(None, "of the data set that is made", default_help="the source's", kind="directory name")
    size: int = option(256, "pixels of a picture's side, for example 128", "[32, 1024]")
    cameras: str = option(
        layout.FIRST,
        "which to draw",
        default_help="those that policies are trained on",
        kind="cameras",
    )
    workers: int | None = option(None, "processes that draw", "[1, inf)", default_help="one per core")
    keep_failures: bool = option(False, "take episodes that failed, too")
    render: Literal["cpu", "gpu", "auto"] = option("auto", "cpu, gpu or auto")
    check: bool = option(False, "read it back whole, and name every fault with its file and row")
    show: bool = option(False, "make a page of it: films, curves, statistics")

    def __post_init__(self):
        self.check_options()
        if self.format != "lerobot":
            raise ValueError(
                f"--format {self.format} is not made of Meta-World's episodes; make lerobot, then of that set v3.0"
            )
        if self.name is not None:
            require_folder_name("name", self.name)
        if self.size % 2:
            raise ValueError(f"--size {self.size} makes no film; expected an even number")
        if not self.camera_names:
            raise ValueError(f"--cameras names none; expected at least one, for example {layout.FIRST}")
        for camera in self.camera_names:
            if camera not in CAMERAS:
                raise ValueError(f"camera {camera!r} not found{did_you_mean(camera, CAMERAS)}")

    @property
    def camera_names(self) -> tuple[str, ...]:
        """The cameras, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.cameras.split(",") if name.strip()))
