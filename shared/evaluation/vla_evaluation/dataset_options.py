"""The options of every benchmark's program that makes a data set of its recordings and runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vla_common.options import Options, option
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import require_folder_name


@dataclass(frozen=True)
class DatasetOptions(Options):
    """What to make a data set of, and how. A benchmark says its CAMERAS, and which are drawn by default."""

    CAMERAS: ClassVar[tuple[str, ...]] = ()

    source: str = option(
        help="a recording, a run or a data set: its name on the volume, or its folder", group="internal"
    )
    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] | None = option(None)  # help: the benchmark's
    name: str | None = option(None, "of the data set that is made", default_help="the source's", kind="directory name")
    size: int = option(256, "pixels of a picture's side, for example 128", "[32, 1024]")
    cameras: str = option("", "which to draw", default_help="those that policies are trained on", kind="cameras")
    workers: int | None = option(None, "processes that draw", "[1, inf)", default_help="one per core")
    keep_failures: bool = option(False, "take episodes that failed, too")
    render: Literal["cpu", "gpu", "auto"] = option("auto", "cpu, gpu or auto")
    check: bool = option(False, "read it back whole, and name every fault with its file and row")
    show: bool = option(False, "make a page of it: films, curves, statistics")

    def __post_init__(self) -> None:
        self.check_options()
        if self.name is not None:
            require_folder_name("name", self.name)
        if self.size % 2:
            raise ValueError(f"--size {self.size} makes no film; expected an even number")
        for camera in self.camera_names:
            if camera not in self.CAMERAS:
                raise ValueError(f"camera {camera!r} not found{did_you_mean(camera, self.CAMERAS)}")
        if not self.camera_names:
            raise ValueError(f"--cameras names none; expected at least one, for example {self.CAMERAS[0]}")

    @property
    def camera_names(self) -> tuple[str, ...]:
        """The cameras, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.cameras.split(",") if name.strip()))
