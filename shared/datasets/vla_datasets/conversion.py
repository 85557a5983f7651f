"""Convert a data set of any layout to LeRobot v2.1 or v3.0."""

from __future__ import annotations

import os
from pathlib import Path

from vla_common.volume import require_space
from vla_datasets import marks, summary
from vla_datasets.dataset import Dataset
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.v3_writing import V3Writer
from vla_datasets.writing import DEFAULT_COLUMNS, Writer

WRITERS = {"lerobot": Writer, "lerobot-v3.0": V3Writer}
SUFFIXES = {"lerobot-v3.0": "-v3.0", "hdf5": "-hdf5"}  # of a set that is named after its source


def recode(dataset: Dataset, directory: Path, layout: str = "lerobot") -> LeRobotDataset:
    """Write `dataset` into a new directory, its videos re-encoded with short groups; return it.

    layout: a key of WRITERS.

    Episodes that are marked as bad are left out; the rest are renumbered.
    """
    copies = 2 if WRITERS[layout] is V3Writer else 1  # episodes are joined at the end
    require_space(directory, copies * summary.size(dataset.directory))
    if text := marks.leave_out(dataset).left_out:
        print(f"{dataset.name}: {text}")
    first = dataset.episodes[0].index
    columns = dataset.columns(first)
    numbers = [key for key in dataset.column_keys if key in columns and columns[key].dtype != object]
    numbers = [key for key in numbers if key not in DEFAULT_COLUMNS]
    # info.json may list videos that do not exist
    paths = {
        key: (dataset.images_path(episode.index, key) for episode in dataset.episodes) for key in dataset.video_keys
    }
    cameras = [key for key in dataset.video_keys if any(map(os.path.lexists, paths[key]))]
    features = {key: dataset.features[key] for key in dataset.features if key in numbers}
    for key in cameras:
        height, width = dataset.frames(first, key, [0]).shape[1:3]
        features[key] = {"dtype": "video", "shape": [height, width, 3]}
    features = {key: features[key] for key in dataset.features if key in features}
    robot = dataset.info.get("robot_type") or "unknown"
    writer = WRITERS[layout](directory, robot, dataset.fps, features, dataset.modality, dataset.source)
    for number, episode in enumerate(dataset.episodes):
        summary.progress(number, len(dataset.episodes))
        rows = {key: dataset.columns(episode.index)[key] for key in numbers}
        frames = {key: dataset.frames(episode.index, key) for key in cameras}
        writer.add(rows, frames, episode.tasks[0] if episode.tasks else "")
    return writer.finish()
