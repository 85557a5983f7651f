"""The interface of a data set of either layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_datasets.metadata import Episode
from vla_datasets.statistics import Statistics


class Dataset(ABC):
    """Episodes of columns (an array per feature, a row per step) and one video per camera. Reading never writes.

    info      info.json: codebase_version, robot_type, fps, chunks_size, total_…, features
    modality  GR00T's modality.json, None where there is none
    source    meta/source.json of a set that the lab made, else None
    episodes  those to read; `marks.leave_out` removes some
    tasks     instructions by task_index
    left_out  how many episodes were removed
    """

    directory: Path
    info: dict[str, Any]
    modality: dict[str, Any] | None
    source: dict[str, Any] | None
    episodes: list[Episode]
    tasks: dict[int, str]
    left_out = 0

    @property
    def name(self) -> str:
        return self.directory.stem if self.directory.is_file() else self.directory.name

    @property
    def fps(self) -> float:
        return float(self.info["fps"])

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        return self.info["features"]

    @property
    def video_keys(self) -> tuple[str, ...]:
        """The features that are images, whether they are in videos or in the rows."""
        return tuple(key for key, feature in self.features.items() if feature["dtype"] in ("video", "image"))

    @property
    def column_keys(self) -> tuple[str, ...]:
        """The features that are numbers."""
        return tuple(key for key in self.features if key not in self.video_keys)

    def __len__(self) -> int:
        return sum(episode.length for episode in self.episodes)

    @abstractmethod
    def columns(self, episode_index: int) -> dict[str, np.ndarray]:
        """Return an array [T, …] for each column of an episode. They are cached: do not write to them."""

    @abstractmethod
    def frames(self, episode_index: int, video_key: str, indices: Sequence[int] | None = None) -> np.ndarray:
        """Return uint8 [n, H, W, 3], top row first: those frames of an episode, all by default."""

    @abstractmethod
    def images_path(self, episode_index: int, video_key: str) -> Path:
        """Return the file that an episode's images are in: a video, or the rows themselves."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return {feature: {min, max, mean, std, q01, q99}}, float64 [n], of `episodes`."""
