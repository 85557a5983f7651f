"""A data set written anew in LeRobot v2.1: of LIBERO's files, or of a set whose films are slow to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_common.volume import require_space
from vla_datasets import marks, telling
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.writing import OWN, Writer

if TYPE_CHECKING:
    from vla_datasets.hdf5 import LiberoFiles


def recode(dataset: LeRobotDataset | LiberoFiles, folder: Path) -> LeRobotDataset:
    """Writes `dataset` into `folder`, which must not exist, and returns it: the same numbers, films of short groups.

    Episodes that are marked as bad are left out, and the others numbered anew.
    """
    require_space(folder, telling.size(dataset.folder))
    if text := marks.leave_out(dataset).left_out:
        print(f"{dataset.name}: {text}")
    modality, robot = dataset.modality, dataset.info.get("robot_type") or "unknown"
    columns = set(_columns(dataset)) - OWN.keys()
    films = [key for key in dataset.video_keys if _has(dataset, key)]
    features = {key: _feature(dataset, key, key in films) for key in dataset.features if key in columns or key in films}
    writer = Writer(folder, robot, dataset.fps, features, modality, dataset.source)
    for place, episode in enumerate(dataset.episodes):
        telling.progress(place, len(dataset.episodes))
        rows = {key: dataset.columns(episode.index)[key] for key in columns}
        shown = {key: dataset.frames(episode.index, key) for key in films}
        writer.add(rows, shown, episode.tasks[0] if episode.tasks else "")
    return writer.finish()


def _columns(dataset: LeRobotDataset | LiberoFiles) -> list[str]:
    """Returns the columns of numbers that there are features for."""
    there = dataset.columns(dataset.episodes[0].index)
    return [key for key in dataset.column_keys if key in there and there[key].dtype != object]


def _has(dataset: LeRobotDataset | LiberoFiles, key: str) -> bool:
    """Returns whether there are pictures: info.json of a real set may promise some that nobody made."""
    if not isinstance(dataset, LeRobotDataset) or dataset.features[key]["dtype"] != "video":
        return True
    return any(os.path.lexists(dataset.video_path(episode.index, key)) for episode in dataset.episodes)


def _feature(dataset: LeRobotDataset | LiberoFiles, key: str, is_film: bool) -> dict[str, Any]:
    feature = dataset.features[key]
    if not is_film:
        return feature
    height, width = dataset.frames(dataset.episodes[0].index, key, [0]).shape[1:3]
    return {"dtype": "video", "shape": [height, width, 3]}
