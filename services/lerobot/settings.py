"""Flags of the service, whose defaults are VLALAB_LEROBOT_* variables, and the checkpoint that they name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vla_common.options import Options, option
from vla_common.volume import Volume
from vla_modelkit import checkpoint_options
from vla_modelkit.checkpoint import find_directory

PREFIX = "VLALAB_LEROBOT_"


@dataclass(frozen=True)
class CheckpointSettings(checkpoint_options.CheckpointOptions):
    """Download a LeRobot checkpoint and the repositories that it names, or make a tiny random one."""

    type: str = option("act", "with --tiny: its policy type, such as act, diffusion or smolvla", metavar="TYPE")
    remote_code: bool = option(
        False, "download the Python files of tokenizers as well, which the service runs if allowed", group="internal"
    )


@dataclass(frozen=True)
class ModelSettings(Options):
    """Which checkpoint, and how it runs. Every flag's default is the variable VLALAB_LEROBOT_<FLAG>."""

    checkpoint: str = option(
        "", "a directory under checkpoints/ on the volume, or a path",
        default_help="what .env or the shell names", kind="checkpoint",
    )  # fmt: skip
    cameras: str = option(
        "", "image key = camera of the benchmark, with commas: image=agentview,image2=robot0_eye_in_hand",
        default_help="the table of known robots", metavar="KEY=CAMERA",
    )  # fmt: skip
    statistics: str = option(
        "", "of a checkpoint with statistics of several data sets, the one to normalize by: so100.buffer",
        default_help="the only one", metavar="NAME",
    )  # fmt: skip
    robot: str = option("", "libero, pusht or aloha", default_help="by the sizes of state and action")
    device: str = option("auto", "auto, cpu, cuda or cuda:N", group="internal")
    remote_code: bool = option(False, "run code from a checkpoint's repository", group="internal")
    max_batch: int = option(8, "most observations in one pass", "[1, 64]", group="internal")
    seed: int = option(0, "of the noise", group="internal")

    def __post_init__(self) -> None:
        self.check_options()
        self.camera_table()

    def camera_table(self) -> dict[str, str]:
        """Return image key → camera. Raises ValueError for a pair without `=`."""
        pairs = [pair.partition("=") for pair in self.cameras.split(",") if pair]
        for key, equals, camera in pairs:
            if not (key and equals and camera):
                raise ValueError(f"invalid camera {key + equals!r} in {PREFIX}CAMERAS; expected KEY=CAMERA")
        return {key.strip(): camera.strip() for key, _, camera in pairs}


def checkpoint_directory(name: str, volume: Volume | None = None) -> Path:
    """Return the directory that `name` means. Raises CheckpointError with those on the volume, or how to get one."""
    how = "get one with `./lab checkpoint lerobot --repo OWNER/NAME` or `./lab checkpoint lerobot --tiny`"
    return find_directory(name, f"{PREFIX}CHECKPOINT", how, volume)
