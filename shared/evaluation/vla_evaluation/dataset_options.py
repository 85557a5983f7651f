"""The options of the programs that make a data set of recordings and runs, and that score a policy on one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vla_common.options import Options, option
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.config import require_directory_name


@dataclass(frozen=True)
class DatasetOptions(Options):
    """Options of a conversion to a data set. A benchmark sets CAMERAS, and which of them are rendered by default."""

    CAMERAS: ClassVar[tuple[str, ...]] = ()

    source: str = option(
        help="a recording, a run or a data set: its name on the volume, or its directory", group="internal"
    )
    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] | None = option(None)  # help: the benchmark's
    name: str | None = option(None, "name of the data set", default_help="the source's", kind="directory name")
    size: int = option(256, "image size in pixels, for example 128", "[32, 1024]")
    cameras: str = option("", "cameras to render", default_help="those that policies are trained on", kind="cameras")
    workers: int | None = option(None, "rendering processes", "[1, inf)", default_help="one per core")
    keep_failures: bool = option(False, "include failed episodes")
    render: Literal["cpu", "gpu", "auto"] = option("auto", "cpu, gpu or auto")
    check: bool = option(False, "read it back and report every fault with its file and row")
    show: bool = option(False, "create a page of it: videos, curves, statistics")

    def __post_init__(self) -> None:
        self.check_options()
        if self.name is not None:
            require_directory_name("name", self.name)
        if self.size % 2:
            raise ValueError(f"--size must be an even number, since videos need one; got {self.size}")
        for camera in self.camera_names:
            if camera not in self.CAMERAS:
                raise ValueError(f"camera {camera!r} not found{did_you_mean(camera, self.CAMERAS)}")
        if not self.camera_names:
            raise ValueError(f"--cameras is empty; expected at least one, for example {self.CAMERAS[0]}")

    @property
    def camera_names(self) -> tuple[str, ...]:
        """The cameras, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.cameras.split(",") if name.strip()))


@dataclass(frozen=True)
class OfflineOptions(Options):
    """Score a policy on a recorded data set, over HTTP."""

    dataset: str = option(help="a name under datasets/ on the volume, or a path", kind="dataset")
    policy_url: str = option("http://127.0.0.1:8001", "address of the policy service", group="internal")
    index: int | None = option(None, "row of the data set", "[0, inf)", default_help="0")
    plot: bool = option(False, "plot each episode's curves")
    episodes: str = option("", "episodes to score", default_help="the first ten", kind="ranges")
    steps: int | None = option(None, "maximum steps of an episode", "[1, inf)", default_help="to its end")
    execute: int | None = option(None, "steps between two policy queries", "[1, inf)", default_help="the whole chunk")
    swap: str = option(
        "", "instruction to send instead of the recorded one", default_help="another one of the data set"
    )
    seed: int = option(0, "seed of the noise that a policy's actions start from", "[0, inf)")
    cameras: str = option("", "video of each of the policy's cameras, where names differ", metavar="CAMERA=VIDEO,…")
    unnorm_key: str | None = option(None, "statistics to un-normalise with, if the policy has several")
    name: str = option(
        "", "directory of the results under logs/offline on the volume", default_help="data set and policy",
        kind="directory name",
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.check_options()


@dataclass(frozen=True)
class AuditOptions(Options):
    """Find which convention of a policy is wrong, over HTTP."""

    suite: str = option(
        "", "whose recorded demonstrations the policy is asked about", kind="suite", default_help="the goal suite"
    )
    dataset: str | None = option(None, "your own data set instead: a name on the volume, or a path", kind="dataset")
    policy_url: str = option("", "address of the policy service; empty: audit the data set itself", group="internal")
    requests: int = option(1500, "maximum number of requests", "[300, inf)")
    act_timeout_s: float = option(30.0, "maximum duration of one answer", "(0, inf)", metavar="S")
    cameras: str = option("", "video of each of the policy's cameras, where names differ", metavar="CAMERA=VIDEO,…")
    unnorm_key: str | None = option(None, "statistics to un-normalise with, if the policy has several")
    json: bool = option(False, "print the result as JSON")
    name: str = option(
        "", "directory of the results under logs/audit on the volume", default_help="data set and policy",
        kind="directory name",
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.check_options()


def parse_cameras(text: str) -> dict[str, str]:
    """Return the video of each camera in CAMERA=VIDEO,…. Raises ValueError for another form."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    for camera, equals, video in pairs:
        if not (camera and equals and video):
            raise ValueError(f"invalid --cameras {camera!r}; expected CAMERA=VIDEO,…")
    return {camera: video for camera, _, video in pairs}
