"""The program's flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.metaworld import tasks
from services.metaworld.datasets import layout
from vla_common.options import option
from vla_datasets import FORMATS_HELP
from vla_evaluation.dataset_options import DatasetOptions


@dataclass(frozen=True)
class MetaworldDatasetOptions(DatasetOptions):
    """Make a data set from a recording or a run of Meta-World."""

    CAMERAS = tasks.CAMERAS

    format: Literal["lerobot", "lerobot-v3.0", "hdf5"] = option("lerobot", FORMATS_HELP)
    cameras: str = layout.FIRST

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format == "hdf5":
            raise ValueError("--format hdf5 is LIBERO's own; for Meta-World use lerobot-v3.0 or lerobot")
