"""The options of the programs that make a data set of recordings and runs, and that score a policy on one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vla_common.options import Options, option
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import require_directory_name


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
            require_directory_name("name", self.name)
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


@dataclass(frozen=True)
class OfflineOptions(Options):
    """Score a policy on a recorded data set, over HTTP."""

    dataset: str = option(help="a name under datasets/ on the volume, or a path", kind="dataset")
    policy_url: str = option("http://127.0.0.1:8001", "where the policy service listens", group="internal")
    index: int | None = option(None, "which row of the data set", "[0, inf)", default_help="0")
    plot: bool = option(False, "draw each episode's curves")
    episodes: str = option("", "which ones", default_help="the first ten", kind="ranges")
    steps: int | None = option(None, "at most so many of an episode", "[1, inf)", default_help="to its end")
    execute: int | None = option(None, "ask again after so many steps", "[1, inf)", default_help="the whole chunk")
    swap: str = option(
        "", "what the policy is told instead of the recorded instruction", default_help="another one of the data set"
    )
    seed: int = option(0, "of the noise that a policy's actions start from", "[0, inf)")
    cameras: str = option("", "the policy's cameras in the data set, where names do not tell", metavar="CAMERA=FILM,…")
    unnorm_key: str | None = option(None, "statistics the policy un-normalises with, where it has several")
    name: str = option(
        "",
        "folder of the results under logs/offline on the volume",
        default_help="made of both names",
        kind="directory name",
    )

    def __post_init__(self) -> None:
        self.check_options()
