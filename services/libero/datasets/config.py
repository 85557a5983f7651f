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
    """Make a data set of a recording, a run or another data set; or read one: say what is in it, check it, show it."""

    CAMERAS = suites.CAMERAS

    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] | None = option(None, FORMATS_HELP)
    cameras: str = "agentview,robot0_eye_in_hand"
    write_stats: bool = option(False, "write its statistics in meta/ anew; nothing else writes into a data set")
    bad: str = option("", "mark these episodes as bad: training leaves them out", kind="ranges", metavar="3,7-9")
    good: str = option("", "take that back", kind="ranges", metavar="3,7-9")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.makes and any(self.marks):
            raise ValueError("--bad and --good mark episodes of a data set that is there; leave --format out")

    @property
    def marks(self) -> tuple[list[int], list[int]]:
        """The episodes to mark as bad, and those to mark no longer."""
        bad, good = (parse_ranges(text) if text else [] for text in (self.bad, self.good))
        return bad, good

    @property
    def makes(self) -> bool:
        """Whether a data set is to be made."""
        return self.format is not None
