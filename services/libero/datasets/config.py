"""The program's flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.libero.simulator import suites
from vla_common.options import option
from vla_datasets import FORMATS_HELP
from vla_evaluation.config import parse_ranges
from vla_evaluation.dataset_options import DatasetOptions


@dataclass(frozen=True)
class DatasetConfig(DatasetOptions):
    """Make a data set from a recording, a run or another data set; or describe, check or show an existing one."""

    CAMERAS = suites.CAMERAS

    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] | None = option(None, FORMATS_HELP)
    cameras: str = "agentview,robot0_eye_in_hand"
    scenes: int = option(
        0, "also render this many rearranged steps per episode, with the places of things as labels", "[0, 10000]"
    )
    scenes_only: bool = option(False, "no videos: mini-VLA learns from the scenes and the numbers alone")
    write_stats: bool = option(False, "rewrite the statistics in meta/; no other option modifies a data set")
    bad: str = option("", "mark these episodes as bad: training skips them", kind="ranges", metavar="3,7-9")
    good: str = option("", "unmark these episodes", kind="ranges", metavar="3,7-9")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.makes and any(self.marks):
            raise ValueError("--bad and --good mark episodes of an existing data set; remove --format")

        if self.scenes and self.format == "hdf5":
            raise ValueError("--scenes is for LeRobot's layouts; use --format lerobot")
        if self.scenes_only and not self.scenes:
            raise ValueError("--scenes-only requires --scenes, the number per episode, for example 60")

    @property
    def marks(self) -> tuple[list[int], list[int]]:
        """The episodes to mark as bad, and those to unmark."""
        bad, good = (parse_ranges(text) if text else [] for text in (self.bad, self.good))
        return bad, good

    @property
    def makes(self) -> bool:
        """Whether a data set is to be made."""
        return self.format is not None
